"""The control mode for every state and event."""

import pytest

from signals.fallback.control_mode import ControlMode, ModeState, next_mode

HOLD_S, RECOVERY_ANSWERS = 10, 2


@pytest.mark.parametrize(
    ("mode", "since_s", "good_answers", "answered", "expected"),
    [
        (ControlMode.POLICY, 0, 0, True, ModeState(ControlMode.POLICY, 0)),
        (ControlMode.POLICY, 0, 0, False, ModeState(ControlMode.HOLD, 100)),
        (ControlMode.HOLD, 95, 0, True, ModeState(ControlMode.POLICY, 100)),
        (ControlMode.HOLD, 95, 0, False, ModeState(ControlMode.HOLD, 95)),
        (ControlMode.HOLD, 90, 0, False, ModeState(ControlMode.FALLBACK, 100)),
        (ControlMode.FALLBACK, 90, 0, False, ModeState(ControlMode.FALLBACK, 90)),
        (ControlMode.FALLBACK, 90, 0, True, ModeState(ControlMode.RECOVERING, 100, 1)),
        (ControlMode.RECOVERING, 95, 1, True, ModeState(ControlMode.POLICY, 100)),
        (ControlMode.RECOVERING, 95, 1, False, ModeState(ControlMode.FALLBACK, 100)),
    ],
)
def test_next_mode_follows_the_transition_table(mode, since_s, good_answers, answered, expected):
    assert next_mode(ModeState(mode, since_s, good_answers), answered, 100, HOLD_S, RECOVERY_ANSWERS) == expected


def test_missing_answer_falls_back_at_once_if_hold_s_is_zero():
    assert next_mode(ModeState(), False, 5, 0, RECOVERY_ANSWERS).mode is ControlMode.FALLBACK


def test_recovery_needs_all_its_answers_in_a_row():
    state = ModeState(ControlMode.FALLBACK, 0)
    for _ in range(2):
        state = next_mode(state, True, 5, HOLD_S, 3)
        assert state.is_fallback
    assert next_mode(state, False, 6, HOLD_S, 3) == ModeState(ControlMode.FALLBACK, 6)
    assert next_mode(state, True, 6, HOLD_S, 3).mode is ControlMode.POLICY


def test_exported_numbers_never_change():
    names = ["POLICY", "HOLD", "FALLBACK", "RECOVERING", "FIXED"]
    assert [mode.name for mode in ControlMode] == names and [mode.value for mode in ControlMode] == list(range(5))
