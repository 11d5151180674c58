"""The line about the change times of an evaluation's arms."""

import argparse

import pytest

from evaluation import command
from evaluation.arms import parse
from tests.conftest import GRID


@pytest.mark.parametrize(
    ("arms", "line"),
    [
        (
            "max-pressure,fixed",
            "fixed and actuated have those of the programs, and the other arms others at A (yellow 6 s",
        ),
        # a policy for any junction has the times of its own dialect, and not those of [tl.A]
        ("pretrained,fixed", "every arm has those of each signal's own program"),
        ("fixed,actuated", "every arm has those of each signal's own program"),
    ],
)
def test_change_times_are_those_of_the_arms(arms, line, tmp_path):
    city = tmp_path / "city.toml"
    city.write_text(
        f'[network]\nsumocfg = "{GRID / "grid.sumocfg"}"\n[tl.A]\nsignals = ["A0"]\ndialect = "sumo-rl"\nyellow_s = 6\n'
    )
    args = argparse.Namespace(city=city, tl=None, seconds=60.0, strict=False, faults=None, emissions=False)
    *_, change_times = command._task(args, parse(arms))
    assert change_times.startswith(line)
