"""Served policies and the same actors in this process give the same trips."""

import json
import subprocess
import sys

import numpy as np
import pytest

from controller.assembly import ControlledTls, assemble
from controller.sumo.libsumo_connection import start_libsumo
from controller.sumo.tripinfo import TRIPINFO_OPTIONS
from export import locate
from export.actors import architectures
from export.checkpoints.source import ActorRequest
from export.rebuild import rebuild
from signals import contract
from signals.policy import Answer
from simulation.trips import read_trips
from tests.conftest import GRID
from tests.end_to_end.programs import CITY

pytestmark = pytest.mark.alone

END_S = 900


class InProcess:
    """The actors of the checkpoints, evaluated in this process."""

    def __init__(self, city, contracts):
        self.contracts = contracts
        self.actors = {}
        for tl in contracts:
            candidates = locate.find_candidates(city.training.model_path)
            candidate = locate.Search(city.training.model_path, candidates).choose(tl, None)
            hints = architectures.ArchitectureHints()
            wanted = ActorRequest(tl, None, (), None, hints, self._is_categorical(tl), inputs=None, outputs=None)
            self.actors[tl] = rebuild(candidate, wanted).actor

    def _is_categorical(self, tl):
        return self.contracts[tl].action.kind == "categorical"

    def ask(self, observations, observed_s=None):
        answers = {}
        for tl, x in observations.items():
            is_categorical = self._is_categorical(tl)
            output = self.actors[tl].evaluate(x[None], is_categorical)
            answers[tl] = Answer(np.array([output.argmax()]) if is_categorical else output[0])
        return answers


def trips(path):
    return sorted(line.strip() for line in path.read_text().splitlines() if "<tripinfo " in line)


@pytest.fixture(scope="module")
def in_process(grid_city, grid_street, tmp_path_factory):
    path = tmp_path_factory.mktemp("closed_loop") / "tripinfo.xml"
    contracts = {tl: contract.build(grid_city, settings, grid_street) for tl, settings in grid_city.tls.items()}
    options = ["-c", str(GRID / "grid.sumocfg"), "--seed", "7", "--no-step-log", "true", "--no-warnings", "true"]
    connection = start_libsumo([*options, "--tripinfo-output", str(path), *TRIPINFO_OPTIONS])
    try:
        loop = assemble(
            connection,
            ControlledTls(grid_street, list(contracts.values()), grid_city.safety, grid_city.controller),
            InProcess(grid_city, contracts),
        )
        while loop.now < END_S:
            loop.step(END_S)
    finally:
        connection.close()
    return path


@pytest.mark.parametrize("transport", ["traci", "libsumo"])
def test_served_trips_equal_those_of_in_process_actors(transport, in_process, grid_server, tmp_path):
    path = tmp_path / "tripinfo.xml"
    command = [sys.executable, "-m", "controller", "--city", CITY, "--server", grid_server, "--seed", "7"]
    command += ["--end", str(END_S), "--tripinfo", str(path), "--http", "127.0.0.1:0"]
    command += ["--libsumo"] if transport == "libsumo" else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert trips(path) == trips(in_process)
    assert read_trips(path).total > 300


@pytest.mark.parametrize(
    "options",
    [["--step-length", "0.5"], pytest.param(["--step-length", "0.1"], marks=pytest.mark.slow), ["--begin", "97"]],
)
def test_other_step_lengths_and_begin_times_are_controlled(options, grid_server, tmp_path):
    summary = tmp_path / "summary.json"
    command = [sys.executable, "-m", "controller", "--city", CITY, "--server", grid_server, "--end", "300"]
    command += ["--http", "127.0.0.1:0", "--summary", str(summary), "--", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    figures = json.loads(summary.read_text())
    assert figures["second"] == 300 and figures["missing_answers"] == 0 and figures["rejections"] == 0
    begin = 97 if options[0] == "--begin" else 0
    # five TLs decide every 5 s, two every 8 s, one every other cycle
    assert figures["decisions"] >= 5 * (300 - begin) // 5 + 2 * ((300 - begin) // 8)
