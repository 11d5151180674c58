"""The shipped policy on two synthetic streets that it gridlocked with earlier rules."""

import pytest

from evaluation.arms import parse
from pretraining.street_results import StreetJob, run_job
from pretraining.synthetic.streets import generate

ARMS = "pretrained,max-pressure"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "vehicles_per_lane_h"),
    [
        # a vehicle that waits for its left-turn arrow blocks a lane whose straight link is green
        pytest.param(78, 240.0, id="links of a lane with different greens"),
        # lanes of 21 m between junctions: the first vehicle is headed for a full exit, others are free
        pytest.param(71, 238.3, id="short lanes between junctions"),
    ],
)
def test_the_shipped_policy_has_less_delay_than_max_pressure_without_a_gridlock(seed, vehicles_per_lane_h, tmp_path):
    folder = generate(tmp_path, seed)
    jobs = [StreetJob("", folder, 50_000 + seed, vehicles_per_lane_h, 1200.0, arm) for arm in parse(ARMS)]
    found = [run_job(job) for job in jobs]
    assert found[0].finished >= 0.95 * found[1].finished and found[0].delay_s < found[1].delay_s
