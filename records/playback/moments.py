"""The street at one second of a record: states, control modes, queues, vehicles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from city.street_shapes import StreetShapes
from city.sumo_files import time_text
from controller.operator.page.frames import NO_VEHICLES, Vehicles
from controller.recording.messages import MODE_OF
from controller.recording.run_start import RunStart
from protos import record_pb2 as record
from records.playback.timeline import Timeline
from records.record_reader import missing_steps
from signals.fallback.control_mode import ControlMode
from signals.observation import MAX_CACHED_BATCHES, Floats, Rows

LOOK_BACK_S = 120.0
"""Simulated time in which a TL's newest decision is looked for."""
MAX_REPORTS = 3
"""Steps in which the states of a second are looked for: a step may only report what was shown before it."""
MIN_POINTS = 2
"""A lane of fewer points has no direction."""


@dataclass(frozen=True)
class Moment:
    """The street at a second."""

    at_s: float
    number: int
    """Number of the newest step; -1 without one."""
    wall_ns: int
    """Wall clock of the newest step, ns since 1970; 0 without one."""
    hole: str
    """The steps that the record lacks at this second, as a text; "" if none."""
    shown: tuple[str, ...]
    """By signal; empty if the record does not have what it shows."""
    modes: bytes
    """By TL, the value of its ControlMode."""
    counts: Floats
    """float64 [2, lanes], vehicles and those that halt, at the newest decision of each lane's TL."""
    vehicles: Vehicles
    """Those that the newest decisions of the TLs had read."""


class _Line:
    """A lane's line, by the distance from its beginning."""

    def __init__(self, points: Sequence[tuple[float, float]], length_m: float) -> None:
        self.at = np.array(points, float)
        steps = np.diff(self.at, axis=0)
        drawn_m = np.concatenate(([0.0], np.hypot(steps[:, 0], steps[:, 1]).cumsum()))
        # a lane's length may differ from that of its shape
        self.distance_m: Floats = drawn_m * (length_m / drawn_m[-1] if drawn_m[-1] > 0 and length_m > 0 else 1.0)
        self.angle_deg: Floats = np.degrees(np.arctan2(steps[:, 0], steps[:, 1])) % 360


class LanePositions:
    """The lines of the lanes of readings."""

    def __init__(self, shapes: StreetShapes, lanes: Sequence[str], length_m: Mapping[str, float]) -> None:
        """`lanes`: of the readings, in their order. `length_m`: by lane, as SUMO counts it."""
        # persons stand before a crossing, not on it
        points = {lane.id: lane.points for lane in shapes.lanes if not lane.is_crossing}
        self._lines = [
            _Line(points[lane], length_m.get(lane, 0.0)) if len(points.get(lane, ())) >= MIN_POINTS else None
            for lane in lanes
        ]

    def at(self, row: Rows, position_m: Floats, speed_mps: Floats) -> Vehicles:
        """Vehicles on the map, by the row of their lane; those on lanes without a shape are left out."""
        parts = []
        for lane in np.unique(row):
            line = self._lines[lane]
            if line is None:
                continue
            on_lane = row == lane
            at_m = position_m[on_lane]
            x = np.interp(at_m, line.distance_m, line.at[:, 0])
            y = np.interp(at_m, line.distance_m, line.at[:, 1])
            segment = (np.searchsorted(line.distance_m, at_m, "right") - 1).clip(0, len(line.angle_deg) - 1)
            parts.append((x, y, line.angle_deg[segment], speed_mps[on_lane]))
        if not parts:
            return NO_VEHICLES
        return Vehicles(*(np.concatenate(column).astype(np.float32) for column in zip(*parts, strict=True)))


class MomentReader:
    """Reads moments of a run. Used by one thread at a time."""

    def __init__(self, timeline: Timeline, run: RunStart, city: record.City, positions: LanePositions) -> None:
        """`city`: of the first file. `positions`: of the lanes of the readings."""
        self.timeline, self._positions = timeline, positions
        self.tls = [contract.tl for contract in run.contracts]
        self._first_states = tuple(signal.shown for signal in city.signals)
        """Those with which the run began."""
        self._begin_s = city.begin_s
        self._lanes = run.tracked_lanes()
        self._has_vehicles = any(self._lanes.vehicle_lanes_of.values())
        self._rows_of = lru_cache(MAX_CACHED_BATCHES)(self._lanes.rows_of)

    def moment(self, at_s: float) -> Moment:
        """The street at a second of the record."""
        step, wall_ns = self.timeline.step_before(at_s) or (record.Step(number=-1), 0)
        following = self.timeline.step_since(at_s)
        hole = ""
        if step.number >= 0 and following is not None and following.number > step.number + 1:
            missing = missing_steps(step.number + 1, following.number)
            hole = f"{missing}, between {time_text(step.at_s)} and {time_text(following.at_s)}"
        # the steps in which each TL has decided once, the newest first
        recent, lacking = [], set(range(len(self.tls)))
        for each in self.timeline.steps_back(at_s, LOOK_BACK_S):
            recent.append(each)
            lacking.difference_update(each.due)
            if not lacking:
                break
        # what was read before a hole says nothing of it
        read = [] if hole else recent
        counts = np.zeros((2, len(self._lanes.lanes)))
        for each in reversed(read):
            self._read_counts(each, counts)
        vehicles = self._vehicles(read) if self._has_vehicles else NO_VEHICLES
        shown, modes = self._shown(at_s, following), self._modes(at_s, recent)
        return Moment(at_s, step.number, wall_ns, hole, shown, modes, counts, vehicles)

    def halting_of(self, step: record.Step, rows: Sequence[int]) -> int | None:
        """The vehicles that halt on lanes with these rows, as a step read them; None if it is malformed."""
        counts = np.zeros((2, len(self._lanes.lanes)))
        return int(counts[1, list(rows)].sum()) if self._read_counts(step, counts) else None

    def tls_of(self, step: record.Step) -> tuple[str, ...]:
        """The TLs that decided in a step."""
        return tuple(self.tls[k] for k in step.due if k < len(self.tls))

    def _shown(self, at_s: float, following: record.Step | None) -> tuple[str, ...]:
        """The states of the second that ends at at_s."""
        if at_s <= self._begin_s:
            return self._first_states
        for _ in range(MAX_REPORTS):
            if following is None:
                break
            for shown in following.shown:
                if shown.begin_s < at_s <= shown.end_s and len(shown.states) == len(self._first_states):
                    return tuple(shown.states)
            # further steps of the same second, or the next one
            number = following.number + 1
            same = self.timeline.steps(following.at_s, following.at_s)
            later = self.timeline.step_since(following.at_s + 1e-6)
            following = next((step for step in (*same, later) if step is not None and step.number == number), None)
        return ("",) * len(self._first_states)

    def _modes(self, at_s: float, recent: Sequence[record.Step]) -> bytes:
        """The newest of each TL: after its decision, or after an operator's command. `recent`: the newest step
        first."""
        tl_steps = self.timeline.newest_tl_steps(self.tls, at_s, LOOK_BACK_S)
        # a TL's decision is not older than these steps
        commanded = {command.tl: (step.number, command.mode) for step in reversed(recent) for command in step.commands}
        modes = bytearray()
        for tl in self.tls:
            number, value = (tl_steps[tl].number, tl_steps[tl].mode) if tl in tl_steps else (-1, record.TlStep.POLICY)
            # a TL's part of a step has the mode after the commands of the same step
            if tl in commanded and commanded[tl][0] > number:
                value = commanded[tl][1]
            modes.append(MODE_OF.get(value, ControlMode.POLICY).value)
        return bytes(modes)

    def _read_counts(self, step: record.Step, counts: Floats) -> bool:
        """Write a step's counts into `counts`, as of a Moment; return whether it has those of its TLs."""
        tls = self.tls_of(step)
        if not tls:
            return True
        lanes, rows = self._rows_of(tls)
        if not len(step.readings.halting) == len(step.readings.vehicles) == len(lanes):
            self.timeline.losses.add(f"step {step.number} has readings of other lanes")
            return False
        counts[:, rows] = step.readings.vehicles, step.readings.halting
        return True

    def _vehicles(self, recent: Sequence[record.Step]) -> Vehicles:
        """By lane, the vehicles that were read last, on the map. `recent`: the newest step first."""
        count = len(self._lanes.lanes)
        is_read = np.zeros(count, bool)
        parts = []
        for step in recent:
            _, rows = self._lanes.vehicle_rows_of(self.tls_of(step))
            if not rows.size:
                continue
            lane = np.array(step.readings.vehicle_lane, np.intp)
            position_m = np.array(step.readings.position_m)
            speed_mps = np.array(step.readings.speed_mps)
            if not lane.size == position_m.size == speed_mps.size or (lane >= count).any():
                self.timeline.losses.add(f"step {step.number} has malformed vehicles")
                continue
            is_new = ~is_read[lane]
            parts.append((lane[is_new], position_m[is_new], speed_mps[is_new]))
            is_read[rows] = True
        if not parts:
            return NO_VEHICLES
        return self._positions.at(*(np.concatenate(column) for column in zip(*parts, strict=True)))
