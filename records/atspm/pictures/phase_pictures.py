"""Small pictures of one phase, and the ends of all phases' greens: SVG, or a sentence if there is nothing to draw.

A split fails (Purdue split failure) if presence detectors are occupied for at least 79 % both of the green and of the
first seconds of the red after it: the queue did not clear. https://doi.org/10.5703/1288284315333, chapter 6.

Readings count the vehicles that halt (slower than 0.1 m/s). Their number times the time until the next reading is
stopped delay; UDOT's tool estimates the delay from arrivals instead, with a similar meaning. If less than one vehicle
leaves in a bin, the delay per vehicle is that of one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import islice, pairwise
from typing import NamedTuple

from controller.recording.detectors import ADVANCE, PRESENCE
from records.atspm.analysis_period import FORCE_OFF, GAP_OUT, MAX_OUT
from records.atspm.event_codes import Code
from records.atspm.pictures.canvas import (
    BLACK,
    BLUE,
    CROSS,
    DIAMOND,
    GREEN,
    GREY,
    HALF_WIDTH,
    LIGHT_BLUE,
    ORANGE,
    PINK,
    RED,
    RING,
    SQUARE,
    TRIANGLE,
    YELLOW,
    Axis,
    Canvas,
    Point,
    Series,
    number_axis,
    sentence,
    time_axis,
)
from records.atspm.pictures.signal_view import CAUSES, Interval, SignalView
from signals.phase_numbers import LEFT_BESIDE

PHASE_ROW_PX = 34
TERMINATIONS = {
    GAP_OUT: (Series("Gap Outs", GREEN, RING), -12.0),
    FORCE_OFF: (Series("Force Offs", BLUE, SQUARE), -6.0),
    MAX_OUT: (Series("Max Outs", PINK, DIAMOND), 0.0),
    "walk": (Series("Ped Walk Begins", RED, TRIANGLE), 6.0),
    None: (Series("Unknown Terminations", GREY, CROSS), 12.0),
}
"""By cause: marks, and px below the phase's line."""
SPLITS = {
    GAP_OUT: Series("Gap Outs", GREEN, RING),
    MAX_OUT: Series("Max Outs", RED, DIAMOND),
    FORCE_OFF: Series("Force Offs", BLUE, SQUARE),
    None: Series("Unknowns", GREY, CROSS),
}
RED_S = 5.0
"""Time at the begin of red in which a detector's occupancy counts."""
MIN_RATIO = 0.79
OCCUPANCY = Axis(0.0, 104.0, "Occupancy Ratio", tuple((float(k), f"{k}%") for k in range(0, 101, 20)))
OPPOSING = {2: 6, 4: 8, 10: 14, 12: 16}
"""Through phase -> that of the opposing approach."""
DIRECTIONAL_SPLIT = Axis(0.0, 1.0, "Directional Split", tuple((k / 5, f"{k / 5:.1f}") for k in range(6)))
MAX_GAP_S = 60.0
"""A longer time between two readings counts as not observed."""
MAX_QUEUE_POINTS = 500
"""Points of a queue's line; of more readings, the longest queue of each interval is drawn."""
NO_READINGS = "needs readings of the phase's lanes, of which there are none."


def termination(view: SignalView) -> str:
    """Why each green of each phase ended, and when pedestrians got a walk."""
    phases = [phase.number for phase in view.phases.phases]
    found: dict[str | None, list[Point]] = {cause: [] for cause in TERMINATIONS}
    row = {phase: k + 0.5 for k, phase in enumerate(phases)}
    causes = {(event.time_ms, event.parameter): CAUSES[event.code] for event in view.events if event.code in CAUSES}
    for event in view.events:
        if event.code == Code.PHASE_GREEN_TERMINATION:
            cause = causes.get((event.time_ms, event.parameter))
        elif event.code == Code.PEDESTRIAN_BEGIN_WALK:
            cause = "walk"
        else:
            continue
        found[cause].append((event.time_ms / 1000, row[event.parameter]))
    if not any(found.values()):
        return sentence("Phase Termination", f"{view.name} ended no green.")
    canvas = Canvas(
        "Phase Termination",
        view.name,
        time_axis(view.period),
        Axis(0.0, float(len(phases)), "Phase Number", tuple((row[phase], str(phase)) for phase in phases)),
        bands=view.modes(),
        plot_height=PHASE_ROW_PX * len(phases),
    )
    for cause, (series, dy_px) in TERMINATIONS.items():
        canvas.marks(found[cause], series, dy_px)
    return canvas.svg()


def split_monitor(view: SignalView, phase: int) -> str:
    """How long each split of a phase was, and why its green ended."""
    splits = view.splits(phase)
    if not splits:
        return sentence("Split Monitor", f"{view.description(phase)} had no complete green.")
    walks = view.times_s(Code.PEDESTRIAN_BEGIN_WALK, phase)
    walked = [split for split in splits if any(split.begin_s <= walk_s < split.green_end_s for walk_s in walks)]
    durations = sorted(split.end_s - split.begin_s for split in splits)
    mean_s, p85_s = sum(durations) / len(durations), durations[min(int(0.85 * len(durations)), len(durations) - 1)]
    text = f"{len(splits)} splits, {mean_s:.0f} s Avg. Split, {p85_s:.0f} s 85th percentile"
    canvas = _canvas("Split Monitor", text, view, phase, number_axis("Phase Duration (s)", durations[-1]))
    for cause, series in SPLITS.items():
        canvas.marks([(s.begin_s, s.end_s - s.begin_s) for s in splits if s.cause == cause], series)
    canvas.marks([(s.begin_s, s.end_s - s.begin_s) for s in walked], Series("Pedestrians", ORANGE, TRIANGLE), dy_px=-7)
    canvas.steps([(view.period.begin_s, mean_s)], Series("Mean", BLACK, dash="6 3", width=1))
    return canvas.svg()


class OccupancyRatios(NamedTuple):
    """Shares of a green and of the red after it in which a detector is occupied."""

    red_s: float
    green: float
    red: float
    """Share of the first RED_S of red."""

    @property
    def is_failure(self) -> bool:
        return self.green >= MIN_RATIO and self.red >= MIN_RATIO


def occupancy_ratios(view: SignalView, phase: int) -> list[OccupancyRatios]:
    """The occupancy ratios of a phase's greens that begin in the period, with RED_S of the red after them."""
    occupied = view.occupied(phase)
    return [
        OccupancyRatios(
            split.red_s,
            _share(occupied, split.begin_s, split.green_end_s),
            _share(occupied, split.red_s, split.red_s + RED_S),
        )
        for split in view.splits(phase)
        if split.red_s is not None and split.red_s + RED_S < view.period.end_s
    ]


def split_failure(view: SignalView, phase: int) -> str:
    """How long presence detectors are occupied in a green and at the begin of the red after it."""
    title = _title("Purdue Split Failure", view, phase)
    if not view.numbers(phase, PRESENCE):
        return sentence(title, "needs presence detectors, of which there are no events.")
    found = occupancy_ratios(view, phase)
    if not found:
        return sentence(title, "no green and the red after it were complete.")
    failed = [each for each in found if each.is_failure]
    shares = []
    for begin_s, end_s in view.bins:
        inside = [each.is_failure for each in found if begin_s <= each.red_s < end_s]
        shares.append((begin_s, 100.0 * sum(inside) / len(inside) if inside else 0.0))
    text = f"Total Split Failures: {len(failed)} of {len(found)} greens"
    canvas = _canvas("Purdue Split Failure", text, view, phase, OCCUPANCY)
    fail_lines = [((each.red_s, 0.0), (each.red_s, 100.0)) for each in failed]
    canvas.segments(fail_lines, Series("Fail Lines", YELLOW, width=2))
    canvas.steps(shares, Series("Percent Fails", LIGHT_BLUE, dash="5 3"))
    canvas.marks([(each.red_s, 100 * each.green) for each in found], Series("Green Occupancy", GREEN, RING))
    canvas.marks([(each.red_s, 100 * each.red) for each in found], Series("Red Occupancy", RED, TRIANGLE))
    return canvas.svg()


def approach_volume(view: SignalView, phase: int) -> str:
    """Vehicles per hour of an approach, with its through phase, and of the opposing one, and each one's share
    (D-factor)."""
    other = OPPOSING.get(phase)
    first, second = _volumes(view, phase), _volumes(view, other) if other is not None else []
    if not first and not second:
        title = f"Approach Volume, phase {phase}"
        return sentence(title, "needs advance detectors or counted vehicles, of which there are none.")
    both = [(a, x + y) for (a, x), (_, y) in zip(first, second, strict=False)]
    largest = max(volume for volumes in (first, second, both) for _, volume in volumes)
    canvas = Canvas(
        f"Approach Volume, phase {phase}" + (f" and {other}" if second else ""),
        f"from {'advance detectors' if view.numbers(phase, ADVANCE) else 'lane readings'}",
        time_axis(view.period, HALF_WIDTH),
        number_axis("Vehicles per Hour", largest),
        DIRECTIONAL_SPLIT if both else None,
        width=HALF_WIDTH,
        plot_height=120,
    )
    canvas.steps(first, Series(view.phase_name(phase), RED))
    if other is not None:
        canvas.steps(second, Series(view.phase_name(other), BLUE, width=2.6))
    canvas.steps(both, Series("Combined", GREEN, width=1))
    shares = [(a, x / total if total else 0.5) for (a, x), (_, total) in zip(first, both, strict=False)]
    canvas.steps(shares, Series(f"{phase} D-Factor", RED, dash="4 3", is_right=True))
    others = [(a, 1 - share) for a, share in shares]
    canvas.steps(others, Series(f"{other} D-Factor", BLUE, dash="1 2", is_right=True))
    return canvas.svg()


def delays(view: SignalView, phase: int) -> list[Point]:
    """(begin of the bin, stopped delay in vehicle-seconds) of a phase."""
    begins = [begin_s for begin_s, _ in view.bins]
    sums = [0.0] * len(begins)
    for before, after in pairwise(view.readings.lanes.get(phase, ())):
        at = bisect_left(begins, before.time_s + 1e-9) - 1
        if at >= 0 and after.time_s - before.time_s <= MAX_GAP_S:
            sums[at] += before.halting * (after.time_s - before.time_s)
    return list(zip(begins, sums, strict=True))


def approach_delay(view: SignalView, phase: int) -> str:
    """The time that a phase's vehicles halt, per vehicle and per hour."""
    if len(view.readings.lanes.get(phase, ())) < 2 or not view.bins:
        return sentence(_title("Approach Delay", view, phase), NO_READINGS)
    found = delays(view, phase)
    passed = view.passed(phase)
    hourly = [(a, delay_s / (b - a)) for (a, delay_s), (_, b) in zip(found, view.bins, strict=True)]
    each = [(a, delay_s / max(vehicles, 1.0)) for (a, delay_s), vehicles in zip(found, passed, strict=False)]
    total_s = sum(delay_s for _, delay_s in found)
    total = f"{total_s / 3600:.1f} h" if total_s >= 3600 else f"{total_s / 60:.2g} min"
    mean = f"Average Delay Per Vehicle: {total_s / sum(passed):.0f} s, " if sum(passed) else ""
    per_hour = number_axis("Delay per Hour (h)", max(delay for _, delay in hourly))
    per_vehicle = number_axis("Delay per Vehicle (s)", max(delay for _, delay in each)) if each else None
    text = f"{mean}Total Delay: {total}"
    canvas = _canvas("Approach Delay", text, view, phase, per_vehicle or per_hour, per_hour if each else None)
    canvas.steps(each, Series("Delay Per Vehicle", BLUE, width=1.2))
    canvas.steps(hourly, Series("Delay Per Hour", RED, dash="5 2", width=2, is_right=True))
    return canvas.svg()


def queue_length(view: SignalView, phase: int) -> str:
    """How many vehicles halt before a phase's stop line."""
    readings = view.readings.lanes.get(phase, [])
    if not readings:
        return sentence(_title("Queue Length", view, phase), NO_READINGS)
    total = _longest([(reading.time_s, float(reading.halting)) for reading in readings])
    longest = _longest([(reading.time_s, float(reading.longest)) for reading in readings])
    text = f"longest queue on one lane: {max(reading.longest for reading in readings)}"
    y = number_axis("Halting Vehicles", max(value for _, value in total), min_step=1)
    canvas = _canvas("Queue Length", text, view, phase, y)
    canvas.steps(total, Series("All Lanes", LIGHT_BLUE, width=2.4))
    canvas.steps(longest, Series("Longest Lane", BLUE, width=1))
    return canvas.svg()


HALF_PICTURES = (split_monitor, split_failure, approach_volume, approach_delay, queue_length)


def _title(title: str, view: SignalView, phase: int) -> str:
    return f"{title}, {view.phase_name(phase)}"


def _canvas(title: str, text: str, view: SignalView, phase: int, y: Axis, right: Axis | None = None) -> Canvas:
    """A small drawing of a phase over the period."""
    x = time_axis(view.period, HALF_WIDTH)
    return Canvas(_title(title, view, phase), text, x, y, right, view.modes(), HALF_WIDTH, plot_height=120)


def _share(occupied: Sequence[Interval], begin_s: float, end_s: float) -> float:
    """The share of a time in which a detector is occupied; `occupied` is in order, and all times are whole ms."""
    total_s = 0.0
    first = bisect_right(occupied, begin_s, key=lambda interval: interval[1])
    for a, b in islice(occupied, first, None):
        if a >= end_s:
            break
        total_s += min(b, end_s) - max(a, begin_s)
    return round(1000 * total_s) / round(1000 * (end_s - begin_s))


def _volumes(view: SignalView, through: int) -> list[Point]:
    """The volume of an approach: of its through phase and of its left turn."""
    known = [volumes for phase in {through, LEFT_BESIDE.get(through, through)} if (volumes := view.volumes(phase))]
    return [(bins[0][0], sum(volume for _, volume in bins)) for bins in zip(*known, strict=True)]


def _longest(points: list[Point]) -> list[Point]:
    """At most MAX_QUEUE_POINTS points: of consecutive ones, the time of the first and the largest value."""
    size = -(-len(points) // MAX_QUEUE_POINTS)
    return [(points[k][0], max(value for _, value in points[k : k + size])) for k in range(0, len(points), size)]
