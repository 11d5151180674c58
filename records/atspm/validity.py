"""Rules of readers about the events of a signal: if one does not hold, a note names it and the reason.

The package `atspm` of Oregon DOT marks a yellow or a red clearance of more than 10 s invalid, and leaves a cycle
without yellow out of split failures (its queries timeline.sql and split_failures.sql). A signal without any event for
two minutes by day looks as if its connection were lost.
"""

from collections.abc import Sequence
from datetime import time
from itertools import pairwise

from records.atspm.analysis_period import LOST, AnalysisPeriod, SignalHistory
from records.atspm.event_codes import Code, Event

MAX_CLEARANCE_S = 10.0
MAX_SILENCE_S = 120.0
DAY = time(6), time(22)
"""Local time at which the day begins and ends."""
CLEARANCES = {
    Code.PHASE_BEGIN_YELLOW: Code.PHASE_END_YELLOW,
    Code.PHASE_BEGIN_RED_CLEARANCE: Code.PHASE_END_RED_CLEARANCE,
}
NAMES = {Code.PHASE_END_YELLOW: "yellow", Code.PHASE_END_RED_CLEARANCE: "red clearance"}


def notes(period: AnalysisPeriod, signal: SignalHistory, events: Sequence[Event]) -> list[str]:
    """One sentence for each rule that the events of a signal do not keep, with the first time and the number of times.

    Args:
        period: its begin, end and date.
        signal: the signal.
        events: in order of time.
    """
    return [
        *_long_clearances(period, events),
        *_without_yellow(period, events),
        *_silences(period, signal, events),
    ]


def _long_clearances(period: AnalysisPeriod, events: Sequence[Event]) -> list[str]:
    begins: dict[tuple[Code, int], int] = {}
    """By end and phase, the newest begin."""
    found: dict[tuple[Code, int], list[tuple[int, int]]] = {}
    for event in events:
        key = event.code, event.parameter
        if event.code in CLEARANCES:
            begins[CLEARANCES[event.code], event.parameter] = event.time_ms
        elif key in begins:
            found.setdefault(key, []).append((begins.pop(key), event.time_ms))
    for key, since in begins.items():
        found.setdefault(key, []).append((since, round(period.end_s * 1000)))
    lines = []
    for (code, phase), intervals in found.items():
        over = [(since, (end - since) / 1000) for since, end in intervals if end - since > 1000 * MAX_CLEARANCE_S]
        if over:
            since, duration_s = over[0]
            lines.append(
                f"phase {phase}: a {NAMES[code]} of {duration_s:g} s at {period.time(since):%Y-%m-%d %H:%M:%S} "
                f"({len(over)} in all): readers take one of more than {MAX_CLEARANCE_S:g} s for bad data"
            )
    return lines


def _without_yellow(period: AnalysisPeriod, events: Sequence[Event]) -> list[str]:
    """Greens that turn to red at once."""
    ended: dict[int, int] = {}
    found: dict[int, list[int]] = {}
    for event in events:
        if event.code == Code.PHASE_GREEN_TERMINATION:
            ended[event.parameter] = event.time_ms
        elif event.code == Code.PHASE_BEGIN_YELLOW:
            ended.pop(event.parameter, None)
        elif event.code == Code.PHASE_BEGIN_RED_CLEARANCE and ended.get(event.parameter) == event.time_ms:
            found.setdefault(event.parameter, []).append(event.time_ms)
    return [
        f"phase {phase}: a green without yellow at {period.time(times[0]):%Y-%m-%d %H:%M:%S} ({len(times)} in all): "
        "readers leave its cycle out of split failures"
        for phase, times in found.items()
    ]


def _silences(period: AnalysisPeriod, signal: SignalHistory, events: Sequence[Event]) -> list[str]:
    times = [round(period.begin_s * 1000), *(event.time_ms for event in events), round(period.end_s * 1000)]
    found = [
        (before, after)
        for before, after in pairwise(times)
        if after - before > 1000 * MAX_SILENCE_S and (_is_day(period, before) or _is_day(period, after))
    ]
    if not found:
        return []
    before, after = found[0]
    mode = next((change.mode for change in reversed(signal.modes) if change.begin_s * 1000 <= before), "")
    reason = f" in control mode {mode}" if mode else ""
    reason += ", because the signal was not read" if mode == LOST else ""
    return [
        f"no event for {(after - before) / 1000:g} s from {period.time(before):%Y-%m-%d %H:%M:%S}{reason} "
        f"({len(found)} in all): readers may take more than {MAX_SILENCE_S:g} s by day for a lost connection"
    ]


def _is_day(period: AnalysisPeriod, time_ms: int) -> bool:
    begin, end = DAY
    return begin <= period.time(time_ms).time() < end
