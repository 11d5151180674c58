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


def judged(canary, before=None, alarms=(), **limits):
    return of_canary(canary, bins() if before is None else before, alarms, replace(LIMITS, **limits)).value


OLD, NEW, MIXED = [20.0, 22.0, 19.0, 21.0], [15.1, 17.0, 14.0, 15.9], [21.0, 21.0, 20.0, 20.0]
"""Delays in simulations."""
BY_CHANCE = [1.0, 2.0, 3.5, 4.0], [0.0, 1.7, 2.0, 3.4]
"""Worse by p = 0.02, which one TL in 50 is by chance: TLs share one level."""


@pytest.mark.parametrize(
    ("new", "old", "by_tl", "value", "end"),
    [
        (NEW, OLD, {"SA101": (NEW, OLD)}, BETTER, ""),
        (OLD, NEW, {"SA101": (OLD, NEW)}, WORSE, ""),
        (OLD, NEW, {"SA101": (OLD, OLD)}, WORSE, ""),  # elsewhere in the network
        (MIXED, OLD, {"SA101": (MIXED, OLD)}, UNDECIDED, ""),
        ([10.0, 30.0, 9.0, 31.0], OLD, {"SA101": (OLD, OLD)}, UNDECIDED, "pass more --seeds"),
        (OLD, OLD, {"SA101": (OLD, OLD)}, UNDECIDED, ""),  # the same policy is not better
        (NEW, OLD, {"SA101": (NEW, OLD), "SA104": (OLD, NEW)}, WORSE, "before SA104"),
        (NEW, OLD, {"SA101": BY_CHANCE}, WORSE, ""),
        (NEW, OLD, {"SA101": BY_CHANCE, **{f"SA{k}": (NEW, OLD) for k in range(200, 220)}}, BETTER, ""),
    ],
)
def test_limits_of_evaluation(new, old, by_tl, value, end):
    verdict = of_evaluation(new, old, by_tl)
    assert verdict.value == value and verdict.sentence.endswith(end)


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
        ({"asked": 200, "missing": 4}, BETTER),
        ({"asked": 200, "missing": 5}, WORSE),
        ({"decisions": 0, "otherwise": 0}, BETTER),
    ],
)
def test_limits_of_shadow(change, value):
    assert shadowed(**change) == value


FEW = bins(15.0, vehicles=12.0), bins(vehicles=12.0)
NIGHT = bins(0.0, vehicles=0.0)
SCATTERED = {96 + k: Figures(BIN_S, 60, 0, 0, 20.0, 20.0 * value) for k, value in enumerate((2, 25, 4, 30))}


@pytest.mark.parametrize(
    ("canary", "before", "limits", "value"),
    [
        # compared with the same times of day
        (bins(), None, {}, BETTER),
        (bins(8.0), None, {}, BETTER),
        (bins(10.4), None, {}, BETTER),
        (bins(15.0), None, {}, WORSE),
        (bins(15.0, first=200), None, {}, UNDECIDED),
        (bins(15.0), {}, {}, UNDECIDED),
        # minimum of evidence
        (bins(15.0, count=3), None, {}, UNDECIDED),
        (*FEW, {}, UNDECIDED),
        (*FEW, {"min_vehicles": 40}, WORSE),
        (bins(15.0, decisions=24), None, {}, UNDECIDED),
        (bins(15.0, decisions=25), None, {}, WORSE),
        (NIGHT, NIGHT, {}, UNDECIDED),
        # a busier or quieter day is not the model's fault
        (bins(15.0, vehicles=26.5), None, {}, UNDECIDED),
        (bins(15.0, vehicles=25.5), None, {}, WORSE),
        (bins(4.0, vehicles=30.0), None, {}, BETTER),  # more pass because fewer wait
        (bins(10.0, vehicles=13.5), None, {"min_vehicles": 10}, UNDECIDED),
        (bins(10.0, vehicles=14.5), None, {"min_vehicles": 10}, BETTER),
        (bins(vehicles=2.0, halting_s=900.0), None, {"min_vehicles": 5}, WORSE),  # a jam: few pass because many wait
        # a time of day that is hardly covered is not compared
        (bins(15.0, seconds=0.79 * BIN_S), None, {}, UNDECIDED),
        (bins(15.0, seconds=0.81 * BIN_S), None, {}, WORSE),
        # small differences never count: 0.9 s per vehicle, 0.45 halting vehicles
        (bins(1.5), bins(0.6), {}, BETTER),
        (bins(1.8), bins(0.6), {}, WORSE),
        (bins(0.9375, vehicles=400.0), bins(0.6, vehicles=400.0), {}, BETTER),
        (bins(1.0125, vehicles=400.0), bins(0.6, vehicles=400.0), {}, WORSE),
        # wide intervals
        (SCATTERED, None, {}, UNDECIDED),
        # single missing answers are no evidence
        ({200: Figures(20.0, 4, 2)}, None, {}, UNDECIDED),
        ({200: Figures(20.0, 4, 3)}, None, {}, WORSE),
    ],
)
def test_limits_of_canary(canary, before, limits, value):
    assert judged(canary, before, **limits) == value


@pytest.mark.parametrize(("name", "permitted", "old"), [("missing", 4, 10), ("overridden", 120, 50)])
def test_missing_answers_and_overrides_count_at_once_beside_those_of_the_old_model(name, permitted, old):
    """240 decisions: 2 % are 4.8 missing answers, half are 120 overrides."""
    few = bins(first=200)  # no time of day in common: these are no averages
    few[200] = replace(few[200], **{name: permitted})
    assert judged(few) == UNDECIDED
    few[200] = replace(few[200], **{name: permitted + 1})
    assert judged(few) == WORSE
    assert judged(few, bins(**{name: old})) == UNDECIDED, "a bad old model does not block its successor"


def test_an_alarm_is_worse():
    assert judged(bins(), alarms=("GreenserveGreenKept",)) == WORSE


def test_thresholds_are_stated():
    assert "2% more missing answers" in LIMITS.text("shadow") and "50% of the deadline" in LIMITS.text("shadow")
    assert "10% more queue" in LIMITS.text("canary") and "50 vehicles" in LIMITS.text("canary")
