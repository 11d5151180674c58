"""Greedy by the vehicles near the stop lines; max-pressure and greedy at lanes whose first vehicle waits for a link that the
green does not serve."""

from dataclasses import replace

import numpy as np
import pytest

from signals.fallback.scored_greens import Greedy, MaxPressure, ScoredGreens
from signals.green_phases import GreenPhaseSequencer
from signals.observation import Readings, VehicleReadings
from signals.safety.safety_times import SafetyTimes
from tests.signals.single_signal import GREENS

NEAR_LANES = [*(f"in{i}_0" for i in range(4)), "behind_0"]
NEAR_ROW = {lane: k for k, lane in enumerate(NEAR_LANES)}
NEAR_LENGTH_M = np.full(5, 200.0)


def chosen(signal, length_m=NEAR_LENGTH_M, lanes_behind=None, **vehicles):
    """The green after a decision; `vehicles`: by lane, the positions of its vehicles in m."""
    made = ScoredGreens(Greedy, [signal], [GREENS], NEAR_ROW, length_m, SafetyTimes(3, 5), lanes_behind or {})
    made.enter(0, ["GgGr"])
    row = np.array([NEAR_ROW[f"{lane}_0"] for lane, positions in vehicles.items() for _ in positions], np.intp)
    position_m = np.array([position for positions in vehicles.values() for position in positions], float)
    zeros = np.zeros(len(row))
    counts = np.bincount(row, minlength=5).astype(float)
    made.decide(
        20, Readings(np.array([counts, counts]), counts, counts, VehicleReadings(row, position_m, zeros, zeros))
    )
    return made.requested_states(23)[0]


@pytest.mark.parametrize(
    ("vehicles", "green"),
    [
        ({"in3": [199]}, "rrrG"),
        ({"in0": [199, 190, 180], "in3": [199, 190]}, "GgGr"),
        ({"in0": [199], "in1": [199], "in2": [199], "in3": [199, 190, 180, 170]}, "rrrG"),
        ({"in0": [149] * 5, "in3": [150]}, "rrrG"),  # 51 m before the stop line, and 50 m
        ({}, "GgGr"),  # no vehicle: no change
        ({"in0": [199, 190], "in3": [199, 190]}, "GgGr"),
    ],
)
def test_green_with_the_most_vehicles_within_50_m_is_chosen(crossing, vehicles, green):
    assert chosen(crossing, **vehicles) == green


def test_lane_of_two_links_counts_once(crossing):
    shared = replace(crossing, links=((("in0_0", "out0_0"),), (("in0_0", "out1_0"),), *crossing.links[2:]))
    assert chosen(shared, in0=[199, 190], in3=[199, 190, 180]) == "rrrG"


def test_lanes_behind_a_short_lane_are_seen_up_to_50_m_before_the_stop_line(crossing):
    length_m = np.array([200.0, 200, 200, 10, 200])
    behind = {"in3_0": {"behind_0": 10.0}}
    assert chosen(crossing, length_m, behind, in0=[199], in3=[9], behind=[161]) == "rrrG"  # at 1 m and 49 m
    assert chosen(crossing, length_m, behind, in0=[199], in3=[9], behind=[159]) == "GgGr"  # at 1 m and 51 m
    assert Greedy.distances_m(crossing, behind) == {**{f"in{i}_0": 0.0 for i in range(4)}, "behind_0": 10.0}


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
