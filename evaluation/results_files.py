"""Files of an evaluation's numbers: results.json and results.csv, each written to a temporary file and renamed."""

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
from city.errors import InputError
from evaluation.arms import Arm
from evaluation.simulation import Outcome, outcome_values
from evaluation.statistics import CONFIDENCE, interval


def check_writable(folder: Path) -> None:
    """Raise InputError if no file can be written into a folder; it is made if it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"--out {folder}: cannot be written: {error.strerror}; pass another folder") from None


def write(folder: Path, arms: Sequence[Arm], results: Mapping[str, Sequence[Outcome]], conditions: Mapping[str, Any]) -> None:
    """Write both files into a folder.

    Args:
        folder: is made if it is missing.
        arms: the first one is the candidate.
        results: by arm, seed by seed.
        conditions: what was simulated: city, TLs, models.
    """
    folder.mkdir(parents=True, exist_ok=True)
    candidate = results[arms[0].name]
    own, own_tls = [outcome_values(outcome) for outcome in candidate], [outcome.delay_by_tl for outcome in candidate]
    document = {
        "conditions": conditions,
        "candidate": arms[0].name,
        "confidence": CONFIDENCE,
        "arms": {arm.name: _compared(own, [outcome_values(outcome) for outcome in results[arm.name]]) for arm in arms},
        "delay_by_tl": {arm.name: _compared(own_tls, [outcome.delay_by_tl for outcome in results[arm.name]]) for arm in arms},
        # what the signals showed is in the report
        "simulations": [asdict(replace(outcome, signals=())) for arm in arms for outcome in results[arm.name]],
    }
    whole_files.write(folder / "results.json", json.dumps(document, indent=1))
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["arm", "seed", *own[0], "overrides"])
    for arm in arms:
        for outcome in results[arm.name]:
            numbers = [round(value, 3) for value in outcome_values(outcome).values()]
            writer.writerow([outcome.arm, outcome.seed, *numbers, outcome.overrides])
    whole_files.write(folder / "results.csv", table.getvalue())


def _compared(candidate: Sequence[Mapping[str, float]], values: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """By number, the mean of an arm, and the candidate's paired difference to it."""
    return {
        name: {
            **_interval([value[name] for value in values]),
            "difference": _interval([own[name] - value[name] for own, value in zip(candidate, values, strict=True)]),
        }
        for name in values[0]
    }


def _interval(values: Sequence[float]) -> dict[str, float | None]:
    found = interval(values)
    return {
        "mean": found.mean,
        **{end: value if math.isfinite(value) else None for end, value in (("low", found.low), ("high", found.high))},
    }
