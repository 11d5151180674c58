"""The demo's report: an HTML page with two plots, and the trainer's learning curve."""

import html
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from pipeline import Run

FIXED, SERVED = "#9a9a9a", "#1b7f4b"
WINDOW_S = 300
"""Departures over which the mean delay is taken."""


def write_report(folder: Path, fixed: Run, served: Run, table: str) -> Path:
    """Write report.html and delay.png into a folder; return the page's path."""
    figure, (over_time, spread) = plt.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    for name, run, colour in (("fixed-time plans", fixed, FIXED), ("served policies", served, SERVED)):
        departure, delay = np.array(run.trips.delay_by_departure).T
        window = (departure // WINDOW_S).astype(int)
        middle_min = [(k + 0.5) * WINDOW_S / 60 for k in np.unique(window)]
        over_time.plot(middle_min, [delay[window == k].mean() for k in np.unique(window)], color=colour, label=name, lw=2.5)
        spread.plot(np.sort(delay), 100 * (np.arange(len(delay)) + 1) / len(delay), color=colour, label=name, lw=2.5)
    over_time.set(xlabel="departure (min)", ylabel="mean delay (s)", title="Delay over the morning", ylim=(0, None))
    spread.set(
        xlabel="delay (s)",
        ylabel="share of vehicles (%)",
        title="Vehicles delayed at most this long",
        xlim=(0, None),
        ylim=(0, 100),
    )
    for axes in (over_time, spread):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.savefig(folder / "delay.png", dpi=110)
    plt.close(figure)
    page = folder / "report.html"
    page.write_text(
        "<!doctype html><meta charset=utf-8><title>Served policies against fixed-time plans</title>"
        "<style>body{font:16px sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
        "img{max-width:100%}pre{background:#f4f4f4;padding:1em}</style>"
        "<h1>Served policies against fixed-time plans</h1>"
        "<p>Sample city, one simulated hour, the same demand and seed. Delay is time loss plus departure delay.</p>"
        f"<pre>{html.escape(table)}</pre><img src=delay.png alt='Delay over the morning, and its distribution'>\n",
        encoding="utf-8",
    )
    return page


def write_curve(curve: Path) -> Path:
    """Plot a learning curve (CSV: episode, mean delay, trips) as PNG beside it; return its path."""
    episode, delay_s, _ = np.loadtxt(curve, delimiter=",", skiprows=1).T
    figure, axes = plt.subplots(figsize=(7, 3.2), constrained_layout=True)
    axes.plot(episode, delay_s, color=SERVED, lw=1.5)
    axes.set(xlabel="training episode", ylabel="mean delay, exploring (s)", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    picture = curve.with_suffix(".png")
    figure.savefig(picture, dpi=90)
    plt.close(figure)
    return picture
