"""The traffic of a folder's last records with the same TLs and programs, by minute: the live page compares with it.

    python -m records.traffic_by_minute FOLDER PLAN BEFORE

The controller runs it as a process of its own with the lowest priority, so that reading delays no decision. It prints
a JSON object: by simulated minute, the name of the newest record that has it, such as `Tuesday's record`, the vehicles,
those that halt, and the stopped delay in s or null, as the page has them at the minute's first decision. Standard error
names records that cannot be read.
"""

import functools
import json
import os
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from city.errors import InputError
from controller.operator.page import panels
from controller.recording.record_folder import NAME
from controller.recording.record_writer import NS
from controller.recording.run_start import plan_digest
from controller.telemetry.traffic import TrafficMeter
from records.record_reader import RecordReader
from records.recorded_run import start_of
from records.run_files import RunReader, open_files
from signals.observation import MAX_CACHED_BATCHES

MAX_RUNS, MAX_READ_RUNS = 20, 3
"""Runs that are looked at, the newest first, and those that are read: the newest one may have ended early."""
MAX_READ_S = 60.0
"""Wall time of reading steps; later minutes of a longer record are left out."""
LOWEST_PRIORITY, WEEK_DAYS = 19, 7
ByMinute = dict[int, list[Any]]


def earlier_traffic(folder: Path, plan: str, before: str, max_read_s: float = MAX_READ_S) -> ByMinute:
    """By minute, what the program prints. Raises OSError.

    Args:
        folder: with records of any runs.
        plan: `plan_digest` of the records to find.
        before: a file's name; records whose names do not sort before it are left out.
        max_read_s: wall time of reading steps.
    """
    runs: dict[str, list[Path]] = {}
    for name in sorted(path.name for path in folder.iterdir() if NAME.fullmatch(path.name) and path.name < before):
        runs.setdefault(name.split("-")[1], []).append(folder / name)
    minutes: ByMinute = {}
    until_s, read = time.monotonic() + max_read_s, 0
    for paths in list(reversed(runs.values()))[:MAX_RUNS]:
        try:
            reader = open_files(paths)
            if plan_digest(reader.city.contracts, reader.city.signals) == plan:
                minutes = _by_minute(reader, until_s) | minutes
                read += 1
        except InputError as error:
            print(f"not read: {error}", file=sys.stderr)
        if read == MAX_READ_RUNS or time.monotonic() > until_s:
            break
    return minutes


def record_name(day: date, today: date) -> str:
    """The name of a record by the day on which it began, such as `Tuesday's record`."""
    days = (today - day).days
    return "today's record" if days == 0 else f"{day:%A}'s record" if 0 < days < WEEK_DAYS else f"the record of {day}"


def _by_minute(reader: RunReader, until_s: float) -> ByMinute:
    """The traffic at the first decision of each simulated minute, up to an instant of `time.monotonic`."""
    with RecordReader(reader.files[0].path) as first:
        start = start_of(first.path, first.city, first.attachments)
    tls = [contract.tl for contract in start.contracts]
    lanes = start.tracked_lanes()
    rows_of = functools.lru_cache(MAX_CACHED_BATCHES)(lanes.rows_of)
    meter = TrafficMeter(start.contracts, start.street)
    meter.track(lanes.lanes)
    read = lanes.readings
    name = record_name(date.fromtimestamp(reader.city.begin_unix_ns / NS), date.today())
    minutes: ByMinute = {}
    for recorded in reader.steps(tls=()):
        step, due = recorded.step, tuple(tls[k] for k in recorded.step.due if k < len(tls))
        if not due:
            continue
        names, rows = rows_of(due)
        if not len(names) == len(step.readings.vehicles) == len(step.readings.halting):
            raise InputError(f"{reader.files[0].path}: step {step.number} has readings of other lanes")
        read.counts[:, rows] = step.readings.vehicles, step.readings.halting
        meter.add_readings(due, read, step.at_s)
        if (minute := int(step.at_s // 60)) not in minutes:
            traffic = panels.traffic(tls, meter.recent())
            minutes[minute] = [name, *(traffic[figure] for figure in ("vehicles", "halting", "delay_s"))]
        if time.monotonic() > until_s:
            break
    return minutes


def main(argv: Sequence[str]) -> int:
    os.nice(LOWEST_PRIORITY)
    folder, plan, before = argv
    print(json.dumps(earlier_traffic(Path(folder), plan, before)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
