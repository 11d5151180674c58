"""Queue length: how many vehicles halt before a phase's stop line, of the readings of its lanes."""

from records.atspm.pictures.canvas import (
    BLUE,
    HALF_WIDTH,
    LIGHT_BLUE,
    Canvas,
    Entry,
    Point,
    number_axis,
    sentence,
    steps,
    time_axis,
)
from records.atspm.pictures.signal_view import SignalView

TITLE = "Queue Length"
MAX_POINTS = 500
"""Points of a line; of more readings, the longest queue of each interval is drawn."""


def draw(view: SignalView, phase: int) -> str:
    """The picture of a phase as SVG, or a sentence without readings of its lanes."""
    title = f"{TITLE}, {view.phase_name(phase)}"
    readings = view.readings.lanes.get(phase, [])
    if not readings:
        return sentence(title, "needs readings of the phase's lanes, of which there are none.")
    total = _longest([(reading.time_s, float(reading.halting)) for reading in readings])
    longest = _longest([(reading.time_s, float(reading.longest)) for reading in readings])
    canvas = Canvas(
        title,
        f"longest queue on one lane: {max(reading.longest for reading in readings)}",
        time_axis(view.period, HALF_WIDTH),
        number_axis("Halting Vehicles", max(value for _, value in total), min_step=1),
        legend=[Entry("All Lanes", LIGHT_BLUE, width=2.4), Entry("Longest Lane", BLUE, width=1)],
        bands=view.modes(),
        width=HALF_WIDTH,
        plot_height=120,
    )
    end_s = view.period.end_s
    canvas.line(steps(total, end_s), LIGHT_BLUE, width=2.4)
    canvas.line(steps(longest, end_s), BLUE, width=1)
    return canvas.svg()


def _longest(points: list[Point]) -> list[Point]:
    """At most MAX_POINTS points: of consecutive ones, the time of the first and the largest value."""
    size = -(-len(points) // MAX_POINTS)
    return [(points[k][0], max(value for _, value in points[k : k + size])) for k in range(0, len(points), size)]
