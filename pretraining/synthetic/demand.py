"""Random demand on any network: vehicles between random origins and destinations, and pedestrians where there are
crossings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sumolib
from numpy.typing import NDArray

from city import whole_files
from city.sumo_files import elements

WEIGHT_SIGMA = 0.6
"""Sigma of the log-normal weights of origins and destinations."""
MIN_LEVEL, MAX_LEVEL = 0.6, 1.4
"""Bounds of the three levels of demand over the time, relative to the mean."""
INNER_SHARE = 0.08
"""Share of the vehicles that depart inside the network."""
TRUCK_SHARE, BUS_SHARE = 0.04, 0.01
PLATOON_SHARE = 0.1
"""Share of the demands whose vehicles come in platoons, as behind a signal upstream."""
MIN_PLATOON_CYCLE_S, MAX_PLATOON_CYCLE_S = 60.0, 120.0
MIN_PLATOON_PART, MAX_PLATOON_PART = 0.2, 0.5
"""Part of the cycle in which the platoon passes."""
CAR_TYPES = 3
"""Kinds of drivers of cars in a demand."""
MIN_PERSONS_H, MAX_PERSONS_H = 20.0, 300.0
"""Pedestrians per hour in the whole network."""
MIN_WALK_EDGES, MAX_WALK_EDGES = 2, 4

Departure = tuple[float, str]
"""(second, element of a route file)."""


class RandomDemand:
    """Draws demands for one network. Routes are the fastest ones, and are looked up once."""

    def __init__(self, net_file: Path) -> None:
        net = sumolib.net.readNet(str(net_file))
        self._net = net
        edges = sorted(net.getEdges(withInternal=False), key=lambda edge: edge.getID())
        self._edges = [edge for edge in edges if edge.allows("passenger")]
        self._sources = [edge for edge in self._edges if not edge.getIncoming()] or self._edges
        self._sinks = [edge for edge in self._edges if not edge.getOutgoing()] or self._edges
        self._next_walks = _next_walks(net_file)
        self._walk_starts = [edge for edge, following in self._next_walks.items() if following]
        self._routes: dict[tuple[str, str], str] = {}

    @property
    def source_lanes(self) -> int:
        """The number of lanes on which vehicles enter."""
        return int(_lanes(self._sources).sum())

    def write(self, path: Path, rng: np.random.Generator, vehicles_per_lane_h: float, seconds: float) -> int:
        """Write a route file, sorted by departure; return the number of vehicles. Raises InputError.

        Args:
            path: the route file.
            rng: random numbers.
            vehicles_per_lane_h: mean number of vehicles per hour and lane of the sources.
            seconds: departures are before this second.
        """
        types, type_shares = _vehicle_types(rng)
        vehicles = self._vehicles(rng, vehicles_per_lane_h, seconds, list(types), type_shares)
        lines = [text for _, text in sorted(vehicles + self._persons(rng, seconds))]
        whole_files.write(
            path, "\n".join(["<routes>", *types.values(), *lines, "</routes>"]) + "\n", "name another folder"
        )
        return len(vehicles)

    def _vehicles(
        self,
        rng: np.random.Generator,
        per_lane_h: float,
        seconds: float,
        types: Sequence[str],
        type_shares: Sequence[float],
    ) -> list[Departure]:
        number = int(rng.poisson(per_lane_h * self.source_lanes * seconds / 3600))
        levels = rng.uniform(MIN_LEVEL, MAX_LEVEL, 3)
        times = _departures_s(rng, number, levels, seconds)
        sources, sinks = (_weights(rng, edges) for edges in (self._sources, self._sinks))
        source_indices = rng.choice(len(self._sources), len(times), p=sources)
        sink_indices = rng.choice(len(self._sinks), len(times), p=sinks)
        if rng.random() < PLATOON_SHARE:
            times = _in_platoons(rng, times, source_indices, len(self._sources), seconds)
        type_indices = rng.choice(len(types), len(times), p=type_shares)
        inner = rng.random(len(times)) < INNER_SHARE
        departures = []
        for k, (time_s, source, sink, type_index) in enumerate(
            zip(times.tolist(), source_indices, sink_indices, type_indices, strict=True)
        ):
            start = self._edges[int(rng.integers(len(self._edges)))] if inner[k] else self._sources[source]
            route = self._route(start, self._sinks[sink])
            if route:
                departures.append(
                    (
                        time_s,
                        f'<vehicle id="{k}" type="{types[type_index]}" depart="{time_s:.2f}" departLane="best" '
                        f'departSpeed="max"><route edges="{route}"/></vehicle>',
                    )
                )
        return departures

    def _route(self, start: Any, end: Any) -> str:
        """Edges of the fastest route, over at least one junction and not back to its start; "" without one."""
        key = start.getID(), end.getID()
        if key not in self._routes:
            path = None
            if start is not end and start.getFromNode() is not end.getToNode():
                path, _ = self._net.getOptimalPath(start, end, fastest=True, vClass="passenger")
            self._routes[key] = " ".join(edge.getID() for edge in path or ())
        return self._routes[key]

    def _persons(self, rng: np.random.Generator, seconds: float) -> list[Departure]:
        """Pedestrians that walk along a few roads, over the crossings between them."""
        if not self._walk_starts:
            return []
        per_hour = float(np.exp(rng.uniform(np.log(MIN_PERSONS_H), np.log(MAX_PERSONS_H))))
        times = rng.uniform(0, seconds, rng.poisson(per_hour * seconds / 3600)).tolist()
        return [
            (time_s, f'<person id="p{k}" depart="{time_s:.2f}"><walk edges="{self._walk(rng)}"/></person>')
            for k, time_s in enumerate(times)
        ]

    def _walk(self, rng: np.random.Generator) -> str:
        edges = [self._walk_starts[int(rng.integers(len(self._walk_starts)))]]
        for _ in range(int(rng.integers(MIN_WALK_EDGES, MAX_WALK_EDGES + 1)) - 1):
            following = self._next_walks[edges[-1]]
            if not following:
                break
            edges.append(following[int(rng.integers(len(following)))])
        return " ".join(edges)


def _next_walks(net_file: Path) -> dict[str, list[str]]:
    """By edge with a sidewalk, the edges that pedestrians reach from its end; empty without crossings. Raises
    InputError."""
    crossings: set[str] = set()
    pieces: set[str] = set()
    ways: dict[str, set[str]] = {}
    begin: dict[str, str] = {}
    end: dict[str, str] = {}
    for depth, element in elements(net_file):
        attributes = element.attrib
        if element.tag == "edge":
            if attributes.get("function") in ("crossing", "walkingarea"):
                pieces.add(attributes["id"])
                crossings |= {attributes["id"]} if attributes["function"] == "crossing" else set()
            elif "from" in attributes:
                begin[attributes["id"]], end[attributes["id"]] = attributes["from"], attributes["to"]
        elif element.tag == "connection" and pieces & {attributes["from"], attributes["to"]}:
            # crossings are walked both ways
            ways.setdefault(attributes["from"], set()).add(attributes["to"])
            ways.setdefault(attributes["to"], set()).add(attributes["from"])
        if depth == 1:
            element.clear()
    following: dict[str, list[str]] = {}
    for edge in sorted(ways.keys() - pieces) if crossings else ():
        reached = {edge}
        queue = [edge]
        while queue:
            for other in ways[queue.pop()] - reached:
                reached.add(other)
                if other in pieces:
                    queue.append(other)
        following[edge] = sorted(
            other for other in reached - pieces if begin[other] == end[edge] and end[other] != begin[edge]
        )
    return following


def _lanes(edges: Sequence[Any]) -> NDArray[np.float64]:
    """The number of lanes for cars of each edge."""
    return np.array([sum(lane.allows("passenger") for lane in edge.getLanes()) for edge in edges], float)


def _weights(rng: np.random.Generator, edges: Sequence[Any]) -> NDArray[np.float64]:
    """Probabilities of origins or destinations, in proportion to their lanes on average."""
    weights = rng.lognormal(0, WEIGHT_SIGMA, len(edges)) * _lanes(edges)
    return np.asarray(weights / weights.sum(), float)


def _departures_s(
    rng: np.random.Generator, number: int, levels: NDArray[np.float64], seconds: float
) -> NDArray[np.float64]:
    """Sorted departures of about `number` vehicles, with the relative levels in three parts of the time."""
    cuts = np.sort(rng.uniform(0, seconds, 2))
    times = rng.uniform(0, seconds, 2 * number)
    kept = times[rng.random(2 * number) < levels[np.searchsorted(cuts, times)] / 2]
    return np.asarray(np.sort(kept), float)


def _in_platoons(
    rng: np.random.Generator, times: NDArray[np.float64], sources: NDArray[np.intp], number: int, seconds: float
) -> NDArray[np.float64]:
    """Departures compressed into a part of each cycle, which begins at another second at each source."""
    cycle_s = rng.uniform(MIN_PLATOON_CYCLE_S, MAX_PLATOON_CYCLE_S)
    part, offsets_s = rng.uniform(MIN_PLATOON_PART, MAX_PLATOON_PART), rng.uniform(0, cycle_s, number)
    shifted = times - offsets_s[sources]
    begin = np.floor(shifted / cycle_s) * cycle_s
    return np.asarray(np.clip(begin + (shifted - begin) * part + offsets_s[sources], 0, seconds), float)


def _vehicle_types(rng: np.random.Generator) -> tuple[dict[str, str], list[float]]:
    """(type -> its element, share of each type)."""
    shares = {f"car{k}": (1 - TRUCK_SHARE - BUS_SHARE) / CAR_TYPES for k in range(CAR_TYPES)}
    shares |= {"truck": TRUCK_SHARE, "bus": BUS_SHARE}
    types = {}
    for name in shares:
        vehicle_class = "passenger" if name.startswith("car") else name
        mean = rng.uniform(0.9, 1.1) if vehicle_class == "passenger" else rng.uniform(0.85, 1.0)
        types[name] = (
            f'<vType id="{name}" vClass="{vehicle_class}" sigma="{rng.uniform(0.2, 0.8):.2f}" '
            f'speedFactor="normc({mean:.2f},{rng.uniform(0.05, 0.15):.2f},0.2,2)"/>'
        )
    return types, list(shares.values())
