"""Simulations of synthetic streets: the same again, whatever the process has simulated before."""

import pytest

from evaluation.arms import MAX_PRESSURE, Arm
from pretraining.street_results import StreetJob, run_job
from pretraining.synthetic.streets import generate

SEED = 1000050
"""Results of a street with conflicts in junctions that SUMO decides by the addresses of its objects."""


def simulated(folder, seconds):
    return run_job(StreetJob("", folder, 50, 200.0, seconds, Arm(MAX_PRESSURE, MAX_PRESSURE)))


@pytest.mark.slow
def test_a_simulation_is_the_same_again_after_others_in_the_same_process(tmp_path):
    congested, other = (generate(tmp_path, seed) for seed in (SEED, 3))
    found = []
    for k in range(5):
        found.append(simulated(congested, 400.0))
        simulated(other, 50.0 * (k + 1))
    assert found == 5 * found[:1] and found[0].finished > 50
