"""The city's traffic by simulated minute, in a small file beside the record: the next run's page compares with it.

One file a plan, so that only runs with the same TLs, lanes and programs are compared. A line is one minute of one run:

    {"began": "2026-11-24", "minute": 480, "vehicles": 298.0, "halting": 21.0, "delay_s": 3600.0}
"""

import json
import os
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from city import whole_files

MAX_BYTES = 2_000_000
"""Size at which the older half of a file is dropped; about 14 simulated days."""
DIGEST_CHARS = 16
"""Characters of a plan's digest in a file's name."""
WEEK_DAYS = 7
MINUTE_S = 60

Minutes = Mapping[int, Mapping[str, Any]]
"""By simulated minute, `of` (such as `Tuesday's record`), `vehicles`, `halting`, `delay_s` (None: not counted)."""


def path_of(folder: Path, plan: str) -> Path:
    """The file of a record's folder. `plan`: see `run_start.plan_digest`."""
    return folder / f"traffic-{plan[:DIGEST_CHARS]}.jsonl"


def append(path: Path, began: date, minute: int, figures: dict[str, float | None]) -> None:
    """Add a minute of the run that began on a day. Raises OSError, or InputError if the file cannot be shortened."""
    with path.open("a") as stream:
        stream.write(json.dumps({"began": began.isoformat(), "minute": minute, **figures}) + "\n")
        size = stream.tell()
    if size > MAX_BYTES:
        newest = _newest(path, MAX_BYTES // 2)
        with whole_files.replacing(path) as draft:
            draft.write_bytes(b"\n".join(newest) + b"\n")


def read(path: Path, today: date) -> tuple[Minutes, int]:
    """The newest figures of each minute, and the number of lines that are not such figures. Raises OSError."""
    minutes: dict[int, Mapping[str, Any]] = {}
    invalid = 0
    for line in _newest(path, MAX_BYTES) if path.exists() else []:
        try:
            found = json.loads(line)
            figures = {name: float(found[name]) for name in ("vehicles", "halting")}
            delay_s = None if found["delay_s"] is None else float(found["delay_s"])
            of = record_name(date.fromisoformat(found["began"]), today)
            minutes[int(found["minute"])] = {"of": of, **figures, "delay_s": delay_s}
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
            invalid += 1
    return minutes, invalid


def record_name(began: date, today: date) -> str:
    """The name of a record by the day on which it began, such as `Tuesday's record`."""
    days = (today - began).days
    return (
        "today's record" if days == 0 else f"{began:%A}'s record" if 0 < days < WEEK_DAYS else f"the record of {began}"
    )


def _newest(path: Path, max_bytes: int) -> list[bytes]:
    """The lines at a file's end; a first one that `max_bytes` cuts is left out."""
    with path.open("rb") as stream:
        skipped = max(os.fstat(stream.fileno()).st_size - max_bytes, 0)
        stream.seek(skipped)
        lines = stream.read(max_bytes).splitlines()
    return lines[1:] if skipped else lines
