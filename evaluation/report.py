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
from evaluation.arms import ACTUATED, FIXED, GREEDY, MAX_PRESSURE, POLICY, SERVED, Arm, reference_of
from evaluation.lane_groups import BOUNDS_S, QUEUED_VEHICLE_M, SATURATION_VEH_H, level_of_service
from evaluation.report_figures import BANDS_S, MAX_ROADS, MAX_SIGNALS, MAX_TLS, Results, StreetMap, short_names
from evaluation.report_texts import (
    BETTER,
    UNDECIDED,
    WORSE,
    delay_text,
    lane_group_rows,
    left_out,
    less_served,
    service_rows,
    verdict,
    worsened,
    worst_groups,
)
from evaluation.signal_pictures import MAX_TLS as MAX_PICTURED_TLS
from evaluation.signal_pictures import compared
from evaluation.simulation import WINDOW_S, delays_s, unchanged_greens
from evaluation.statistics import mean_by_signal, paired, population

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
PATHS = ("city", "sumocfg")
"""Conditions that are files."""
PATH_PARTS = 3
"""Parts of a file's path that the page has; results.json has all."""
TEMPLATE = Template((Path(__file__).parent / "report.html").read_text(), autoescape=True, trim_blocks=True)
"""The page; only the pictures of signals, which are SVG of our own, are inserted as they are."""


def write(
    folder: Path,
    arms: Sequence[Arm],
    results: Results,
    conditions: Mapping[str, Any],
    created: datetime | None = None,
    street: StreetMap | None = None,
) -> Path:
    """Write report.html, and a page with the signals' pictures for each arm that has them, into a folder; return its
    path.

    Args:
        folder: folder of the report.
        arms: the arms; the first one is the candidate.
        results: outcomes by arm, in the order of the seeds.
        conditions: the conditions of the simulations, as in results.json.
        created: the report's date (default: now).
        street: for the maps (default: none are drawn).
    """
    names = [arm.name for arm in arms]
    reference, is_varied = reference_of(names), bool(conditions.get("varied_demand"))
    compared_names = [reference, names[0]] if reference is not None else names[:1]
    tls = _largest_tls(names, results)
    sections, pictured = _sections(names, results, tls), _signal_pictures(names, results, tls)
    delays = {name: _service_delays(name, results) for name in names}
    users = {name: road_users.means([outcome.road_users for outcome in results[name]]) for name in names}
    classes = road_users.occurring(users.values())
    html = TEMPLATE.render(
        title=f"Signal control: {names[0]}" + (f" against {reference}" if reference is not None else ""),
        names=names,
        date=(created or datetime.now()).strftime("%Y-%m-%d %H:%M"),
        verdict=verdict(names[0], reference, results, is_varied),
        other_verdicts=[verdict(names[0], name, results, is_varied) for name in names[1:] if name != reference],
        maps=_maps(street, compared_names, delays, results),
        left_out=left_out(arms, len(results[names[0]]), conditions),
        **_movements(compared_names, results, _signal_labels(street, tls)),
        reference=reference,
        judged=_judged,
        population=population(len(results[names[0]]), is_varied),
        city=_place(conditions["city"]),
        tls=_count(len(conditions["tls"]), "TL"),
        simulations=_count(len(results[names[0]]), "simulation"),
        comparison=[_compared(arm, arms[0], results) for arm in arms],
        road_users=users,
        # of one class alone, the table above has the figures
        classes=classes if len(classes) > 1 else [],
        meanings=[(arm.name, MEANINGS[arm.kind], arm.model_number, arm.has_faults) for arm in arms],
        service=[
            (tl, short, {n: by_tl.get(tl) for n, by_tl in delays.items()}) for tl, short in short_names(tls).items()
        ],
        unchanged=unchanged_greens(arms, results),
        tl_count=len(results[names[0]][0].delay_by_tl),
        bounds=BOUNDS_S,
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


def _judged(after: float | None, before: float | None) -> str:
    """better or worse, of two delays in s; "" if they show the same, or one is unknown."""
    if after is None or before is None or round(after, 1) == round(before, 1):
        return ""
    return BETTER if after < before else WORSE


def _maps(
    street: StreetMap | None, names: Sequence[str], delays: Mapping[str, Mapping[str, float]], results: Results
) -> list[dict[str, str]]:
    """The maps of the arms, before and after."""
    if street is None:
        return []
    titles = [f"{name}, {np.mean(delays_s(results[name])):.1f} s a trip" for name in names]
    if len(titles) > 1:
        titles = [f"{when}: {title}" for when, title in zip(("Before", "After"), titles, strict=True)]
    return [
        _drawn(report_figures.service_map(street, title, delays[name]))
        for title, name in zip(titles, names, strict=True)
    ]


def _signal_labels(street: StreetMap | None, tls: Sequence[str]) -> dict[str, str]:
    """By signal of the TLs, its name with the TL's."""
    signals_of = {tl: street.signals_of[tl] for tl in tls} if street is not None else {}
    return {signal: signal if signal == tl else f"{signal} ({tl})" for tl, own in signals_of.items() for signal in own}


def _movements(names: Sequence[str], results: Results, labels: Mapping[str, str]) -> dict[str, Any]:
    """The movements and lane groups of the candidate, and of what it is compared with before it.

    `labels`: names of the signals whose tables are shown.
    """
    services = [mean_by_signal([outcome.movements for outcome in results[name]], labels) for name in names]
    traffic = [mean_by_signal([outcome.lane_groups for outcome in results[name]], labels) for name in names]
    shown = [signal for signal in services[-1] if signal in labels.values()]
    return {
        "compared_names": names,
        "worst": worst_groups(traffic[-1], traffic[0] if len(names) > 1 else {}),
        "worsened": worsened(traffic[-1], traffic[0]) if len(names) > 1 else "",
        "less_served": less_served(services[-1], services[0]) if len(names) > 1 else [],
        "signals": [
            (
                signal,
                service_rows([each[signal] for each in services]),
                lane_group_rows([each[signal] for each in traffic]),
            )
            for signal in shown
        ],
        "signal_count": len(services[-1]),
        "delay_text": delay_text,
        "saturation_veh_h": SATURATION_VEH_H,
        "queued_vehicle_m": QUEUED_VEHICLE_M,
    }


def _compared(arm: Arm, candidate: Arm, results: Results) -> dict[str, Any]:
    outcomes = results[arm.name]
    delays = delays_s(outcomes)
    difference, judgement = ("", ""), ""
    if arm is not candidate:
        paired_s = paired(delays_s(results[candidate.name]), delays)
        bounds = f"{paired_s.low:+.1f} to {paired_s.high:+.1f}" if math.isfinite(paired_s.low) else "none (one seed)"
        difference = (f"{paired_s.mean:+.1f}", bounds)
        judgement = BETTER if paired_s.high < 0 else WORSE if paired_s.low > 0 else UNDECIDED
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
    return {
        "name": arm.name,
        "means": means,
        "letters": sorted(letters.items()),
        "difference": difference,
        "judgement": judgement,
    }


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
            "through them. Turns: greens without through traffic."
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
        ("movements", "What each movement got"),
        *((f"figure-{k}", section["title"]) for k, section in enumerate(sections, 1)),
        *([("atspm", "Signal performance measures (ATSPM)")] if has_pictures else []),
        ("conditions", "What was simulated"),
    ]


def _section(title: str, text: str, figures: Sequence[Figure], names: Sequence[str] = ()) -> dict[str, Any]:
    """A section of the page, and which names are shortened in its figures."""
    drawn = [_drawn(figure) for figure in figures]
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


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _drawn(figure: Figure) -> dict[str, str]:
    """A figure as PNG in base 64, and its width."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    plt.close(figure)
    return {"png": base64.b64encode(buffer.getvalue()).decode(), "width_px": f"{figure.get_figwidth() * 96:.0f}"}
