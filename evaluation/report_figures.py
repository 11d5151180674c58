"""The figures of an evaluation's report, each small enough for a printed page."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MultipleLocator

from city.street_shapes import StreetShapes
from evaluation.arms import FIXED
from evaluation.lane_groups import level_of_service
from evaluation.signal_recording import SEVERAL_DIRECTIONS, SignalBand
from evaluation.simulation import WINDOW_S, Outcome
from evaluation.statistics import interval

CANDIDATE_COLOUR, FIXED_COLOUR = "#1f5fa8", "#8a8a8a"
OTHER_COLOURS = ("#c8812e", "#8d4fa3", "#7a5230", "#444444", "#2f9c9c", "#c0a000")
"""Colours of arms; green and red mean better and worse in the report."""
GREEN_COLOURS = {
    "north-south through": "#1f5fa8",
    "north-south turns": "#8fc1ea",
    "east-west through": "#c8651b",
    "east-west turns": "#f3bf85",
    SEVERAL_DIRECTIONS: "#7d5ba6",
    "pedestrians": "#222222",
}
MAX_ROADS = 15
MAX_TLS = 30
MAX_SIGNALS = 40
"""Largest number of bars of a plot: roads and TLs with the largest values, signals in the order of their positions."""
BANDS_S = 600.0
"""Simulated time of the time-space diagram."""
MAX_BARS_HEIGHT_IN = 9.5
"""Height of a figure with bars, in inches; more bars are split into several figures."""
MAX_LABEL_CHARS = 32
"""Characters of a name in a figure."""
TICK_STEPS_S = (60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400)
"""Distances of the ticks of a time axis, of which the smallest with at most 12 ticks is used."""
LEVEL_COLOURS = {"A": "#1a9850", "B": "#91cf60", "C": "#d9ef8b", "D": "#fee08b", "E": "#fc8d59", "F": "#d73027"}
"""ColorBrewer's RdYlGn; the letters say the same without a colour."""
ROAD_COLOUR = "#b8b8b8"
MAP_WIDTH_IN, MAX_MAP_HEIGHT_IN = 4.6, 4.6
MAX_LETTERS, MAX_NAMES = 150, 12
"""Largest number of TLs with a letter, and with a name."""

Results = Mapping[str, Sequence[Outcome]]


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Name -> the name, shortened to its ends if it has more than MAX_LABEL_CHARS characters. Equal results are
    numbered."""
    short: dict[str, str] = {}
    taken = {name for name in names if len(name) <= MAX_LABEL_CHARS}
    for name in names:
        label = name
        if len(name) > MAX_LABEL_CHARS:
            label = f"{name[: MAX_LABEL_CHARS - 13]}…{name[-12:]}"
            if label in taken:
                label = next(numbered for k in itertools.count(2) if (numbered := f"{label} ({k})") not in taken)
            taken.add(label)
        short[name] = label
    return short


def time_of_day(second: float) -> str:
    """A simulated second as h:mm; second 0 is midnight."""
    minutes = int(second // 60)
    return f"{minutes // 60 % 24}:{minutes % 60:02}"


def delay_over_time(names: Sequence[str], results: Results) -> Figure:
    """Mean delay by departure."""
    figure, axes = _axes(9, 4.2)
    for name, colour in _coloured(names):
        windows = sorted({begin_s for outcome in results[name] for begin_s in outcome.delay_by_departure})
        intervals = [
            interval([outcome.delay_by_departure[w] for outcome in results[name] if w in outcome.delay_by_departure])
            for w in windows
        ]
        middle_s = [w + WINDOW_S / 2 for w in windows]
        axes.plot(middle_s, [i.mean for i in intervals], color=colour, lw=2, marker="o", ms=3)
        if len(results[name]) > 1:
            low, high = [i.low for i in intervals], [i.high for i in intervals]
            axes.fill_between(middle_s, low, high, color=colour, alpha=0.15, lw=0)
    axes.set(xlabel="departure (simulated time of day, h:min)", ylabel="mean delay (s per vehicle)", ylim=(0, None))
    _label_times_of_day(axes)
    shade = Patch(color="#444444", alpha=0.15, lw=0, label="shaded: 95 % interval")
    _legend(figure, names, [shade] if len(results[names[0]]) > 1 else [])
    return figure


def delay_by_tl(names: Sequence[str], results: Results, tls: Sequence[str]) -> list[Figure]:
    """Delay by TL, of these TLs."""
    return _bars(
        names, tls, "s per vehicle of the whole city", lambda name, tl: [o.delay_by_tl[tl] for o in results[name]]
    )


def queued_roads(names: Sequence[str], results: Results) -> list[str]:
    """The roads with the largest queues."""
    roads = {road for name in names for outcome in results[name] for road in outcome.queue_by_road}
    largest = {road: max(float(np.mean(_queues(results, name, road))) for name in names) for road in roads}
    return sorted(roads, key=lambda road: (-largest[road], road))[:MAX_ROADS]


def queues(names: Sequence[str], results: Results, roads: Sequence[str]) -> list[Figure]:
    """Queues of these roads."""
    return _bars(
        names, roads, "halting vehicles, mean over the simulation", lambda name, road: _queues(results, name, road)
    )


def _queues(results: Results, name: str, road: str) -> list[float]:
    return [outcome.queue_by_road.get(road, 0.0) for outcome in results[name]]


def distribution(names: Sequence[str], results: Results) -> Figure:
    """Cumulative distribution of the delay."""
    figure, axes = _axes(9, 4.2)
    for name, colour in _coloured(names):
        quantiles_s = np.mean(
            [outcome.delay_quantiles_s for outcome in results[name] if outcome.delay_quantiles_s], axis=0
        )
        axes.plot(quantiles_s, np.arange(101), color=colour, lw=2)
    axes.set(xlabel="delay (s)", ylabel="share of vehicles (%)", xlim=(0, None), ylim=(0, 100))
    _legend(figure, names)
    return figure


def greens(names: Sequence[str], results: Results) -> list[tuple[str, Figure]]:
    """(arm, the greens of its signals in time and space) of the arms with recorded signals."""
    recorded = [name for name in names if results[name][0].signals]
    delays = results[names[0]][0].delay_by_departure
    peak_s = max(delays, key=lambda begin_s: delays[begin_s]) + WINDOW_S / 2 if delays else 0.0
    return [(name, _bands(results[name][0].signals, peak_s)) for name in recorded]


def _bands(signals: Sequence[SignalBand], peak_s: float) -> Figure:
    """The greens of signals around a second, at their distances along the line through them."""
    ordered = _ordered(signals)[:MAX_SIGNALS]
    bands = [band for _, band in ordered]
    # signals that lie close together are drawn beside one another, the others to scale
    row_m = (ordered[-1][0] - ordered[0][0]) / max(len(bands) - 1, 1) or 1.0
    places_m: list[float] = []
    for along_m, _ in ordered:
        places_m.append(max(along_m, places_m[-1] + 0.7 * row_m) if places_m else along_m)
    rows = (places_m[-1] - places_m[0]) / row_m + 1
    figure, axes = _axes(9, min(1.6 + 0.26 * rows, MAX_BARS_HEIGHT_IN))
    first_s, last_s = min(band.states[0][0] for band in bands), bands[0].end_s
    begin_s = max(first_s, min(peak_s - BANDS_S / 2, last_s - BANDS_S))
    end_s = min(begin_s + BANDS_S, last_s)
    for place_m, band in zip(places_m, bands, strict=True):
        _draw_band(axes, place_m, 0.6 * row_m, band, begin_s, end_s)
    labels = short_names([band.signal for band in bands])
    ylim = (places_m[-1] + 0.6 * row_m, places_m[0] - 0.6 * row_m)
    axes.set(yticks=places_m, yticklabels=labels.values(), xlim=(begin_s, end_s), ylim=ylim)
    axes.set_xlabel("simulated time of day (h:min)")
    distances = axes.twinx()
    distances.set(ylim=ylim, ylabel="distance along their line (m)")
    distances.set_yticks(places_m, [f"{along_m - ordered[0][0]:.0f}" for along_m, _ in ordered])
    _label_times_of_day(axes)
    shown = {direction for band in bands for direction in band.greens.values()}
    handles = [Patch(color=colour, label=name) for name, colour in GREEN_COLOURS.items() if name in shown]
    handles.append(Patch(facecolor="white", edgecolor="#444444", lw=0.5, label="between greens"))
    figure.legend(handles=handles, loc="outside upper center", ncols=6, frameon=False)
    return figure


def _draw_band(axes: Axes, y_m: float, height_m: float, band: SignalBand, begin_s: float, end_s: float) -> None:
    """Draw a bar in the colour of each green's direction; what leads from one to the next stays white."""
    changes = [time_s for time_s, _ in band.states[1:]] + [end_s]
    for (time_s, state), change_s in zip(band.states, changes, strict=True):
        low_s, high_s = max(time_s, begin_s), min(change_s, end_s)
        if state in band.greens and high_s > low_s:
            axes.barh(y_m, high_s - low_s, height_m, low_s, color=GREEN_COLOURS[band.greens[state]])


def _ordered(bands: Sequence[SignalBand]) -> list[tuple[float, SignalBand]]:
    """(distance in m, signal) along the signals' principal axis, so that a green wave is a slanted line of bars."""
    places = np.array([(band.x_m, band.y_m) for band in bands])
    places = places - places.mean(0)
    along = places @ np.linalg.svd(places, full_matrices=False)[2][0]
    return [(float(along[i]), bands[i]) for i in np.argsort(along)]


@dataclass(frozen=True)
class StreetMap:
    """A city's streets, and the signals of its evaluated TLs."""

    shapes: StreetShapes
    signals_of: Mapping[str, Sequence[str]]


def service_map(street: StreetMap, title: str, delays_s: Mapping[str, float]) -> Figure:
    """A map of the city with the level of service of each TL.

    `delays_s`: TL -> delay per vehicle, without those that no vehicle passed.
    """
    low_x, low_y, high_x, high_y = street.shapes.bounds
    height_in = np.clip(0.5 + MAP_WIDTH_IN * (high_y - low_y) / max(high_x - low_x, 1.0), 1.5, MAX_MAP_HEIGHT_IN)
    figure: Figure = plt.figure(figsize=(MAP_WIDTH_IN, float(height_in)), constrained_layout=True)
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


def _bars(
    names: Sequence[str], bars: Sequence[str], title: str, values: Callable[[str, str], list[float]]
) -> list[Figure]:
    """Plot groups of horizontal bars, a group per road or TL and a bar per arm, in figures of the same scale."""
    intervals = {name: {bar: interval(values(name, bar)) for bar in bars} for name in names}
    has_interval = bool(bars) and len(values(names[0], bars[0])) > 1
    ends = [i.high if has_interval else i.mean for by_bar in intervals.values() for i in by_bar.values()]
    labels = short_names(bars)
    per_figure = max(1, int((MAX_BARS_HEIGHT_IN - 1.2) / (0.16 * (len(names) + 1))))
    figures = []
    for part in (bars[k : k + per_figure] for k in range(0, len(bars), per_figure)):
        figure, axes = _axes(9, 1.2 + 0.16 * len(part) * (len(names) + 1))
        for k, (name, colour) in enumerate(_coloured(names)):
            shown = [intervals[name][bar] for bar in part]
            y = np.arange(len(part)) + (k + 0.5) / (len(names) + 1)
            error = [i.high - i.mean for i in shown] if has_interval else None
            axes.barh(y, [i.mean for i in shown], 0.9 / (len(names) + 1), xerr=error, color=colour, ecolor="#444444")
        axes.set(
            yticks=np.arange(len(part)) + len(names) / 2 / (len(names) + 1), yticklabels=[labels[bar] for bar in part]
        )
        axes.set(xlabel=title, xlim=(0, max(ends, default=0.0) * 1.03 or 1.0))
        axes.invert_yaxis()
        _legend(figure, names, [Line2D([], [], color="#444444", label="95 % interval")] if has_interval else [])
        figures.append(figure)
    return figures


def _axes(width: float, height: float) -> tuple[Figure, Axes]:
    figure, axes = plt.subplots(figsize=(width, height), constrained_layout=True)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _legend(figure: Figure, names: Sequence[str], more: Sequence[Patch | Line2D] = ()) -> None:
    """Put the arms and more above the axes, where no bar or line is covered."""
    handles = [Patch(color=colour, label=name) for name, colour in _coloured(names)]
    figure.legend(handles=[*handles, *more], loc="outside upper center", ncols=5, frameon=False)


def _label_times_of_day(axes: Axes) -> None:
    low_s, high_s = axes.get_xlim()
    step_s = next((step for step in TICK_STEPS_S if (high_s - low_s) / step <= 12), TICK_STEPS_S[-1])
    axes.xaxis.set_major_locator(MultipleLocator(step_s))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda second, _: time_of_day(second)))


def _coloured(names: Sequence[str]) -> list[tuple[str, str]]:
    """(arm, its colour): those of the candidate, the first arm, and of `fixed` are the same in every report."""
    colours = {names[0]: CANDIDATE_COLOUR, **({FIXED: FIXED_COLOUR} if FIXED in names[1:] else {})}
    others = itertools.cycle(OTHER_COLOURS)
    return [(name, colours.get(name) or next(others)) for name in names]
