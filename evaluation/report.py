"""The report of an evaluation: one HTML page that needs no other file."""

import base64
import html
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from city import whole_files
from city.network import is_green
from evaluation.arms import Arm
from evaluation.signal_recording import SignalBand
from evaluation.simulation import WINDOW_S, Outcome
from evaluation.statistics import interval

COLOURS = ("#1b7f4b", "#9a9a9a", "#c8812e", "#3f6fb5", "#8d4fa3", "#b5443f", "#5a5a5a", "#2f9c9c")
MAX_ROADS, MAX_TLS, MAX_SIGNALS = 15, 30, 40
"""Largest number of bars of a plot: roads and TLs with the largest values, signals in the order of their positions."""
BANDS_S = 600.0
"""Simulated time of the time-space diagram."""

Results = Mapping[str, Sequence[Outcome]]


def write(folder: Path, arms: Sequence[Arm], results: Results, table: str, conditions: Mapping[str, Any]) -> Path:
    """Write report.html into a folder and return its path.

    Args:
        folder: folder of the report.
        arms: the arms; the first one is the candidate.
        results: outcomes by arm, in the order of the seeds.
        table: the printed table.
        conditions: the conditions of the simulations, as in results.json.
    """
    names = [arm.name for arm in arms]
    seeds = len(results[names[0]])
    figures = [
        ("Delay over time", f"Mean delay by departure, in windows of {WINDOW_S // 60} minutes, with 95 % intervals over "
         f"{seeds} seeds.", _delay_over_time(names, results)),
        ("Delay by TL", "Vehicle seconds lost on the way to each TL, divided by all vehicles, with 95 % intervals.",
         _by_tl(names, results)),
        ("Distribution of the delay", "Share of the vehicles that are delayed at most this long.", _distribution(names, results)),
        ("Queues by approach", "Mean number of halting vehicles on the roads where it is largest.", _queues(names, results)),
    ]  # fmt: skip
    if any(results[name][0].signals for name in names):
        text = (
            f"Green of the signals in up to {BANDS_S / 60:g} minutes of the first seed; signals in the order in which they lie."
        )
        figures.append(("Signals in time and space", text, _bands(names, results)))
    sections = "".join(
        f"<h2>{html.escape(title)}</h2><p>{html.escape(text)}</p>"
        f'<img alt="{html.escape(title)}" src="data:image/png;base64,{_png(figure)}">'
        for title, text, figure in figures
    )
    page = folder / "report.html"
    whole_files.write(
        page,
        "<!doctype html><html lang=en><meta charset=utf-8><title>Evaluation</title>"
        "<style>body{font:16px sans-serif;max-width:75em;margin:2em auto;padding:0 1em}"
        "img{max-width:100%}pre{background:#f4f4f4;padding:1em;overflow:auto}</style>"
        f"<h1>{html.escape(names[0])} against {html.escape(', '.join(names[1:]) or 'nothing')}</h1>"
        f"<p>{seeds} paired simulations of each arm. Delay is time loss + departure delay of all vehicles, also those that have "
        "not arrived or departed. The differences are the candidate's, seed by seed, with their 95 % interval.</p>"
        f"<pre>{html.escape(table)}</pre>{sections}"
        f"<h2>What was simulated</h2><pre>{html.escape(_lines(conditions))}</pre></html>\n",
    )
    return page


def _lines(conditions: Mapping[str, Any]) -> str:
    """The conditions, one a line, without those that do not apply."""
    lines = []
    for name, value in conditions.items():
        if name == "models":
            lines += [f"{arm} {tl}: {path}" for arm, versions in value.items() for tl, path in versions.items()]
        elif isinstance(value, Mapping):
            lines.append(f"{name}: {', '.join(f'{key} {share:g}' for key, share in value.items())}")
        elif value is not None:
            lines.append(f"{name.replace('_', ' ')}: {', '.join(value) if isinstance(value, list) else value}")
    return "\n".join(lines)


def _delay_over_time(names: Sequence[str], results: Results) -> Figure:
    figure, axes = _axes(9, 4)
    for name, colour in _coloured(names):
        windows = sorted({begin_s for outcome in results[name] for begin_s in outcome.delay_by_departure})
        intervals = [
            interval([outcome.delay_by_departure[w] for outcome in results[name] if w in outcome.delay_by_departure])
            for w in windows
        ]
        middle_min = [(w + WINDOW_S / 2) / 60 for w in windows]
        axes.plot(middle_min, [i.mean for i in intervals], color=colour, label=name, lw=2, marker="o", ms=3)
        if len(results[name]) > 1:
            low, high = [i.low for i in intervals], [i.high for i in intervals]
            axes.fill_between(middle_min, low, high, color=colour, alpha=0.15, lw=0)
    axes.set(xlabel="departure (simulated minute)", ylabel="mean delay (s)", ylim=(0, None))
    axes.legend(frameon=False)
    return figure


def _by_tl(names: Sequence[str], results: Results) -> Figure:
    candidate = results[names[0]]
    tls = sorted(candidate[0].delay_by_tl, key=lambda tl: -float(np.mean([outcome.delay_by_tl[tl] for outcome in candidate])))
    return _bars(names, tls[:MAX_TLS], "vehicle seconds / vehicles", lambda name, tl: [o.delay_by_tl[tl] for o in results[name]])


def _queues(names: Sequence[str], results: Results) -> Figure:
    roads = {road for name in names for outcome in results[name] for road in outcome.queue_by_road}

    def values(name: str, road: str) -> list[float]:
        return [outcome.queue_by_road.get(road, 0.0) for outcome in results[name]]

    largest = sorted(roads, key=lambda road: -max(float(np.mean(values(name, road))) for name in names))[:MAX_ROADS]
    return _bars(names, largest, "halting vehicles", values)


def _bars(names: Sequence[str], labels: Sequence[str], title: str, values: Callable[[str, str], list[float]]) -> Figure:
    """Plot groups of horizontal bars, a group per label and a bar per arm."""
    figure, axes = _axes(9, 1.2 + 0.16 * len(labels) * (len(names) + 1))
    for k, (name, colour) in enumerate(_coloured(names)):
        intervals = [interval(values(name, label)) for label in labels]
        y = np.arange(len(labels)) + (k + 0.5) / (len(names) + 1)
        error = [i.high - i.mean if np.isfinite(i.high) else 0.0 for i in intervals]
        axes.barh(y, [i.mean for i in intervals], 0.9 / (len(names) + 1), xerr=error, color=colour, label=name, ecolor="#444")
    axes.set(yticks=np.arange(len(labels)) + 0.4, yticklabels=[label[:40] for label in labels], xlabel=title, xlim=(0, None))
    axes.invert_yaxis()
    axes.legend(frameon=False)
    return figure


def _distribution(names: Sequence[str], results: Results) -> Figure:
    figure, axes = _axes(9, 4)
    for name, colour in _coloured(names):
        quantiles_s = np.mean([outcome.delay_quantiles_s for outcome in results[name] if outcome.delay_quantiles_s], axis=0)
        axes.plot(quantiles_s, np.arange(101), color=colour, label=name, lw=2)
    axes.set(xlabel="delay (s)", ylabel="share of vehicles (%)", xlim=(0, None), ylim=(0, 100))
    axes.legend(frameon=False)
    return figure


def _bands(names: Sequence[str], results: Results) -> Figure:
    recorded = [name for name in names if results[name][0].signals]
    count = min(len(results[recorded[0]][0].signals), MAX_SIGNALS)
    figure: Figure = plt.figure(figsize=(11, len(recorded) * (1 + 0.22 * count)), constrained_layout=True)
    all_axes = figure.subplots(len(recorded), 1, squeeze=False)
    all_bands = [band for name in recorded for band in results[name][0].signals]
    # the greens of all arms, so that a phase has the same colour in each
    greens = {
        signal: sorted({state for band in all_bands if band.signal == signal for _, state in band.states if is_green(state)})
        for signal in {band.signal for band in all_bands}
    }
    for axes, name in zip(all_axes[:, 0], recorded, strict=True):
        bands = _ordered(results[name][0].signals)[:MAX_SIGNALS]
        first_s, last_s = min(band.states[0][0] for band in bands), bands[0].end_s
        # from the middle on, when the network has filled
        begin_s = max(first_s, min((first_s + last_s) / 2, last_s - BANDS_S))
        end_s = min(begin_s + BANDS_S, last_s)
        for row, band in enumerate(bands):
            _draw_band(axes, row, band, greens[band.signal], begin_s, end_s)
        axes.set(yticks=range(len(bands)), yticklabels=[band.signal[:30] for band in bands])
        axes.set(xlim=(0, end_s - begin_s), title=name)
        axes.invert_yaxis()
        axes.set_xlabel(f"seconds from second {begin_s:.0f} on")
    return figure


def _draw_band(axes: Axes, row: int, band: SignalBand, greens: Sequence[str], begin_s: float, end_s: float) -> None:
    """Draw a bar in the colour of each green phase; yellow and red stay white."""
    changes = [time_s for time_s, _ in band.states[1:]] + [end_s]
    for (time_s, state), change_s in zip(band.states, changes, strict=True):
        low_s, high_s = max(time_s - begin_s, 0.0), min(change_s, end_s) - begin_s
        if state in greens and high_s > low_s:
            axes.barh(row, high_s - low_s, 0.8, low_s, color=plt.get_cmap("tab10")(greens.index(state) % 10))


def _ordered(bands: Sequence[SignalBand]) -> list[SignalBand]:
    """Sort signals along their principal axis, so that a green wave is a slanted line of bars."""
    places = np.array([(band.x_m, band.y_m) for band in bands])
    places = places - places.mean(0)
    along = places @ np.linalg.svd(places, full_matrices=False)[2][0]
    return [bands[i] for i in np.argsort(along)]


def _axes(width: float, height: float) -> tuple[Figure, Axes]:
    figure, axes = plt.subplots(figsize=(width, height), constrained_layout=True)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _coloured(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, COLOURS[k % len(COLOURS)]) for k, name in enumerate(names)]


def _png(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    plt.close(figure)
    return base64.b64encode(buffer.getvalue()).decode()
