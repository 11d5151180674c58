"""The sumo-rl dialect: its observation by the formula, its phase sequencer second by second."""

import math

import numpy as np
import pytest

from signals.dialects.sumo_rl import SumoRlObserver
from signals.green_phases import GreenPhaseSequencer, yellow_between
from signals.observation import PhaseState, shares_of
from tests.signals.test_observation import LENGTH_M, readings


@pytest.fixture
def sequencer():
    made = GreenPhaseSequencer(["GGrr", "GrGr", "rrGG"], delta_time_s=5, yellow_s=2, min_green_s=5)
    made.enter(0, ["rrrr"])
    return made


def test_observation_is_phase_bit_densities_queues():
    newest = readings((3, 1, 9), (2, 0, 9))
    observer = SumoRlObserver(np.array([2, 0]), 3, greens=3)
    x = observer.observe(newest, shares_of(newest, LENGTH_M), PhaseState((1,), True))
    assert x.dtype == np.float32 and len(x) == observer.size == 3 + 1 + 4
    # capacity of lane 0: 75 / (2.5 + 5) = 10; lane 2: 50 / 7.5 is less than its 9 vehicles
    assert x.tolist() == pytest.approx([0, 1, 0, 1, 1.0, 0.3, 1.0, 0.2])


@pytest.mark.parametrize(
    ("now", "shown", "start", "green", "phase"),
    [
        pytest.param(0, "rrrr", False, "GGrr", 0, id="the first green if none is shown"),
        pytest.param(0, "rrGG", True, "GGrr", 0, id="the first green is forced at the start"),
        pytest.param(50, "rrGG", False, "rrGG", 2, id="a shown green is kept later"),
    ],
)
def test_green_with_which_control_begins(sequencer, now, shown, start, green, phase):
    sequencer.enter(now, [shown], start)
    assert sequencer.requested_states(now) == (green,) and sequencer.phase_state(now).phases == (phase,)


def test_change_before_yellow_and_min_green_is_ignored(sequencer):
    sequencer.apply_action(5, (2,))
    assert sequencer.requested_states(5) == ("GGrr",) and not sequencer.phase_state(5).min_green_passed
    assert sequencer.phase_state(7).min_green_passed


def test_change_shows_yellow_then_the_new_green(sequencer):
    sequencer.apply_action(10, (1,))
    # links that stay green keep it; only links that turn red show yellow
    assert sequencer.requested_states(10) == sequencer.requested_states(11) == ("Gyrr",)
    assert sequencer.next_change_s(10) == 12
    assert sequencer.requested_states(12) == ("GrGr",)
    assert sequencer.next_change_s(12) == math.inf


def test_next_change_is_the_end_of_yellow_then_of_all_red():
    sequencer = GreenPhaseSequencer(["GGrr", "rrGG"], 5, 3, 5, 2)
    sequencer.enter(0, ["GGrr"])
    sequencer.apply_action(20, (1,))
    assert [sequencer.requested_states(now)[0] for now in (20, 22.5, 23, 24.5, 25)] == [
        "yyrr",
        "yyrr",
        "rrrr",
        "rrrr",
        "rrGG",
    ]
    sequencer.note_shown(25)
    sequencer.apply_action(40, (0,))
    assert (sequencer.next_change_s(40), sequencer.next_change_s(43), sequencer.next_change_s(45)) == (43, 45, math.inf)
    sequencer.note_shown(45)
    assert not sequencer.phase_state(49).min_green_passed and sequencer.phase_state(50).min_green_passed


def test_time_since_change_counts_from_the_start_of_yellow(sequencer):
    sequencer.apply_action(10, (1,))
    sequencer.note_shown(10)
    sequencer.note_shown(12)
    assert not sequencer.phase_state(16).min_green_passed and sequencer.phase_state(17).min_green_passed


def test_green_that_the_safety_rules_delay_counts_from_when_it_is_shown(sequencer):
    sequencer.apply_action(10, (1,))
    sequencer.apply_action(20, (2,))
    assert sequencer.requested_states(20) == ("GrGr",), "decisions wait for the change that is under way"
    assert not sequencer.phase_state(20).min_green_passed
    sequencer.note_shown(22)
    assert not sequencer.phase_state(26).min_green_passed and sequencer.phase_state(27).min_green_passed
    sequencer.note_shown(26)
    sequencer.apply_action(27, (2,))
    assert sequencer.requested_states(27) == ("yrGr",)


def test_green_that_is_never_shown_holds_up_decisions_for_a_minute_at_most(sequencer):
    sequencer.apply_action(10, (1,))
    sequencer.apply_action(69, (2,))
    assert sequencer.requested_states(69) == ("GrGr",)
    sequencer.apply_action(70, (2,))
    assert sequencer.requested_states(70) != ("GrGr",)


def test_yellow_replaces_only_greens_that_turn_red():
    assert yellow_between("GgsG", "rsrG") == "yysG"
