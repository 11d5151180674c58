"""Trips and delays of a run, out of SUMO's tripinfo file."""

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from city.errors import InputError

TRIPINFO_OPTIONS = ("--tripinfo-output.write-unfinished", "true", "--tripinfo-output.write-undeparted", "true")
"""Vehicles that never arrive, or never depart, count with their delay."""


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


def read_trips(tripinfo: Path) -> Trips:
    """Read a tripinfo file. Raises InputError if it is missing or truncated."""
    departures, finished, duration, waiting = [], 0, 0.0, 0.0
    try:
        for _, element in ET.iterparse(tripinfo):
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
    except (OSError, ET.ParseError, KeyError, ValueError) as error:
        raise InputError(f"{tripinfo}: is not a complete tripinfo file: {error}") from None
    n = len(departures)
    if n == 0:
        return Trips(0, 0, 0.0, 0.0, 0.0, ())
    return Trips(finished, n, sum(d for _, d in departures) / n, duration / n, waiting / n, tuple(departures))
