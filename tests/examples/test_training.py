"""The sample trainer: its checkpoints can be exported, and --resume continues an interrupted run."""

import subprocess
import sys

import pytest

from export.__main__ import main as export
from tests.conftest import GRID, ROOT

TARGETS = {"SA101": "tf1", "SA103": "h5", "SA108": "tf2"}


def train(out, episodes, *flags):
    command = [sys.executable, "train_ppo.py", "--city", "grid/city.toml", "--target-tl", ",".join(TARGETS), "--seconds", "300"]
    command += ["--episodes", str(episodes), "--trial", "3", "--out", str(out), *flags]
    for tl, kind in TARGETS.items():
        command += ["--format", f"{tl}={kind}"]
    done = subprocess.run(command, cwd=ROOT / "examples", capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("trained")
    train(out / "whole", 2)
    train(out / "parts", 1)
    train(out / "parts", 2, "--resume")
    return out


def test_curve_and_checkpoints_of_all_formats_are_written(trained):
    names = {path.name for path in (trained / "whole").rglob("*")}
    assert {"PPO-_SA101_trial_3.index", "PPO-_SA101_trial_3.meta", "SA108-3.index", "trial_3_curve.csv"} <= names
    assert [name for name in names if name.endswith("trial_3_SA103_actor.weights.h5")]
    assert len((trained / "whole" / "trial_3_curve.csv").read_text().splitlines()) == 3


def test_trained_checkpoints_are_exported(trained, tmp_path, capsys):
    flags = ["--city", str(GRID / "city.toml"), "--model-path", str(trained / "whole"), "--models-dir", str(tmp_path)]
    assert export([*flags, "--tl", ",".join(TARGETS)]) == 0
    assert sorted(path.name for path in tmp_path.glob("*/3")) == ["3", "3", "3"]


def test_a_resumed_run_continues_after_its_last_episode(trained):
    whole, parts = ((trained / name / "trial_3_curve.csv").read_text().splitlines() for name in ("whole", "parts"))
    assert [line.split(",")[0] for line in parts] == [line.split(",")[0] for line in whole] == ["episode", *"01"]
    assert whole[1] == parts[1], "the same seed must give the same first episode"


@pytest.mark.parametrize(
    ("flags", "reason"), [(["--format", "SA101=tf3"], "--format 'SA101=tf3' must be"), (["--episodes", "x"], "--episodes")]
)
def test_invalid_flags_give_one_error_line(flags, reason, tmp_path):
    command = [sys.executable, "train_ppo.py", "--city", "grid/city.toml", "--out", str(tmp_path), *flags]
    done = subprocess.run(command, cwd=ROOT / "examples", capture_output=True, text=True, timeout=120)
    errors = done.stderr.splitlines()
    assert done.returncode == 2 and len(errors) == 1 and reason in errors[0]
