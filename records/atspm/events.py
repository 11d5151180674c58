"""Events of signals, as signal controllers log them, from a period.

What a simulation does not have is not made up: no detector faults, no preemption, and a gap-out only where an actuated
program is known to have ended a green before its maximum (`_causes`). An interval that begins before the period
has no begin event, and one that outlasts it no end event.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from city.network import OFF as OFF_PROGRAM
from city.network import Program
from controller.recording.detectors import PRESENCE, Detector
from records.atspm import validity
from records.atspm.analysis_period import (
    FORCE_OFF,
    GAP_OUT,
    HOLD,
    LOST,
    MAX_OUT,
    OFF,
    POLICY,
    AnalysisPeriod,
    Detection,
    ShownState,
    SignalHistory,
)
from records.atspm.detectors import detector_numbers
from records.atspm.event_codes import (
    FLASH_AUTOMATIC,
    FLASH_OTHER,
    MAX_BYTE,
    MAX_PATTERN,
    NOT_FLASH,
    PATTERN_FLASH,
    PATTERN_FREE,
    POLICY_FUNCTION,
    Code,
    Event,
)
from signals.phase_numbers import PhaseNumbers

DETECTOR_CODES = (Code.DETECTOR_OFF, Code.DETECTOR_ON)
TERMINATIONS = {GAP_OUT: Code.PHASE_GAP_OUT, MAX_OUT: Code.PHASE_MAX_OUT, FORCE_OFF: Code.PHASE_FORCE_OFF}
STATIC, ACTUATED = "static", "actuated"
TOLERANCE_S = 1e-3
GREEN, YELLOW, RED, DARK = "green", "yellow", "red", "dark"
Colours = list[tuple[int, str]]
"""(millisecond, colour) at each change of a phase's colour, the first colour included."""


@dataclass(frozen=True)
class SignalEvents:
    """The events of one signal."""

    signal: str
    events: tuple[Event, ...]
    """In order of time, then of code."""
    notes: tuple[str, ...]
    """Each rule of readers that does not hold (`validity`), in one sentence."""


def signal_events(
    period: AnalysisPeriod,
    phases: Mapping[str, PhaseNumbers],
    detectors: Sequence[Detector] = (),
    programs: Mapping[str, Sequence[Program]] | None = None,
) -> list[SignalEvents]:
    """The events of every signal of a period.

    Args:
        period: what was shown, and why.
        phases: by signal, for all signals of the period.
        detectors: those whose detections the period has.
        programs: by signal, its programs; without them no cycle length and no cause of the end of a program's green is
            known.
    """
    detector_of = {detector.id: detector for detector in detectors}
    number_of = detector_numbers(detectors)
    detections: dict[str, list[Detection]] = {}
    for detection in period.detections:
        if detection.detector in detector_of:
            detections.setdefault(detector_of[detection.detector].signal, []).append(detection)
    begin_ms, end_ms = _ms(period.begin_s), _ms(period.end_s)
    result = []
    for signal in period.signals:
        own = detections.get(signal.signal, [])
        own_programs = (programs or {}).get(signal.signal, ())
        made = [
            *_phases(signal, phases[signal.signal], detector_of, own, own_programs),
            *(Event(_ms(d.time_s), DETECTOR_CODES[d.is_on], number_of[d.detector]) for d in own),
            *_patterns(signal, own_programs),
            *_flash(signal),
            *_policy(signal),
        ]
        events = tuple(sorted(event for event in made if begin_ms <= event.time_ms < end_ms))
        result.append(SignalEvents(signal.signal, events, tuple(validity.notes(period, signal, events))))
    return result


def _ms(time_s: float) -> int:
    return round(time_s * 1000)


def _phases(
    signal: SignalHistory,
    phases: PhaseNumbers,
    detector_of: Mapping[str, Detector],
    detections: Sequence[Detection],
    programs: Sequence[Program],
) -> Iterator[Event]:
    causes = _causes(signal, programs)
    # an all-red ends when the signal shows any green, or no colour at all
    ends_ms = [_ms(shown.begin_s) for shown in signal.states if not set(shown.state).isdisjoint("gGoO")]
    presence: dict[int, list[Detection]] = {}
    for detection in detections:
        detector = detector_of[detection.detector]
        phase_number = phases.phase_of_lane.get(detector.stop_lane)
        if detector.function == PRESENCE and phase_number is not None:
            presence.setdefault(phase_number, []).append(detection)
    for phase in phases.phases:
        if phase.links:
            colours = phase_colours(signal.states, phase.links)
            yield from _vehicle_phase(phase.number, colours, causes, ends_ms)
            yield from _calls(phase.number, colours, presence.get(phase.number, ()))
        if phase.walk_links:
            yield from _walks(phase.number, phase_colours(signal.states, phase.walk_links))


def _causes(signal: SignalHistory, programs: Sequence[Program]) -> dict[int, str]:
    """By millisecond at which a new state begins, why the greens that end there do; without those that are not known.

    `green_ends` of the signal's history   their cause
    control mode off or lost               not known
    control mode policy or hold            force-off: the policy ended it
    a client sets the states               force-off: max-pressure, the operator or a plan ended it
    another program begins                 force-off: the switch ended it
    a static program runs                  force-off: the plan ended it
    an actuated program runs               max-out after its maximum; gap-out between minimum and maximum, as SUMO ends
                                           such a green for nothing else; force-off if the two are equal
    other programs, or a coordination      not known

    Args:
        signal: the signal.
        programs: its programs.
    """
    stated = {round(time_s * 1000): cause for time_s, cause in signal.green_ends.items()}
    by_id = {program.id: program for program in programs}
    modes = [change.begin_s for change in signal.modes]
    changes = [change.begin_s for change in signal.programs]
    found: dict[int, str] = {}
    for k, (before, after) in enumerate(pairwise(signal.states)):
        time_s = after.begin_s
        at = bisect_right(modes, time_s) - 1
        mode = signal.modes[at].mode if at >= 0 else None
        cause = stated.get(round(time_s * 1000))
        if cause is None and mode not in (OFF, LOST):
            at = bisect_right(changes, time_s) - 1
            is_forced = at >= 0 and (signal.programs[at].program is None or changes[at] == time_s)
            if mode in (POLICY, HOLD) or is_forced:
                cause = FORCE_OFF
            elif at >= 0:
                program = by_id.get(signal.programs[at].program or "")
                # the first state may have begun before the period, or under another program
                has_begun_here = k > 0 and changes[at] <= before.begin_s
                cause = _cause(program, before, after, has_begun_here)
        if cause is not None:
            found[round(time_s * 1000)] = cause
    return found


def _cause(program: Program | None, before: ShownState, after: ShownState, has_begun_here: bool) -> str | None:
    if program is None:
        return None
    if program.type == STATIC:
        return FORCE_OFF
    if program.type != ACTUATED or program.is_coordinated or not has_begun_here:
        return None
    phases = program.phases
    bounds = {
        (phase.min_s, phase.max_s)
        for phase, follower in zip(phases, (*phases[1:], *phases[:1]), strict=True)
        if phase.state == before.state and follower.state == after.state
    }
    if len(bounds) != 1:
        return None
    (min_s, max_s), duration_s = bounds.pop(), after.begin_s - before.begin_s
    if max_s - min_s < TOLERANCE_S:
        return FORCE_OFF
    if duration_s > max_s - TOLERANCE_S:
        return MAX_OUT
    return GAP_OUT if duration_s > min_s - TOLERANCE_S else None


def phase_colours(states: Iterable[ShownState], links: Iterable[int]) -> Colours:
    """The colours of a phase: green if any of its links is, else yellow if any is, else red; dark without a colour."""
    links = tuple(links)
    colours: Colours = []
    for shown in states:
        own = {shown.state[link] for link in links if link < len(shown.state)}
        if own & {"g", "G"}:
            colour = GREEN
        elif "y" in own:
            colour = YELLOW
        else:
            colour = DARK if own and own <= {"o", "O"} else RED
        if not colours or colours[-1][1] != colour:
            colours.append((_ms(shown.begin_s), colour))
    return colours


def _vehicle_phase(phase: int, colours: Colours, causes: Mapping[int, str], ends_ms: Sequence[int]) -> Iterator[Event]:
    """Green, its termination and cause, yellow and red clearance: the all-red after it, 1 ms long if there is none.

    Args:
        phase: number of the phase.
        colours: its colours.
        causes: millisecond -> why the greens that end then do.
        ends_ms: the moments at which an all-red ends, in order.
    """
    before = ""
    for k, (time_ms, colour) in enumerate(colours):
        if before == GREEN:
            if colour != DARK and time_ms in causes:
                yield Event(time_ms, TERMINATIONS[causes[time_ms]], phase)
            yield Event(time_ms, Code.PHASE_GREEN_TERMINATION, phase)
        elif before == YELLOW:
            yield Event(time_ms, Code.PHASE_END_YELLOW, phase)
        if colour == GREEN:
            yield Event(time_ms, Code.PHASE_BEGIN_GREEN, phase)
        elif colour == YELLOW:
            yield Event(time_ms, Code.PHASE_BEGIN_YELLOW, phase)
        elif colour == RED and before in (GREEN, YELLOW):
            yield Event(time_ms, Code.PHASE_BEGIN_RED_CLEARANCE, phase)
            at = bisect_left(ends_ms, time_ms)
            ends = [*ends_ms[at : at + 1], *(next_ms for next_ms, _ in colours[k + 1 : k + 2])]
            if ends:
                # readers cannot order two events of one moment
                yield Event(max(min(ends), time_ms + 1), Code.PHASE_END_RED_CLEARANCE, phase)
        before = colour


def _walks(phase: int, colours: Colours) -> Iterator[Event]:
    """Walk, change interval and don't walk. Most SUMO programs show crossings no yellow: then the change interval is
    empty."""
    is_walking = is_changing = False
    for time_ms, colour in colours:
        if is_walking and colour != GREEN:
            yield Event(time_ms, Code.PEDESTRIAN_BEGIN_CHANGE, phase)
            is_walking, is_changing = False, True
        if is_changing and colour in (RED, DARK):
            yield Event(time_ms, Code.PEDESTRIAN_BEGIN_DONT_WALK, phase)
            is_changing = False
        if colour == GREEN:
            yield Event(time_ms, Code.PEDESTRIAN_BEGIN_WALK, phase)
            is_walking, is_changing = True, False


def _calls(phase: int, colours: Colours, presence: Sequence[Detection]) -> Iterator[Event]:
    """Vehicle calls: registered when a presence detector is occupied without green, dropped by green, or when all are
    free."""
    # at the same moment the colour counts first, as readers sort the events
    changes: list[tuple[int, int, str | Detection]] = [(time_ms, 0, colour) for time_ms, colour in colours]
    changes += [(_ms(detection.time_s), 1, detection) for detection in presence]
    changes.sort(key=lambda change: change[:2])
    occupied: set[str] = set()
    colour, is_called = DARK, False
    for time_ms, _, change in changes:
        if isinstance(change, str):
            colour = change
        elif change.is_on:
            occupied.add(change.detector)
        else:
            occupied.discard(change.detector)
        waits = bool(occupied) and colour in (YELLOW, RED)
        if waits != is_called:
            is_called = waits
            yield Event(time_ms, Code.PHASE_CALL_REGISTERED if waits else Code.PHASE_CALL_DROPPED, phase)


def _patterns(signal: SignalHistory, programs: Sequence[Program]) -> Iterator[Event]:
    """Pattern, cycle length and offset. A pattern is a program's place among the signal's programs, in order of their
    ids."""
    by_id = {program.id: program for program in programs}
    unknown = {change.program for change in signal.programs if change.program is not None} - {*by_id, OFF_PROGRAM}
    number_of = {name: k for k, name in enumerate((*sorted(by_id.keys() - {OFF_PROGRAM}), *sorted(unknown)), 1)}
    running: int | None = None
    for change in signal.programs:
        cycle_s = offset_s = 0
        if change.program is None:
            pattern = PATTERN_FREE
        elif change.program == OFF_PROGRAM:
            pattern = PATTERN_FLASH
        else:
            pattern = min(number_of[change.program], MAX_PATTERN)
            program = by_id.get(change.program)
            if program is not None and program.type == STATIC and program.phases:
                cycle_s = round(sum(phase.duration_s for phase in program.phases))
                offset_s = program.offset_s % cycle_s if cycle_s else 0
        if pattern == running:
            continue
        running, time_ms = pattern, _ms(change.begin_s)
        yield Event(time_ms, Code.PATTERN_CHANGE, pattern)
        yield Event(time_ms, Code.CYCLE_LENGTH_CHANGE, min(cycle_s, MAX_BYTE))
        if cycle_s > MAX_BYTE:
            yield Event(time_ms, Code.ADDITIONAL_CYCLE_LENGTH, min(cycle_s - MAX_BYTE, MAX_BYTE))
        yield Event(time_ms, Code.OFFSET_CHANGE, min(offset_s, MAX_BYTE))


def _flash(signal: SignalHistory) -> Iterator[Event]:
    """Dark (state O, or control mode off) and flashing yellow (state o) of the whole signal, and their ends."""
    states = {_ms(shown.begin_s): set(shown.state) for shown in signal.states}
    modes = {_ms(change.begin_s): change.mode for change in signal.modes}
    shown: set[str] = set()
    mode, status = "", NOT_FLASH
    for time_ms in sorted(states.keys() | modes.keys()):
        shown, mode = states.get(time_ms, shown), modes.get(time_ms, mode)
        if mode == OFF or shown == {"O"}:
            now = FLASH_OTHER
        else:
            now = FLASH_AUTOMATIC if shown and shown <= {"o", "O"} else NOT_FLASH
        if now != status:
            status = now
            yield Event(time_ms, Code.FLASH_STATUS, status)


def _policy(signal: SignalHistory) -> Iterator[Event]:
    """The special function that is on in control mode policy."""
    is_on = False
    for change in signal.modes:
        if (change.mode == POLICY) != is_on:
            is_on = not is_on
            code = Code.SPECIAL_FUNCTION_ON if is_on else Code.SPECIAL_FUNCTION_OFF
            yield Event(_ms(change.begin_s), code, POLICY_FUNCTION)
