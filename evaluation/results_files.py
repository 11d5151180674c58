"""An evaluation's result files, results.json and results.csv, written atomically."""

import csv
import io
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from city import whole_files
from city.errors import os_errors
from evaluation import road_users
from evaluation.arms import Arm
from evaluation.lane_groups import LaneGroupTraffic
from evaluation.road_users import RoadUsers
from evaluation.simulation import Outcome, outcome_values
from evaluation.statistics import CONFIDENCE, BySignal, interval, mean_by_signal, population


def check_writable(folder: Path) -> None:
    """Create a folder if it is missing. Raises InputError if no file can be written into it."""
    with os_errors(f"--out {folder}: cannot be written", "pass another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()


def write(
    folder: Path, arms: Sequence[Arm], results: Mapping[str, Sequence[Outcome]], conditions: Mapping[str, Any]
) -> None:
    """Write both files into a folder.

    Args:
        folder: created if it is missing.
        arms: the arms; the first one is the candidate.
        results: outcomes by arm, in the order of the seeds.
        conditions: the conditions of the simulations: city, TLs, models.
    """
    folder.mkdir(parents=True, exist_ok=True)
    values = {arm.name: [outcome_values(outcome) for outcome in results[arm.name]] for arm in arms}
    delays = {arm.name: [outcome.delay_by_tl for outcome in results[arm.name]] for arm in arms}
    by_class = {arm.name: [outcome.road_users for outcome in results[arm.name]] for arm in arms}
    candidate = arms[0].name
    document = {
        "conditions": conditions,
        "candidate": candidate,
        "confidence": CONFIDENCE,
        "intervals": population(len(results[candidate]), bool(conditions.get("varied_demand"))),
        "arms": {name: _compare(values[candidate], arm_values) for name, arm_values in values.items()},
        "delay_by_tl": {name: _compare(delays[candidate], arm_delays) for name, arm_delays in delays.items()},
        "road_users": {
            name: {each: asdict(users) for each, users in road_users.means(outcomes).items()}
            for name, outcomes in by_class.items()
        },
        **{
            key: {arm.name: _by_signal([getattr(each, key) for each in results[arm.name]]) for arm in arms}
            for key in ("movements", "lane_groups")
        },
        "simulations": [_without_signals(outcome) for arm in arms for outcome in results[arm.name]],
    }
    whole_files.write(folder / "results.json", json.dumps(document, indent=1))
    whole_files.write(folder / "results.csv", _table([outcome for arm in arms for outcome in results[arm.name]]))


def _table(outcomes: Sequence[Outcome]) -> str:
    """A row of each simulation, as CSV."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    classes = road_users.occurring(outcome.road_users for outcome in outcomes)
    columns = [f"{name}_{key}" for name in classes for key in ("lost_s", "total", "arrived")]
    writer.writerow(["arm", "seed", *outcome_values(outcomes[0]), "overrides", *columns])
    for outcome in outcomes:
        rounded = [round(value, 3) for value in outcome_values(outcome).values()]
        cells = [cell for name in classes for cell in _cells(outcome.road_users.get(name))]
        writer.writerow([outcome.arm, outcome.seed, *rounded, sum(outcome.overrides_by_reason.values()), *cells])
    return table.getvalue()


def _cells(users: RoadUsers | None) -> list[Any]:
    """Time lost, count and arrivals of a class; an empty cell is an unknown time."""
    if users is None:
        return ["", 0, 0]
    return ["" if users.lost_s is None else round(users.lost_s, 3), users.total, users.arrived]


def _by_signal(simulations: Sequence[BySignal[Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """By signal and name, the mean values of a movement or lane group."""
    return {
        signal: {name: _values(value) for name, value in values.items()}
        for signal, values in mean_by_signal(simulations).items()
    }


def _values(value: Any) -> dict[str, Any]:
    if not isinstance(value, LaneGroupTraffic):
        return asdict(value)
    return asdict(value) | {"saturation": _finite(value.saturation), "level": value.level}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _without_signals(outcome: Outcome) -> dict[str, Any]:
    """The values of an outcome; the report has the recorded signals, and `movements` and `lane_groups` the means."""
    values = asdict(replace(outcome, signals=(), pictures=None, movements={}, lane_groups={}))
    left_out = ("signals", "pictures", "no_pictures", "movements", "lane_groups")
    return {name: value for name, value in values.items() if name not in left_out}


def _compare(candidate: Sequence[Mapping[str, float]], arm: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """By name of a value, the arm's mean and the candidate's paired difference to it, with intervals."""
    return {
        name: {
            **_interval([values[name] for values in arm]),
            "difference": _interval([a[name] - b[name] for a, b in zip(candidate, arm, strict=True)]),
        }
        for name in arm[0]
    }


def _interval(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and interval as JSON; None for an unbounded end."""
    return {name: value if name == "mean" else _finite(value) for name, value in asdict(interval(values)).items()}
