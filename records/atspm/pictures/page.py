"""One HTML page with the pictures of some signals: no script, no other file, and readable when printed on A4."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

from city.printable import printable
from records.atspm.corridor import Corridor
from records.atspm.phase_numbers import LEFT_BESIDE
from records.atspm.pictures import (
    approach_delay,
    approach_volume,
    coordination,
    queue_length,
    split_failure,
    split_monitor,
    termination,
    time_space,
)
from records.atspm.pictures.canvas import WIDTH
from records.atspm.pictures.signal_view import SignalView

HALF_PICTURES = (split_monitor, split_failure, approach_volume, approach_delay, queue_length)
STYLE = f"""
body {{ font: 14px/1.4 Arial, Helvetica, sans-serif; color: #222; background: #fff;
  max-width: {WIDTH}px; margin: 1.5em auto; }}
h1 {{ font-size: 22px; }} h2 {{ font-size: 18px; margin: 1.6em 0 .4em; }}
h3 {{ font-size: 14px; margin: 1.2em 0 .3em; }}
svg {{ max-width: 100%; height: auto; display: block; margin: .5em 0; break-inside: avoid; }}
.half {{ display: flex; flex-wrap: wrap; gap: 0 16px; align-items: flex-start; }}
.half > svg {{ width: calc(50% - 8px); }} .half > .none {{ width: calc(50% - 8px); box-sizing: border-box; }}
.none {{ border: 1px dashed #888; padding: .5em .8em; margin: .5em 0; break-inside: avoid; }}
.notes {{ font-size: 12px; }} .notes li {{ overflow-wrap: anywhere; }}
h2, h3 {{ overflow-wrap: anywhere; break-after: avoid; }}
@page {{ size: A4; margin: 12mm; }}
@media print {{
  body {{ margin: 0; max-width: none; print-color-adjust: exact; -webkit-print-color-adjust: exact; }}
  section {{ break-before: page; }}
}}
"""


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
    parts = [f"<h1>{_text(title)}</h1>", *(f"<p>{_text(line)}</p>" for line in about)]
    if notes:
        parts.append("<ul class='notes'>" + "".join(f"<li>{_text(note)}</li>" for note in notes) + "</ul>")
    parts += [time_space.draw(by_signal, corridor) for corridor in corridors] or [time_space.draw(by_signal, None)]
    for view in views:
        parts += ["<section>", f"<h2>{_text(view.name)}</h2>", termination.draw(view)]
        for phase in (phase.number for phase in view.vehicle_phases):
            parts += [f"<h3>{_text(view.description(phase))}</h3>", coordination.draw(view, phase)]
            # the left turn is part of its approach's volume
            is_left = phase in LEFT_BESIDE.values()
            pictures = [kind.draw(view, phase) for kind in HALF_PICTURES if not (kind is approach_volume and is_left)]
            pictures.sort(key=lambda picture: not picture.startswith("<svg"))
            parts += ["<div class='half'>", *pictures, "</div>"]
        parts.append("</section>")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f"<title>{_text(title)}</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _text(text: str) -> str:
    return escape(printable(text))
