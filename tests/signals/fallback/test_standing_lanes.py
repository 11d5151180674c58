"""Max-pressure and greedy at a lane whose first vehicle waits for a link that the green does not serve."""

from dataclasses import replace

import numpy as np
import pytest

from signals.fallback.scored_greens import Greedy, MaxPressure, ScoredGreens
from signals.green_phases import GreenPhaseSequencer
from signals.observation import Readings, VehicleReadings
from signals.safety.safety_times import SafetyTimes

LANES = ["shared_0", "other_0", "ahead_0", "left_0", "out_0"]
ROW = {lane: k for k, lane in enumerate(LANES)}
AHEAD, ARROW, OTHER = "Grr", "rGr", "rrG"
"""Greens: straight on and left from a shared lane, and that of another lane."""


@pytest.fixture
def signal(crossing):
    foes = ~np.eye(3, dtype=bool)
    links = ((("shared_0", "ahead_0"),), (("shared_0", "left_0"),), (("other_0", "out_0"),))
    none = np.zeros((3, 3), bool)
    own = dict.fromkeys(("approach_mps", "crossing_m", "path_m", "slowest_mps"), ())
    return replace(crossing, links=links, lanes=("shared_0", "other_0"), foes=foes, yields=none, permissive=none, **own)


class Played:
    """A control that decides every 5 s from queues that are given."""

    def __init__(self, kind, signal, greens=(AHEAD, ARROW, OTHER)):
        self.made = ScoredGreens(kind, [signal], [greens], ROW, np.full(5, 100.0), SafetyTimes(3, 5), {})
        self.made.enter(0, [greens[0]])
        self.now = 5

    def shown(self, shared, other=1):
        """The green after a decision with so many standing vehicles."""
        row = np.array([0] * shared + [1] * other)
        counts = np.array([shared, other, 0, 0, 0], float)
        vehicles = VehicleReadings(row, np.full(len(row), 99.0), np.zeros(len(row)), np.zeros(len(row)))
        self.made.decide(self.now, Readings(np.array([counts, counts]), counts, counts, vehicles))
        green = self.made._sequencers[0].state.green
        for now in range(self.now, self.now + 5):
            self.made.note_shown(now, 0)
        self.now += 5
        return (AHEAD, ARROW, OTHER)[green]


KINDS = pytest.mark.parametrize("kind", [MaxPressure, Greedy])


@KINDS
def test_a_queue_that_stands_under_a_green_is_tried_with_the_next(kind, signal):
    played = Played(kind, signal)
    assert [played.shown(6) for _ in range(4)] == [AHEAD, ARROW, ARROW, AHEAD]


@KINDS
def test_a_queue_that_shrinks_keeps_its_green(kind, signal):
    played = Played(kind, signal)
    assert [played.shown(queue) for queue in (6, 5, 4, 3)] == [AHEAD] * 4


@KINDS
def test_a_lane_that_moves_again_counts_for_all_its_links(kind, signal):
    played = Played(kind, signal)
    assert [played.shown(queue) for queue in (6, 6, 6)] == [AHEAD, ARROW, ARROW]
    assert played.made.state.signals[0].tried == [True, False, False]
    played.shown(5)
    assert played.made.state.signals[0].tried == [False, False, False]


@KINDS
def test_a_lane_of_one_link_counts_however_long_it_stands(kind, signal):
    """Before a full exit nothing moves under any green."""
    played = Played(kind, signal)
    assert [played.shown(0, other=6) for _ in range(5)][1:] == [OTHER] * 4  # after the first one's min green


@KINDS
def test_a_yielding_link_is_never_ruled_out(kind, signal):
    """Its vehicle waits for a gap, and may be the first one."""
    played = Played(kind, signal, ("Ggr", "rGr", OTHER))
    played.shown(6)
    played.shown(6)
    assert played.made.state.signals[0].tried == [True, False, False]


@KINDS
def test_standing_during_a_change_says_nothing(kind, signal):
    """The lane had no green in the last 5 s."""
    played = Played(kind, signal)
    assert [played.shown(0, other=6) for _ in range(2)] == [AHEAD, OTHER]
    played.shown(6, other=6)
    assert played.made.state.signals[0].tried == [False, False, False]


@KINDS
def test_the_first_decision_knows_of_no_queue_before(kind, signal):
    played = Played(kind, signal)
    played.now = 20
    played.shown(6)
    assert played.made.state.signals[0].tried == [False, False, False]


def test_a_green_that_is_not_shown_yet_has_been_shown_for_no_time():
    """The safety rules may delay it for longer than yellow, all-red and min green."""
    sequencer = GreenPhaseSequencer(["Grr", "rGr"], 5, 3, 5)
    sequencer.enter(0, ["Grr"])
    sequencer.apply_action(20, [1])
    assert sequencer.shown_for_s(40) == 0
    sequencer.note_shown(41)
    assert [sequencer.shown_for_s(now) for now in (41, 46)] == [0, 5]
