"""Approach delay: the time that a phase's vehicles halt, per vehicle and per hour.

Readings count the vehicles that halt (slower than 0.1 m/s). Their number times the time until the next reading is
stopped delay; UDOT's tool estimates the delay from arrivals instead, with a similar meaning. If less than one vehicle
leaves in a bin, the delay per vehicle is that of one.
"""

from bisect import bisect_left
from itertools import pairwise

from records.atspm.pictures.canvas import (
    BLUE,
    HALF_WIDTH,
    RED,
    Canvas,
    Entry,
    number_axis,
    sentence,
    steps,
    time_axis,
)
from records.atspm.pictures.signal_view import SignalView

TITLE = "Approach Delay"
MAX_GAP_S = 60.0
"""A longer time between two readings counts as not observed."""


def delays(view: SignalView, phase: int) -> list[tuple[float, float]]:
    """(begin of the bin, stopped delay in vehicle-seconds) of a phase."""
    begins = [begin_s for begin_s, _ in view.bins]
    sums = [0.0] * len(begins)
    for before, after in pairwise(view.readings.lanes.get(phase, ())):
        at = bisect_left(begins, before.time_s + 1e-9) - 1
        if at >= 0 and after.time_s - before.time_s <= MAX_GAP_S:
            sums[at] += before.halting * (after.time_s - before.time_s)
    return list(zip(begins, sums, strict=True))


def draw(view: SignalView, phase: int) -> str:
    """The picture of a phase as SVG, or a sentence without readings of its lanes."""
    title = f"{TITLE}, {view.phase_name(phase)}"
    if len(view.readings.lanes.get(phase, ())) < 2 or not view.bins:
        return sentence(title, "needs readings of the phase's lanes, of which there are none.")
    found = delays(view, phase)
    passed = view.passed(phase)
    hourly = [(a, delay_s / (b - a)) for (a, delay_s), (_, b) in zip(found, view.bins, strict=True)]
    each = [(a, delay_s / max(vehicles, 1.0)) for (a, delay_s), vehicles in zip(found, passed, strict=False)]
    total_s = sum(delay_s for _, delay_s in found)
    total = f"{total_s / 3600:.1f} h" if total_s >= 3600 else f"{total_s / 60:.2g} min"
    mean = f"Average Delay Per Vehicle: {total_s / sum(passed):.0f} s, " if sum(passed) else ""
    per_hour = number_axis("Delay per Hour (h)", max(delay for _, delay in hourly))
    legend = [Entry("Delay Per Vehicle", BLUE, width=1.2)] if each else []
    canvas = Canvas(
        title,
        f"{mean}Total Delay: {total}",
        time_axis(view.period, HALF_WIDTH),
        number_axis("Delay per Vehicle (s)", max(delay for _, delay in each)) if each else per_hour,
        per_hour if each else None,
        [*legend, Entry("Delay Per Hour", RED, dash="5 2", width=2)],
        view.modes(),
        HALF_WIDTH,
        120,
    )
    canvas.line(steps(each, view.period.end_s), BLUE, width=1.2)
    canvas.line(steps(hourly, view.period.end_s), RED, width=2, dash="5 2", is_right=bool(each))
    return canvas.svg()
