"""Served policies and the same actors in this process give the same trips."""

import contextlib
import json

import numpy as np
import pytest

from controller.__main__ import main
from controller.sumo.libsumo_connection import start_libsumo
from controller.sumo.tripinfo import TRIPINFO_OPTIONS
from export import locate
from export.actors import architectures
from export.checkpoints.source import ActorRequest
from export.rebuild import rebuild
from signals import contract
from signals.policy import Answer
from simulation.trips import read_trips
from tests.end_to_end.controlled_city import OPTIONS, ControlledCity
from tests.end_to_end.programs import CITY

END_S = 300


class InProcess:
    """The actors of the checkpoints, evaluated in this process."""

    def __init__(self, city, contracts):
        self.is_categorical = {tl: contracts[tl].action.kind == "categorical" for tl in contracts}
        path, hints = city.training.model_path, architectures.ArchitectureHints()
        search = locate.Search(path, locate.find_candidates(path))
        self.actors = {}
        for tl, is_categorical in self.is_categorical.items():
            wanted = ActorRequest(tl, None, (), None, hints, is_categorical, inputs=None, outputs=None)
            self.actors[tl] = rebuild(search.choose(tl, None), wanted).actor

    def ask(self, observations, observed_s=None):
        return {tl: Answer(self._action(tl, x[None])) for tl, x in observations.items()}

    def _action(self, tl, rows):
        output = self.actors[tl].evaluate(rows, self.is_categorical[tl])
        return np.array([output.argmax()]) if self.is_categorical[tl] else output[0]


@pytest.fixture(scope="module")
def in_process(grid_city, grid_street, tmp_path_factory):
    path = tmp_path_factory.mktemp("closed_loop") / "tripinfo.xml"
    contracts = {tl: contract.build(grid_city, settings, grid_street) for tl, settings in grid_city.tls.items()}
    connection = start_libsumo([*OPTIONS, "--seed", "7", "--tripinfo-output", str(path), *TRIPINFO_OPTIONS])
    with contextlib.closing(connection):
        policies = InProcess(grid_city, contracts)
        ControlledCity(connection, grid_city, grid_street, list(contracts.values()), policies).advance(END_S)
    return read_trips(path)


def control(server, *flags):
    """Control the sample city, with a deadline that answers keep also if other tests run beside this one."""
    assert main(["--city", CITY, "--server", server, "--deadline-ms", "20000", *flags]) == 0


@pytest.mark.parametrize("flags", [(), ("--libsumo",)], ids=["traci", "libsumo"])
def test_served_trips_equal_those_of_in_process_actors(flags, in_process, grid_server, tmp_path):
    path = str(tmp_path / "tripinfo.xml")
    control(grid_server, "--seed", "7", "--end", str(END_S), "--http", "127.0.0.1:0", "--tripinfo", path, *flags)
    trips = read_trips(tmp_path / "tripinfo.xml")
    assert trips == in_process and trips.total > 100


@pytest.mark.parametrize(("step_s", "begin_s"), [("0.5", 97), ("0.1", 0)])
def test_other_step_lengths_and_begin_times_are_controlled(step_s, begin_s, grid_server, tmp_path):
    summary = tmp_path / "summary.json"
    sumo_options = ("--", "--step-length", step_s, "--begin", str(begin_s))
    control(grid_server, "--libsumo", "--end", "300", "--summary", str(summary), *sumo_options)
    figures = json.loads(summary.read_text())
    assert figures["second"] == 300 and figures["missing_answers"] == 0 and figures["rejections"] == 0
    # five TLs decide every 5 s, two every 8 s, one every other cycle
    assert figures["decisions"] >= 5 * (300 - begin_s) // 5 + 2 * ((300 - begin_s) // 8)
