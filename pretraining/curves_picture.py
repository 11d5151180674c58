"""The picture of a training of several networks, as one SVG: their curves, and their delays at the gate."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from city import whole_files
from city.errors import InputError, first_line
from pretraining import gate
from pretraining.gate import REFERENCE
from pretraining.selection import Selected
from pretraining.street_results import moves_too_few
from records.atspm.pictures.canvas import (
    BLACK,
    BLUE,
    CROSS,
    DOT,
    GREEN,
    GREY,
    LIGHT_BLUE,
    ORANGE,
    PINK,
    RED,
    TRIANGLE,
    WIDTH,
    Axis,
    Canvas,
    Entry,
    number_axis,
)

COLOURS = (BLUE, ORANGE, GREEN, RED, PINK, LIGHT_BLUE, BLACK)
DASHES = ("", "6 3", "2 2")
"""Dashes of the first, second and third seven networks: lines that differ without colours."""
COLUMNS = {
    "delay_s": (
        "Mean delay",
        "s per vehicle, mean over an update's episodes; demand follows the policy's ability",
        "Delay (s)",
    ),
    "vehicles_per_lane_h": ("Demand", "mean over an update's episodes", "Vehicles per hour and lane"),
}
"""Columns of a curve, with the title, subtitle and axis of their panels."""
MAX_RATIO_SHOWN = 3.0
SPREAD = 0.6
"""Width of the dots of a network, in columns: a street has the same place in each."""
MIN_TEXT_PX = 46
"""Width of a column that has room for its texts."""
GAP_PX = 14

Curve = Mapping[str, Sequence[float]]
"""By column; a value for each update."""


def write(path: Path, curves: Mapping[str, Path], selected: Selected | None) -> None:
    """Write the picture. Raises InputError if a file cannot be read or written.

    Args:
        path: of the SVG.
        curves: by network, its `trial_N_seed_S_curve.csv`.
        selected: of the gate; None without one.
    """
    whole_files.write(path, svg({name: _read(own) for name, own in curves.items()}, selected))


def svg(curves: Mapping[str, Curve], selected: Selected | None) -> str:
    """The picture: a panel for each of COLUMNS, and one for the gate."""
    panels = [_curves(curves, column) for column in COLUMNS]
    if selected is not None:
        panels.append(_gate(selected))
    parts, top = [], 0.0
    for panel in panels:
        parts.append(panel.svg().replace("<svg ", f'<svg y="{top:g}" ', 1))
        top += panel.height + GAP_PX
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top - GAP_PX:g}" width="{WIDTH}" '
        f'height="{top - GAP_PX:g}" role="img" aria-labelledby="title description">\n'
        f'<title id="title">Training of {len(curves)} networks</title>\n'
        f'<desc id="description">{escape(" ".join(_sentences(curves, selected)))}</desc>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _read(path: Path) -> Curve:
    """A curve. Raises InputError."""
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        return {column: [float(row[column]) for row in rows] for column in ("update", *COLUMNS)}
    except (OSError, KeyError, TypeError, ValueError) as error:
        reason = f"column {error} is missing" if isinstance(error, KeyError) else first_line(error)
        raise InputError(f"{path}: is not the curve of a training ({reason}); remove it, and train again") from None


def _curves(curves: Mapping[str, Curve], column: str) -> Canvas:
    title, subtitle, unit = COLUMNS[column]
    styles = [(COLOURS[k % len(COLOURS)], DASHES[k // len(COLOURS) % len(DASHES)]) for k in range(len(curves))]
    canvas = Canvas(
        title,
        subtitle,
        number_axis(
            "Update", max((max(curve["update"], default=0.0) for curve in curves.values()), default=0.0), min_step=1.0
        ),
        number_axis(unit, max((max(curve[column], default=0.0) for curve in curves.values()), default=0.0)),
        legend=[Entry(name, *style[:1], dash=style[1]) for name, style in zip(curves, styles, strict=True)],
    )
    for curve, (colour, dash) in zip(curves.values(), styles, strict=True):
        points = list(zip(curve["update"], curve[column], strict=True))
        if len(points) == 1:
            canvas.marks(points, DOT, colour, size=4)
        canvas.line(points, colour, 1.3, dash)
    return canvas


def _gate(selected: Selected) -> Canvas:
    """The streets' delays by network, relative to the reference's."""
    ratios = {verdict.name: _ratios(selected.results, verdict.name) for verdict in selected.verdicts}
    highest = max((ratio for own in ratios.values() for _, ratio, _ in own), default=1.0)
    names = list(ratios)
    x = Axis(
        -0.5, len(names) - 0.5, "Network (seed)", tuple((k, name.removeprefix("seed ")) for k, name in enumerate(names))
    )
    canvas = Canvas(
        f"Delay at the gate, relative to {REFERENCE}",
        f"{len(selected.results)} simulations of validation streets; {gate.EXTRA_S:g} s are added to both delays",
        x,
        number_axis("Ratio", min(max(highest, gate.MAX_RATIO), MAX_RATIO_SHOWN) * 1.15),
        legend=[
            Entry("simulation", BLUE, DOT),
            Entry("simulation with gridlock", RED, CROSS),
            Entry(f"more than {MAX_RATIO_SHOWN:g}", RED, TRIANGLE),
            Entry("geometric mean delay", BLACK, width=3),
            Entry(REFERENCE, GREY),
            Entry("drops a network", RED, dash="5 3"),
        ],
        plot_height=220,
    )
    canvas.line([(x.begin, 1.0), (x.end, 1.0)], GREY, 1.2)
    canvas.line([(x.begin, gate.MAX_RATIO), (x.end, gate.MAX_RATIO)], RED, 1.0, "5 3")
    reference_s = gate.reference_delay_s(selected.results)
    has_texts = canvas.plot_width / len(names) >= MIN_TEXT_PX
    for k, verdict in enumerate(selected.verdicts):
        places = [(k + (i / len(selected.results) - 0.5) * SPREAD, *own) for i, *own in ratios[verdict.name]]
        shown = [place for place in places if place[1] <= MAX_RATIO_SHOWN]
        canvas.marks([(at, ratio) for at, ratio, is_gridlock in shown if not is_gridlock], DOT, BLUE, size=3)
        canvas.marks([(at, ratio) for at, ratio, is_gridlock in shown if is_gridlock], CROSS, RED)
        canvas.marks([(at, MAX_RATIO_SHOWN) for at, ratio, _ in places if ratio > MAX_RATIO_SHOWN], TRIANGLE, RED)
        mean = verdict.mean_delay_s / reference_s
        canvas.line([(k - 0.4, mean), (k + 0.4, mean)], BLACK, 3)
        if has_texts:
            for row, text in enumerate((f"{verdict.mean_delay_s:.1f} s", selected.state(verdict))):
                canvas.label((k - 0.45, canvas.y.end), text, dy_px=13 + 13 * row)
    return canvas


def _ratios(results: gate.Results, name: str) -> list[tuple[int, float, bool]]:
    """(index of a simulation, delay relative to the reference's, True for a gridlock) of a network."""
    found = []
    for k, by_name in enumerate(results.values()):
        own, reference = by_name[name], by_name[REFERENCE]
        if reference is not None and reference.total:
            found.append((k, gate.ratio(own, reference), own is not None and moves_too_few(own, reference)))
    return found


def _sentences(curves: Mapping[str, Curve], selected: Selected | None) -> list[str]:
    """The content of the picture as sentences, for screen readers."""
    lines = [
        f"{name}: mean delay {curve['delay_s'][0]:.1f} s at {curve['vehicles_per_lane_h'][0]:.0f} vehicles per hour "
        f"and lane in the first update, {curve['delay_s'][-1]:.1f} s at {curve['vehicles_per_lane_h'][-1]:.0f} in the "
        f"last of {len(curve['update'])}."
        for name, curve in curves.items()
        if curve["update"]
    ]
    if selected is not None:
        lines.append(
            f"At the gate, {REFERENCE}: {gate.reference_delay_s(selected.results):.1f} s in the geometric mean."
        )
        lines += [
            f"{verdict.name} ({selected.state(verdict)}): {verdict.mean_delay_s:.1f} s, {verdict.worst_ratio:.2f} "
            f"times as slow at worst, {len(verdict.gridlocks)} gridlocks that {REFERENCE} does not have."
            for verdict in selected.verdicts
        ]
    return lines
