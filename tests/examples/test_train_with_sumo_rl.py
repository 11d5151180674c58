"""A trainer that is not ours beside the controller, in one simulation."""

import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.slow
def test_sumo_rl_trains_its_signals_while_the_controller_runs_the_others(tmp_path):
    command = [sys.executable, ROOT / "examples" / "train_with_sumo_rl.py", "--seconds", "300", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    episodes = [line.partition(":")[0] for line in done.stdout.splitlines() if line.startswith("episode")]
    assert episodes == ["episode 1", "episode 2"]
    for episode in (1, 2):
        summary = json.loads((tmp_path / f"episode_{episode}.json").read_text())
        assert summary["decisions"] > 200 and summary["missing_answers"] == summary["alarms"] == 0
        log = (tmp_path / f"episode_{episode}.log").read_text()
        assert "6 POLICY" in log and "released all signals" in log


@pytest.mark.slow
def test_controller_that_fails_ends_the_example_with_one_line(tmp_path):
    script = "import sys, train_with_sumo_rl as e; e.INFER_TLS = 'SA999'; sys.exit(e.pipeline.exit_code(e.main))"
    command = [sys.executable, "-c", script, "--out", tmp_path]
    done = subprocess.run(command, cwd=ROOT / "examples", capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("error: the simulation ended early"), (
        done.stderr
    )
    assert "SA999" in (tmp_path / "episode_1.log").read_text()
