"""Safety rules, monitors and TLs that go on from a state in a record behave as those that never stopped."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.recording import loop_state
from protos.loop_state_pb2 import MonitorState, SignalState, TlState
from protos.record_pb2 import TlStep
from signals.fallback.control_mode import OperatorMode
from signals.policy import Answer
from signals.safety.monitor import SignalMonitor
from signals.safety.safety_times import SafetyTimes
from signals.safety.signal_safety import SignalSafety
from tests.signals.dialects.toy_counts import ToySequencer
from tests.signals.single_signal import GREENS, one_signal

PROTECTED = (60.0, 50.0, math.inf, 40.0)
TIMES = SafetyTimes(3, 5, 1, max_green_s=20, max_red_s=30, max_unprotected_s=PROTECTED)
LIMITS = SafetyTimes(3, 5, 1, max_red_s=5)


def resumed(first, second, kind):
    """The second one, which goes on from the first one's state; the second one's state is saved alike."""
    saved = kind(**loop_state.values(first.state))
    loop_state.restore(second.state, kind.FromString(saved.SerializeToString()))
    if hasattr(second, "resume"):
        second.resume()
    assert kind(**loop_state.values(second.state)).SerializeToString() == saved.SerializeToString()
    return second


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
            results.append(
                (state.state, overrides, each.state.bound_exceeded_at_s, each.is_serving, each.is_cleared(now))
            )
        assert results[0] == results[-1]
        if k == saved_after:
            second = resumed(first, SignalSafety(crossing, TIMES, GREENS), SignalState)
            assert second.permitted.state == second.shown == first.shown


def test_green_that_serves_a_waiting_link_is_saved(crossing):
    safety = SignalSafety(crossing, TIMES, GREENS)
    safety.start_from("GgGr", 0)
    safety.permit("GgGr", 30)
    assert safety.is_serving
    state = SignalState(**loop_state.values(safety.state))
    assert state.forced == "rrrG" and state.forced_reason == TlStep.MAX_RED
    assert set(state.reported) == {TlStep.YELLOW, TlStep.CLEARANCE, TlStep.MAX_RED}


@pytest.mark.parametrize("links", [0, 3, 5])
def test_state_of_another_signal_is_refused(crossing, links):
    safety = SignalSafety(crossing, TIMES, GREENS)
    with pytest.raises(ValueError, match=f"has {links} values of since_s, not 4"):
        loop_state.restore(safety.state, SignalState(shown="rrrr", since_s=[0.0] * links, waiting_since_s=[0.0] * 4))
    loop_state.restore(safety.state, SignalState(shown="r" * links, since_s=[0.0] * 4, waiting_since_s=[0.0] * 4))
    with pytest.raises(ValueError, match="zip"):
        safety.resume()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(1, 20), REQUESTS, st.booleans()), max_size=25), st.integers(0, 24))
def test_monitor_goes_on_from_a_saved_state(crossing, shown, saved_after):
    limits = replace(LIMITS, max_unprotected_s=[bound_s / 10 for bound_s in PROTECTED])
    first = second = SignalMonitor(crossing, limits, GREENS)
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
            second = resumed(first, SignalMonitor(crossing, limits, GREENS), MonitorState)


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
            if x.state.next_decision_s <= now:
                failure = x.apply_answer(
                    TimeoutError("late") if answer is None else Answer(np.array([answer])), now, (state,)
                )
            commands, overrides = x.commands(now)
            x.confirm_sent(("X",) if k % 7 == 6 else ())
            sent = [
                (type(each).__name__, getattr(each, "state", None), getattr(each, "phase", None)) for each in commands
            ]
            mode = x.state.mode_state
            return corrected, failure, sent, overrides, x.requested, mode, x.next_due_s(now), x.phase_state(now)

        result = play(first)
        if second is not first:
            assert result == play(second)
        if k == saved_after:
            second = resumed(first, one_signal(crossing, times=TIMES, hold_s=4), TlState)
        now = min(first.next_due_s(now), now + 10)
        assert math.isfinite(now)


def test_dialect_of_the_users_own_need_not_have_a_state(crossing):
    first, second = (one_signal(crossing, sequencer=ToySequencer(GREENS)) for _ in range(2))
    first.commands(0)
    assert not TlState(**loop_state.values(first.state)).HasField("sequencer")
    assert resumed(first, second, TlState).state.requested == (GREENS[0],)
