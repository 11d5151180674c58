"""Trips and delays of a run, out of SUMO's tripinfo file."""

import gzip
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from city.errors import InputError

TRIPINFO_OPTIONS = ("--tripinfo-output.write-unfinished", "true", "--tripinfo-output.write-undeparted", "true")
"""Vehicles that never arrive, or never depart, count with their delay."""
SPECIAL_OUTPUTS = ("stdout", "stderr", "NUL", "/dev/null")
"""Names of outputs that SUMO does not treat as files; HOST:PORT is a socket."""
TABLE_SUFFIXES = {".csv", ".parquet"}
"""Suffixes with which SUMO writes tables instead of XML, also before .gz."""


@dataclass(frozen=True)
class Trips:
    """Counts, and means over all vehicles in s; delay is time loss + departure delay, as RESCO counts it."""

    finished: int
    total: int
    delay_s: float
    duration_s: float
    waiting_s: float
    delay_by_departure: tuple[tuple[float, float], ...]
    """(departure, delay) of every vehicle, in s, for plots."""


def check_complete(tripinfo: Path) -> None:
    """Raise InputError if SUMO could not write its tripinfo completely; what is not an XML file is not checked."""
    is_special = str(tripinfo) in SPECIAL_OUTPUTS or ":" in str(tripinfo)
    if not is_special and TABLE_SUFFIXES.isdisjoint(tripinfo.suffixes):
        read_trips(tripinfo)


def read_trips(tripinfo: Path) -> Trips:
    """Read a tripinfo file (.gz too). Raises InputError if it is missing or truncated."""
    departures, finished, duration, waiting = [], 0, 0.0, 0.0
    try:
        with gzip.open(tripinfo) if tripinfo.suffix == ".gz" else tripinfo.open("rb") as file:
            for _, element in ET.iterparse(file):
                if element.tag != "tripinfo":
                    continue
                a = element.attrib
                undeparted = float(a["depart"]) < 0
                delay = float(a["departDelay"]) + (0.0 if undeparted else float(a["timeLoss"]))
                departures.append((0.0 if undeparted else float(a["depart"]) - float(a["departDelay"]), delay))
                finished += float(a["arrival"]) >= 0
                duration += 0.0 if undeparted else float(a["duration"])
                waiting += 0.0 if undeparted else float(a["waitingTime"])
                element.clear()
    except (OSError, EOFError, ET.ParseError, KeyError, ValueError) as error:
        raise InputError(f"{tripinfo}: is not a complete tripinfo file: {error}") from None
    n = len(departures)
    if n == 0:
        return Trips(0, 0, 0.0, 0.0, 0.0, ())
    return Trips(finished, n, sum(d for _, d in departures) / n, duration / n, waiting / n, tuple(departures))
