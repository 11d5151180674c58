"""The report of an evaluation: one HTML page that needs no other file, for a screen and A4 paper."""

import base64
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
from jinja2 import Template
from matplotlib.figure import Figure

from city import whole_files
from evaluation import report_figures, road_users
from evaluation.arms import ACTUATED, FIXED, GREEDY, MAX_PRESSURE, POLICY, SERVED, Arm
from evaluation.report_figures import BANDS_S, MAX_ROADS, MAX_SIGNALS, MAX_TLS, Results, short_names
from evaluation.signal_pictures import MAX_TLS as MAX_PICTURED_TLS
from evaluation.signal_pictures import compared
from evaluation.simulation import WINDOW_S, delays_s, unchanged_greens
from evaluation.statistics import paired, population

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
SERVICE_BOUNDS_S = (("A", 10.0), ("B", 20.0), ("C", 35.0), ("D", 55.0), ("E", 80.0))
"""Levels of service of signalised intersections: (letter, largest delay per vehicle in s); F is above all of them.

Source: Highway Capacity Manual (6th edition), criteria of motorised vehicles at signalised intersections. In the manual
a volume above the capacity is F too, whatever the delay. Here F is by delay alone.
"""
PATHS = ("city", "sumocfg")
"""Conditions that are files."""
PATH_PARTS = 3
"""Parts of a file's path that the page has; results.json has all."""
TEMPLATE = Template((Path(__file__).parent / "report.html").read_text(), autoescape=True, trim_blocks=True)
"""The page; only the pictures of signals, which are SVG of our own, are inserted as they are."""


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
    tls = _largest_tls(names, results)
    sections, pictured = _sections(names, results, tls), _signal_pictures(names, results, tls)
    delays = [_service_delays(name, results) for name in names]
    users = {name: road_users.means([outcome.road_users for outcome in results[name]]) for name in names}
    classes = road_users.occurring(users.values())
    html = TEMPLATE.render(
        title=f"Signal control: {names[0]}" + (f" against {_listed(names[1:])}" if names[1:] else ""),
        names=names,
        date=(created or datetime.now()).strftime("%Y-%m-%d %H:%M"),
        verdict=verdict(names, results),
        population=population(len(results[names[0]]), bool(conditions.get("varied_demand"))),
        city=_place(conditions["city"]),
        tls=_count(len(conditions["tls"]), "TL"),
        simulations=_count(len(results[names[0]]), "simulation"),
        comparison=[_compared(arm, arms[0], results) for arm in arms],
        road_users=users,
        # of one class alone, the table above has the figures
        classes=classes if len(classes) > 1 else [],
        meanings=[(arm.name, MEANINGS[arm.kind], arm.model_number, arm.has_faults) for arm in arms],
        service=[(tl, short, [by_tl.get(tl) for by_tl in delays]) for tl, short in short_names(tls).items()],
        unchanged=unchanged_greens(arms, results),
        tl_count=len(results[names[0]][0].delay_by_tl),
        bounds=SERVICE_BOUNDS_S,
        letter_of=level_of_service,
        sections=sections,
        contents=_contents(sections, bool(pictured["pictures"]), len(classes) > 1),
        **pictured,
        conditions=_lines(conditions),
    )
    for name, file in picture_files(names).items():
        pictures = results[name][0].pictures
        if pictures is not None:
            whole_files.write(folder / file, pictures.page)
    page = folder / "report.html"
    whole_files.write(page, html)
    return page


def verdict(names: Sequence[str], results: Results) -> str:
    """A sentence for each other arm: whether the candidate is better or worse by the 95 % interval, and by how much."""
    candidate = delays_s(results[names[0]])
    if not names[1:]:
        return f"{names[0]} was simulated alone: the mean delay is {np.mean(candidate):.1f} s per vehicle."
    sentences = []
    for name in names[1:]:
        delays = delays_s(results[name])
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


def _compared(arm: Arm, candidate: Arm, results: Results) -> dict[str, Any]:
    outcomes = results[arm.name]
    delays = delays_s(outcomes)
    difference = ("", "")
    if arm is not candidate:
        paired_s = paired(delays_s(results[candidate.name]), delays)
        bounds = f"{paired_s.low:+.1f} to {paired_s.high:+.1f}" if math.isfinite(paired_s.low) else "none (one seed)"
        difference = (f"{paired_s.mean:+.1f}", bounds)
    finished = np.mean([outcome.finished for outcome in outcomes])
    total = np.mean([outcome.total for outcome in outcomes])
    means = (
        f"{np.mean(delays):.1f}",
        f"{np.mean([outcome.duration_s for outcome in outcomes]):.1f}",
        f"{np.mean([outcome.waiting_s for outcome in outcomes]):.1f}",
        f"{np.mean([outcome.stops for outcome in outcomes]):.2f}",
        f"{finished:.0f} of {total:.0f}",
    )
    letters = Counter(level_of_service(delay_s) for delay_s in _service_delays(arm.name, results).values())
    return {"name": arm.name, "means": means, "letters": sorted(letters.items()), "difference": difference}


def level_of_service(delay_s: float) -> str:
    """The level of service, A to F, of a delay per vehicle in s."""
    return next((letter for letter, bound_s in SERVICE_BOUNDS_S if delay_s <= bound_s), "F")


def _service_delays(name: str, results: Results) -> dict[str, float]:
    """TL -> delay per vehicle that passes it, in s, without TLs that no vehicle passed."""
    outcomes = results[name]
    delays = {tl: [o.delay_per_vehicle_s(tl) for o in outcomes] for tl in outcomes[0].delay_by_tl}
    return {tl: float(np.nanmean(values)) for tl, values in delays.items() if not np.all(np.isnan(values))}


def _largest_tls(names: Sequence[str], results: Results) -> list[str]:
    """The TLs at which the candidate's vehicles lose most time, largest first."""
    candidate = results[names[0]]
    tls = candidate[0].delay_by_tl
    return sorted(tls, key=lambda tl: -float(np.mean([outcome.delay_by_tl[tl] for outcome in candidate])))[:MAX_TLS]


def _sections(names: Sequence[str], results: Results, tls: Sequence[str]) -> list[dict[str, Any]]:
    seeds = len(results[names[0]])
    intervals = f", with 95 % intervals over {seeds} seeds" if seeds > 1 else ". One seed: there are no intervals"
    roads = report_figures.queued_roads(names, results)
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
            f"Greens of up to {MAX_SIGNALS} signals under {name}, in up to {BANDS_S / 60:g} minutes of the first seed, "
            f"around the departures with the largest delay under {names[0]}; signals by their distance along the line "
            "through them. Each colour is one green of the signal, the same in all figures."
        )
        sections.append(_section(f"Signals in time and space: {name}", text, [figure], [] if k else signals))
    return sections


def picture_files(names: Sequence[str]) -> dict[str, str]:
    """Arm -> name of the page with its signals' pictures."""
    return {name: f"signals-{k}-{re.sub(r'[^A-Za-z0-9]+', '-', name)[:40]}.html" for k, name in enumerate(names, 1)}


def _signal_pictures(names: Sequence[str], results: Results, tls: Sequence[str]) -> dict[str, Any]:
    """ATSPM's pictures of the TL at which most time is lost, and the files with all of them."""
    outcomes = {name: results[name][0] for name in names}
    files = picture_files(names)
    common = [outcome.pictures.by_tl for outcome in outcomes.values() if outcome.pictures is not None]
    tl = next((tl for tl in tls if common and all(tl in by_tl for by_tl in common)), None)
    views = [by_tl[tl] for by_tl in common] if tl is not None else []
    shown = iter(compared(views))
    arms = []
    for name, outcome in outcomes.items():
        if outcome.pictures is not None:
            arms.append({"name": name, "file": files[name], "shown": next(shown, "")})
        elif outcome.no_pictures:
            arms.append({"name": name, "reason": outcome.no_pictures})
    return {"pictures": arms, "pictured_tl": tl, "max_pictured_tls": MAX_PICTURED_TLS}


def _contents(sections: Sequence[Mapping[str, Any]], has_pictures: bool, has_classes: bool) -> list[tuple[str, str]]:
    """(id, name) of the page's headings."""
    return [
        ("comparison", "Comparison"),
        *([("road-users", "Road users")] if has_classes else []),
        ("service", "Level of service by TL"),
        *((f"figure-{k}", section["title"]) for k, section in enumerate(sections, 1)),
        *([("atspm", "Signal performance measures (ATSPM)")] if has_pictures else []),
        ("conditions", "What was simulated"),
    ]


def _section(title: str, text: str, figures: Sequence[Figure], names: Sequence[str] = ()) -> dict[str, Any]:
    """A section of the page, and which names are shortened in its figures."""
    drawn = [{"png": _png(figure), "width_px": f"{figure.get_figwidth() * 96:.0f}"} for figure in figures]
    shortened = [(full, short) for full, short in short_names(names).items() if full != short]
    return {"title": title, "text": text, "figures": drawn, "shortened": shortened}


def _lines(conditions: Mapping[str, Any]) -> str:
    """The conditions, one a line, without those that do not apply."""
    lines = []
    for name, value in conditions.items():
        if name == "models":
            lines += [f"{arm} {tl}: {_place(path)}" for arm, versions in value.items() for tl, path in versions.items()]
        elif name == "policies":
            lines += [f"{arm}: {_place(path)}, SHA-256 {digest}" for arm, (path, digest) in value.items()]
        elif name in PATHS and value is not None:
            lines.append(f"{name}: {_place(value)}")
        elif isinstance(value, Mapping):
            lines.append(f"{name}: {', '.join(f'{key} {share:g}' for key, share in value.items())}")
        elif value is not None:
            lines.append(f"{name.replace('_', ' ')}: {', '.join(value) if isinstance(value, list) else value}")
    return "\n".join(lines)


def _place(path: str) -> str:
    """The last folders and the name of a file: a report that is passed on does not tell who made it, and where."""
    return "/".join(Path(path).parts[-PATH_PARTS:]) if Path(path).is_absolute() else str(path)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _png(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    plt.close(figure)
    return base64.b64encode(buffer.getvalue()).decode()
