"""Trips and delays of a simulation, from SUMO's tripinfo file."""

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from city import sumo_files
from city.errors import InputError

SUBSTANCES = ("CO2", "NOx", "PMx", "fuel")


@dataclass(frozen=True)
class TripMeans:
    """Counts, and means in s over all vehicles, also those that have not arrived or departed.

    Delay is time loss + departure delay, as in RESCO.
    """

    finished: int
    total: int
    delay_s: float
    duration_s: float
    """Mean time in the network: from departure to arrival or the simulation's end, 0 if a vehicle has not departed."""
    waiting_s: float
    stops: float
    """Mean number of stops."""
    emissions_g: Mapping[str, float]
    """Mean by substance, such as CO2; empty if SUMO did not compute them."""


@dataclass(frozen=True)
class Trips(TripMeans):
    """The trips of a simulation."""

    delay_by_departure: tuple[tuple[float, float], ...]
    """(scheduled departure, delay) of the vehicles, in s, for plots."""


def mean_delay_s(simulations: Iterable[TripMeans]) -> float:
    """Mean delay in s over the simulations with vehicles; NaN without one: no vehicle is not a delay of 0."""
    delays_s = [trips.delay_s for trips in simulations if trips.total]
    return sum(delays_s) / len(delays_s) if delays_s else math.nan


def read_trips(tripinfo: Path, end_s: float | None = None) -> Trips:
    """Read a tripinfo file (.gz too). Raises InputError if it is missing or truncated.

    `end_s`: simulated second at which SUMO closed the file. Without it, `delay_by_departure` leaves out vehicles that
    never departed: SUMO writes depart="-1" for them, and as departDelay the time from their schedule to the end.
    """
    departures: list[tuple[float, float]] = []
    finished, total, stops, all_delays_s, duration_s, waiting_s = 0, 0, 0.0, 0.0, 0.0, 0.0
    emissions_mg: dict[str, float] = {}
    try:
        with sumo_files.opened(tripinfo) as file:
            elements = ET.iterparse(file, ("start", "end"))
            _, root = next(elements)
            for event, element in elements:
                if event == "start" or element.tag not in ("tripinfo", "emissions"):
                    continue
                a = element.attrib
                if element.tag == "emissions":
                    for name in SUBSTANCES:
                        emissions_mg[name] = emissions_mg.get(name, 0.0) + float(a[f"{name}_abs"])
                    continue
                depart_s, delay_s = float(a["depart"]), float(a["departDelay"])
                if depart_s >= 0:
                    planned_s: float | None = depart_s - delay_s
                    delay_s += float(a["timeLoss"])
                    duration_s += float(a["duration"])
                    waiting_s += float(a["waitingTime"])
                else:
                    planned_s = None if end_s is None else end_s - delay_s
                if planned_s is not None:
                    departures.append((planned_s, delay_s))
                total += 1
                all_delays_s += delay_s
                finished += float(a["arrival"]) >= 0
                stops += float(a.get("waitingCount", 0))
                # the root's children: cleared elements would stay in it and take memory
                root.clear()
    except (OSError, EOFError, StopIteration, ET.ParseError, KeyError, ValueError) as error:
        raise InputError(f"{tripinfo}: is not a complete tripinfo file: {error}") from None
    n = max(1, total)
    return Trips(
        finished,
        total,
        all_delays_s / n,
        duration_s / n,
        waiting_s / n,
        stops / n,
        {name: mg / 1000 / n for name, mg in emissions_mg.items()},
        tuple(departures),
    )
