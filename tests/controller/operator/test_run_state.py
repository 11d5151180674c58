"""The state of a run as readers in other threads see it, and the history that a page needs."""

import time
from dataclasses import replace

import numpy as np
import pytest

from controller.events import OperatorCommand, Shown
from controller.operator import run_state
from controller.operator.run_state import HISTORY_S, MAX_COMMANDS, MAX_LOGGED_COMMANDS, RunState
from protos import policy_pb2
from signals.fallback.control_mode import ControlMode, OperatorMode
from signals.observation import Readings
from signals.policy import Answer
from signals.safety.conflicts import OverrideReason
from signals.safety.signal_safety import Override
from tests.controller.decision_events import decision, event

CONTRACTS = [
    policy_pb2.PolicyContract(tl="SA101", signal_ids=["A0"]),
    policy_pb2.PolicyContract(tl="SA102", signal_ids=["B0", "B1"]),
]


@pytest.fixture
def state():
    return RunState(CONTRACTS, keeps_history=True)


def test_shown_states_are_those_of_each_tls_signals(state):
    state.add(replace(event(10, [decision("SA102")]), shown=(Shown(5, 10, ("GG", "rr", "yy")),)))
    first, second = state.state("SA101"), state.state("SA102")
    assert ([*first.shown], [*second.shown]) == (["GG"], ["rr", "yy"]) and (first.decided_s, second.decided_s) == (
        0.0,
        10,
    )


def test_mode_changes_have_the_second_and_the_reason(state):
    state.add(event(10, [decision("SA101")]))
    state.add(event(15, [decision("SA101", "Unavailable: refused", ControlMode.POLICY, ControlMode.HOLD)]))
    state.add(event(20, [decision("SA101", "Unavailable: refused", ControlMode.HOLD, ControlMode.HOLD)]))
    tl = state.state("SA101")
    assert (tl.mode, tl.since_s, tl.reason) == ("hold", 15, "Unavailable: refused")


def test_an_override_is_the_reason_until_the_next_decision(state):
    state.add(event(10, [decision("SA102")], [Override("B1", OverrideReason.MIN_GREEN, "GG", "rr")]))
    assert state.state("SA102").reason == "B1: not GG: a green has not reached its min green (min_green)"
    state.add(event(15, [decision("SA102")]))
    assert state.state("SA102").reason == ""


def test_model_and_version_are_those_of_the_newest_answer(state):
    state.add(event(10, [decision("SA101")._replace(answer=Answer([0.0], 7, "city"))]))
    assert (state.state("SA101").model, state.state("SA101").version) == ("city", 7)


def test_a_command_is_seen_before_the_event_of_its_step(state):
    before = state.watchers.sequence
    state.follow(OperatorCommand("SA101", OperatorMode.FIXED, "ann", ControlMode.POLICY, ControlMode.FIXED), 30.0)
    state.note(30.0, "set-mode", "SA101", "fixed", "ann")
    assert state.state("SA101").mode == "fixed" and state.watchers.sequence > before


def test_a_wait_for_news_ends_with_them_or_with_its_time(state):
    state.note(1.0, "pause", "", "", "ann")
    assert state.watchers.wait_after(0, 60.0) == 1
    begin_s = time.monotonic()
    assert state.watchers.wait_after(1, 0.05) == 1 and time.monotonic() - begin_s > 0.04


def test_modes_hold_since_the_second_at_which_the_run_begins(state):
    state.begin(57_600.0)
    assert state.state("SA101").since_s == state.second == 57_600


def test_commands_are_bounded_and_numbered(state):
    for k in range(3 * MAX_COMMANDS):
        state.note(k, "pause", "", "", "ann")
    assert [command.number for command in state.commands(2)] == [3 * MAX_COMMANDS - 1, 3 * MAX_COMMANDS]
    assert len(state.commands()) == MAX_COMMANDS and len(state.commands(MAX_LOGGED_COMMANDS)) == 3 * MAX_COMMANDS


def test_history_is_bounded_in_time(state):
    for second in range(0, 2000, 10):
        state.add(event(second, states=[(second - 10, second, ("r", "G", "r"))]))
    kept = state.since(-1)
    assert kept[-1].event.at_s == 1990 and kept[0].event.at_s == 1990 - HISTORY_S
    assert [step.number for step in state.since(kept[-2].number)] == [kept[-1].number]


def test_history_is_bounded_in_size(state, monkeypatch):
    monkeypatch.setattr(run_state, "MAX_KEPT", 30)
    for second in range(100):
        state.add(event(second, [decision("SA101")], states=[(second - 1, second, ("r", "G", "r"))]))
    assert sum(step.weight for step in state.since(-1)) <= 30
    assert state.since(-1)[-1].event.at_s == 99


def test_kept_queues_do_not_change_with_the_next_reading(state):
    readings = Readings(np.ones((2, 2)), np.zeros(2), np.zeros(2))
    state.add(event(1, [decision("SA101")], readings=readings))
    readings.counts[:] = 7
    assert list(state.newest.halting) == [1, 1]
    assert [list(step.halting) for step in state.since(-1)] == [[1, 1]]


def test_without_a_page_no_history_is_kept():
    state = RunState(CONTRACTS)
    state.add(event(1, [decision("SA101")], readings=Readings(np.ones((2, 2)), np.zeros(2), np.zeros(2))))
    assert state.newest.event.at_s == 1 and state.since(-1) == [] and not state.newest.halting.size
