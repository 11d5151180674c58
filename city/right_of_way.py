"""Who is in whose way on a junction, and who yields: out of the requests that netconvert writes.

https://sumo.dlr.de/docs/Networks/SUMO_Road_Networks.html#requests
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

Foes = NDArray[np.bool_]


@dataclass(frozen=True)
class Connection:
    """A way over a junction that a signal controls."""

    signal: str
    index: int
    from_lane: str
    to_lane: str
    via: str
    """Its lane inside the junction."""


class Junctions:
    """The junctions of a network."""

    def __init__(self) -> None:
        self.lanes: dict[str, list[str]] = {}
        """By junction its lanes inside, in the order of its requests."""
        self.continuation: dict[str, str] = {}
        """By lane inside a junction the lane by which it goes on there."""
        self._requests: dict[str, dict[int, tuple[str, str]]] = {}

    def take(self, junction: ET.Element) -> None:
        """Raises KeyError or ValueError where it is not as SUMO writes it."""
        self.lanes[junction.attrib["id"]] = junction.attrib.get("intLanes", "").split()
        self._requests[junction.attrib["id"]] = {
            int(r.attrib["index"]): (r.attrib["foes"], r.attrib["response"]) for r in junction.iter("request")
        }

    def places(self) -> dict[str, tuple[str, int]]:
        """By lane inside a junction the junction and the index of its request."""
        return {lane: (junction, i) for junction, lanes in self.lanes.items() for i, lane in enumerate(lanes)}

    def conflicts(self, size: int, connections: Sequence[Connection], place: Mapping[str, tuple[str, int]]) -> tuple[Foes, Foes]:
        """Foes and right of way between the links of a signal, bool [size, size] each.

        The strings of a request read right to left: character -1-k is about
        request k. A request's index is its place in the junction's intLanes,
        where a lane that goes on inside the junction stands by its last part. The
        two directions of a pedestrian crossing share one.
        """
        requests: dict[tuple[str, int], list[Connection]] = {}
        for connection in connections:
            lane = connection.via
            while lane in self.continuation and lane not in place:
                lane = self.continuation[lane]
            if lane in place:
                requests.setdefault(place[lane], []).append(connection)
        foes = np.zeros((size, size), bool)
        yields = np.ones((size, size), bool)
        for (junction, k), ours in requests.items():
            foe_bits, response_bits = self._requests[junction].get(k, ("", ""))
            for other, bit in enumerate(reversed(foe_bits)):
                for mine, theirs in product(ours, requests.get((junction, other), ()) if bit == "1" else ()):
                    if theirs.index == mine.index:
                        continue
                    if theirs.from_lane.rsplit("_", 1)[0] == mine.from_lane.rsplit("_", 1)[0]:
                        continue  # same approach: drivers merge by the ordinary rules
                    foes[mine.index, theirs.index] = foes[theirs.index, mine.index] = True
                    if response_bits[-1 - other] != "1":
                        yields[mine.index, theirs.index] = False
        return foes, yields & foes


def together(size: int, states: Iterable[str]) -> Foes:
    """Which links some state shows green beside each other, bool [size, size].

    Who turns across the other street's traffic has to yield to it as well, but
    nobody expects that: where no phase has such a pair, no way between phases may.
    """
    found = np.zeros((size, size), bool)
    for state in set(states):
        green = np.array([c in "gG" for c in state.ljust(size, "r")[:size]], bool)
        found |= np.outer(green, green)
    return found
