"""Ray's tasks without a cluster: their errors, and what their jobs have in common."""

from types import SimpleNamespace

import numpy as np
import pytest

from simulation.executors.ray_tasks import MIN_PART_BYTES, RayTasks, _Parts, _with_parts
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


def test_what_many_jobs_have_in_common_is_stored_once():
    store = []
    parts = _Parts(lambda value: store.append(value) or len(store) - 1)
    models, weights, small = b"m" * MIN_PART_BYTES, np.arange(MIN_PART_BYTES, dtype=np.float32), b"s"
    jobs = [{"index": index, "models": models, "weights": [weights, weights], "small": small} for index in range(5)]
    packed = [parts.taken_out(job) for job in jobs]
    assert len(store) == 2 and store[0] is models and store[1] is weights
    assert all(len(pickled) < MIN_PART_BYTES for pickled, *_ in packed)
    for job, (pickled, *references) in zip(jobs, packed, strict=True):
        found = _with_parts(pickled, [store[reference] for reference in references])
        assert (found["index"], found["models"], found["small"]) == (job["index"], models, small)
        assert all(own is weights for own in found["weights"])


def test_values_that_are_made_while_a_job_is_pickled_are_not_mistaken_for_each_other():
    """A freed value's identity is given to the next one."""
    store = []
    parts = _Parts(lambda value: store.append(bytes(value)) or len(store) - 1)
    for index in range(20):
        pickled, *references = parts.taken_out(Made(index))
        assert _with_parts(pickled, [store[reference] for reference in references]).content[0] == index


class Made:
    def __init__(self, index):
        self.content = [index]

    def __getstate__(self):
        return bytes([self.content[0]]) * MIN_PART_BYTES

    def __setstate__(self, state):
        self.content = state
