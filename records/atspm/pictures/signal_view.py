"""One signal as its pictures need it: cycles, splits, arrivals, occupancies and volumes of its phases."""

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from controller.recording.detectors import ADVANCE, PRESENCE, Detector
from records.atspm.analysis_period import FORCE_OFF, GAP_OUT, MAX_OUT, AnalysisPeriod, SignalHistory, SignalReadings
from records.atspm.detectors import detector_numbers
from records.atspm.event_codes import Code, Event
from records.atspm.events import signal_events
from records.atspm.from_record import ObservedSignals
from signals.phase_numbers import NemaPhase, PhaseNumbers

BINS_S = (900.0, 300.0, 60.0)
"""Bins of volumes, delays and shares of split failures, as in UDOT's tools; shorter for less than MIN_BINS of them."""
MIN_BINS = 3
CAUSES = {Code.PHASE_GAP_OUT: GAP_OUT, Code.PHASE_MAX_OUT: MAX_OUT, Code.PHASE_FORCE_OFF: FORCE_OFF}
END = Code.PHASE_END_RED_CLEARANCE
BEFORE_END = (Code.PHASE_GREEN_TERMINATION, Code.PHASE_END_YELLOW, Code.PHASE_BEGIN_RED_CLEARANCE)
"""The ends of a split's green and yellow."""
Interval = tuple[float, float]


@dataclass(frozen=True)
class Cycle:
    """A phase from the begin of red to the next one, in s."""

    begin_s: float
    green_s: float
    yellow_s: float
    """Begin of yellow, or end of green without one."""
    end_s: float


@dataclass(frozen=True)
class Split:
    """A green of a phase with its yellow and red clearance, in s."""

    begin_s: float
    green_end_s: float
    red_s: float | None
    """Begin of red; None if yellow turned to green again."""
    end_s: float
    cause: str | None
    """Why the green ended; None if it is not known."""


@dataclass(frozen=True)
class SignalView:
    """One signal."""

    period: AnalysisPeriod
    own: SignalHistory
    phases: PhaseNumbers
    events: tuple[Event, ...]
    detectors: tuple[tuple[int, Detector], ...] = ()
    """Its detectors with their numbers."""
    readings: SignalReadings = field(default_factory=SignalReadings)
    name: str = ""

    @property
    def vehicle_phases(self) -> list[NemaPhase]:
        return [phase for phase in self.phases.phases if phase.links]

    def description(self, phase: int) -> str:
        """A phase in words."""
        return next(
            (f"Phase {each.number}: {each.description}" for each in self.phases.phases if each.number == phase), ""
        )

    def phase_name(self, phase: int) -> str:
        """A phase with its movements, such as `phase 2 (eastbound through, eastbound right)`."""
        number, _, movements = self.description(phase).partition(": ")
        return f"{number.lower()} ({movements})" if movements else f"phase {phase}"

    def times_s(self, code: Code, parameter: int) -> list[float]:
        """The times of an event."""
        return self._times_s.get((code, parameter), [])

    @cached_property
    def _times_s(self) -> dict[tuple[Code, int], list[float]]:
        times: dict[tuple[Code, int], list[float]] = {}
        for event in self.events:
            times.setdefault((event.code, event.parameter), []).append(event.time_ms / 1000)
        return times

    def cycles(self, phase: int) -> list[Cycle]:
        """The complete cycles of a phase, from red to red."""
        reds = self.times_s(Code.PHASE_BEGIN_RED_CLEARANCE, phase)
        greens = self.times_s(Code.PHASE_BEGIN_GREEN, phase)
        yellows = self.times_s(Code.PHASE_BEGIN_YELLOW, phase)
        ends = self.times_s(Code.PHASE_GREEN_TERMINATION, phase)
        found = []
        for begin_s, end_s in pairwise(reds):
            at = bisect_left(greens, begin_s)
            if at == len(greens) or greens[at] >= end_s:
                continue
            # the last ones before the red, if yellow turned to green again
            yellow = yellows[bisect_left(yellows, end_s) - 1 : bisect_left(yellows, end_s)]
            end = ends[bisect_right(ends, end_s) - 1]
            found.append(Cycle(begin_s, greens[at], yellow[0] if yellow and yellow[0] > greens[at] else end, end_s))
        return found

    def splits(self, phase: int) -> list[Split]:
        """The greens of a phase that begin and end in the period."""
        greens: list[dict[Code, float]] = []
        """By split, the newest time of each event up to the end of its red clearance, or the next green."""
        for event in self.events:
            if event.parameter == phase and event.code == Code.PHASE_BEGIN_GREEN:
                greens.append({})
            # a red clearance may end when the next green has begun
            is_early = event.code == END and greens and Code.PHASE_GREEN_TERMINATION not in greens[-1]
            if event.parameter == phase and greens and END not in greens[-1] and not is_early:
                greens[-1][event.code] = event.time_ms / 1000
        found = []
        for k, times_s in enumerate(greens):
            if Code.PHASE_GREEN_TERMINATION in times_s and (END in times_s or k + 1 < len(greens)):
                last_s = max(times_s[code] for code in BEFORE_END if code in times_s)
                cleared_s = times_s.get(END, last_s)
                # 1 ms stands for no all-red
                end_s = cleared_s if cleared_s - last_s > 0.0015 else last_s
                cause = next((CAUSES[code] for code in CAUSES if code in times_s), None)
                begin_s, green_end_s = times_s[Code.PHASE_BEGIN_GREEN], times_s[Code.PHASE_GREEN_TERMINATION]
                found.append(Split(begin_s, green_end_s, times_s.get(Code.PHASE_BEGIN_RED_CLEARANCE), end_s, cause))
        return found

    def arrivals(self, phase: int) -> list[float]:
        """Times at which the advance detectors of a phase became occupied."""
        return sorted(
            time_s for number in self.numbers(phase, ADVANCE) for time_s in self.times_s(Code.DETECTOR_ON, number)
        )

    def is_green(self, phase: int, time_s: float) -> bool:
        """Whether a phase is green at a moment of the period; its begin counts, its end does not."""
        newest = []
        for code in (Code.PHASE_BEGIN_GREEN, Code.PHASE_GREEN_TERMINATION):
            times = self.times_s(code, phase)
            at = bisect_right(times, time_s)
            newest.append(times[at - 1] if at else -math.inf)
        return newest[0] > newest[1]

    def numbers(self, phase: int, function: str) -> list[int]:
        """The numbers of a phase's detectors of a function."""
        lanes = self.phases.phase_of_lane
        return [
            number
            for number, detector in self.detectors
            if detector.function == function and lanes.get(detector.stop_lane) == phase
        ]

    def occupied(self, phase: int) -> list[Interval]:
        """Times in which any presence detector of a phase was occupied."""
        changes = sorted(
            (time_s, change)
            for number in self.numbers(phase, PRESENCE)
            for code, change in ((Code.DETECTOR_ON, 1), (Code.DETECTOR_OFF, -1))
            for time_s in self.times_s(code, number)
        )
        intervals: list[Interval] = []
        count, since_s = 0, 0.0
        for time_s, change in changes:
            before, count = count, max(count + change, 0)
            if not before and count:
                since_s = time_s
            elif before and not count:
                intervals.append((since_s, time_s))
        return [*intervals, (since_s, self.period.end_s)] if count else intervals

    @property
    def bins(self) -> list[Interval]:
        """Bins of the period; the last one may have another width."""
        begin_s, end_s = self.period.begin_s, self.period.end_s
        if begin_s >= end_s:
            return []
        width_s = next((width_s for width_s in BINS_S if end_s - begin_s >= MIN_BINS * width_s), BINS_S[-1])
        count = max(round((end_s - begin_s) / width_s), 1)
        return list(pairwise([*(begin_s + k * width_s for k in range(count)), end_s]))

    def volumes(self, phase: int) -> list[tuple[float, float]]:
        """(begin of the bin, vehicles per hour) of a phase: of its advance detectors, else of the readings. Empty: not
        known."""
        if self.numbers(phase, ADVANCE):
            times = self.arrivals(phase)
            return [(a, (bisect_left(times, b) - bisect_left(times, a)) * 3600 / (b - a)) for a, b in self.bins]
        return [(a, vehicles * 3600 / (b - a)) for (a, b), vehicles in zip(self.bins, self.passed(phase), strict=False)]

    def passed(self, phase: int) -> list[float]:
        """By bin, the vehicles that left a phase's lanes, of the readings. Empty: not known."""
        readings = self.readings.lanes.get(phase, ())
        known = [(reading.time_s, reading.passed) for reading in readings if reading.passed is not None]
        if not known:
            return []
        times = [time_s for time_s, _ in known]
        counts = []
        for a, b in self.bins:
            first, last = max(bisect_right(times, a) - 1, 0), max(bisect_right(times, b) - 1, 0)
            counts.append(known[last][1] - known[first][1])
        return counts

    def modes(self) -> list[tuple[float, float, str]]:
        """(begin, end, text) of the control modes, and of the programs without a controller."""
        changes = [(change.begin_s, change.mode) for change in self.own.modes]
        if not changes:
            changes = [(change.begin_s, f"program {change.program or 'of a client'}") for change in self.own.programs]
        ends = [begin_s for begin_s, _ in changes[1:]] + [self.period.end_s]
        return [(begin_s, end_s, text) for (begin_s, text), end_s in zip(changes, ends, strict=False)]


def views(recorded: ObservedSignals) -> list[SignalView]:
    """The signals of a record, or of a simulation."""
    numbers = detector_numbers(recorded.detectors)
    made = signal_events(recorded.period, recorded.phases, recorded.detectors, recorded.programs)
    return [
        SignalView(
            recorded.period,
            own,
            recorded.phases[own.signal],
            events.events,
            tuple((numbers[each.id], each) for each in recorded.detectors if each.signal == own.signal),
            recorded.readings.get(own.signal, SignalReadings()),
            recorded.names.get(own.signal, own.signal),
        )
        for own, events in zip(recorded.period.signals, made, strict=True)
    ]
