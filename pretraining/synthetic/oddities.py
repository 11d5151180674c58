"""Oddities of a street that make signal control hard, as in real networks; found in the street's files."""

from collections import Counter
from enum import StrEnum
from pathlib import Path

from city import network
from city.network import SignalNetwork
from city.sumo_files import elements
from pretraining.synthetic import junction_movements
from pretraining.synthetic.junction_movements import Movements
from pretraining.synthetic.streets import CONFIGURATION, NETWORK
from signals.policy_signals import distinct_greens, running_program
from signals.safety.conflicts import GREEN

MAX_CLOSE_M = 60.0
"""Length of a road between two signals on which a queue soon spills back."""
MAX_SHORT_LANE_M = 30.0
"""Length of lanes that begin just before a signal."""
MIN_MANY_ARMS = 5


class Oddity(StrEnum):
    """A feature that makes a street odd."""

    LEFT_ONLY = "left-only green on a shared lane"
    MERGE = "merge"
    MANY_ARMS = "junction of 5 or more arms"
    ROUNDABOUT = "roundabout"
    CLOSE = "close junctions"
    SHORT_LANES = "short lanes"


def of_street(folder: Path) -> set[Oddity]:
    """The oddities of a street of `streets.generate`. Raises InputError."""
    net_file = folder / NETWORK
    found = _of_roads(net_file)
    movements = junction_movements.read(net_file)
    for name, signal in network.of_sumocfg(folder / CONFIGURATION).signals.items():
        if len(movements[name].approaches) >= MIN_MANY_ARMS:
            found.add(Oddity.MANY_ARMS)
        if _has_left_only_green(signal, movements[name]):
            found.add(Oddity.LEFT_ONLY)
    return found


def _has_left_only_green(signal: SignalNetwork, movements: Movements) -> bool:
    """True if a green of the running program serves left turns alone, on a lane that others share."""
    lefts = {link for approach in movements.approaches for link in approach.left}
    shared = {
        lane for link, pairs in enumerate(signal.links) if link not in lefts | set(movements.crossings) for lane,
        _ in pairs
    }  # fmt: skip
    for state in distinct_greens(signal, running_program(signal)):
        served = {link for link, c in enumerate(state) if c in GREEN} - set(movements.crossings)
        if served and served <= lefts and any(lane in shared for link in served for lane, _ in signal.links[link]):
            return True
    return False


def _of_roads(net_file: Path) -> set[Oddity]:
    signals, roads, has_roundabout = _read_roads(net_file)
    found = {Oddity.ROUNDABOUT} if has_roundabout else set()
    entering, leaving = Counter(end for _, end, _ in roads), Counter(start for start, _, _ in roads)
    if any(count > leaving[node] > 0 for node, count in entering.items() if node not in signals):
        found.add(Oddity.MERGE)
    if any(length_m < MAX_CLOSE_M for start, end, length_m in roads if {start, end} <= signals):
        found.add(Oddity.CLOSE)
    if any(length_m < MAX_SHORT_LANE_M for start, end, length_m in roads if end in signals and start not in signals):
        found.add(Oddity.SHORT_LANES)
    return found


def _read_roads(net_file: Path) -> tuple[set[str], list[tuple[str, str, float]], bool]:
    """(junctions with a signal, (start, end, length in m) of each road, whether there is a roundabout)."""
    signals: set[str] = set()
    roads, has_roundabout = [], False
    for depth, element in elements(net_file):
        attributes = element.attrib
        if element.tag == "edge" and "from" in attributes:
            length_m = min(float(lane.attrib["length"]) for lane in element.iter("lane"))
            roads.append((attributes["from"], attributes["to"], length_m))
        elif element.tag == "junction" and attributes["type"].startswith("traffic_light"):
            signals.add(attributes["id"])
        has_roundabout |= element.tag == "roundabout"
        if depth == 1:
            element.clear()
    return signals, roads, has_roundabout
