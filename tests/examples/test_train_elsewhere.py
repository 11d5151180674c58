"""Trainers that are not ours, in the environment and beside the controller: their policies control."""

import importlib.util
import json
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

TRAINERS = {
    "stable-baselines3": ("train_in_the_environment.py", [], "stable-baselines3"),
    "sb3-contrib": ("train_in_the_environment.py", ["--masks"], "sb3-contrib"),
    "CleanRL": ("train_with_cleanrl.py", [], "PyTorch or SuperSuit"),
    "CleanRL beside served TLs": (
        "train_with_cleanrl.py",
        ["--targets", "SA101,SA102", "--neighbours", "SA104"],
        "PyTorch or SuperSuit",
    ),
    "RLlib": ("train_with_rllib.py", [], "PyTorch or RLlib"),
}
"""(example, flags, the missing package in its error)"""
HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.mark.slow
@pytest.mark.parametrize("library", TRAINERS)
def test_trained_policy_has_the_same_trips_under_the_controller(library, pytorch, tmp_path):
    example, flags, _ = TRAINERS[library]
    command = [pytorch, ROOT / "examples" / example, *flags, "--steps", "1440", "--seconds", "600", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    (trips,) = re.findall(r"the controller's (\d+) trips are those of the environment", done.stdout)
    assert int(trips) > 50


@pytest.mark.slow
def test_stable_baselines3_and_supersuit_run_on_the_environment(pytorch):
    """The tests that need them pass, and none is skipped."""
    command = [
        pytorch,
        "-m",
        "pytest",
        "-m",
        "",
        "-k",
        "stable_baselines3 or supersuit or sb3_contrib or beside_its_training",
        "-p",
        "no:cacheprovider",
        "tests/environment/test_api.py",
        "tests/environment/test_episodes.py",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert re.search(r"^6 passed, \d+ deselected", done.stdout, re.MULTILINE), done.stdout + done.stderr


@pytest.mark.skipif(HAS_TORCH, reason="PyTorch is installed")
@pytest.mark.parametrize("library", TRAINERS)
def test_example_without_its_libraries_says_what_to_install(library, tmp_path):
    example, flags, missing = TRAINERS[library]
    command = [sys.executable, ROOT / "examples" / example, *flags, "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith(f"error: {missing} is not installed")
    assert "pip install torch" in done.stderr and done.stderr.count("\n") == 1 and not list(tmp_path.iterdir())


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
