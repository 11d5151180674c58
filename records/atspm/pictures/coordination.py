"""Purdue coordination diagram: when in the cycle vehicles arrive, cycle after cycle.

x is the time of day, y the time since the phase's red began. Below the green line a vehicle arrives on red, between the
green and the yellow line on green. The share of arrivals on green is of all arrivals, also of those outside of a
complete cycle, which have no dot. https://doi.org/10.5703/1288284315333 explains how to read it.
"""

from bisect import bisect_right
from collections.abc import Sequence

from controller.recording.detectors import ADVANCE
from records.atspm.pictures.canvas import (
    BLUE,
    DOT,
    GREEN,
    PINK,
    RED,
    YELLOW,
    Canvas,
    Series,
    number_axis,
    sentence,
    time_axis,
)
from records.atspm.pictures.signal_view import SignalView

TITLE = "Purdue Coordination Diagram"


def draw(view: SignalView, phase: int, compared: Sequence[SignalView] = ()) -> str:
    """The diagram of a phase as SVG, or a sentence if it had no complete cycle.

    Args:
        view: the signal.
        phase: number of the phase.
        compared: the same signal in other simulations, whose diagrams have the same axes.
    """
    cycles = view.cycles(phase)
    if not cycles:
        return sentence(TITLE, f"{view.description(phase)} had no complete cycle from red to red.")
    starts = [cycle.begin_s for cycle in cycles]
    dots = []
    arrivals = view.arrivals(phase)
    for time_s in arrivals:
        at = bisect_right(starts, time_s) - 1
        if at >= 0 and time_s < cycles[at].end_s:
            dots.append((time_s, time_s - cycles[at].begin_s))
    if not view.numbers(phase, ADVANCE):
        info = "no advance detectors: lines only"
    else:
        on_green = sum(view.is_green(phase, time_s) for time_s in arrivals)
        info = f"Arrivals on Green: {100 * on_green / len(arrivals):.0f}%" if arrivals else "no arrivals"
    volumes = view.volumes(phase)
    alike = (view, *compared)
    longest_s = max(cycle.end_s - cycle.begin_s for each in alike for cycle in each.cycles(phase))
    largest = max((volume for each in alike for _, volume in each.volumes(phase)), default=0.0)
    canvas = Canvas(
        TITLE,
        f"{view.name} - {view.description(phase)}; {info}",
        time_axis(view.period),
        number_axis("Cycle Time (s)", longest_s),
        number_axis("Volume per Hour", largest) if volumes else None,
        view.modes(),
    )
    canvas.steps(volumes, Series("Volume Per Hour", PINK, dash="2 2", is_right=True))
    canvas.line([(each.end_s, each.end_s - each.begin_s) for each in cycles], Series("Red Series", RED, width=2.4))
    yellows = [(each.yellow_s, each.yellow_s - each.begin_s) for each in cycles]
    canvas.line(yellows, Series("Yellow Series", YELLOW, dash="5 2"))
    canvas.line(
        [(each.green_s, each.green_s - each.begin_s) for each in cycles], Series("Green Series", GREEN, width=1.2)
    )
    canvas.marks(dots, Series("Detector Events", BLUE, DOT))
    return canvas.svg()
