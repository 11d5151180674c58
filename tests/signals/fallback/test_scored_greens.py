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
    assert Greedy.distances_m(crossing, {"in2_0": {"behind_0": 5.0}, **behind})["behind_0"] == 5.0


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


NONE, STRAIGHT = [False, False, False], [True, False, False]


@pytest.mark.parametrize("kind", [MaxPressure, Greedy])
@pytest.mark.parametrize(
    ("first_green", "begin_s", "queues", "shown", "tried"),
    [
        pytest.param(
            AHEAD, 5, [(6, 1)] * 4, [AHEAD, ARROW, ARROW, AHEAD], None, id="a queue that stands is tried next"
        ),
        pytest.param(AHEAD, 5, [(6, 1), (5, 1), (4, 1), (3, 1)], [AHEAD] * 4, NONE, id="a queue that shrinks"),
        pytest.param(AHEAD, 5, [(6, 1)] * 3, [AHEAD, ARROW, ARROW], STRAIGHT, id="a link that was tried"),
        pytest.param(
            AHEAD, 5, [(6, 1)] * 3 + [(5, 1)], None, NONE, id="a lane that moves again counts for all its links"
        ),
        # before a full exit nothing moves under any green; the first green has its min green
        pytest.param(AHEAD, 5, [(0, 6)] * 5, [AHEAD] + [OTHER] * 4, None, id="a lane of one link that stands"),
        # its vehicle waits for a gap, and may be the first one
        pytest.param("Ggr", 5, [(6, 1)] * 2, None, STRAIGHT, id="a yielding link is never ruled out"),
        # the lane had no green in the last 5 s
        pytest.param(AHEAD, 5, [(0, 6)] * 2 + [(6, 6)], None, NONE, id="standing during a change says nothing"),
        pytest.param(AHEAD, 20, [(6, 1)], None, NONE, id="the first decision knows of no queue before"),
    ],
)
def test_links_that_the_first_vehicles_of_a_lane_wait_for(kind, signal, first_green, begin_s, queues, shown, tried):
    played = Played(kind, signal, (first_green, ARROW, OTHER))
    played.now = begin_s
    greens = [played.shown(*queue) for queue in queues]
    assert shown is None or greens == shown
    assert tried is None or played.made.state.signals[0].tried == tried


def test_a_green_that_is_not_shown_yet_has_been_shown_for_no_time():
    """The safety rules may delay it for longer than yellow, all-red and min green."""
    sequencer = GreenPhaseSequencer(["Grr", "rGr"], 5, 3, 5)
    sequencer.enter(0, ["Grr"])
    sequencer.apply_action(20, [1])
    assert sequencer.shown_for_s(40) == 0
    sequencer.note_shown(41)
    assert [sequencer.shown_for_s(now) for now in (41, 46)] == [0, 5]
