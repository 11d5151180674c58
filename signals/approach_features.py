"""Features of every incoming lane, from the positions and speeds of vehicles on the way to its stop line.

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
BLOCKING_MPS, BLOCKING_M = 2.0, 25.0
"""A vehicle slower than this on the first metres of an exit lane blocks it."""
SOON_S, LATER_S = 5.0, 12.0
"""Bounds of the times until moving vehicles arrive."""
VEHICLE_M = 7.5
"""Room that a vehicle takes in a queue."""
FEATURES = (
    "halting", "vehicles_near", "vehicles_middle", "vehicles_far", "arriving_soon", "arriving_later", "lost_time",
    "relative_speed", "longest_wait", "total_wait", "occupancy", "nearest", "longest_red", "exit_occupancy",
    "exit_queue",
    "exit_blocked",
)  # fmt: skip
"""Names of the features of an incoming lane, in order (docs/reference/dialects.md has their units). Rename a
feature if its meaning changes: old weights and contracts are then refused."""
RED = FEATURES.index("longest_red")
MAX_OCCUPANCY, MAX_EXIT_OCCUPANCY = 1.5, 1.2
MAX_RED_S = 3600.0
"""A time without green is counted up to here; it is infinite for a lane that no green serves."""


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
        # of a short lane, only whole vehicles count: two fill one of 21 m
        self._capacity = np.maximum(np.floor(self._length_m / VEHICLE_M), 1.0)
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
        self._reach_m = np.maximum(np.array([_reach_m(approach) for approach in approaches]), 0.1)
        exits = [(k, lane_row[lane.lane_id], lane.share) for k, a in enumerate(approaches) for lane in a.exits]
        self._exit_approach, self._exit_row = _rows(e[0] for e in exits), _rows(e[1] for e in exits)
        self._exit_share = np.array([e[2] for e in exits])

    def compute(self, vehicles: VehicleReadings, red_s: Floats) -> NDArray[np.float32]:
        """float32 [approaches, features]. `red_s`: [approaches], the longest time of a link of each lane without green,
        s."""
        out = np.zeros((self.size, len(FEATURES)), np.float32)
        out[:, RED] = np.minimum(red_s, MAX_RED_S)
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
        longest_s, nearest_m = np.zeros(self.size), np.full(self.size, REACH_M)
        np.maximum.at(longest_s, approach[is_own], waiting_s[is_own])
        np.minimum.at(nearest_m, approach[is_own], distance_m[is_own])
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
        }
        for name, values in columns.items():
            out[:, FEATURES.index(name)] = values

    def _write_exits(self, out: NDArray[np.float32], vehicles: VehicleReadings) -> None:
        lanes = len(self._length_m)
        is_halting = vehicles.speed_mps < HALTING_MPS
        blocks = (vehicles.position_m < BLOCKING_M) & (vehicles.speed_mps < BLOCKING_MPS)
        by_lane = {
            "exit_occupancy": np.minimum(
                np.bincount(vehicles.row, minlength=lanes) / self._capacity, MAX_EXIT_OCCUPANCY
            ),
            "exit_queue": np.minimum(np.bincount(vehicles.row, is_halting, lanes) / self._capacity, MAX_EXIT_OCCUPANCY),
            "exit_blocked": np.bincount(vehicles.row, blocks, lanes) > 0,
        }
        for name, values in by_lane.items():
            weights = self._exit_share * values[self._exit_row]
            out[:, FEATURES.index(name)] = np.bincount(self._exit_approach, weights, self.size)


def _reach_m(approach: pb.Approach) -> float:
    """Length of the upstream lanes within REACH_M, weighted by their shares, m."""
    return sum(min(lane.length_m, REACH_M - lane.distance_m) * lane.share for lane in approach.upstream)


def _rows(values: Iterable[int]) -> Rows:
    return np.fromiter(values, np.intp)
