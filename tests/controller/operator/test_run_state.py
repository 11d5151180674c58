"""What readers in other threads see of a run."""

from dataclasses import replace

from controller.events import OperatorCommand, Shown
from controller.operator.run_state import MAX_COMMANDS, RunState
from controller.operator.watchers import Watchers
from protos import policy_pb2
from signals.fallback.control_mode import ControlMode, OperatorMode
from signals.policy import Answer
from signals.safety.conflicts import OverrideReason
from signals.safety.signal_safety import Override
from tests.controller.decision_events import decision, event

CONTRACTS = [
    policy_pb2.PolicyContract(tl="SA101", signal_ids=["A0"]),
    policy_pb2.PolicyContract(tl="SA102", signal_ids=["B0", "B1"]),
]


def made():
    return RunState(CONTRACTS, Watchers())


def test_shown_states_are_those_of_each_tls_signals():
    state = made()
    state.add(replace(event(10, [decision("SA102")]), shown=(Shown(5, 10, ("GG", "rr", "yy")),)))
    first, second = state.states(["SA101", "SA102"])
    assert (first.shown, second.shown) == (("GG",), ("rr", "yy")) and (first.decided_s, second.decided_s) == (0.0, 10)


def test_mode_changes_have_the_second_and_the_reason():
    state = made()
    state.add(event(10, [decision("SA101")]))
    state.add(event(15, [decision("SA101", "Unavailable: refused", ControlMode.POLICY, ControlMode.HOLD)]))
    state.add(event(20, [decision("SA101", "Unavailable: refused", ControlMode.HOLD, ControlMode.HOLD)]))
    (tl,) = state.states(["SA101"])
    assert (tl.mode, tl.since_s, tl.reason) == (ControlMode.HOLD, 15, "Unavailable: refused")


def test_an_override_is_the_reason_until_the_next_decision():
    state = made()
    override = Override("B1", OverrideReason.MIN_GREEN, "GG", "rr")
    state.add(event(10, [decision("SA102")], [override]))
    assert state.states(["SA102"])[0].reason == "B1: a green has not reached its min green (min_green)"
    state.add(event(15, [decision("SA102")]))
    assert state.states(["SA102"])[0].reason == ""


def test_model_and_version_are_those_of_the_newest_answer():
    state = made()
    answered = decision("SA101")._replace(answer=Answer([0.0], 7, "city"))
    state.add(event(10, [answered]))
    assert (state.states(["SA101"])[0].model, state.states(["SA101"])[0].version) == ("city", 7)


def test_a_command_is_seen_before_the_event_of_its_step():
    state = made()
    before = state.watchers.sequence
    state.follow(OperatorCommand("SA101", OperatorMode.FIXED, "ann", ControlMode.POLICY, ControlMode.FIXED), 30.0)
    state.note(30.0, "set-mode", "SA101", "fixed", "ann")
    assert state.states(["SA101"])[0].mode is ControlMode.FIXED and state.watchers.sequence > before


def test_commands_are_bounded_and_numbered():
    state = made()
    for k in range(3 * MAX_COMMANDS):
        state.note(k, "pause", "", "", "ann")
    assert [command.number for command in state.commands(2)] == [3 * MAX_COMMANDS - 1, 3 * MAX_COMMANDS]
    assert len(state.commands()) == MAX_COMMANDS
