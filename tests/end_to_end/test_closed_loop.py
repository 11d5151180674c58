"""The served closed loop is the in-process one, trip by trip."""

import json
import subprocess
import sys

import numpy as np
import pytest

from controller.assembly import assemble
from controller.sumo.libsumo_link import start_libsumo
from controller.sumo.tripinfo import TRIPINFO_OPTIONS, read_trips
from export import contract, locate
from export.actors import architectures, numpy_actor
from export.rebuild import Wanted, rebuild
from tests.conftest import GRID
from tests.end_to_end.programs import CITY

pytestmark = pytest.mark.alone

END_S = 900


class InProcess:
    """The checkpoints' own actors, evaluated here."""

    def __init__(self, city, policies):
        self.policies = policies
        self.actors = {}
        for tl in policies:
            found = locate.choose(tl, locate.candidates(city.training.model_path), city.training.model_path, None)
            categorical = policies[tl].action.kind == "categorical"
            shape = architectures.Shape()
            wanted = Wanted(tl, None, (), None, shape, categorical, inputs=None, outputs=None)
            self.actors[tl] = rebuild(found, wanted).actor

    def ask(self, observations, observed_s=None):
        answers = {}
        for tl, x in observations.items():
            categorical = self.policies[tl].action.kind == "categorical"
            out = numpy_actor.evaluate(self.actors[tl], x[None], categorical)
            answers[tl] = np.array([out.argmax()]) if categorical else out[0]
        return answers


def trips(path):
    return sorted(line.strip() for line in path.read_text().splitlines() if "<tripinfo " in line)


@pytest.fixture(scope="module")
def in_process(grid_city, grid_street, tmp_path_factory):
    path = tmp_path_factory.mktemp("closed_loop") / "tripinfo.xml"
    policies = {tl: contract.build(grid_city, settings, grid_street) for tl, settings in grid_city.tls.items()}
    options = ["-c", str(GRID / "grid.sumocfg"), "--seed", "7", "--no-step-log", "true", "--no-warnings", "true"]
    link = start_libsumo([*options, "--tripinfo-output", str(path), *TRIPINFO_OPTIONS])
    try:
        steps = assemble(
            link,
            grid_street,
            list(policies.values()),
            InProcess(grid_city, policies),
            grid_city.safety,
            grid_city.controller,
        )
        while steps.now < END_S:
            steps.step(END_S)
    finally:
        link.close()
    return path


@pytest.mark.parametrize("how", ["traci", "libsumo"])
def test_served_trips_are_the_in_process_ones(how, in_process, grid_server, tmp_path):
    path = tmp_path / "tripinfo.xml"
    command = [sys.executable, "-m", "controller", "--city", CITY, "--server", grid_server, "--seed", "7"]
    command += ["--end", str(END_S), "--tripinfo", str(path), "--http", "127.0.0.1:0"]
    done = subprocess.run([*command, *(["--libsumo"] if how == "libsumo" else [])], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert trips(path) == trips(in_process)
    assert read_trips(path).all > 300


@pytest.mark.parametrize("options", [["--step-length", "0.5"], ["--step-length", "0.1"], ["--begin", "97"]])
def test_other_steps_and_begin_times_are_controlled_as_well(options, grid_server, tmp_path):
    summary = tmp_path / "summary.json"
    command = [sys.executable, "-m", "controller", "--city", CITY, "--server", grid_server, "--end", "300"]
    command += ["--http", "127.0.0.1:0", "--summary", str(summary), "--", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told = json.loads(summary.read_text())
    assert told["second"] == 300 and told["failures"] == 0 and told["refusals"] == 0
    begin = 97 if options[0] == "--begin" else 0
    # five TLs decide every 5 s, two every 8 s, one every other cycle
    assert told["decisions"] >= 5 * (300 - begin) // 5 + 2 * ((300 - begin) // 8)
