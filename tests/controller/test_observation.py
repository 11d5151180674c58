"""Observations against the dialects' formulas, written out by hand."""

import numpy as np
import pytest

from controller.observation import EPSILON, ObservationBatch, Readings, SappoObserver, SumoRlObserver, shares_of

LENGTH_M = np.array([75.0, 30.0, 50.0])


def readings(vehicles, halting=(0, 0, 0), mean_length=(5, 5, 5), left=(0, 0, 0)):
    return Readings(np.array([vehicles, halting], float), np.array(mean_length, float), np.array(left, float))


def test_sumo_rl_is_phase_bit_densities_queues():
    seen = readings((3, 1, 9), (2, 0, 9))
    observer = SumoRlObserver(np.array([2, 0]), 3, greens=3)
    x = observer.observe(seen, shares_of(seen, LENGTH_M), (1,), True)
    assert x.dtype == np.float32 and len(x) == observer.size == 3 + 1 + 4
    # capacity of lane 0: 75 / (2.5 + 5) = 10; lane 2: 50 / 7.5, fuller than full
    assert x.tolist() == pytest.approx([0, 1, 0, 1, 1.0, 0.3, 1.0, 0.2])


def test_an_empty_lane_has_no_density_whatever_its_mean_length():
    seen = readings((0, 0, 0), mean_length=(0, 0, 0))
    assert shares_of(seen, LENGTH_M).density.tolist() == [0, 0, 0]


def test_sappo_blocks_are_each_scaled_by_their_own_maximum():
    observer = SappoObserver("vd", np.array([0, 1]), LENGTH_M, (4, 8))
    observer.observe(readings((0, 0, 0), left=(10, 5, 0)), None, (0, 0), True)
    observer.decided()
    # asked in between without a decision: the volume goes on counting
    observer.observe(readings((0, 0, 0), left=(12, 5, 0)), None, (0, 0), True)
    x = observer.observe(readings((3, 3, 0), left=(14, 13, 0)), None, (3, 7), True)
    # densities 3/75 and 3/30 per m; 4 and 8 vehicles left since the last decision
    assert x.tolist() == pytest.approx([0.4, 1.0, 0.5, 1.0, 3 / 7, 1.0])
    assert x.dtype == np.float32


def test_volume_counts_from_the_last_decision_and_starts_at_nothing():
    observer = SappoObserver("v", np.array([0]), LENGTH_M, (2,))
    first = observer.observe(readings((0, 0, 0), left=(7, 0, 0)), None, (0,), True)
    assert first.tolist() == [1.0, 0.0]  # (0 + eps) / eps: a street without traffic is all ones


def test_vdd_divides_volume_by_density():
    observer = SappoObserver("vdd", np.array([0, 1]), LENGTH_M, (2,))
    observer.observe(readings((0, 0, 0)), None, (0,), True)
    observer.decided()
    x = observer.observe(readings((3, 3, 0), left=(4, 8, 0)), None, (1,), True)
    a, b = 4 / (3 / 75 + EPSILON), 8 / (3 / 30 + EPSILON)
    assert x.tolist() == pytest.approx([1.0, b / a, 1.0])


def test_a_batch_sees_what_each_observer_sees_by_itself():
    rng = np.random.default_rng(0)
    seen = readings(rng.integers(0, 9, 3), rng.integers(0, 9, 3), (4, 5, 6), rng.integers(0, 99, 3))
    shared = shares_of(seen, LENGTH_M)
    make = {
        "A": lambda: SumoRlObserver(np.array([2, 0]), 3, greens=3),
        "B": lambda: SappoObserver("d", np.array([1, 2]), LENGTH_M, (4,)),
        "C": lambda: SumoRlObserver(np.array([1]), 3, greens=2),
    }
    clockworks = [((1,), True), ((3,), False), ((0,), False)]
    batch = ObservationBatch({tl: one() for tl, one in make.items()}).observe(seen, shared, clockworks)
    for (tl, one), clockwork in zip(make.items(), clockworks, strict=True):
        alone = one().observe(seen, shared, *clockwork)
        assert batch[tl].tolist() == alone.tolist() and batch[tl].dtype == np.float32
    assert list(batch) == list(make)


def test_what_is_marked_in_one_observation_is_not_in_the_next():
    seen = readings((3, 1, 9))
    batch = ObservationBatch({"A": SumoRlObserver(np.array([0]), 3, greens=3)})
    shared = shares_of(seen, LENGTH_M)
    batch.observe(seen, shared, [((2,), True)])
    assert batch.observe(seen, shared, [((0,), False)])["A"].tolist()[:4] == [1, 0, 0, 0]
