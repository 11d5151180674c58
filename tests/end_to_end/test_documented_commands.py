"""Every command of the pages for users of sumo-rl and stable-baselines3, in a folder of its own."""

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.trips import read_trips
from tests.conftest import ROOT
from tests.end_to_end.programs import free_port

PAGES = ("coming-from-sumo-rl.md", "coming-from-stable-baselines3.md")
NEEDS_TORCH = "examples/train_with_stable_baselines3.py"
TIMEOUT_S = 120


def commands(page):
    """The scripts of a page: blocks of sh, and lines after $ in blocks of console."""
    blocks = re.findall(r"^```(sh|console)\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.M | re.S)
    return [
        "\n".join(re.findall(r"^\$ (.*)", text, re.M)) if kind == "console" else text.strip() for kind, text in blocks
    ]


class Folder:
    """A user's folder, with the programs of this environment on the path."""

    def __init__(self, path):
        self.path = path
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        self._options = {"cwd": path, "env": environment, "text": True}
        self._server = None

    def run(self, script):
        done = subprocess.run(["bash", "-e", "-c", script], capture_output=True, timeout=TIMEOUT_S, **self._options)
        assert done.returncode == 0, f"{script}: {done.stdout}{done.stderr}"
        return done.stdout

    def serve(self, command):
        city = self.path / "city.toml"
        city.write_text(city.read_text().replace("127.0.0.1:8500", f"127.0.0.1:{free_port()}"))
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._server = subprocess.Popen(command.split(), **output, **self._options)
        assert self._server.stdout.readline().startswith("ready at ")

    def close(self):
        if self._server is not None:
            self._server.terminate()
            self._server.wait(30)
            self._server.stdout.close()


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("sumo_rl") is None, reason="sumo-rl, whose networks the pages use, is not installed"
)
def test_commands_of_both_pages_lead_to_a_controlled_street(shared, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    # it observes as many lanes as the pages' signal has
    policy = shared / "checkpoints" / "torch" / "sb3_ppo_cologne1" / "model.zip"
    shutil.copy(policy, tmp_path / "checkpoints" / "ppo_t_trial_1.zip")
    first, second = map(commands, PAGES)
    assert [sum("greenserve" in script for script in scripts) for scripts in (first, second)] == [5, 4]
    outputs = {}
    for scripts in (first, second):
        with contextlib.closing(Folder(tmp_path)) as folder:
            for script in scripts:
                if script == "greenserve serve":
                    folder.serve(script)
                elif NEEDS_TORCH not in script:
                    outputs[script] = folder.run(script)
    assert "t   1        sumo-rl  matches" in outputs["greenserve check"]
    inspected = outputs["greenserve inspect checkpoints/ppo_t_trial_1.zip"]
    assert "would be exported as mlp tanh, 21 -> 64 -> 64 -> 4" in inspected
    assert read_trips(tmp_path / "trips.xml").total > 700
