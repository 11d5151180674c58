"""Safety rules, monitors and TLs that go on from a saved state behave as those that never stopped."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from city import network
from protos.loop_state_pb2 import MonitorState, SignalState, TlState
from signals.fallback.control_mode import OperatorMode
from signals.policy import Answer
from signals.safety.monitor import Limits, SignalMonitor
from signals.safety.safety_times import SafetyTimes
from signals.safety.signal_safety import SignalSafety
from tests.conftest import GRID
from tests.signals.single_signal import GREENS, one_signal

TIMES = SafetyTimes(yellow_s=3, min_green_s=5, all_red_s=1, max_green_s=20, max_red_s=30)
LIMITS = Limits(yellow_s=3, min_green_s=5, all_red_s=1, max_red_s=5)
REQUESTS = st.sampled_from(["GgGr", "rrrG", "rrrr", "GGGG", "yyyr", "GgG", "rgrg"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(1, 9), REQUESTS, st.booleans()), max_size=25), st.integers(0, 24))
def test_safety_rules_go_on_from_a_saved_state(crossing, requests, saved_after):
    first = SignalSafety(crossing, TIMES, GREENS)
    first.start_from("GgGr", 0)
    second, now = first, 0
    for k, (pause_s, requested, is_shown_by_program) in enumerate(requests):
        now += pause_s
        results = []
        for each in [first] if second is first else [first, second]:
            if is_shown_by_program:
                each.follow_program(requested, now)
            state, overrides = each.permit(requested, now)
            results.append((state.state, overrides, each.bound_exceeded_at_s, each.is_serving, each.is_cleared(now)))
        assert results[0] == results[-1]
        if k == saved_after:
            state = SignalState()
            first.save_state(state)
            second = SignalSafety(crossing, TIMES, GREENS)
            second.restore_state(SignalState.FromString(state.SerializeToString()))
            again = SignalState()
            second.save_state(again)
            assert again == state and second.permitted.state == second.shown == first.shown


def test_green_that_serves_a_waiting_link_is_saved(crossing):
    safety = SignalSafety(crossing, TIMES, GREENS)
    safety.start_from("GgGr", 0)
    safety.permit("GgGr", 30)
    assert safety.is_serving
    state = SignalState()
    safety.save_state(state)
    assert state.forced == "rrrG" and state.forced_reason > 0 and list(state.reported)


@pytest.mark.parametrize("shown", ["", "GgG", "GgGrr"])
def test_state_of_another_signal_is_refused(crossing, shown):
    with pytest.raises(ValueError, match="the state of signal X has"):
        SignalSafety(crossing, TIMES, GREENS).restore_state(SignalState(shown=shown))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(1, 20), REQUESTS, st.booleans()), max_size=25), st.integers(0, 24))
def test_monitor_goes_on_from_a_saved_state(crossing, shown, saved_after):
    first = second = SignalMonitor(crossing, LIMITS, GREENS)
    now = 0
    for k, (duration_s, state, is_own_program) in enumerate(shown):

        def check(monitor, now=now, duration_s=duration_s, state=state, is_own_program=is_own_program):
            return (
                monitor.follow_program(state, now)
                if is_own_program
                else monitor.check_shown(state, now, now + duration_s)
            )

        alarms = check(first)
        if second is not first:
            assert alarms == check(second)
        now += duration_s
        if k == saved_after:
            saved, again = MonitorState(), MonitorState()
            first.save_state(saved)
            second = SignalMonitor(crossing, LIMITS, GREENS)
            second.restore_state(MonitorState.FromString(saved.SerializeToString()))
            second.save_state(again)
            assert again.SerializeToString() == saved.SerializeToString()


ANSWERS = st.one_of(st.just(None), st.integers(0, 1), st.just(7))
COMMANDS = st.one_of(st.none(), st.sampled_from(OperatorMode))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(ANSWERS, COMMANDS, st.sampled_from(["sent", "GgGr", "rrrG", "rrrr"])), max_size=40),
    st.integers(0, 39),
)
def test_tl_goes_on_from_a_saved_state(crossing, steps, saved_after):
    """Missing, valid and invalid answers, operators' commands, and states that another client or the program shows."""
    first = second = one_signal(crossing, times=TIMES, hold_s=4)
    now = 0.0
    for k, (answer, wanted, shown) in enumerate(steps):

        def play(x, k=k, now=now, answer=answer, wanted=wanted, shown=shown):
            state = x.safeties[0].shown if shown == "sent" else shown
            corrected = x.correct({"X": state}, now)
            if wanted is not None:
                x.set_mode(wanted, now)
            failure = ""
            if x.next_decision_s <= now:
                failure = x.apply_answer(
                    TimeoutError("late") if answer is None else Answer(np.array([answer])), now, (state,)
                )
            commands, overrides = x.commands(now)
            x.confirm_sent(("X",) if k % 7 == 6 else ())
            sent = [
                (type(each).__name__, getattr(each, "state", None), getattr(each, "phase", None)) for each in commands
            ]
            return corrected, failure, sent, overrides, x.requested, x.mode_state, x.next_due_s(now), x.phase_state(now)

        result = play(first)
        if second is not first:
            assert result == play(second)
        if k == saved_after:
            saved, again = TlState(), TlState()
            first.save_state(saved)
            second = one_signal(crossing, times=TIMES, hold_s=4)
            second.restore_state(TlState.FromString(saved.SerializeToString()))
            second.save_state(again)
            assert again == saved
        now = min(first.next_due_s(now), now + 10)
        assert math.isfinite(now)


def test_link_beyond_max_red_is_not_reported_again_after_a_saved_state(crossing):
    monitor = SignalMonitor(crossing, LIMITS, GREENS)
    assert monitor.check_shown("GgGr", 0, 5) == []
    assert [alarm.rule.value for alarm in monitor.check_shown("GgGr", 5, 100)] == ["max_red_exceeded"]
    saved = MonitorState()
    monitor.save_state(saved)
    other = SignalMonitor(crossing, LIMITS, GREENS)
    other.restore_state(saved)
    assert other.check_shown("GgGr", 100, 110) == []


def test_monitor_of_the_sample_city_saves_links_that_were_never_seen_to_change():
    signal = next(iter(network.read(GRID / "grid.net.xml").signals.values()))
    monitor = SignalMonitor(signal, LIMITS)
    monitor.check_shown("r" * len(signal.links), 0, 5)
    saved = MonitorState()
    monitor.save_state(saved)
    assert all(map(math.isnan, saved.since_s))
    other = SignalMonitor(signal, LIMITS)
    other.restore_state(saved)
    green = "g" + "r" * (len(signal.links) - 1)
    assert other.check_shown(green, 5, 10) == monitor.check_shown(green, 5, 10)
