"""One HTML page with the pictures of some signals: no script, no other file, and readable when printed on A4."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Template

from city.printable import printable
from records.atspm.corridor import Corridor
from records.atspm.pictures import coordination, time_space
from records.atspm.pictures.canvas import WIDTH
from records.atspm.pictures.phase_pictures import HALF_PICTURES, approach_volume, termination
from records.atspm.pictures.signal_view import SignalView
from signals.phase_numbers import LEFT_BESIDE

TEMPLATE = Template((Path(__file__).parent / "page.html").read_text(), autoescape=True, trim_blocks=True)
"""The page; the pictures are inserted as they are."""


def page(
    title: str,
    about: Sequence[str],
    views: Sequence[SignalView],
    corridors: Sequence[Corridor] = (),
    notes: Sequence[str] = (),
) -> str:
    """The page.

    Args:
        title: its heading.
        about: lines below it, such as times and where the data is from.
        views: the signals, in the order of the page.
        corridors: those of which a time-space diagram is drawn.
        notes: what is missing, and other sentences about the data.
    """
    by_signal = {view.own.signal: view for view in views}
    drawn: Sequence[Corridor | None] = corridors or [None]
    html: str = TEMPLATE.render(
        title=printable(title),
        width_px=WIDTH,
        about=[printable(line) for line in about],
        notes=[printable(note) for note in notes],
        diagrams=[time_space.draw(by_signal, corridor) for corridor in drawn],
        signals=[_signal(view) for view in views],
    )
    return html + "\n"


def _signal(view: SignalView) -> dict[str, Any]:
    phases = []
    for phase in (phase.number for phase in view.vehicle_phases):
        # the left turn is part of its approach's volume
        is_left = phase in LEFT_BESIDE.values()
        pictures = [draw(view, phase) for draw in HALF_PICTURES if not (draw is approach_volume and is_left)]
        phases.append(
            {
                "description": printable(view.description(phase)),
                "coordination": coordination.draw(view, phase),
                "pictures": sorted(pictures, key=lambda picture: not picture.startswith("<svg")),
            }
        )
    return {"name": printable(view.name), "terminations": termination(view), "phases": phases}
