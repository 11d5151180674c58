"""Time-space diagram of a corridor: what its signals showed, the green bands at the speed limit, and vehicles.

Readings do not identify vehicles. Vehicles of a lane do not overtake, so that those of two readings that follow one
another are joined in their order, in the way that fits positions and speeds best. A vehicle that leaves its lane goes
on with its speed until the next reading.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from records.atspm import events
from records.atspm.analysis_period import AnalysisPeriod, SignalReadings, VehicleReading
from records.atspm.corridor import Corridor
from records.atspm.pictures.canvas import (
    BLACK,
    GREEN,
    RED,
    YELLOW,
    Axis,
    Canvas,
    Point,
    Series,
    number_axis,
    sentence,
    time_axis,
)
from records.atspm.pictures.signal_view import SignalView

TITLE = "Time-Space Diagram"
Segment = tuple[Point, Point]
MAX_S = 900.0
"""Longest time that is drawn: a longer one has too many lines for a page."""
PEAK_STEP_S = 60.0
"""Distance of the times that are compared to find the one with the most arrivals."""
MARGIN_M = 30.0
"""Road drawn behind the last stop line."""
PLOT_PX_BY_STOP_LINE = 90
MIN_PLOT_PX = 220
MAX_PLOT_PX = 700
MAX_ERROR_M = 15.0
"""Distance between an expected and a read position, above which they are not the same vehicle's."""
MAX_GAP_S = 30.0
"""Longest time between two readings whose vehicles are joined."""
COLOURS = {
    events.RED: Series("Red", RED, width=6),
    events.YELLOW: Series("Yellow", YELLOW, width=6),
    events.GREEN: Series("Green", GREEN, width=2.5),
}
"""Without colours, red is the thick dark line, yellow the thick light one and green the thin one."""
BAND = Series("Green Band at the speed limit", GREEN, width=8, opacity=0.22)
VEHICLES = Series("Vehicles", BLACK, width=0.8, opacity=0.75)


def colours(view: SignalView, phase: int, begin_s: float, end_s: float) -> list[tuple[float, float, str]]:
    """(begin, end, one of COLOURS) of a phase in a time, without what is not known."""
    links = next((each.links for each in view.phases.phases if each.number == phase), ())
    changes = [(time_ms / 1000, colour) for time_ms, colour in events.phase_colours(view.own.states, links)]
    ends = [time_s for time_s, _ in changes[1:]] + [end_s]
    return [
        (max(time_s, begin_s), min(end, end_s), colour)
        for (time_s, colour), end in zip(changes, ends, strict=False)
        if colour in COLOURS and max(time_s, begin_s) < min(end, end_s)
    ]


def draw(views: Mapping[str, SignalView], corridor: Corridor | None) -> str:
    """The diagram as SVG, or a sentence without a corridor.

    Args:
        views: by signal, those of the corridor and others.
        corridor: the corridor.
    """
    if corridor is None:
        return sentence(TITLE, "no two signals follow one another straight on.")
    period = views[corridor.stop_lines[0].signal].period
    if period.end_s <= period.begin_s:
        return sentence(TITLE, "no time is recorded.")
    strokes = trajectories(corridor, (view.readings for view in views.values()))
    # single vehicles are kept of the time with the most of them
    begin_s = (
        max(min(time_s for (time_s, _), _ in strokes), period.begin_s) if strokes else _peak_s(views, corridor, period)
    )
    end_s = min(period.end_s, begin_s + MAX_S)
    shown = AnalysisPeriod(begin_s, end_s, period.zero, ())
    length_m = corridor.stop_lines[-1].at_m + MARGIN_M
    y = number_axis("Distance (m)", length_m)
    canvas = Canvas(
        TITLE,
        f"{views[corridor.stop_lines[0].signal].name} to {views[corridor.stop_lines[-1].signal].name}",
        time_axis(shown),
        Axis(0.0, length_m, y.title, tuple((value, text) for value, text in y.ticks if value <= length_m)),
        plot_height=min(max(PLOT_PX_BY_STOP_LINE * len(corridor.stop_lines), MIN_PLOT_PX), MAX_PLOT_PX),
    )
    bands = {
        stop_line.signal: colours(views[stop_line.signal], stop_line.phase, begin_s, end_s)
        for stop_line in corridor.stop_lines
    }
    for stop_line, after in zip(corridor.stop_lines, corridor.stop_lines[1:], strict=False):
        if after.speed_mps > 0:
            from_m, to_m = stop_line.at_m, after.at_m
            travel_s = (to_m - from_m) / after.speed_mps
            greens = [
                [(a, from_m), (b, from_m), (b + travel_s, to_m), (a + travel_s, to_m)]
                for a, b, colour in bands[stop_line.signal]
                if colour == events.GREEN
            ]
            canvas.polygons(greens, BAND)
    canvas.segments(strokes, VEHICLES)
    for stop_line in corridor.stop_lines:
        for colour, series in COLOURS.items():
            pairs = [
                ((a, stop_line.at_m), (b, stop_line.at_m)) for a, b, own in bands[stop_line.signal] if own == colour
            ]
            canvas.segments(pairs, series)
        view = views[stop_line.signal]
        canvas.label((begin_s, stop_line.at_m), f"{view.name}, {view.phase_name(stop_line.phase)}", dy_px=-6)
    return canvas.svg()


def _peak_s(views: Mapping[str, SignalView], corridor: Corridor, period: AnalysisPeriod) -> float:
    """The begin of the MAX_S with the most arrivals at the corridor's stop lines; the period's without any."""
    times = sorted(time_s for line in corridor.stop_lines for time_s in views[line.signal].arrivals(line.phase))
    last = int(max(period.end_s - period.begin_s - MAX_S, 0.0) // PEAK_STEP_S)
    begins = [period.begin_s + k * PEAK_STEP_S for k in range(last + 1)]
    return max(begins, key=lambda begin_s: bisect_left(times, begin_s + MAX_S) - bisect_left(times, begin_s))


def trajectories(corridor: Corridor, readings: Iterable[SignalReadings]) -> list[Segment]:
    """The ways of vehicles between readings, as (time, place) pairs on the corridor."""
    segments: list[Segment] = []
    seen: set[str] = set()
    for own in readings:
        by_lane: dict[str, dict[float, list[VehicleReading]]] = {}
        for reading in own.vehicles:
            # two TLs may have read the same lane
            if reading.lane in corridor.lane_begin_m and reading.lane not in seen:
                by_lane.setdefault(reading.lane, {}).setdefault(reading.time_s, []).append(reading)
        seen.update(by_lane)
        for lane, at in by_lane.items():
            begin_m = corridor.lane_begin_m[lane]
            for time_s, next_s in pairwise(own.vehicle_times_s):
                if time_s in at and next_s - time_s <= MAX_GAP_S:
                    for before, end_m in _joined(at[time_s], at.get(next_s, []), next_s - time_s):
                        segments.append(((time_s, begin_m + before.position_m), (next_s, begin_m + end_m)))
    return segments


def _joined(
    before: Sequence[VehicleReading], after: Sequence[VehicleReading], gap_s: float
) -> Iterator[tuple[VehicleReading, float]]:
    """(vehicle, its position after `gap_s`) of a lane; the position may be behind the lane's end."""
    before = sorted(before, key=lambda reading: -reading.position_m)
    after = sorted(after, key=lambda reading: -reading.position_m)

    def errors(left: int) -> list[float]:
        pairs = zip(before[left:], after, strict=False)
        return [abs(a.position_m + gap_s * (a.speed_mps + b.speed_mps) / 2 - b.position_m) for a, b in pairs]

    # those that are not joined count as if they were far away
    left = min(
        range(len(before) + 1),
        key=lambda left: (
            sum(min(e, MAX_ERROR_M) for e in errors(left))
            + MAX_ERROR_M * max(len(before) - left - len(after), 0)
            + MAX_ERROR_M / 3 * left
        ),
    )
    for reading in before[:left]:
        yield reading, reading.position_m + reading.speed_mps * gap_s
    for reading, same, error in zip(before[left:], after, errors(left), strict=False):
        if error <= MAX_ERROR_M:
            yield reading, same.position_m
