"""Vehicles that come onto induction loops (E1) and leave them.

SUMO reports the vehicles that were on a detector during its newest step, each with the times of its entry and exit.
So detectors are read after every step of SUMO, also between two decisions. `TrackedDetectors` makes entries and exits
of these readings. https://sumo.dlr.de/docs/TraCI/Induction_Loop_Value_Retrieval.html
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from signals.simulation_time import round_to_ms

STILL_ON_S = 0.0
"""SUMO's exit of a vehicle that is still on the detector lies below (-1)."""


class DetectorVehicle(NamedTuple):
    """A vehicle that was on a detector during the newest step."""

    vehicle: Hashable
    entry_s: float
    exit_s: float
    """Negative while it is on the detector."""


class DetectorChange(NamedTuple):
    """A vehicle came onto a detector, or left it."""

    detector: int
    """Its place among the detectors that are read."""
    time_s: float
    is_entry: bool


class TrackedDetectors:
    """Finds the entries and exits of vehicles in the readings of detectors, one after every step of SUMO."""

    def __init__(self, detectors: Sequence[str], now: float, sumo_step_s: float) -> None:
        self.ids = tuple(detectors)
        self._now = now
        self._sumo_step_s = sumo_step_s
        self._on: dict[int, set[tuple[Hashable, float]]] = {}
        """By detector, (vehicle, its entry in s) of those that are on it; without empty detectors."""
        self._read_s = -math.inf
        self._changes: list[DetectorChange] = []

    def advance(self, until_s: float) -> list[float]:
        """The moments until until_s at which SUMO must stop: the end of each of its steps if there are detectors."""
        ends = step_ends(self._now, until_s, self._sumo_step_s) if self.ids else [until_s]
        self._now = until_s
        return ends

    def add(self, time_s: float, vehicles_of: Mapping[int, Sequence[DetectorVehicle]]) -> None:
        """Add a reading.

        Args:
            time_s: simulated second of the reading.
            vehicles_of: by detector, the vehicles of the newest step; a detector without any may be left out.
        """
        changes: list[DetectorChange] = []
        for detector in self._on.keys() | vehicles_of.keys():
            before = self._on.pop(detector, set())
            now: set[tuple[Hashable, float]] = set()
            for vehicle, entry_s, exit_s in vehicles_of.get(detector, ()):
                passage = vehicle, entry_s
                is_new = passage not in before
                before.discard(passage)
                if exit_s < STILL_ON_S:
                    now.add(passage)
                elif not is_new or exit_s > self._read_s:
                    changes.append(DetectorChange(detector, exit_s, False))
                else:
                    continue  # the reading before has reported it
                if is_new:
                    changes.append(DetectorChange(detector, entry_s, True))
            # SUMO no longer knows them, for example because a client loaded another state
            changes += [DetectorChange(detector, time_s, False) for _ in before]
            if now:
                self._on[detector] = now
        self._read_s = time_s
        self._changes += sorted(changes, key=lambda change: (change.time_s, change.detector, not change.is_entry))

    def take_changes(self) -> list[DetectorChange]:
        """Return the changes since the last call, in order of time; at one moment of a detector, entries first."""
        changes, self._changes = self._changes, []
        return changes


def step_ends(from_s: float, until_s: float, sumo_step_s: float) -> list[float]:
    """The ends of SUMO's steps after from_s, the last one of which is until_s."""
    count = max(round((until_s - from_s) / sumo_step_s), 1)
    return [*(round_to_ms(from_s + k * sumo_step_s) for k in range(1, count)), until_s]
