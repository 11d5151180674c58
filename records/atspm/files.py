"""Files of signal events for ATSPM tools, each written beside its place and then renamed.

    events.csv      TimeStamp, DeviceId, EventId, Parameter: for Oregon DOT's package `atspm`
    detectors.csv   DeviceId, Phase, Parameter, Function: its detector table
    phases.csv      DeviceId, Signal, Phase, Movements: what the numbers mean
    notes.txt       what is not known, and which rules of readers do not hold, by device
    device-N.xml    the events of a device as MAXTIME writes them, which UDOT's ATSPM 5 imports

Devices are numbered: a column with both numbers and names of signals would be read as numbers by some tools, as text by
others.
"""

import contextlib
import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from city import whole_files
from city.errors import os_errors
from city.printable import printable
from controller.recording.detectors import Detector
from records.atspm.analysis_period import AnalysisPeriod
from records.atspm.detectors import detector_numbers
from records.atspm.events import SignalEvents
from signals.phase_numbers import PhaseNumbers

REMEDY = "pass another folder"
NO_NOTES = "All rules of readers hold.\n"


@dataclass(frozen=True)
class Written:
    """The files of an export."""

    paths: tuple[Path, ...]
    notes: tuple[str, ...]


def device_numbers(phases: Mapping[str, PhaseNumbers]) -> dict[str, int]:
    """By signal, its device number, from 1: its place among all signals of the network, in order of their ids."""
    return {signal: number for number, signal in enumerate(sorted(phases), 1)}


def write(
    folder: Path,
    period: AnalysisPeriod,
    events: Iterable[SignalEvents],
    phases: Mapping[str, PhaseNumbers],
    detectors: Sequence[Detector] = (),
    notes: Sequence[str] = (),
) -> Written:
    """Write all files into a folder, which is created. Raises InputError.

    Args:
        folder: the folder.
        period: what the events were made from: it has the date.
        events: of `signal_events`; taken one by one.
        phases: of all signals of the network, so that a signal has the same device number in every export.
        detectors: those of detectors.csv.
        notes: first lines of notes.txt, such as what is not known.
    """
    with os_errors(f"{folder}: cannot be created", REMEDY):
        folder.mkdir(parents=True, exist_ok=True)
    devices = device_numbers(phases)
    paths = [folder / name for name in ("events.csv", "detectors.csv", "phases.csv", "notes.txt")]
    rules: list[str] = []
    with _table(paths[0], "TimeStamp", "DeviceId", "EventId", "Parameter") as table:
        for own in events:
            device = devices[own.signal]
            for event in own.events:
                time = period.time(event.time_ms).isoformat(" ", "milliseconds")
                table.writerow((time, device, int(event.code), event.parameter))
            paths.append(folder / f"device-{device}.xml")
            _write_maxtime(paths[-1], period, own, device, phases[own.signal])
            rules += [f"device {device}, signal {printable(own.signal)}, {note}" for note in own.notes]
    numbers = detector_numbers(detectors)
    with _table(paths[1], "DeviceId", "Phase", "Parameter", "Function") as table:
        for detector in (each for each in detectors if each.signal in phases):
            number = phases[detector.signal].phase_of_lane.get(detector.stop_lane)
            if number is not None:
                table.writerow((devices[detector.signal], number, numbers[detector.id], detector.function))
    with _table(paths[2], "DeviceId", "Signal", "Phase", "Movements", "Lanes") as table:
        for signal, device in devices.items():
            for each in phases[signal].phases:
                lanes = [lane for lane, number in phases[signal].phase_of_lane.items() if number == each.number]
                table.writerow((device, signal, each.number, each.description, " ".join(lanes)))
    notes = (*map(printable, notes), *rules)
    whole_files.write(paths[3], "".join(f"{note}\n" for note in notes) + ("" if rules else NO_NOTES), REMEDY)
    return Written(tuple(paths), notes)


@contextlib.contextmanager
def _table(path: Path, *columns: str) -> Iterator[Any]:
    """The writer of a CSV file that begins with its columns. Raises InputError."""
    with whole_files.replacing(path, REMEDY) as draft, draft.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        yield writer


def _write_maxtime(path: Path, period: AnalysisPeriod, own: SignalEvents, device: int, phases: PhaseNumbers) -> None:
    """Write events as MAXTIME's own log: elements `Event` in `EventResponses/EventResponse`."""
    begin = _maxtime(period.time(round(period.begin_s * 1000)))
    in_use = ",".join(str(phase.number) for phase in phases.phases)
    with whole_files.replacing(path, REMEDY) as draft, draft.open("w", encoding="utf-8") as file:
        file.write(
            '<?xml version="1.0" encoding="utf-8"?>\n<EventResponses><EventResponse><Description>'
            f"<IntersectionNumber>{device}</IntersectionNumber><StartTime>{begin}</StartTime>"
            f"<PhasesInUse>{in_use}</PhasesInUse></Description>\n"
        )
        for number, event in enumerate(own.events, 1):
            file.write(
                f'<Event ID="{number}" TimeStamp="{_maxtime(period.time(event.time_ms))}" '
                f'EventTypeID="{int(event.code)}" Parameter="{event.parameter}"/>\n'
            )
        file.write("</EventResponse></EventResponses>\n")


def _maxtime(time: datetime) -> str:
    """A time as MAXTIME writes it: `7-22-2024 13:33:19.345`, with the month first."""
    return f"{time.month}-{time.day}-{time:%Y %H:%M:%S}.{time.microsecond // 1000:03d}"
