"""Readings of all lanes, and batches of observers of several dialects."""

import numpy as np

from signals.dialects.sappo import SappoObserver
from signals.dialects.sumo_rl import SumoRlObserver
from signals.observation import ObservationBatch, PhaseState, Readings, shares_of

LENGTH_M = np.array([75.0, 30.0, 50.0])


def readings(vehicles, halting=(0, 0, 0), mean_length=(5, 5, 5), outflow=(0, 0, 0)):
    return Readings(np.array([vehicles, halting], float), np.array(mean_length, float), np.array(outflow, float))


def test_empty_lane_has_no_density_whatever_its_mean_length():
    newest = readings((0, 0, 0), mean_length=(0, 0, 0))
    assert shares_of(newest, LENGTH_M).density.tolist() == [0, 0, 0]


def test_batch_equals_the_observers_one_by_one():
    rng = np.random.default_rng(0)
    newest = readings(rng.integers(0, 9, 3), rng.integers(0, 9, 3), (4, 5, 6), rng.integers(0, 99, 3))
    shares = shares_of(newest, LENGTH_M)
    make = {
        "A": lambda: SumoRlObserver(np.array([2, 0]), 3, greens=3),
        "B": lambda: SappoObserver("d", np.array([1, 2]), LENGTH_M, (4,)),
        "C": lambda: SumoRlObserver(np.array([1]), 3, greens=2),
    }
    phase_states = [PhaseState((1,), True), PhaseState((3,), False), PhaseState((0,), False)]
    batch = ObservationBatch({tl: observer() for tl, observer in make.items()}).observe(newest, shares, phase_states)
    for (tl, observer), phase_state in zip(make.items(), phase_states, strict=True):
        single = observer().observe(newest, shares, phase_state)
        assert batch[tl].tolist() == single.tolist() and batch[tl].dtype == np.float32
    assert list(batch) == list(make)


def test_one_hot_of_one_observation_does_not_leak_into_the_next():
    newest = readings((3, 1, 9))
    batch = ObservationBatch({"A": SumoRlObserver(np.array([0]), 3, greens=3)})
    shares = shares_of(newest, LENGTH_M)
    batch.observe(newest, shares, [PhaseState((2,), True)])
    assert batch.observe(newest, shares, [PhaseState((0,), False)])["A"].tolist()[:4] == [1, 0, 0, 0]
