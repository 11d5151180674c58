"""Readings of a signal's lanes by a controller, in the order of time: queues, volumes and single vehicles."""

from dataclasses import dataclass, field
from typing import NamedTuple


class LaneReading(NamedTuple):
    """The lanes of a phase at one moment."""

    time_s: float
    halting: int
    """Vehicles on all lanes slower than 0.1 m/s."""
    longest: int
    """Halting vehicles of the lane with most of them."""
    passed: float | None
    """Vehicles that have left the lanes since the first reading; None if it is not known."""


class VehicleReading(NamedTuple):
    """A vehicle at one moment. Vehicles are not identified."""

    time_s: float
    lane: str
    position_m: float
    """Position of its front, from the begin of the lane."""
    speed_mps: float


@dataclass
class SignalReadings:
    """The readings of one signal."""

    lanes: dict[int, list[LaneReading]] = field(default_factory=dict)
    """By phase."""
    vehicles: list[VehicleReading] = field(default_factory=list)
    """In order of time, of the part of the record with the most of them."""
    vehicle_times_s: list[float] = field(default_factory=list)
    """When vehicles were read, also if there was none."""
