"""Approach volume: vehicles per hour of an approach and of the opposing one, and the share of each (D-factor)."""

from controller.recording.detectors import ADVANCE
from records.atspm.pictures.canvas import (
    BLUE,
    GREEN,
    HALF_WIDTH,
    RED,
    Axis,
    Canvas,
    Entry,
    number_axis,
    sentence,
    steps,
    time_axis,
)
from records.atspm.pictures.signal_view import SignalView
from signals.phase_numbers import LEFT_BESIDE

TITLE = "Approach Volume"
OPPOSING = {2: 6, 4: 8, 10: 14, 12: 16}
"""Through phase -> that of the opposing approach."""
SPLIT = Axis(0.0, 1.0, "Directional Split", tuple((k / 5, f"{k / 5:.1f}") for k in range(6)))
Volumes = list[tuple[float, float]]


def draw(view: SignalView, phase: int) -> str:
    """The picture of an approach, with its through phase, and of the opposing one as SVG; a sentence if no volume is
    known."""
    other = OPPOSING.get(phase)
    first, second = _volumes(view, phase), _volumes(view, other) if other is not None else []
    names = [view.phase_name(number) for number in (phase, other) if number is not None]
    title = f"{TITLE}, phase {phase}" + (f" and {other}" if second else "")
    if not first and not second:
        return sentence(title, "needs advance detectors or counted vehicles, of which there are none.")
    both = [(a, x + y) for (a, x), (_, y) in zip(first, second, strict=False)]
    source = "advance detectors" if view.numbers(phase, ADVANCE) else "lane readings"
    legend = [Entry(names[0], RED)] if first else []
    legend += [Entry(names[1], BLUE, width=2.6)] if second else []
    if both:
        legend += [Entry("Combined", GREEN, width=1), Entry(f"{phase} D-Factor", RED, dash="4 3")]
        legend += [Entry(f"{other} D-Factor", BLUE, dash="1 2")]
    canvas = Canvas(
        title,
        f"from {source}",
        time_axis(view.period, HALF_WIDTH),
        number_axis("Vehicles per Hour", max(volume for volumes in (first, second, both) for _, volume in volumes)),
        SPLIT if both else None,
        legend,
        width=HALF_WIDTH,
        plot_height=120,
    )
    end_s = view.period.end_s
    canvas.line(steps(first, end_s), RED)
    canvas.line(steps(second, end_s), BLUE, width=2.6)
    if both:
        canvas.line(steps(both, end_s), GREEN, width=1)
        shares = [(a, x / total if total else 0.5) for (a, x), (_, total) in zip(first, both, strict=True)]
        canvas.line(steps(shares, end_s), RED, dash="4 3", is_right=True)
        canvas.line(steps([(a, 1 - share) for a, share in shares], end_s), BLUE, dash="1 2", is_right=True)
    return canvas.svg()


def _volumes(view: SignalView, through: int) -> Volumes:
    """The volume of an approach: of its through phase and of its left turn."""
    known = [volumes for phase in {through, LEFT_BESIDE.get(through, through)} if (volumes := view.volumes(phase))]
    return [(bins[0][0], sum(volume for _, volume in bins)) for bins in zip(*known, strict=True)]
