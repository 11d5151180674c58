"""A signal that is permitted again only when something may change shows the same as one that is permitted every
second."""

import math
from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from signals.safety.safety_times import SafetyTimes
from signals.safety.signal_safety import SignalSafety
from tests.signals.safety.test_signal_safety import SIGNALS, walked

GREENS = ("GgGr", "rrrG")
SOME_TIMES = st.builds(
    SafetyTimes,
    yellow_s=st.sampled_from([0.0, 2.0, 3.0, 3.4]),
    min_green_s=st.sampled_from([0.0, 5.0, 6.5]),
    all_red_s=st.sampled_from([0.0, 1.0, 1.7]),
    max_green_s=st.sampled_from([math.inf, 20.0]),
    max_red_s=st.sampled_from([math.inf, 30.0]),
    red_by_path=st.booleans(),
    yellow_by_speed=st.booleans(),
)


def calls_needed(signal, greens, times, requests):
    """Follow requests, each for some seconds; return the number of calls that show what calls at every second show.

    Every third link has a max red of its own, 10 s less than the others, and every second one a bound on protected
    greens.
    """
    own_s = [math.inf if i % 3 else times.max_red_s - 10 for i in range(len(signal.links))]
    unprotected_s = [math.inf if i % 2 else times.max_red_s + 10 for i in range(len(signal.links))]
    times = replace(times, movement_max_red_s=own_s, max_unprotected_s=unprotected_s)
    every, sparse = SignalSafety(signal, times, greens), SignalSafety(signal, times, greens)
    for safety in (every, sparse):
        safety.start_from(greens[0], 0)
    now = calls = 0
    for requested, seconds in requests:
        due_s = float(now)
        for second in range(now, now + seconds):
            state, overrides = every.permit(requested, second)
            if second < due_s:
                assert not overrides
            else:
                assert sparse.permit(requested, second)[1] == overrides
                calls += 1
                due_s = sparse.next_change_s(second)
                if sparse.shows(requested):
                    due_s = max(sparse.state.bound_exceeded_at_s, second + 1.0)
            assert sparse.shown == state.state, (second, requested)
        now += seconds
    return calls


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    SOME_TIMES,
    st.lists(st.tuples(st.sampled_from([*GREENS, "rrrr", "GGGG", "ygyr", "GgG", "Grrr"]), st.integers(1, 40))),
)
def test_with_requests_of_any_kind(crossing, times, requests):
    calls_needed(crossing, GREENS, times, requests)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    SOME_TIMES, st.lists(st.tuples(st.sampled_from(["GGrrr", "rrGrr", "rrrGr", "rrrrG", "rrrrr"]), st.integers(1, 40)))
)
def test_with_pedestrians(crossing, times, requests):
    foes = np.pad(crossing.foes, (0, 1))
    foes[4, :3] = foes[:3, 4] = True
    calls_needed(walked(crossing, foes, 4), ("GGrrr", "rrrGr", "rrrrG"), times, requests)


@given(st.data(), SOME_TIMES)
def test_at_real_junctions(data, times):
    signal = SIGNALS[data.draw(st.sampled_from(sorted(SIGNALS)))]
    greens = [signal.plan.phases[i].state for i in signal.plan.greens]
    calls_needed(
        signal, greens, times, data.draw(st.lists(st.tuples(st.sampled_from(greens), st.integers(1, 60)), max_size=12))
    )


def test_a_change_of_greens_takes_few_calls(crossing):
    times = SafetyTimes(yellow_s=3, min_green_s=5, all_red_s=2, yellow_by_speed=False)
    assert calls_needed(crossing, GREENS, times, [("GgGr", 10), ("rrrG", 10)]) == 1 + 3
    assert calls_needed(crossing, GREENS, times, [("GgGr", 1), ("rrrG", 14)]) == 1 + 5, "min green first"


def test_next_call_is_a_second_later_from_the_moment_at_which_a_bound_is_exceeded(crossing):
    safety = SignalSafety(crossing, SafetyTimes(yellow_s=3, min_green_s=6.5, max_green_s=4), GREENS)
    safety.start_from(GREENS[0], 0)
    safety.permit(GREENS[1], 4)
    assert safety.state.bound_exceeded_at_s == 4 and safety.next_change_s(4) == 5


def test_next_call_is_a_second_later_if_no_age_matters(crossing):
    safety = SignalSafety(crossing, SafetyTimes(yellow_s=3, min_green_s=5), GREENS)
    safety.start_from(GREENS[0], 0)
    safety.permit("GGGG", 100)
    assert not safety.shows("GGGG") and safety.next_change_s(100) == 101


@given(st.data(), SOME_TIMES)
def test_a_cached_transition_is_the_one_that_would_be_computed(data, times):
    signal = SIGNALS[data.draw(st.sampled_from(sorted(SIGNALS)))]
    phases = [phase.state for phase in signal.plan.phases]
    safety, now = SignalSafety(signal, times, [phases[i] for i in signal.plan.greens]), 0.0
    safety.start_from(phases[0], now)
    for requested, seconds in data.draw(
        st.lists(st.tuples(st.sampled_from(phases), st.sampled_from([0.1, 0.5, 1.0, 5.0])))
    ):
        for _ in range(3):
            safety.permit(requested, now)
            now = round(now + seconds, 3)
            cached, computed = (
                safety._transition(requested, now),
                safety._compute_transition(requested, safety._young(now), now),
            )
            assert (cached.following.state, *cached[1:]) == (computed.following.state, *computed[1:])
