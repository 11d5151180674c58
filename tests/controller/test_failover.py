"""The ladder over every rung and event."""

import pytest

from controller.failover import Ladder, Rung, step

HOLD_S, PROBES = 10, 2


def after(rung, good_answer, now=100.0, since=95.0, good=0):
    return step(Ladder(rung, since, good), good_answer, now, HOLD_S, PROBES)


@pytest.mark.parametrize(
    ("rung", "since", "good", "answer", "expected"),
    [
        (Rung.SERVED, 0, 0, True, Ladder(Rung.SERVED, 0)),
        (Rung.SERVED, 0, 0, False, Ladder(Rung.HOLD, 100)),
        (Rung.HOLD, 95, 0, True, Ladder(Rung.SERVED, 100)),
        (Rung.HOLD, 95, 0, False, Ladder(Rung.HOLD, 95)),
        (Rung.HOLD, 90, 0, False, Ladder(Rung.PLAN, 100)),
        (Rung.PLAN, 90, 0, False, Ladder(Rung.PLAN, 90)),
        (Rung.PLAN, 90, 0, True, Ladder(Rung.PROBING, 100, 1)),
        (Rung.PROBING, 95, 1, True, Ladder(Rung.SERVED, 100)),
        (Rung.PROBING, 95, 1, False, Ladder(Rung.PLAN, 100)),
    ],
)
def test_every_rung_and_event(rung, since, good, answer, expected):
    assert step(Ladder(rung, since, good), answer, 100, HOLD_S, PROBES) == expected


def test_without_a_hold_a_missing_answer_leads_straight_to_the_plan():
    assert step(Ladder(), False, 5, 0, PROBES).rung is Rung.PLAN


def test_more_probes_are_more_answers_in_a_row():
    ladder = Ladder(Rung.PLAN, 0)
    for _ in range(2):
        ladder = step(ladder, True, 5, HOLD_S, 3)
        assert ladder.plan_runs
    assert step(ladder, False, 6, HOLD_S, 3) == Ladder(Rung.PLAN, 6)
    assert step(ladder, True, 6, HOLD_S, 3).rung is Rung.SERVED


def test_the_exported_numbers_never_change():
    assert [(rung.name, rung.value) for rung in Rung] == [("SERVED", 0), ("HOLD", 1), ("PLAN", 2), ("PROBING", 3)]
