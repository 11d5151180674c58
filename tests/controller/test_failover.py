"""The ladder over every rung and event."""

import pytest

from controller.fallback.control_mode import ControlMode, ModeState, step

HOLD_S, PROBES = 10, 2


def after(rung, good_answer, now=100.0, since=95.0, good=0):
    return step(ModeState(rung, since, good), good_answer, now, HOLD_S, PROBES)


@pytest.mark.parametrize(
    ("rung", "since", "good", "answer", "expected"),
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
def test_every_rung_and_event(rung, since, good, answer, expected):
    assert step(ModeState(rung, since, good), answer, 100, HOLD_S, PROBES) == expected


def test_without_a_hold_a_missing_answer_leads_straight_to_the_plan():
    assert step(ModeState(), False, 5, 0, PROBES).mode is ControlMode.FALLBACK


def test_more_probes_are_more_answers_in_a_row():
    ladder = ModeState(ControlMode.FALLBACK, 0)
    for _ in range(2):
        ladder = step(ladder, True, 5, HOLD_S, 3)
        assert ladder.is_fallback
    assert step(ladder, False, 6, HOLD_S, 3) == ModeState(ControlMode.FALLBACK, 6)
    assert step(ladder, True, 6, HOLD_S, 3).mode is ControlMode.POLICY


def test_the_exported_numbers_never_change():
    assert [(rung.name, rung.value) for rung in ControlMode] == [("SERVED", 0), ("HOLD", 1), ("PLAN", 2), ("PROBING", 3)]
