"""A trainer that is not ours in the environment: its policy is exported, served and controls."""

import importlib.util
import subprocess
import sys

import pytest

from tests.conftest import ROOT

COMMAND = [sys.executable, ROOT / "examples" / "train_in_the_environment.py"]
HAS_SB3 = importlib.util.find_spec("stable_baselines3") is not None


@pytest.mark.slow
@pytest.mark.skipif(not HAS_SB3, reason="stable-baselines3 is not installed (pip install torch stable-baselines3)")
def test_trained_policy_has_the_same_trips_under_the_controller(tmp_path):
    command = [*COMMAND, "--steps", "600", "--seconds", "600", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert "trips are those of the environment" in done.stdout


@pytest.mark.skipif(HAS_SB3, reason="stable-baselines3 is installed")
def test_example_without_stable_baselines3_says_what_to_install(tmp_path):
    done = subprocess.run([*COMMAND, "--out", tmp_path], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: stable-baselines3 is not installed")
    assert "pip install torch stable-baselines3" in done.stderr and not list(tmp_path.iterdir())
