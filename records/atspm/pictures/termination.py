"""Phase termination: why each green of each phase ended, and when pedestrians got a walk."""

from records.atspm.analysis_period import FORCE_OFF, GAP_OUT, MAX_OUT
from records.atspm.event_codes import Code
from records.atspm.pictures.canvas import (
    BLUE,
    CROSS,
    DIAMOND,
    GREEN,
    GREY,
    PINK,
    RED,
    RING,
    SQUARE,
    TRIANGLE,
    Axis,
    Canvas,
    Entry,
    sentence,
    time_axis,
)
from records.atspm.pictures.signal_view import CAUSES, SignalView

TITLE = "Phase Termination"
ROW_PX = 34
SERIES = {
    GAP_OUT: ("Gap Outs", GREEN, RING, -12.0),
    FORCE_OFF: ("Force Offs", BLUE, SQUARE, -6.0),
    MAX_OUT: ("Max Outs", PINK, DIAMOND, 0.0),
    "walk": ("Ped Walk Begins", RED, TRIANGLE, 6.0),
    None: ("Unknown Terminations", GREY, CROSS, 12.0),
}
"""By cause: legend, colour, shape, and px below the phase's line."""


def draw(view: SignalView) -> str:
    """The picture of a signal as SVG, or a sentence if no green ended."""
    phases = [phase.number for phase in view.phases.phases]
    found: dict[str | None, list[tuple[float, float]]] = {cause: [] for cause in SERIES}
    row = {phase: k + 0.5 for k, phase in enumerate(phases)}
    causes = {(event.time_ms, event.parameter): CAUSES[event.code] for event in view.events if event.code in CAUSES}
    for event in view.events:
        if event.parameter not in row:
            continue
        if event.code == Code.PHASE_GREEN_TERMINATION:
            cause = causes.get((event.time_ms, event.parameter))
            found[cause].append((event.time_ms / 1000, row[event.parameter]))
        elif event.code == Code.PEDESTRIAN_BEGIN_WALK:
            found["walk"].append((event.time_ms / 1000, row[event.parameter]))
    if not any(found.values()):
        return sentence(TITLE, f"{view.name} ended no green.")
    legend = [Entry(text, colour, shape) for cause, (text, colour, shape, _) in SERIES.items() if found[cause]]
    canvas = Canvas(
        TITLE,
        view.name,
        time_axis(view.period),
        Axis(0.0, float(len(phases)), "Phase Number", tuple((row[phase], str(phase)) for phase in phases)),
        legend=legend,
        bands=view.modes(),
        plot_height=ROW_PX * len(phases),
    )
    for cause, (_, colour, shape, dy_px) in SERIES.items():
        canvas.marks(found[cause], shape, colour, dy_px)
    return canvas.svg()
