"""Features of every incoming lane, from the positions and speeds of vehicles on the way to its stop line.

A pedestrian crossing is a lane too, and the persons before it are its vehicles.

A vehicle counts for each incoming lane that it may reach within REACH_M without passing another signal, weighted by the
share of vehicles that go there (`city.lane_graph`). Distances are those of its front to the stop line.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from city.lane_graph import MIN_SHARE
from protos import policy_pb2 as pb
from signals.observation import Floats, Rows, VehicleReadings

REACH_M = 300.0
"""Vehicles up to here before a stop line are counted."""
NEAR_M, MIDDLE_M = 50.0, 150.0
"""Bounds of the vehicle counts by distance."""
HALTING_MPS = 0.3
FIRST_M = 15.0
"""The first vehicle of a lane waits at the stop line if it is nearer than this."""
BLOCKING_MPS, BLOCKING_M = 2.0, 25.0
"""A vehicle slower than this on the first metres of an exit blocks it."""
EXIT_M = 100.0
"""An exit is its lane, and the lanes that follow within this distance before the next signal."""
SOON_S, LATER_S = 5.0, 12.0
"""Bounds of the times until moving vehicles arrive."""
VEHICLE_M = 7.5
"""Room that a vehicle takes in a queue."""
FEATURES = (
    "halting", "vehicles_near", "vehicles_middle", "vehicles_far", "arriving_soon", "arriving_later", "lost_time",
    "relative_speed", "longest_wait", "total_wait", "occupancy", "nearest", "first_wait", "exit_occupancy",
    "exit_queue", "exit_blocked",
)  # fmt: skip
"""Names of the features of an incoming lane, in order (docs/reference/dialects.md has their units). Rename a
feature if its meaning changes: old weights and contracts are then refused."""
MAX_OCCUPANCY, MAX_EXIT_OCCUPANCY = 1.5, 1.2
LONGEST_RED_S = 3600.0
"""A time without green is counted up to here."""


class ApproachFeatures:
    """The features of incoming lanes, of one or of many TLs at once."""

    def __init__(self, approaches: Sequence[pb.Approach], lane_row: Mapping[str, int]) -> None:
        """`lane_row`: row of a lane in the readings."""
        lanes = len(lane_row)
        self.size = len(approaches)
        self._length_m, self._limit_mps = np.ones(lanes), np.ones(lanes)
        read = [lane for approach in approaches for lane in (*approach.upstream, *approach.exits)]
        for lane in read:
            self._length_m[lane_row[lane.lane_id]] = max(lane.length_m, 0.1)
            self._limit_mps[lane_row[lane.lane_id]] = max(lane.limit_mps, 0.1)
        for crossing in (approach for approach in approaches if approach.walking_areas):
            # persons wait where it begins
            self._length_m[lane_row[crossing.lane_id]] = 0.0
        # an entry is an upstream lane of an approach; those of a lane follow one another
        entries = sorted(
            (lane_row[lane.lane_id], k, lane.distance_m, lane.share)
            for k, a in enumerate(approaches)
            for lane in a.upstream
        )
        self._approach = _rows(entry[1] for entry in entries)
        self._distance_m = np.array([entry[2] for entry in entries])
        self._share = np.array([entry[3] for entry in entries])
        self._count = np.bincount(_rows(entry[0] for entry in entries), minlength=lanes)
        self._first = np.cumsum(self._count) - self._count
        """By lane, the number of its entries and the first of them."""
        self._reach_m = np.maximum(np.array([reach_m(approach) for approach in approaches]), 0.1)
        exits = [
            (k, lane_row[lane.lane_id], lane.share, lane.distance_m)
            for k, a in enumerate(approaches)
            for lane in a.exits
        ]
        self._exit_approach, self._exit_row = _rows(e[0] for e in exits), _rows(e[1] for e in exits)
        self._exit_share, self._exit_begin_m = (np.array([e[column] for e in exits]) for column in (2, 3))
        # the lanes of an exit follow one another, the first one from 0 m
        self._exit = np.cumsum(self._exit_begin_m == 0) - 1
        self._approach_of_exit = self._exit_approach[self._exit_begin_m == 0]
        # of short exits, only whole vehicles count: two fill one of 21 m
        exits_m = np.bincount(self._exit_approach, self._exit_share * self._length_m[self._exit_row], self.size)
        self._exit_capacity = np.maximum(np.floor(exits_m / VEHICLE_M), 1.0)

    def compute(self, vehicles: VehicleReadings) -> NDArray[np.float32]:
        """float32 [approaches, features]."""
        out = np.zeros((self.size, len(FEATURES)), np.float32)
        out[:, FEATURES.index("nearest")] = REACH_M
        if len(vehicles.row):
            self._write_upstream(out, vehicles)
            self._write_exits(out, vehicles)
        return out

    def _write_upstream(self, out: NDArray[np.float32], vehicles: VehicleReadings) -> None:
        repeats = self._count[vehicles.row]
        v = np.repeat(np.arange(len(repeats)), repeats)
        nth = np.arange(len(v)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        entry = self._first[vehicles.row[v]] + nth
        distance_m = self._distance_m[entry] + self._length_m[vehicles.row[v]] - vehicles.position_m[v]
        seen = distance_m < REACH_M
        v, entry = v[seen], entry[seen]
        distance_m = np.maximum(distance_m[seen], 0.0)
        approach, share = self._approach[entry], self._share[entry]
        mps, waiting_s = vehicles.speed_mps[v], vehicles.waiting_s[v]
        relative = mps / self._limit_mps[vehicles.row[v]]

        def total(weights: Floats) -> Floats:
            return np.bincount(approach, weights, self.size).astype(np.float64, copy=False)

        is_halting = mps < HALTING_MPS
        arrival_s = np.where(is_halting, np.inf, distance_m / np.maximum(mps, 1.0))
        in_middle = share * (distance_m < MIDDLE_M)
        count = total(share)
        is_own = share > MIN_SHARE * 3  # a rare turn from afar sets neither the longest wait nor the nearest vehicle
        longest_s, first_s, nearest_m = np.zeros(self.size), np.zeros(self.size), np.full(self.size, REACH_M)
        np.maximum.at(longest_s, approach[is_own], waiting_s[is_own])
        np.minimum.at(nearest_m, approach[is_own], distance_m[is_own])
        is_first = is_own & (distance_m < FIRST_M) & (distance_m <= nearest_m[approach])
        np.maximum.at(first_s, approach[is_first], waiting_s[is_first])
        columns = {
            "halting": total(share * is_halting),
            "vehicles_near": total(share * (distance_m < NEAR_M)),
            "vehicles_middle": total(in_middle * (distance_m >= NEAR_M)),
            "vehicles_far": total(share * (distance_m >= MIDDLE_M)),
            "arriving_soon": total(share * (arrival_s < SOON_S)),
            "arriving_later": total(share * ((arrival_s >= SOON_S) & (arrival_s < LATER_S))),
            "lost_time": total(share * np.maximum(0.0, 1.0 - relative)),
            "relative_speed": total(in_middle * relative) / np.maximum(total(in_middle), 1e-6),
            "longest_wait": longest_s,
            "total_wait": total(share * waiting_s),
            "occupancy": np.minimum(count * VEHICLE_M / self._reach_m, MAX_OCCUPANCY),
            "nearest": nearest_m,
            "first_wait": first_s,
        }
        for name, values in columns.items():
            out[:, FEATURES.index(name)] = values

    def _write_exits(self, out: NDArray[np.float32], vehicles: VehicleReadings) -> None:
        lanes, row = len(self._length_m), self._exit_row
        is_halting, is_slow = vehicles.speed_mps < HALTING_MPS, vehicles.speed_mps < BLOCKING_MPS
        last_m = np.full(lanes, np.inf)
        np.minimum.at(last_m, vehicles.row[is_slow], vehicles.position_m[is_slow])
        blocked = self._exit_share * (self._exit_begin_m + last_m[row] < BLOCKING_M)
        by_exit = np.zeros(len(self._approach_of_exit))
        np.maximum.at(by_exit, self._exit, blocked)
        counts = {"exit_occupancy": None, "exit_queue": is_halting.astype(np.float64)}
        for name, weights in counts.items():
            count = np.bincount(vehicles.row, weights, lanes)[row] * self._exit_share
            share = np.bincount(self._exit_approach, count, self.size) / self._exit_capacity
            out[:, FEATURES.index(name)] = np.minimum(share, MAX_EXIT_OCCUPANCY)
        out[:, FEATURES.index("exit_blocked")] = np.bincount(self._approach_of_exit, by_exit, self.size)


def reach_m(approach: pb.Approach) -> float:
    """Length of the upstream lanes within REACH_M, weighted by their shares, m."""
    return sum(min(lane.length_m, REACH_M - lane.distance_m) * lane.share for lane in approach.upstream)


def _rows(values: Iterable[int]) -> Rows:
    return np.fromiter(values, np.intp)
