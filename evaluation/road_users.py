"""Time lost by class of road users: cars, buses, trains, bicycles, walkers; from SUMO's tripinfo file."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from city import sumo_files

WALKERS, OTHERS = "walkers", "others"
CLASSES = {
    "cars": "passenger private taxi hov evehicle emergency authority army vip truck trailer delivery motorcycle moped "
    "custom1 custom2 ignoring",
    "buses": "bus coach",
    "trains": "tram rail_urban rail rail_electric rail_fast cable_car subway",
    "bicycles": "bicycle scooter",
    WALKERS: "",
    OTHERS: "",
}
"""By class of road users, SUMO's vehicle classes; the rest, such as ships, are others."""
_CLASS_OF = {vehicle_class: name for name, classes in CLASSES.items() for vehicle_class in classes.split()}


@dataclass(frozen=True)
class RoadUsers:
    """The road users of a class in one simulation, or means over several."""

    total: float
    arrived: float
    lost_s: float | None
    """Mean time loss, of vehicles with the departure delay, also of those that have not arrived. Of walkers it is their
    walks' and of those alone that arrived, because SUMO writes no time loss of a walk before its end; None if none
    did."""


def vehicle_classes(api: Any) -> dict[str, str]:
    """SUMO's vehicle class of each vehicle type that a simulation has loaded."""
    types = api.vehicletype
    return {name: types.getVehicleClass(name) for name in types.getIDList()}


def read(tripinfo: Path, vehicle_class: Mapping[str, str]) -> dict[str, RoadUsers]:
    """The road users of a complete tripinfo file by class; those that do not occur are left out.

    `vehicle_class`: by vehicle type (`vehicle_classes`).
    """
    lost_s: dict[str, list[float]] = {}
    """By class, the time that each road user of known loss has lost."""
    total, arrived = dict.fromkeys(CLASSES, 0), dict.fromkeys(CLASSES, 0)
    for depth, element in sumo_files.elements(tripinfo):
        if depth != 1:
            continue
        a = element.attrib
        if element.tag == "tripinfo":
            # SUMO names a vehicle's own copy of its type TYPE@VEHICLE
            kind = vehicle_class.get(a["vType"]) or vehicle_class.get(a["vType"].partition("@")[0], "")
            name, has_arrived = _CLASS_OF.get(kind, OTHERS), float(a["arrival"]) >= 0
            has_departed = float(a["depart"]) >= 0
            loss_s: float | None = float(a["departDelay"]) + (float(a["timeLoss"]) if has_departed else 0.0)
        elif element.tag == "personinfo" and (walks := element.findall("walk")):
            name, has_arrived = WALKERS, float(a["duration"]) >= 0
            loss_s = sum(float(walk.attrib["timeLoss"]) for walk in walks) if has_arrived else None
        else:
            continue
        total[name] += 1
        arrived[name] += has_arrived
        if loss_s is not None:
            lost_s.setdefault(name, []).append(loss_s)
        element.clear()
    return {
        name: RoadUsers(count, arrived[name], _mean(lost_s.get(name, ()))) for name, count in total.items() if count
    }


def walkers_lost_s(tripinfo: Path) -> list[float]:
    """The time that each person who walks has lost; of a walk that has not ended, for which SUMO writes no time loss,
    the time for which the person has stood."""
    lost_s = []
    for depth, element in sumo_files.elements(tripinfo):
        if depth != 1:
            continue
        if walks := [walk.attrib for walk in element.findall("walk")]:
            lost_s.append(sum(float(a["timeLoss" if float(a["arrival"]) >= 0 else "waitingTime"]) for a in walks))
        element.clear()
    return lost_s


def occurring(simulations: Iterable[Mapping[str, RoadUsers]]) -> list[str]:
    """The classes that occur in some simulation."""
    found = set().union(*simulations)
    return [name for name in CLASSES if name in found]


def means(simulations: Sequence[Mapping[str, RoadUsers]]) -> dict[str, RoadUsers]:
    """By class that occurs, the means over the simulations; a simulation without the class counts for its counts
    alone."""
    result = {}
    for name in occurring(simulations):
        users = [each.get(name, RoadUsers(0, 0, None)) for each in simulations]
        total, arrived = (float(np.mean([getattr(each, key) for each in users])) for key in ("total", "arrived"))
        result[name] = RoadUsers(total, arrived, _mean([each.lost_s for each in users if each.lost_s is not None]))
    return result


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
