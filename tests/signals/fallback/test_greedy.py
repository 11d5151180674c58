"""The greedy baseline: the most vehicles near the stop lines."""

from dataclasses import replace

import numpy as np
import pytest

from signals.fallback.scored_greens import Greedy, ScoredGreens
from signals.observation import Readings, VehicleReadings
from signals.safety.safety_times import SafetyTimes
from tests.signals.single_signal import GREENS

LANES = [*(f"in{i}_0" for i in range(4)), "behind_0"]
ROW = {lane: k for k, lane in enumerate(LANES)}
LENGTH_M = np.full(5, 200.0)


def chosen(signal, length_m=LENGTH_M, lanes_behind=None, **vehicles):
    """The green after a decision; `vehicles`: by lane, the positions of its vehicles in m."""
    made = ScoredGreens(Greedy, [signal], [GREENS], ROW, length_m, SafetyTimes(3, 5), lanes_behind or {})
    made.enter(0, ["GgGr"])
    row = np.array([ROW[f"{lane}_0"] for lane, positions in vehicles.items() for _ in positions], np.intp)
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
