"""Served policies and the same actors in this process give the same trips."""

import contextlib
import json

import numpy as np
import pytest

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
from tests.end_to_end.programs import controller

END_S = 600


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


def trips(path):
    return sorted(line.strip() for line in path.read_text().splitlines() if "<tripinfo " in line)


@pytest.fixture(scope="module")
def in_process(grid_city, grid_street, tmp_path_factory):
    path = tmp_path_factory.mktemp("closed_loop") / "tripinfo.xml"
    contracts = {tl: contract.build(grid_city, settings, grid_street) for tl, settings in grid_city.tls.items()}
    connection = start_libsumo([*OPTIONS, "--seed", "7", "--tripinfo-output", str(path), *TRIPINFO_OPTIONS])
    with contextlib.closing(connection):
        policies = InProcess(grid_city, contracts)
        ControlledCity(connection, grid_city, grid_street, list(contracts.values()), policies).advance(END_S)
    return path


def control(*flags):
    """Control the sample city, with a deadline that answers keep also if other tests run beside this one."""
    with controller("--deadline-ms", "20000", "--http", "127.0.0.1:0", *flags) as process:
        assert process.wait(120) == 0, process.stderr.read()


@pytest.mark.parametrize("transport", ["traci", "libsumo"])
def test_served_trips_equal_those_of_in_process_actors(transport, in_process, grid_server, tmp_path):
    path = tmp_path / "tripinfo.xml"
    flags = ("--server", grid_server, "--seed", "7", "--end", str(END_S), "--tripinfo", str(path))
    control(*flags, *(("--libsumo",) if transport == "libsumo" else ()))
    assert trips(path) == trips(in_process)
    assert read_trips(path).total > 200


@pytest.mark.parametrize(
    "options",
    [
        ["--step-length", "0.5", "--begin", "97"],
        pytest.param(["--step-length", "0.1"], marks=pytest.mark.slow),
    ],
)
def test_other_step_lengths_and_begin_times_are_controlled(options, grid_server, tmp_path):
    summary = tmp_path / "summary.json"
    control("--server", grid_server, "--end", "300", "--summary", str(summary), "--", *options)
    figures = json.loads(summary.read_text())
    assert figures["second"] == 300 and figures["missing_answers"] == 0 and figures["rejections"] == 0
    begin = 97 if "--begin" in options else 0
    # five TLs decide every 5 s, two every 8 s, one every other cycle
    assert figures["decisions"] >= 5 * (300 - begin) // 5 + 2 * ((300 - begin) // 8)
