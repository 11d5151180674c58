"""Verdicts from figures: each limit from both sides, minima, and the days that say nothing."""

from dataclasses import replace

import pytest

from records.shadow import TlShadow
from rollout.verdicts import (
    BETTER,
    BIN_S,
    UNDECIDED,
    WORSE,
    Figures,
    Limits,
    of_canary,
    of_evaluation,
    of_shadow,
)

LIMITS = Limits()


def shadowed(p95_ms=5.0, recorded_p95_ms=4.0, **changes):
    """The verdict on 100 requests with a deadline of 500 ms."""
    figures = TlShadow(**{"asked": 100, "decisions": 100, "otherwise": 90, **changes}, latency_s=[p95_ms / 1000])
    return of_shadow(figures, recorded_p95_ms, 500.0, LIMITS).value


def bins(stopped_s=10.0, count=4, vehicles=20.0, first=96, **changes):
    """Times of day with a little noise around a stopped delay per vehicle."""
    return {
        first + k: replace(Figures(BIN_S, 60, 0, 0, vehicles, vehicles * (stopped_s + 0.1 * (k % 2))), **changes)
        for k in range(count)
    }


def judged(canary, before=None, alarms=(), limits=LIMITS):
    return of_canary(canary, bins() if before is None else before, alarms, limits).value


def test_a_shorter_delay_is_better_and_a_longer_one_worse():
    old = [20.0, 22.0, 19.0, 21.0]
    new = [15.1, 17.0, 14.0, 15.9]
    assert of_evaluation(new, old, {"SA101": (new, old)}).value == BETTER
    assert of_evaluation(old, new, {"SA101": (old, new)}).value == WORSE
    assert of_evaluation(old, new, {"SA101": (old, old)}).value == WORSE, "elsewhere in the network"
    mixed = [21.0, 21.0, 20.0, 20.0]
    assert of_evaluation(mixed, old, {"SA101": (mixed, old)}).value == UNDECIDED
    assert of_evaluation(old, old, {"SA101": (old, old)}).value == UNDECIDED, "the same policy is not better"


def test_a_better_network_does_not_excuse_a_worse_tl():
    old, new = [20.0, 22.0, 19.0, 21.0], [15.1, 17.0, 14.0, 15.9]
    verdict = of_evaluation(new, old, {"SA101": (new, old), "SA104": (old, new)})
    assert verdict.value == WORSE and verdict.sentence.endswith("before SA104")


def test_tls_share_one_level():
    """One of 20 TLs is worse by p = 0.02, which one in 50 is by chance."""
    old, new = [20.0, 22.0, 19.0, 21.0], [15.1, 17.0, 14.0, 15.9]
    by_chance = [1.0, 2.0, 3.5, 4.0], [0.0, 1.7, 2.0, 3.4]
    assert of_evaluation(new, old, {"SA101": by_chance}).value == WORSE
    others = {f"SA{k}": (new, old) for k in range(200, 220)}
    assert of_evaluation(new, old, {"SA101": by_chance, **others}).value == BETTER


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ({}, BETTER),
        ({"otherwise": 100}, BETTER),
        ({"asked": 99}, UNDECIDED),
        ({"missing": 2}, BETTER),
        ({"missing": 3}, WORSE),
        ({"overrides": 50}, BETTER),
        ({"overrides": 51}, WORSE),
        ({"overrides": 60, "recorded_overrides": 50}, BETTER),
        ({"overrides": 61, "recorded_overrides": 50}, WORSE),
        ({"p95_ms": 250.0}, BETTER),
        ({"p95_ms": 250.1}, WORSE),
        ({"p95_ms": 250.1, "recorded_p95_ms": 125.0}, WORSE),
        ({"p95_ms": 250.1, "recorded_p95_ms": 126.0}, UNDECIDED),
        ({"asked": 10, "missing": 10}, WORSE),
        ({"decisions": 0, "otherwise": 0}, BETTER),
    ],
)
def test_limits_of_shadow(change, value):
    assert shadowed(**change) == value


def test_missing_answers_below_the_share_are_no_reason():
    assert shadowed(asked=200, missing=4) == BETTER
    assert shadowed(asked=200, missing=5) == WORSE


def test_canary_is_compared_with_the_same_times_of_day():
    assert judged(bins()) == judged(bins(8.0)) == judged(bins(10.4)) == BETTER
    assert judged(bins(15.0)) == WORSE
    assert judged(bins(15.0, first=200)) == UNDECIDED, "another time of day"
    assert judged(bins(15.0), before={}) == UNDECIDED, "no earlier record"


def test_minimum_evidence_of_canary():
    worse = bins(15.0)
    assert judged(dict(list(worse.items())[:3])) == UNDECIDED
    few = bins(15.0, vehicles=12.0)
    assert judged(few, bins(vehicles=12.0)) == UNDECIDED
    assert judged(few, bins(vehicles=12.0), limits=replace(LIMITS, min_vehicles=40)) == WORSE
    assert judged(bins(15.0, decisions=24)) == UNDECIDED
    assert judged(bins(15.0, decisions=25)) == WORSE


def test_a_night_without_vehicles_is_no_evidence():
    night = bins(0.0, vehicles=0.0)
    assert judged(night, night) == UNDECIDED


def test_a_busier_day_is_not_the_models_fault_but_a_jam_is():
    assert judged(bins(15.0, vehicles=30.0)) == UNDECIDED
    assert judged(bins(15.0, vehicles=25.0)) == WORSE
    assert judged(bins(4.0, vehicles=30.0)) == BETTER, "more pass because fewer wait"
    quieter = bins(10.0, vehicles=10.0)
    assert judged(quieter, limits=replace(LIMITS, min_vehicles=10)) == UNDECIDED
    jam = bins(vehicles=2.0, halting_s=900.0)
    assert judged(jam, limits=replace(LIMITS, min_vehicles=5)) == WORSE, "few pass because many wait"


def test_a_time_of_day_that_is_hardly_covered_is_not_compared():
    assert judged(bins(15.0, seconds=0.79 * BIN_S)) == UNDECIDED
    assert judged(bins(15.0, seconds=0.81 * BIN_S)) == WORSE


def test_small_differences_never_count():
    assert judged(bins(1.5), bins(0.6)) == BETTER, "0.9 s per vehicle"
    assert judged(bins(1.8), bins(0.6)) == WORSE


def test_wide_intervals_are_no_evidence():
    scattered = {96 + k: Figures(BIN_S, 60, 0, 0, 20.0, 20.0 * value) for k, value in enumerate((2, 25, 4, 30))}
    assert judged(scattered) == UNDECIDED


@pytest.mark.parametrize(("name", "permitted", "old"), [("missing", 4, 10), ("overridden", 120, 50)])
def test_missing_answers_and_overrides_count_at_once_beside_those_of_the_old_model(name, permitted, old):
    """240 decisions: 2 % are 4.8 missing answers, half are 120 overrides."""
    few = bins(first=200)  # no time of day in common: these are no averages
    few[200] = replace(few[200], **{name: permitted})
    assert judged(few) == UNDECIDED
    few[200] = replace(few[200], **{name: permitted + 1})
    assert judged(few) == WORSE
    assert judged(few, bins(**{name: old})) == UNDECIDED, "a bad old model does not block its successor"


def test_single_missing_answers_are_no_evidence():
    tiny = {200: Figures(20.0, 4, 2)}
    assert judged(tiny) == UNDECIDED
    assert judged({200: Figures(20.0, 4, 3)}) == WORSE


def test_an_alarm_is_worse():
    assert judged(bins(), alarms=("GreenserveGreenKept",)) == WORSE


def test_thresholds_are_stated():
    assert "2% more missing answers" in LIMITS.text("shadow") and "50% of the deadline" in LIMITS.text("shadow")
    assert "10% more queue" in LIMITS.text("canary") and "50 vehicles" in LIMITS.text("canary")
