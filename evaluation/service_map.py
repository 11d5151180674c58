"""A map of a city with the level of service of each TL."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure

from city.street_shapes import StreetShapes
from evaluation.level_of_service import level_of_service

LEVEL_COLOURS = {"A": "#1a9850", "B": "#91cf60", "C": "#d9ef8b", "D": "#fee08b", "E": "#fc8d59", "F": "#d73027"}
"""ColorBrewer's RdYlGn; the letters say the same without a colour."""
ROAD_COLOUR = "#b8b8b8"
WIDTH_IN, MAX_HEIGHT_IN = 4.6, 4.6
MAX_LETTERS, MAX_NAMES = 150, 12
"""Largest number of TLs with a letter, and with a name."""


@dataclass(frozen=True)
class StreetMap:
    """A city's streets, and the signals of its evaluated TLs."""

    shapes: StreetShapes
    signals_of: Mapping[str, Sequence[str]]
    """By TL."""


def draw(street: StreetMap, title: str, delays_s: Mapping[str, float]) -> Figure:
    """The map of an arm. `delays_s`: TL -> delay per vehicle, without those that no vehicle passed."""
    low_x, low_y, high_x, high_y = street.shapes.bounds
    height_in = np.clip(0.5 + WIDTH_IN * (high_y - low_y) / max(high_x - low_x, 1.0), 1.5, MAX_HEIGHT_IN)
    figure: Figure = plt.figure(figsize=(WIDTH_IN, float(height_in)), constrained_layout=True)
    axes = figure.add_subplot()
    lanes = [lane.points for lane in street.shapes.lanes if not lane.is_crossing]
    axes.add_collection(LineCollection(lanes, colors=ROAD_COLOUR, lw=1))
    areas = [junction.points for junction in street.shapes.junctions if junction.points]
    axes.add_collection(PolyCollection(areas, facecolors=ROAD_COLOUR, edgecolors=ROAD_COLOUR, lw=1))
    _mark(axes, street, delays_s)
    axes.set(title=title, aspect="equal", xlim=(low_x, high_x), ylim=(low_y, high_y))
    axes.margins(0.05)
    axes.set_axis_off()
    return figure


def _mark(axes: Axes, street: StreetMap, delays_s: Mapping[str, float]) -> None:
    """Draw a disc with a letter at each junction of a TL."""
    at = {junction.id: (junction.x, junction.y) for junction in street.shapes.junctions}
    size = float(np.clip(14.0 - 0.05 * len(delays_s), 4.0, 14.0))
    for tl, delay_s in delays_s.items():
        letter = level_of_service(delay_s)
        signals = street.signals_of[tl]
        junctions = [(s, j) for s in signals for j in street.shapes.junctions_of_signal.get(s, ()) if j in at]
        for signal, junction in junctions:
            x, y = at[junction]
            name = f"{tl}: {signal}" if len(signals) > 1 else tl
            axes.plot(x, y, "o", ms=size, mfc=LEVEL_COLOURS[letter], mec="#333333", mew=0.8)
            if len(delays_s) <= MAX_LETTERS:
                axes.annotate(letter, (x, y), ha="center", va="center_baseline", fontsize=0.65 * size, color="#111111")
            if len(delays_s) <= MAX_NAMES:
                axes.annotate(name, (x, y), (0.5 * size, 0.5 * size), textcoords="offset points", fontsize=7)
