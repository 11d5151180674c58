"""The report of an evaluation: one HTML page that needs no other file, for a screen and A4 paper."""

import base64
import html
import io
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from city import whole_files
from evaluation import level_of_service, report_figures
from evaluation.arms import ACTUATED, FIXED, GREEDY, MAX_PRESSURE, POLICY, SERVED, WITH_FAULTS, Arm
from evaluation.report_figures import BANDS_S, MAX_ROADS, MAX_SIGNALS, MAX_TLS, Results, short_names
from evaluation.signal_pictures import MAX_TLS as MAX_PICTURED_TLS
from evaluation.simulation import WINDOW_S
from evaluation.statistics import paired

MEANINGS = {
    SERVED: "trained policies, through the controller and its safety rules",
    POLICY: "one policy for any junction, through the controller and its safety rules",
    FIXED: "the signals' own programs",
    ACTUATED: "SUMO's actuated control, with the phases of the signals' own programs",
    MAX_PRESSURE: "the green with the largest difference of vehicles before and behind the signal, through the "
    "controller and its safety rules",
    GREEDY: "the green with the most vehicles within 50 m before the signal, through the controller and its safety "
    "rules",
}  # fmt: skip
STYLE = """
body{font:16px/1.45 sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222}
h1{line-height:1.2}h1,h2,p,li,td:first-child{overflow-wrap:anywhere}th{hyphens:none}
.verdict{font-size:1.15em;border-left:.3em solid #1b7f4b;padding:.2em 1em;background:#f4f7f5}
table{border-collapse:collapse;width:100%;margin:1em 0}
td,th{border-bottom:1px solid #bbb;padding:.3em .5em;text-align:right;
vertical-align:top}td:first-child,th:first-child{text-align:left}th{vertical-align:bottom}
svg{max-width:100%;height:auto;display:block;break-inside:avoid}
section{margin-top:2em}figure{margin:1em 0}img{max-width:100%;height:auto}figcaption,.note{font-size:.9em;color:#444}
pre{background:#f4f4f4;padding:1em;white-space:pre-wrap;overflow-wrap:anywhere}
@page{size:A4;margin:16mm}
@media print{body{font-size:10pt;max-width:none;margin:0;padding:0}table{font-size:8.5pt}td,th{padding:.2em .3em}
h2,p.lead{break-after:avoid}figure,tr,.together{break-inside:avoid}thead{display:table-header-group}
img{max-height:225mm;max-width:100%}}
"""


def write(
    folder: Path, arms: Sequence[Arm], results: Results, conditions: Mapping[str, Any], created: datetime | None = None
) -> Path:
    """Write report.html, and a page with the signals' pictures for each arm that has them, into a folder; return its
    path.

    Args:
        folder: folder of the report.
        arms: the arms; the first one is the candidate.
        results: outcomes by arm, in the order of the seeds.
        conditions: the conditions of the simulations, as in results.json.
        created: the report's date (default: now).
    """
    names = [arm.name for arm in arms]
    title = f"Signal control: {names[0]}" + (f" against {_listed(names[1:])}" if names[1:] else "")
    date = (created or datetime.now()).strftime("%Y-%m-%d %H:%M")
    seeds = len(results[names[0]])
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="verdict">{html.escape(verdict(names, results))}</p>',
        f"<p>{date}. City: {html.escape(str(conditions['city']))}. {_count(len(conditions['tls']), 'TL')} compared, "
        f"in {_count(seeds, 'simulation')} of each kind of control with the same vehicles. A TL is one intersection, "
        "or several signals that are controlled as one.</p>",
        _comparison(arms, results),
        _service(names, results),
        *_figures(names, results, seeds),
        _signal_pictures(names, results),
        f"<section><h2>What was simulated</h2><pre>{html.escape(_lines(conditions))}</pre></section>",
    ]
    for name, file in picture_files(names).items():
        pictures = results[name][0].pictures
        if pictures is not None:
            whole_files.write(folder / file, pictures.page)
    page = folder / "report.html"
    whole_files.write(
        page,
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}, {date}</title>'
        f"<style>{STYLE}</style>{''.join(parts)}</html>\n",
    )
    return page


def verdict(names: Sequence[str], results: Results) -> str:
    """A sentence for each other arm: whether the candidate is better or worse by the 95 % interval, and by how much."""
    candidate = [outcome.delay_s for outcome in results[names[0]]]
    if not names[1:]:
        return f"{names[0]} was simulated alone: the mean delay is {np.mean(candidate):.1f} s per vehicle."
    sentences = []
    for name in names[1:]:
        delays = [outcome.delay_s for outcome in results[name]]
        difference = paired(candidate, delays)
        base = float(np.mean(delays))
        share = f" ({abs(difference.mean) / base:.0%})".replace("%", " %") if base > 0 else ""
        change = (
            f"{_describe_difference(difference.mean)}{share}, {np.mean(candidate):.1f} s instead of {base:.1f} s per "
            "vehicle"
        )
        bounds = _describe_interval(difference.low, difference.high)
        if not math.isfinite(difference.low):
            sentence = (
                f"undecided against {name}: the mean delay is {change}, but one seed has no interval; simulate more "
                "seeds"
            )
        elif difference.high < 0:
            sentence = f"better than {name}: the mean delay is {change} (95 % interval: {bounds})"
        elif difference.low > 0:
            sentence = f"worse than {name}: the mean delay is {change} (95 % interval: {bounds})"
        else:
            sentence = (
                f"undecided against {name}: the mean delay is {change}, but the 95 % interval contains 0 ({bounds})"
            )
        sentences.append(f"{names[0][0].upper()}{names[0][1:]} is {sentence}.")
    return " ".join(sentences)


def _describe_difference(difference_s: float) -> str:
    return f"{abs(difference_s):.1f} s {'lower' if difference_s < 0 else 'higher'}"


def _describe_interval(low_s: float, high_s: float) -> str:
    if low_s * high_s > 0:
        near, far = sorted((abs(low_s), abs(high_s)))
        return f"{near:.1f} to {far:.1f} s {'lower' if high_s < 0 else 'higher'}"
    return f"{_describe_difference(low_s)} to {_describe_difference(high_s)}"


def _comparison(arms: Sequence[Arm], results: Results) -> str:
    """The table of means by arm, and what the arms are."""
    candidate = [outcome.delay_s for outcome in results[arms[0].name]]
    head = (
        "Control", "Mean delay<br>(s per vehicle)", "Time in network<br>(s per vehicle)", "Waiting<br>(s per vehicle)",
        "Stops<br>per vehicle", "Vehicles arrived", "TLs by level<br>of service",
        f"Delay of {html.escape(arms[0].name)}<br>minus this (s)", "95&nbsp;% interval (s)",
    )  # fmt: skip
    rows = []
    for arm in arms:
        outcomes = results[arm.name]
        letters = Counter(level_of_service.letter(delay_s) for delay_s in _service_delays(arm.name, results).values())
        cells = [
            html.escape(arm.name),
            f"{np.mean([outcome.delay_s for outcome in outcomes]):.1f}",
            f"{np.mean([outcome.duration_s for outcome in outcomes]):.1f}",
            f"{np.mean([outcome.waiting_s for outcome in outcomes]):.1f}",
            f"{np.mean([outcome.stops for outcome in outcomes]):.2f}",
            " of ".join(
                f"{np.mean(counts):.0f}" for counts in zip(*((o.finished, o.total) for o in outcomes), strict=True)
            ),
            ", ".join(f"{letters[letter]}&nbsp;{letter}" for letter in sorted(letters)) or "-",
        ]
        if arm is arms[0]:
            cells += ["", ""]
        else:
            difference = paired(candidate, [outcome.delay_s for outcome in outcomes])
            bounded = math.isfinite(difference.low)
            text = f"{difference.low:+.1f} to {difference.high:+.1f}" if bounded else "none (one seed)"
            cells += [f"{difference.mean:+.1f}", text]
        rows.append(cells)
    meanings = "".join(f"<li><b>{html.escape(arm.name)}</b>: {html.escape(_meaning(arm))}</li>" for arm in arms)
    return (
        f'<section class="together"><h2>Comparison</h2>{_table(head, rows)}<p class="note">Delay is time lost against '
        "the desired speed, plus the waiting time before the vehicle can enter the network. The time in the network "
        "is the duration of the trip, so far if it has not ended. All means are over all vehicles, also those that "
        "have not arrived or departed at the end. Differences are taken seed by seed, that is with the same vehicles, "
        f"and each has its own 95 % interval; below 0, {html.escape(arms[0].name)} has less "
        f"delay.</p><ul>{meanings}</ul></section>"
    )


def _meaning(arm: Arm) -> str:
    number = f" (model number {arm.model_number})" if arm.model_number is not None else ""
    return MEANINGS[arm.kind] + number + (", with faulty detectors" if arm.name.endswith(WITH_FAULTS) else "")


def _service_delays(name: str, results: Results) -> dict[str, float]:
    """TL -> delay per vehicle that passes it, in s, without TLs that no vehicle passed."""
    outcomes = results[name]
    delays = {tl: [o.delay_per_vehicle_s(tl) for o in outcomes] for tl in outcomes[0].delay_by_tl}
    return {tl: float(np.nanmean(values)) for tl, values in delays.items() if not np.all(np.isnan(values))}


def _service(names: Sequence[str], results: Results) -> str:
    """The table of the levels of service, and of the TLs' short names."""
    tls = _largest_tls(names, results)
    delays = {name: _service_delays(name, results) for name in names}
    short = short_names(tls)

    def cell(name: str, tl: str) -> str:
        delay_s = delays[name].get(tl)
        return "-" if delay_s is None else f"{delay_s:.1f}&nbsp;s&nbsp;<b>{level_of_service.letter(delay_s)}</b>"

    rows = [
        [html.escape(tl) + (f"<br><i>in figures: {html.escape(short[tl])}</i>" if short[tl] != tl else "")]
        + [cell(name, tl) for name in names]
        for tl in tls
    ]
    bounds = ", ".join(f"{letter} up to {bound_s:g} s" for letter, bound_s in level_of_service.BOUNDS_S)
    count = len(results[names[0]][0].delay_by_tl)
    chosen = (
        f"The {len(tls)} TLs of {count} at which most time is lost; results.json has all. " if len(tls) < count else ""
    )
    return (
        f'<section><h2>Level of service by TL</h2><p class="lead">{chosen}Delay per vehicle that passes the TL, with '
        f"the letter of the Highway Capacity Manual for signalised intersections: {bounds}, F above. The simulated "
        "delay on the way to the TL is used in the place of the manual's control delay; a vehicle that passes several "
        f"signals of a TL counts at each.</p>{_table(('TL', *map(html.escape, names)), rows)}</section>"
    )


def _largest_tls(names: Sequence[str], results: Results) -> list[str]:
    """The TLs at which the candidate's vehicles lose most time, largest first."""
    candidate = results[names[0]]
    tls = candidate[0].delay_by_tl
    return sorted(tls, key=lambda tl: -float(np.mean([outcome.delay_by_tl[tl] for outcome in candidate])))[:MAX_TLS]


def _figures(names: Sequence[str], results: Results, seeds: int) -> list[str]:
    """Sections with figures."""
    intervals = f", with 95 % intervals over {seeds} seeds" if seeds > 1 else ". One seed: there are no intervals"
    tls, roads = _largest_tls(names, results), report_figures.queued_roads(names, results)
    over_time = (
        f"Mean delay of the vehicles that depart in each {WINDOW_S // 60} minutes{intervals}. "
        "The clock is the simulation's: second 0 is 0:00."
    )
    by_tl = (
        f"Seconds lost on the way to each TL, divided by all vehicles of the city{intervals}. "
        f"At most {MAX_TLS} TLs, those with the largest values. The table above has their full names."
    )
    distribution = "Share of the vehicles that are delayed at most this long."
    queues = f"Mean number of halting vehicles on at most {MAX_ROADS} roads, those where it is largest{intervals}."
    sections = [
        _section("Delay over time", over_time, [report_figures.delay_over_time(names, results)]),
        _section("Delay by TL", by_tl, report_figures.delay_by_tl(names, results, tls)),
        _section("Distribution of the delay", distribution, [report_figures.distribution(names, results)]),
        _section("Queues by approach", queues, report_figures.queues(names, results, roads), roads),
    ]
    signals = [band.signal for band in results[names[0]][0].signals]
    for k, (name, figure) in enumerate(report_figures.greens(names, results)):
        text = (
            f"Greens of up to {MAX_SIGNALS} signals under {name}, in up to {BANDS_S / 60:g} minutes of the first seed; "
            "signals in the order in which they lie. Each colour is one green of the signal, the same in all figures."
        )
        sections.append(_section(f"Signals in time and space: {name}", text, [figure], [] if k else signals))
    return sections


def picture_files(names: Sequence[str]) -> dict[str, str]:
    """Arm -> name of the page with its signals' pictures."""
    return {name: f"signals-{k}-{re.sub(r'[^A-Za-z0-9]+', '-', name)[:40]}.html" for k, name in enumerate(names, 1)}


def _signal_pictures(names: Sequence[str], results: Results) -> str:
    """The section with ATSPM's pictures of the TL at which most time is lost, and links to all of them."""
    outcomes = {name: results[name][0] for name in names}
    files = picture_files(names)
    common = [outcome.pictures.by_tl for outcome in outcomes.values() if outcome.pictures is not None]
    tl = next((tl for tl in _largest_tls(names, results) if common and all(tl in by_tl for by_tl in common)), None)
    parts = []
    for name, outcome in outcomes.items():
        if outcome.pictures is not None:
            link = f'<a href="{files[name]}">all pictures of {html.escape(name)}</a>'
            shown = outcome.pictures.by_tl[tl] if tl is not None else ""
            parts.append(f"<h3>{html.escape(name)}</h3><p>{link} ({files[name]})</p>{shown}")
        elif outcome.no_pictures:
            parts.append(f"<h3>{html.escape(name)}</h3><p>No pictures: {html.escape(outcome.no_pictures)}</p>")
    if not parts:
        return ""
    shown_tl = (
        f"On this page: arrivals and split failures on the main street of {html.escape(tl)}. " if tl is not None else ""
    )
    return (
        '<section><h2>Signal performance measures (ATSPM)</h2><p class="lead">The pictures that signal engineers read, '
        f"of the first seed, from the city's detectors or those that the evaluation adds. {shown_tl}Each linked page "
        f"has up to {MAX_PICTURED_TLS} TLs, those with the most lanes.</p>{''.join(parts)}</section>"
    )


def _section(title: str, text: str, figures: Sequence[Figure], names: Sequence[str] = ()) -> str:
    """A section of the page: heading and first figure without a page break between them, further figures, shortened
    names."""
    pictures = [
        f'<img alt="{html.escape(title)}" src="data:image/png;base64,{_png(figure)}" '
        f'width="{figure.get_figwidth() * 96:.0f}">'
        for figure in figures
    ]
    more = "".join(f"<figure>{picture}</figure>" for picture in pictures[1:])
    shortened = {full: short for full, short in short_names(names).items() if full != short}
    items = "".join(f"<li>{html.escape(short)} = {html.escape(full)}</li>" for full, short in shortened.items())
    key = f'<p class="note lead">Short names:</p><ul class="note">{items}</ul>' if items else ""
    first = pictures[0] if pictures else "<p>No data.</p>"
    return (
        f"<section><figure><h2>{html.escape(title)}</h2><p>{html.escape(text)}</p>{first}</figure>{more}{key}</section>"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of HTML cells."""
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr></thead><tbody>{body}</tbody></table>"


def _lines(conditions: Mapping[str, Any]) -> str:
    """The conditions, one a line, without those that do not apply."""
    lines = []
    for name, value in conditions.items():
        if name == "models":
            lines += [f"{arm} {tl}: {path}" for arm, versions in value.items() for tl, path in versions.items()]
        elif name == "policies":
            lines += [f"{arm}: {path}, SHA-256 {digest}" for arm, (path, digest) in value.items()]
        elif isinstance(value, Mapping):
            lines.append(f"{name}: {', '.join(f'{key} {share:g}' for key, share in value.items())}")
        elif value is not None:
            lines.append(f"{name.replace('_', ' ')}: {', '.join(value) if isinstance(value, list) else value}")
    return "\n".join(lines)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _png(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    plt.close(figure)
    return base64.b64encode(buffer.getvalue()).decode()
