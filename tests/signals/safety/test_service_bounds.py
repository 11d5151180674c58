"""Max green and max red: which links they apply to, when they are exceeded and which phase serves."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from signals.safety.conflicts import ConflictRules, OverrideReason
from signals.safety.safety_times import SafetyTimes
from signals.safety.service_bounds import ServiceBounds
from signals.safety.signal_safety import SignalSafety
from tests.signals.safety.test_signal_safety import SIGNALS

GREENS = ["GgGr", "rrrG"]


def bounds_of(signal, greens=GREENS, **times):
    return ServiceBounds(ConflictRules(signal), SafetyTimes(3, 5, **times), greens)


def test_bounds_apply_to_links_that_some_phases_serve_and_others_do_not(crossing):
    assert bounds_of(crossing, ["GgGr", "Grrr"]).links == [1, 2]
    assert bounds_of(crossing, ["GgGr"]).links == []


def test_first_bound_is_exceeded_by_the_colour_of_each_link(crossing):
    since = [10.0, 11.0, 12.0, 13.0]
    bounds = bounds_of(crossing, max_green_s=20, max_red_s=90)
    assert bounds.first_exceeded_s("GgGr", since, {}) == 30.0
    assert bounds.first_exceeded_s("rrrr", since, {}) == 100.0
    assert bounds.first_exceeded_s("yyyr", since, {}) == 103.0, "a yellow has no bound"
    assert bounds_of(crossing).first_exceeded_s("GgGr", since, {}) == math.inf
    assert bounds_of(crossing, (), max_green_s=20).first_exceeded_s("GgGr", since, {}) == math.inf


def test_max_red_is_the_smaller_bound_of_a_link_and_its_movement(crossing):
    since, movements_s = [10.0, 11.0, 12.0, 13.0], (math.inf, 90, 30, 120)
    alone, both = (bounds_of(crossing, movement_max_red_s=movements_s, **more) for more in ({}, {"max_red_s": 60}))
    assert alone.first_exceeded_s("GGrr", since, {}) == 42.0 and alone.first_exceeded_s("GGGr", since, {}) == 133.0
    assert both.first_exceeded_s("rGGr", since, {}) == 70.0, "a link without a bound of its own has that of all"
    for now, forced in ((41.999, None), (42.0, (OverrideReason.MAX_RED, "GgGr"))):
        assert both.forced("rrrG", since, {}, "rrrG", now) == alone.forced("rrrG", since, {}, "rrrG", now) == forced


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_link_waits_for_longer_than_its_own_bounds_and_the_time_to_serve_it(data):
    signal = data.draw(st.sampled_from([signal for signal in SIGNALS.values() if len(signal.plan.greens) > 1]))
    greens = [signal.plan.phases[i].state for i in signal.plan.greens]
    links = len(signal.links)
    bounds = st.lists(st.sampled_from([8.0, 40.0, 90.0, math.inf]), min_size=links, max_size=links)
    times = SafetyTimes(
        3,
        5,
        max_green_s=data.draw(st.sampled_from([math.inf, 25.0])),
        max_red_s=data.draw(st.sampled_from([math.inf, 150.0])),
        movement_max_red_s=data.draw(bounds),
        max_unprotected_s=data.draw(bounds),
    )
    safety = SignalSafety(signal, times, greens)
    bounded = [i for i in range(links) if {green[i] in "Gg" for green in greens} == {True, False}]
    serving_s = (1 + len(greens)) * safety.clearing_s
    bound_s = {i: min(times.max_red_s, times.movement_max_red_s[i]) + serving_s for i in bounded}
    safety.start_from(greens[0], 0)
    red_since = dict.fromkeys(bounded, 0)
    protected = [i for i in range(links) if {green[i] == "G" for green in greens} == {True, False}]
    unprotected_since = dict.fromkeys(protected, 0)
    requests = data.draw(st.lists(st.tuples(st.sampled_from([*greens, "r" * links]), st.integers(1, 200)), max_size=12))
    for now, requested in enumerate(requested for requested, seconds in requests for _ in range(seconds)):
        shown = safety.permit(requested, now)[0].state
        for i in bounded:
            red_since[i] = red_since[i] if shown[i] == "r" else now
            assert now - red_since[i] <= bound_s[i], (i, now)
        for i in protected:
            unprotected_since[i] = unprotected_since[i] if shown[i] != "G" else now
            assert now - unprotected_since[i] <= times.max_unprotected_s[i] + serving_s, (i, now)


MAX_GREEN = OverrideReason.MAX_GREEN


@pytest.mark.parametrize(
    ("greens", "state", "ages", "requested", "forced"),
    [
        (GREENS, "GgGr", (20, 20, 20, 1), "GgGr", (MAX_GREEN, "rrrG")),
        (GREENS, "GgGr", (19, 19, 19, 30), "GgGr", None),  # the green has not expired, however long the foe waits
        (GREENS, "rrrG", (30, 30, 30, 10), "rrrG", None),  # a red that is older than max green is no expired green
        (GREENS, "GgGr", (20, 20, 20, 1), "rrrG", None),  # the requested state ends the green by itself
        (GREENS, "GgGr", (20, 20, 20, 1), "rrrr", None),
        (GREENS, "rrrr", (30, 30, 30, 30), "GgGr", None),  # a red that is to turn green is no expired green
        (["Grrr", "rgrr"], "Grrr", (30, 30, 30, 30), "Grrr", None),  # link 1, which waits, is no foe of link 0
    ],
)
def test_max_green_ends_a_green_only_for_a_foe_that_waits(crossing, greens, state, ages, requested, forced):
    since = [100.0 - age for age in ages]
    assert bounds_of(crossing, greens, max_green_s=20).forced(state, since, {}, requested, 100.0) == forced


def test_relieving_phase_ends_every_expired_green(crossing):
    # link 1 yields to links 0 and 2, so it may be green beside both
    crossing.foes[0, 1] = crossing.foes[1, 0] = crossing.yields[1, 0] = True
    bounds = bounds_of(crossing, ["GrGr", "Ggrr", "rgrr"], max_green_s=20)
    assert bounds.forced("GrGr", [0.0] * 4, {}, "GrGr", 30.0) == (MAX_GREEN, "rgrr")


THREE = ["GgGr", "rGrr", "rrrG"]
"""Greens that serve link 1 permissively, with protection, and not."""


def test_time_without_a_protected_green_counts_for_links_that_have_one_in_some_phases(crossing):
    bounds = bounds_of(crossing, [*THREE, "GGrr"], max_unprotected_s=(math.inf, 90, 60, 30))
    before = {2: 5.0, 9: 1.0}
    assert bounds.unprotected_since_s("GgGr", before, 10.0) == {1: 10.0, 3: 10.0}
    assert bounds.unprotected_since_s("rGrr", before, 10.0) == {2: 5.0, 3: 10.0}
    assert bounds_of(crossing, ["GgGr", "rgrr"], max_unprotected_s=(9, 9, 9, 9)).unprotected_since_s(
        "rrrr", {}, 1.0
    ) == {0: 1.0, 2: 1.0}, "link 1 has no protected green, link 3 none at all"
    assert bounds_of(crossing, ["GGrr", "rGrr"], max_unprotected_s=(9, 9, 9, 9)).unprotected_since_s(
        "rrrr", {}, 1.0
    ) == {0: 1.0}, "link 1 has always one"


def test_a_permissive_green_does_not_end_the_time_without_a_protected_one(crossing):
    bounds, since = bounds_of(crossing, THREE, max_unprotected_s=(math.inf, 90, math.inf, math.inf)), [0.0] * 4
    assert bounds.first_exceeded_s("GgGr", since, {1: 10.0}) == 100.0
    assert bounds.first_exceeded_s("rGrr", since, {}) == math.inf
    for now, forced in ((99.999, None), (100.0, (OverrideReason.MAX_RED, "rGrr"))):
        assert bounds.forced("GgGr", since, {1: 10.0}, "GgGr", now) == forced
        assert bounds.forced("rrrG", since, {1: 10.0}, "GgGr", now) == forced
    assert bounds.forced("GgGr", since, {1: 10.0}, "rGrr", 100.0) == (OverrideReason.MAX_RED, "rGrr")


def test_links_that_have_waited_longer_come_first_whatever_they_wait_for(crossing):
    bounds = bounds_of(crossing, THREE, max_red_s=60, max_unprotected_s=(math.inf, 90, math.inf, math.inf))
    since = [0.0, 0.0, 0.0, 30.0]
    assert bounds.forced("GgGr", since, {1: 10.0}, "GgGr", 100.0)[1] == "rGrr"
    assert bounds.forced("GgGr", since, {1: 31.0}, "GgGr", 121.0)[1] == "rrrG"


def test_max_green_ends_no_green_for_a_protected_one(crossing):
    crossing.foes[0, 1] = crossing.foes[1, 0] = crossing.yields[1, 0] = True
    times = dict(max_green_s=20, max_unprotected_s=(math.inf, 90, math.inf, math.inf))
    assert bounds_of(crossing, THREE, **times).forced("GyGG", [0.0] * 4, {1: 0.0}, "GrGG", 30.0) is None
