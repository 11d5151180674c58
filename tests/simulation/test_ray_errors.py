"""Errors of Ray's tasks, without a cluster."""

from types import SimpleNamespace

import pytest

from simulation.executors.ray_tasks import RayTasks
from simulation.street_simulation import SimulationFailed


class RayError(Exception):
    pass


class RayTaskError(RayError):
    cause = None


@pytest.mark.parametrize("error", [RayTaskError(""), RayError(" \n")])
def test_error_without_text_is_a_failed_simulation(error):
    def get(task):
        raise error

    tasks = RayTasks.__new__(RayTasks)
    tasks._ray = SimpleNamespace(get=get, exceptions=SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError))
    with pytest.raises(SimulationFailed, match="task on Ray failed"):
        tasks._result(None)
