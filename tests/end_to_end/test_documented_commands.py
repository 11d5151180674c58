"""Every command of the tutorial and of the pages for users of sumo-rl and stable-baselines3, in folders of their own."""

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

pytestmark = pytest.mark.slow
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


FILES = ("demand.rou.xml", "street.sumocfg", "city.toml", "make_weights.py", "compare.py")
"""The files of the page's xml, toml and python blocks, in order."""
BLOCK = r"^```(\w+)\n(.*?)^```"
VARYING = (
    (r"\d{4}-\d\d-\d\d[T ][\d:.,]+Z?", "TIME"),
    (r"\bms=\d+", "ms=N"),
    (r"\d+\.\d+ ms\b", "N ms"),
    (r"(, |in )\d+\.\d+ s$", r"\1N s"),
    (r"largest difference \S+?(?=[,\s]|$)", "largest difference N"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"(0\.\d{4})\d+", r"\1"),
)
"""Parts of lines that differ between machines and runs, and their replacement."""


def normalised(text, folder):
    text = text.replace(str(folder), "/tmp/crossing")
    for pattern, replacement in VARYING:
        text = re.sub(pattern, replacement, text, flags=re.M)
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def assert_agrees(documented, printed, folder):
    """Every documented line is printed, in order; a line of `...` stands for any others."""
    wanted, lines = normalised(documented, folder), normalised(printed, folder)
    assert wanted[-1].strip() != "..."
    is_gap, place = False, 0
    for line in wanted:
        if line.strip() == "...":
            is_gap = True
            continue
        found = lines.index(line, place) if line in lines[place:] else None
        assert found is not None, f"the page has\n{line}\nbut the program prints\n" + "\n".join(lines)
        assert is_gap or found == place, f"the page leaves out\n{lines[place]}"
        is_gap, place = False, found + 1
    assert is_gap or place == len(lines), f"the page leaves out\n{lines[place]}"


def test_every_command_of_the_tutorial_prints_what_the_page_shows(tmp_path):
    files, printed = iter(FILES), ""
    with contextlib.closing(Folder(tmp_path)) as folder:
        for kind, text in re.findall(BLOCK, (ROOT / "docs" / "tutorial.md").read_text(), re.M | re.S):
            if kind in ("xml", "toml", "python"):
                name = next(files)
                (tmp_path / name).write_text(text)
                if name == "compare.py":
                    printed = folder.run("python compare.py")
            elif kind == "sh":
                folder.run(re.sub(r"^(source|mkdir) .*\n", "", text, flags=re.M))
            elif kind == "text":
                assert_agrees(text, printed, tmp_path)
            elif text.startswith("$ greenserve serve"):
                folder.serve("greenserve serve")
            else:
                for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.M):
                    # check ends with 2 while there is no model; logs are on stderr
                    printed = folder.run(f"{command} 2>&1 || [ $? -eq 2 ]")
                    if output:
                        assert_agrees(output, printed, tmp_path)
    assert next(files, None) is None
