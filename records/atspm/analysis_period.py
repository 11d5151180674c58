"""Signals over an analysis period: what they showed, what controlled them, and readings of their lanes. Signal events
are made of it.

Whoever has a record, or a running SUMO, fills it. Times are simulated seconds, and everything is in order of time. What
happened before `AnalysisPeriod.begin_s` may be listed too: its events are not written, but what it began is known.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

MODES = ("policy", "hold", "fallback", "recovering", "fixed", "off", "lost")
POLICY, HOLD, FALLBACK, RECOVERING, FIXED, OFF, LOST = MODES
CAUSES = ("force-off", "max-out", "gap-out")
FORCE_OFF, MAX_OUT, GAP_OUT = CAUSES


@dataclass(frozen=True, slots=True)
class ShownState:
    """A state that a signal showed until its next one."""

    begin_s: float
    """When it began to be shown. SUMO reports a state after the step in which it was shown: the begin of that step."""
    state: str
    """One character per link, as SUMO has them: r, y, g, G, s, u, o or O."""


@dataclass(frozen=True, slots=True)
class ModeChange:
    """A control mode that lasted until the next one."""

    begin_s: float
    mode: str
    """One of MODES, or the driver in the place of the policies, such as max-pressure."""


@dataclass(frozen=True, slots=True)
class ProgramChange:
    """The program that ran until the next change."""

    begin_s: float
    program: str | None
    """Its id; None while a client, such as the controller, set the states."""


@dataclass(frozen=True, slots=True)
class Detection:
    """A detector that became occupied or free."""

    detector: str
    time_s: float
    is_on: bool


@dataclass(frozen=True)
class SignalHistory:
    """One signal."""

    signal: str
    states: tuple[ShownState, ...]
    modes: tuple[ModeChange, ...] = ()
    """Empty if no controller was there: then its own programs ran."""
    programs: tuple[ProgramChange, ...] = ()
    green_ends: Mapping[float, str] = field(default_factory=dict)
    """By second at which greens ended, one of CAUSES, if it cannot be derived from mode and program: a maximum green
    ended them (max-out), a plan or policy did (force-off), or a detector's gap (gap-out)."""


@dataclass(frozen=True)
class AnalysisPeriod:
    """Some signals from `begin_s` up to `end_s`, whose events belong to the next period."""

    begin_s: float
    end_s: float
    zero: datetime
    """Local date and time of simulated second 0."""
    signals: tuple[SignalHistory, ...]
    detections: tuple[Detection, ...] = ()
    """In order of time for each detector, occupied and free in turn. A detector that is not of `greenserve detectors`
    is left out of the events."""

    def time(self, milliseconds: int) -> datetime:
        """Local date and time of a simulated moment."""
        return self.zero + timedelta(milliseconds=milliseconds)


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
    """The readings of one signal's lanes by a controller, in the order of time."""

    lanes: dict[int, list[LaneReading]] = field(default_factory=dict)
    """By phase."""
    vehicles: list[VehicleReading] = field(default_factory=list)
    """In order of time, of the part of the record with the most of them."""
    vehicle_times_s: list[float] = field(default_factory=list)
    """When vehicles were read, also if there was none."""
