"""Purdue split failure: how long presence detectors are occupied in a green and in the first seconds of the red after
it.

A split fails if both ratios are at least 79 %: the queue did not clear. https://doi.org/10.5703/1288284315333, chapter
6.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from controller.recording.detectors import PRESENCE
from records.atspm.pictures.canvas import (
    GREEN,
    HALF_WIDTH,
    LIGHT_BLUE,
    RED,
    RING,
    TRIANGLE,
    YELLOW,
    Axis,
    Canvas,
    Entry,
    sentence,
    steps,
    time_axis,
)
from records.atspm.pictures.signal_view import Interval, SignalView

TITLE = "Purdue Split Failure"
RED_S = 5.0
"""Time at the begin of red."""
MIN_RATIO = 0.79
PERCENT = Axis(0.0, 104.0, "Occupancy Ratio", tuple((float(k), f"{k}%") for k in range(0, 101, 20)))


class OccupancyRatios(NamedTuple):
    """Shares of a green and of the red after it in which a detector is occupied."""

    red_s: float
    """Begin of red."""
    green: float
    """Share of the green."""
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


def draw(view: SignalView, phase: int) -> str:
    """The picture of a phase as SVG, or a sentence without presence detectors or a complete green."""
    title = f"{TITLE}, {view.phase_name(phase)}"
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
    canvas = Canvas(
        title,
        f"Total Split Failures: {len(failed)} of {len(found)} greens",
        time_axis(view.period, HALF_WIDTH),
        PERCENT,
        legend=[
            Entry("Green Occupancy", GREEN, RING),
            Entry("Red Occupancy", RED, TRIANGLE),
            Entry("Fail Lines", YELLOW, width=2.4),
            Entry("Percent Fails", LIGHT_BLUE, dash="5 3"),
        ],
        bands=view.modes(),
        width=HALF_WIDTH,
        plot_height=120,
    )
    canvas.segments([((each.red_s, 0.0), (each.red_s, 100.0)) for each in failed], YELLOW, width=2)
    canvas.line(steps(shares, view.period.end_s), LIGHT_BLUE, dash="5 3")
    canvas.marks([(each.red_s, 100 * each.green) for each in found], RING, GREEN)
    canvas.marks([(each.red_s, 100 * each.red) for each in found], TRIANGLE, RED)
    return canvas.svg()


def _share(occupied: Sequence[Interval], begin_s: float, end_s: float) -> float:
    """The share of a time in which a detector is occupied; `occupied` is in order, and all times are whole ms."""
    total_s = 0.0
    first = bisect_right(occupied, begin_s, key=lambda interval: interval[1])
    for a, b in islice(occupied, first, None):
        if a >= end_s:
            break
        total_s += min(b, end_s) - max(a, begin_s)
    return round(1000 * total_s) / round(1000 * (end_s - begin_s))
