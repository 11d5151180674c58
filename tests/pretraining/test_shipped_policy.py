"""The shipped policy on plain kinds of signals, against the best baseline of each."""

import pytest

from evaluation.arms import parse
from pretraining import gate, plain_kinds
from pretraining.street_results import StreetJob, run_job

ARMS = "pretrained,fixed,actuated,max-pressure,greedy"
SEEDS = (1001, 1002)
NAMES = (
    "lanes-1",
    "lanes-3",
    "legs-5-lanes-1",
    "arrows-shared-lane",
    "pocket-60-lagging",
    "split-lanes-2",
    "one-way-grid",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_shipped_policy_is_as_good_as_the_best_baseline_below_capacity(name, tmp_path):
    streets = plain_kinds.write(tmp_path, [kind for kind in plain_kinds.KINDS if kind.name == name])
    (street,) = [street for street in streets if street.name == f"{name}-60"]
    delays = {}
    for arm in parse(ARMS):
        results = [run_job(StreetJob(name, street, seed, None, 1200.0, arm)) for seed in SEEDS]
        delays[arm.name] = sum(r.delay_s * r.total for r in results) / sum(r.total for r in results) + gate.EXTRA_S
    shipped = delays.pop("pretrained")
    assert shipped <= 1.1 * min(delays.values()), delays
