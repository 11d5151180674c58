"""Signals over an analysis period, from a record: what they showed, what controlled them, what was read of their lanes.

shown states   from the steps; a hole of the record is control mode lost
control modes  from the TLs' steps and operators' commands; fallback if max-pressure or greedy drove
programs       while signals were handed to them; none while the controller set the states
causes         max-out for a green that the safety rules ended at its maximum
queues         halting vehicles, whenever the TL was due
volumes        counted vehicles, else the flow of single vehicles on their lanes after Edie: the way that they drive
               in a time, divided by the lane's length (dialect street, driver greedy)
detectors      occupied while a vehicle is on them: from entries and exits, of runs in which SUMO had loaded
               detectors; free after a hole of the record, until a vehicle enters

Edie, "Discussion of traffic stream measurements and definitions", 1963.
"""

import math
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, TypeVar

from city.config import City
from city.errors import InputError
from city.network import Program, StreetNetwork
from city.sumo_files import time_text
from controller.recording.detectors import Detector
from controller.recording.record_writer import NS
from controller.recording.run_start import RunStart
from controller.recording.sentences import mode_name, reason_name
from protos import record_pb2 as record
from records.atspm.analysis_period import (
    LOST,
    MAX_OUT,
    MODES,
    POLICY,
    AnalysisPeriod,
    Detection,
    LaneReading,
    ModeChange,
    ProgramChange,
    ShownState,
    SignalHistory,
    SignalReadings,
    VehicleReading,
)
from records.atspm.spool import Series, Spool
from records.record_reader import RecordedStep, RecordReader
from records.recorded_run import LaneCounts, start_of
from records.run_files import RunReader
from signals import phase_numbers
from signals.phase_numbers import PhaseNumbers

HOLE_S = 1e-6
"""Longer times between two shown states are a hole."""
AFTER_HOLE_S = 0.001
"""Control mode lost lasts so much longer than a hole, because why the greens in it ended is not known."""
MAX_GAP_S = 60.0
"""A longer time between two readings of single vehicles is not counted as flow."""
Change = TypeVar("Change", ModeChange, ProgramChange)
NO_DETECTORS = "SUMO had loaded no detectors of greenserve detectors for these signals, so there are no detector events"


@dataclass(frozen=True)
class ObservedSignals:
    """Signals over an analysis period, and what was read of them."""

    street: StreetNetwork
    period: AnalysisPeriod
    phases: dict[str, PhaseNumbers]
    """By signal, for all signals of the network."""
    programs: dict[str, tuple[Program, ...]] = field(default_factory=dict)
    readings: dict[str, SignalReadings] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """TL and id. Programs, readings and names are by recorded signal."""
    detectors: tuple[Detector, ...] = ()
    notes: tuple[str, ...] = ()
    overrides: Mapping[str, int] = field(default_factory=dict)
    """By reason, the requests that the safety rules replaced."""


@dataclass(frozen=True)
class RecordSelection:
    """The part of a record whose signals are read."""

    tls: frozenset[str] | None = None
    """None: all."""
    from_s: float = -math.inf
    to_s: float = math.inf
    vehicles_s: float = 0.0
    """Length of the time of which single vehicles are kept: that with the most of them."""
    city: City | None = None
    """The city whose phase numbers count; None: those with which the run was recorded."""
    zero: datetime | None = None
    """Local date and time of simulated second 0; None: midnight of the day (UTC) on which the run began."""


EVERYTHING = RecordSelection()


def read(reader: RunReader, selection: RecordSelection = EVERYTHING) -> ObservedSignals:
    """The signals of a record.

    Raises InputError if the record's network or the phase numbers cannot be read, or no signal is recorded in that
    time.
    """
    steps, zero = collect(reader, selection)
    return steps.recorded(zero, reader.missing)


def collect(
    reader: RunReader, selection: RecordSelection = EVERYTHING, spool: Spool | None = None
) -> "tuple[EventCollector, datetime]":
    """The steps of a record, and the local date and time of second 0. Errors are those of `read`.

    `spool`: keeps states and detections in a file, for a record that does not fit into memory; readings of lanes are
    left out.
    """
    path = reader.files[0].path
    with RecordReader(path) as file:
        run = start_of(path, file.city, file.attachments)
    city = selection.city
    phases = phase_numbers.of_city(city, run.street) if city is not None else _recorded_phases(path, run)
    begin = datetime.fromtimestamp(reader.city.begin_unix_ns / NS, UTC)
    steps = EventCollector(run, phases, selection, spool)
    for recorded in reader.steps(selection.tls):
        if selection.to_s <= min(recorded.step.at_s, steps.end_s):
            break
        steps.add(recorded)
    if not steps.begin_s < steps.end_s:
        raise InputError(f"{path}: has no shown state of these TLs at that time; see greenserve record info")
    return steps, selection.zero or datetime(begin.year, begin.month, begin.day)


def programs_of(run: RunStart, signal: str) -> tuple[Program, ...]:
    """The programs that a signal had in SUMO. Only the network's files say whether an actuated one is coordinated; one
    that they do not define counts as such, so that no gap-out is made up."""
    coordinated = {program.id: program.is_coordinated for program in run.street.signals[signal].programs}
    running = run.start.signals[signal].programs.values()
    return tuple(replace(program, is_coordinated=coordinated.get(program.id, True)) for program in running)


class _Signal:
    """A signal's history and readings, so far."""

    def __init__(self, id: str, tl: str, lanes: dict[int, list[int]], uses_flow: bool, spool: Spool | None) -> None:
        """`lanes`: by phase, the rows of its incoming lanes. `uses_flow`: vehicles are read one by one, not counted."""
        self.id, self.tl = id, tl
        self.lanes, self.uses_flow = lanes, uses_flow
        self.states = Series[ShownState](spool)
        self.modes = Series[ModeChange](spool)
        self.programs = Series[ProgramChange](spool)
        self.green_ends = Series[tuple[float, str]](spool)
        self.readings = SignalReadings()
        self.flow = dict.fromkeys(lanes, 0.0)
        """By phase, the vehicles that passed until `flow_s`, after Edie."""
        self.flow_s: float | None = None

    def set_mode(self, begin_s: float, mode: str) -> None:
        _append_change(self.modes, ModeChange(begin_s, mode))

    def history(self) -> SignalHistory:
        return SignalHistory(
            self.id, tuple(self.states), tuple(self.modes), tuple(self.programs), dict(self.green_ends)
        )


def _append_change(series: "Series[Change]", change: Change) -> None:
    """Append a change in the place of those at its time and later, unless nothing changes."""
    while (newest := series.newest) is not None and newest.begin_s >= change.begin_s:
        series.remove_newest()
    if newest is None or replace(newest, begin_s=change.begin_s) != change:
        series.append(change)


def _recorded_phases(path: Path, run: RunStart) -> dict[str, PhaseNumbers]:
    """The phases of every signal, with the recorded numbers. Raises InputError."""
    signals = {
        contract.tl: [run.street.signals[signal] for signal in contract.signal_ids] for contract in run.contracts
    }
    try:
        return phase_numbers.of_tls(run.street, signals, run.phases, run.names, str(path))
    except InputError as error:
        raise InputError(f"{error}, in a city.toml that --city names") from None


class _VehicleStep(NamedTuple):
    """The single vehicles that were read at one moment."""

    at_s: float
    of_signal: dict[str, list[VehicleReading]]

    @property
    def vehicle_count(self) -> int:
        return sum(map(len, self.of_signal.values()))


class DetectionCollector:
    """Collects entries and exits; a detector is occupied while a vehicle is on it."""

    def __init__(self, detectors: Sequence[Detector], spool: Spool | None = None) -> None:
        self._detectors = detectors
        self._changes = {detector.signal: Series[tuple[int, bool, int]](spool) for detector in detectors}
        """By signal, (ms, whether it is an exit, detector): an entry comes before an exit of the same moment."""
        self._on: Counter[int] = Counter()

    def add(self, changes: record.DetectorChanges) -> None:
        """Add the entries and exits of a step. An exit without an entry is left out: the entry was in a hole."""
        for detector, time_s, is_entry in zip(changes.detector, changes.time_s, changes.is_entry, strict=False):
            if detector < len(self._detectors) and (is_entry or self._on[detector]):
                self._on[detector] += 1 if is_entry else -1
                self._change(time_s, not is_entry, detector)

    def end_all(self, time_s: float) -> None:
        """Free every detector, because what follows is not known."""
        for detector in self._on.elements():
            self._change(time_s, True, detector)
        self._on.clear()

    def _change(self, time_s: float, is_exit: bool, detector: int) -> None:
        self._changes[self._detectors[detector].signal].append((round(1000 * time_s), is_exit, detector))

    def detections(self, signals: Iterable[str] | None = None) -> Iterator[Detection]:
        """Each detector of some signals that became occupied or free, in order of time. `signals`: None for all."""
        on: Counter[int] = Counter()
        own = (self._changes.get(signal, ()) for signal in (self._changes if signals is None else signals))
        for time_ms, is_exit, detector in sorted(change for changes in own for change in changes):
            on[detector] += -1 if is_exit else 1
            if on[detector] == (0 if is_exit else 1):
                yield Detection(self._detectors[detector].id, time_ms / 1000, not is_exit)


class EventCollector:
    """Collects the steps of a run, of a file or of one that is simulated now."""

    def __init__(
        self,
        run: RunStart,
        phases: Mapping[str, PhaseNumbers],
        selection: RecordSelection,
        spool: Spool | None = None,
    ) -> None:
        """`phases`: of every signal of the network; the other arguments are those of `collect`."""
        self._run = run
        self._phases = phases
        self._selection = selection
        self._tls = [contract.tl for contract in run.contracts]
        self._lanes = run.tracked_lanes()
        self._outflow = {self._lanes.row[lane]: k for k, lane in enumerate(self._lanes.outflow_lanes)}
        self._length_m = [run.street.lane_length_m[lane] for lane in self._lanes.lanes]
        self._has_readings = spool is None
        self._vehicles: deque[_VehicleStep] = deque()
        """Single vehicles of the newest `vehicles_s`."""
        self._vehicle_count = 0
        self._busiest: tuple[_VehicleStep, ...] = ()
        """Those of the time with the most of them."""
        self._busiest_count = 0
        self._counts = LaneCounts(self._tls, self._lanes.row, self._lanes.lanes_of)
        self.begin_s = self.end_s = selection.from_s
        self._shown_s: float | None = None
        """End of the newest shown state."""
        self.holes: list[str] = []
        self._overrides = Counter[str]()
        self._detections = DetectionCollector(run.detectors, spool)
        self._of_tl: dict[str, list[_Signal]] = {}
        for contract in run.contracts:
            if selection.tls is None or contract.tl in selection.tls:
                self._of_tl[contract.tl] = [self._signal(signal, contract.tl, spool) for signal in contract.signal_ids]
        self.signals = {signal.id: signal for signals in self._of_tl.values() for signal in signals}

    def _signal(self, signal: str, tl: str, spool: Spool | None) -> _Signal:
        # lanes of which single vehicles are read
        single = set(self._lanes.vehicle_lanes_of.get(tl, ()))
        read_lanes = single.union(self._lanes.lanes_of[tl])
        rows: dict[int, list[int]] = {}
        for lane, phase in self._phases[signal].phase_of_lane.items():
            if lane in read_lanes:
                rows.setdefault(phase, []).append(self._lanes.row[lane])
        own = {row for rows_of_phase in rows.values() for row in rows_of_phase}
        is_counted = own <= self._outflow.keys()
        uses_flow = not is_counted and single.issuperset(self._lanes.lanes[row] for row in own)
        return _Signal(signal, tl, rows, uses_flow, spool)

    def add(self, recorded: RecordedStep) -> None:
        """Add a step; steps are in order."""
        step = recorded.step
        if self._shown_s is None:
            # a run begins with policies; of a run without its beginning, the modes are not known yet
            mode = self._mode(record.TlStep.POLICY) if step.number == 0 else LOST
            begin_s = min([step.at_s, *(shown.begin_s for shown in step.shown)])
            for signal in self.signals.values():
                if signal.modes.newest is None:
                    signal.set_mode(begin_s, mode)
        for shown in step.shown:
            self._add_shown(shown)
        self._detections.add(step.detectors)
        for command in step.commands:
            for signal in self._of_tl.get(command.tl, ()):
                signal.set_mode(step.at_s, self._mode(command.mode))
        for tl, tl_step in recorded.tls.items():
            for signal in self._of_tl.get(tl, ()):
                signal.set_mode(tl_step.at_s, self._mode(tl_step.mode))
                self._add_states(signal, tl_step)
        if step.due and self._has_readings and self._selection.from_s <= step.at_s <= self._selection.to_s:
            self._add_readings(step)

    def period(self, zero: datetime, signals: Iterable[str] | None = None) -> AnalysisPeriod:
        """The analysis period of the steps so far. `signals`: None for all."""
        names = tuple(self.signals) if signals is None else tuple(signals)
        own = tuple(self.signals[name].history() for name in names)
        return AnalysisPeriod(self.begin_s, self.end_s, zero, own, tuple(self._detections.detections(names)))

    def recorded(
        self, zero: datetime, missing: Iterable[str] = (), signals: Iterable[str] | None = None
    ) -> ObservedSignals:
        """The signals of the steps so far.

        Args:
            zero: local date and time of simulated second 0.
            missing: what else is missing of the record.
            signals: those of the period; None for all.
        """
        run = self._run
        detectors = tuple(detector for detector in run.detectors if detector.signal in self.signals)
        notes = [*([] if detectors else [NO_DETECTORS]), *missing, *self.holes]
        if run.driver is not None:
            notes.append(f"{run.driver} drove in the place of the policies, and names its time as a control mode")
        if any(signal.uses_flow for signal in self.signals.values()):
            notes.append("volumes of TLs whose single vehicles are read are their flow (Edie), not counts")
        return ObservedSignals(
            run.street,
            self.period(zero, signals),
            dict(self._phases),
            {name: programs_of(run, name) for name in self.signals},
            {name: self._readings(signal) for name, signal in self.signals.items()},
            {name: f"{signal.tl}, signal {name}" for name, signal in self.signals.items()},
            detectors,
            tuple(notes),
            +self._overrides,
        )

    def _mode(self, mode: "record.TlStep.ControlMode") -> str:
        name = mode_name(mode)
        if name not in MODES:
            return LOST  # of another version
        return self._run.driver if self._run.driver is not None and name == POLICY else name

    def _add_shown(self, shown: record.Shown) -> None:
        if self._shown_s is None:
            self.begin_s = max(self.begin_s, shown.begin_s)
        elif shown.begin_s > self._shown_s + HOLE_S:
            self._add_hole(self._shown_s, shown.begin_s)
        self._shown_s = shown.end_s
        self.end_s = max(self.end_s, min(shown.end_s, self._selection.to_s))
        states = dict(zip(self._run.start.signals, shown.states, strict=False))
        for signal in self.signals.values():
            # a signal has a few states, each of which is shown many times
            state = sys.intern(states.get(signal.id, ""))
            before = signal.states.newest
            if state and (before is None or (before.state != state and before.begin_s < shown.begin_s)):
                signal.states.append(ShownState(shown.begin_s, state))

    def _add_hole(self, begin_s: float, end_s: float) -> None:
        self.holes.append(f"nothing is recorded from {time_text(begin_s)} to {time_text(end_s)}")
        self._detections.end_all(begin_s)
        for signal in self.signals.values():
            newest = signal.modes.newest
            signal.set_mode(begin_s, LOST)
            signal.set_mode(end_s + AFTER_HOLE_S, newest.mode if newest is not None else LOST)

    def _add_states(self, signal: _Signal, tl_step: record.TlStep) -> None:
        """Programs, overrides, and greens that the safety rules ended at their maximum."""
        for states in tl_step.states:
            for command in states.commands:
                if command.signal == signal.id:
                    program = None if command.state else command.program
                    _append_change(signal.programs, ProgramChange(states.at_s, program))
            for override in (each for each in states.overrides if each.signal == signal.id):
                is_selected = self._selection.from_s <= states.at_s <= self._selection.to_s
                self._overrides[reason_name(override.reason)] += is_selected
                if override.reason == record.TlStep.MAX_GREEN:
                    signal.green_ends.append((states.at_s, MAX_OUT))

    def _add_readings(self, step: record.Step) -> None:
        due = [self._tls[k] for k in step.due if k < len(self._tls)]
        _, halting = self._counts.of(step)
        driven_mps: dict[int, float] = defaultdict(float)
        for row, speed_mps in zip(step.readings.vehicle_lane, step.readings.speed_mps, strict=False):
            driven_mps[row] += speed_mps
        vehicles: dict[str, list[VehicleReading]] = {}
        for tl in due:
            for k, signal in enumerate(self._of_tl.get(tl, ())):
                self._add_lanes(signal, step, halting, driven_mps)
                if k == 0 and self._selection.vehicles_s > 0:  # once, if the TL has several signals
                    vehicles[signal.id] = list(self._vehicles_of(signal, step))
        if vehicles:
            self._add_vehicles(_VehicleStep(step.at_s, vehicles))

    def _add_vehicles(self, read: _VehicleStep) -> None:
        """Add single vehicles, and keep those of the `vehicles_s` in which most were read."""
        self._vehicles.append(read)
        self._vehicle_count += read.vehicle_count
        while self._vehicles[0].at_s <= read.at_s - self._selection.vehicles_s:
            self._vehicle_count -= self._vehicles.popleft().vehicle_count
        if self._vehicle_count > self._busiest_count or not self._busiest:
            self._busiest, self._busiest_count = tuple(self._vehicles), self._vehicle_count

    def _readings(self, signal: _Signal) -> SignalReadings:
        """A signal's readings, with its single vehicles."""
        own = [(step.at_s, step.of_signal[signal.id]) for step in self._busiest if signal.id in step.of_signal]
        return SignalReadings(
            signal.readings.lanes, [each for _, vehicles in own for each in vehicles], [at_s for at_s, _ in own]
        )

    def _add_lanes(
        self, signal: _Signal, step: record.Step, halting: Mapping[int, int], driven_mps: Mapping[int, float]
    ) -> None:
        """Add a reading of each phase's lanes. The mappings are by row of a lane: vehicles, and the sum of speeds."""
        outflow = step.readings.outflow
        gap_s = step.at_s - signal.flow_s if signal.flow_s is not None else 0.0
        signal.flow_s = step.at_s
        for phase, rows in signal.lanes.items():
            own = [halting.get(row, 0) for row in rows]
            passed: float | None = None
            if all(self._outflow.get(row, len(outflow)) < len(outflow) for row in rows):
                passed = float(sum(outflow[self._outflow[row]] for row in rows))
            elif signal.uses_flow:
                flow = sum(driven_mps.get(row, 0.0) / self._length_m[row] for row in rows)
                signal.flow[phase] += flow * gap_s if gap_s <= MAX_GAP_S else 0.0
                passed = signal.flow[phase]
            reading = LaneReading(step.at_s, sum(own), max(own, default=0), passed)
            signal.readings.lanes.setdefault(phase, []).append(reading)

    def _vehicles_of(self, signal: _Signal, step: record.Step) -> Iterator[VehicleReading]:
        rows = set(self._lanes.vehicle_rows_of([signal.tl])[1].tolist())
        readings = step.readings
        for row, position_m, speed_mps in zip(
            readings.vehicle_lane, readings.position_m, readings.speed_mps, strict=False
        ):
            if row in rows:
                yield VehicleReading(step.at_s, self._lanes.lanes[row], position_m, speed_mps)
