"""Split monitor: how long each split of a phase was, and why its green ended."""

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
    ORANGE,
    RED,
    RING,
    SQUARE,
    TRIANGLE,
    Canvas,
    Entry,
    number_axis,
    sentence,
    time_axis,
)
from records.atspm.pictures.signal_view import SignalView

TITLE = "Split Monitor"
SERIES = {
    GAP_OUT: ("Gap Outs", GREEN, RING),
    MAX_OUT: ("Max Outs", RED, DIAMOND),
    FORCE_OFF: ("Force Offs", BLUE, SQUARE),
    None: ("Unknowns", GREY, CROSS),
}
"""By cause: legend, colour, shape."""


def draw(view: SignalView, phase: int) -> str:
    """The picture of a phase as SVG, or a sentence if it had no complete split."""
    splits = view.splits(phase)
    if not splits:
        return sentence(TITLE, f"{view.description(phase)} had no complete green.")
    walks = view.times_s(Code.PEDESTRIAN_BEGIN_WALK, phase)
    walked = [split for split in splits if any(split.begin_s <= walk_s < split.green_end_s for walk_s in walks)]
    durations = sorted(split.end_s - split.begin_s for split in splits)
    mean_s, p85_s = sum(durations) / len(durations), durations[min(int(0.85 * len(durations)), len(durations) - 1)]
    legend = [
        Entry(text, colour, shape)
        for cause, (text, colour, shape) in SERIES.items()
        if any(s.cause == cause for s in splits)
    ]
    legend += [Entry("Pedestrians", ORANGE, TRIANGLE)] if walked else []
    legend.append(Entry("Mean", BLACK, dash="6 3", width=1))
    canvas = Canvas(
        f"{TITLE}, {view.phase_name(phase)}",
        f"{len(splits)} splits, {mean_s:.0f} s Avg. Split, {p85_s:.0f} s 85th percentile",
        time_axis(view.period, HALF_WIDTH),
        number_axis("Phase Duration (s)", durations[-1]),
        legend=legend,
        bands=view.modes(),
        width=HALF_WIDTH,
        plot_height=120,
    )
    canvas.line([(view.period.begin_s, mean_s), (view.period.end_s, mean_s)], BLACK, width=1, dash="6 3")
    for cause, (_, colour, shape) in SERIES.items():
        canvas.marks([(s.begin_s, s.end_s - s.begin_s) for s in splits if s.cause == cause], shape, colour)
    canvas.marks([(s.begin_s, s.end_s - s.begin_s) for s in walked], TRIANGLE, ORANGE, dy_px=-7)
    return canvas.svg()
