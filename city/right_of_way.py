"""Foes and right of way on a junction, from the requests that netconvert writes.

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
    """A connection over a junction that a signal controls."""

    signal: str
    index: int
    from_lane: str
    to_lane: str
    via: str
    """Its internal lane, inside the junction."""


class Junctions:
    """The junctions of a network, with their requests."""

    def __init__(self) -> None:
        self.lanes: dict[str, list[str]] = {}
        """By junction, its internal lanes in the order of its requests."""
        self.continuation: dict[str, str] = {}
        """By internal lane, the internal lane that continues it."""
        self._requests: dict[str, dict[int, tuple[str, str]]] = {}

    def add_junction(self, junction: ET.Element) -> None:
        """Add a junction. Raises KeyError or ValueError if it is malformed."""
        self.lanes[junction.attrib["id"]] = junction.attrib.get("intLanes", "").split()
        self._requests[junction.attrib["id"]] = {
            int(r.attrib["index"]): (r.attrib["foes"], r.attrib["response"]) for r in junction.iter("request")
        }

    def request_index_by_lane(self) -> dict[str, tuple[str, int]]:
        """By internal lane, (junction, index of its request)."""
        return {lane: (junction, i) for junction, lanes in self.lanes.items() for i, lane in enumerate(lanes)}

    def conflicts(self, size: int, connections: Sequence[Connection], places: Mapping[str, tuple[str, int]]) -> tuple[Foes, Foes]:
        """Foes and right of way between the links of a signal, bool [size, size] each.

        The strings of a request are read from right to left: character -1-k concerns
        request k. A request's index is the position of its lane in the junction's
        intLanes; a connection of several internal lanes is listed by its last one.
        The two directions of a pedestrian crossing share a request.

        Args:
            size: number of links.
            connections: the signal's.
            places: as `places` returns it.

        Returns:
            (foes, whether row yields to column).
        """
        requests: dict[tuple[str, int], list[Connection]] = {}
        for connection in connections:
            lane = connection.via
            while lane in self.continuation and lane not in places:
                lane = self.continuation[lane]
            if lane in places:
                requests.setdefault(places[lane], []).append(connection)
        foes = np.zeros((size, size), bool)
        yields = np.ones((size, size), bool)
        for (junction, k), own in requests.items():
            foe_bits, response_bits = self._requests[junction].get(k, ("", ""))
            for other, bit in enumerate(reversed(foe_bits)):
                for link, foe in product(own, requests.get((junction, other), ()) if bit == "1" else ()):
                    if foe.index == link.index:
                        continue
                    if foe.from_lane.rsplit("_", 1)[0] == link.from_lane.rsplit("_", 1)[0]:
                        continue  # same approach: drivers merge by the ordinary rules
                    foes[link.index, foe.index] = foes[foe.index, link.index] = True
                    if response_bits[-1 - other] != "1":
                        yields[link.index, foe.index] = False
        return foes, yields & foes


def green_together(size: int, states: Iterable[str]) -> Foes:
    """Whether some state shows two links green at the same time, bool [size, size].

    By its requests a turning link also yields to the crossing street, but drivers do not
    expect that: if no phase shows such a pair of greens, no transition may show it.
    """
    together = np.zeros((size, size), bool)
    for state in set(states):
        green = np.array([c in "gG" for c in state.ljust(size, "r")[:size]], bool)
        together |= np.outer(green, green)
    return together
