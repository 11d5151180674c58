"""The comparison of times to a policy: a snapshot after every update, one rule for both sides, medians over
trainings."""

import math
from pathlib import Path

import pytest

from benchmarks.environment import write_city
from benchmarks.time_to_policy import first_good, greenserve_delay_s, greenserve_snapshots, report
from tests.conftest import GRID


def test_first_snapshot_at_the_goal_ends_the_search(capsys):
    delays = {Path("a"): 21.0, Path("b"): 20.0, Path("c"): 5.0}
    assert first_good("ours", list(zip((10.0, 20.0, 30.0), delays, strict=True)), delays.pop, 20.0) == 20
    assert list(delays) == [Path("c")], "it is not simulated"
    assert "ours: after 10 s of training 21.0 s of mean delay" in capsys.readouterr().out
    assert first_good("ours", [], delays.pop, 20.0) == math.inf


def test_report_has_each_training_and_the_ratio_of_the_medians():
    lines = list(report(20, 600, {"ours": [50.0, 90.0, math.inf], "theirs": [300.0, 360.0, 900.0]}))
    assert lines[0].endswith("20 s of mean delay after 50 s, 90 s, not reached; median 90 s")
    assert lines[2] == "greenserve is 4.0 times as fast, in the median"
    lines = list(report(20, 600, {"ours": [60.0], "theirs": [math.inf]}))
    assert lines[1].endswith("not within 600 s in the median") and lines[2].startswith(
        "greenserve is more than 10.0 times"
    )
    assert len(list(report(20, 600, {"ours": [math.inf], "theirs": [60.0]}))) == 2, "there is no ratio"
    assert len(list(report(20, 600, {"ours": [60.0]}))) == 1, "theirs was skipped"


@pytest.mark.slow
def test_snapshot_of_a_training_is_exported_and_simulated(tmp_path):
    city = write_city("grid", GRID.parent, tmp_path, seconds=300)
    snapshots = greenserve_snapshots(city, tmp_path, 1, 600.0, ["--episodes", 3, "--episodes-per-update", 1])
    times_s = [time_s for time_s, _ in snapshots]
    assert 1 <= len(times_s) <= 3 and times_s == sorted(times_s)
    assert 0 < greenserve_delay_s(city, tmp_path, snapshots[0][1], [101]) < 300
