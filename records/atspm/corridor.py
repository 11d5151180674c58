"""Corridors of a network: signals on one street, one after the other straight on.

Distances are over lanes; the length inside junctions is not counted.
"""

import heapq
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from city.network import SignalNetwork, StreetNetwork
from records.atspm.phase_numbers import PhaseNumbers

STRAIGHT_ON = "s"
MAX_BETWEEN_M = 1500.0
"""Distance of two signals up to which they are of one corridor."""
MAX_CURVE_DEG = 60.0
"""Difference of the directions of two stop lines up to which a street goes on: farther, it has turned off."""


@dataclass(frozen=True)
class Stop:
    """A stop line of a corridor."""

    signal: str
    phase: int
    """Of the through movement."""
    at_m: float
    """From the corridor's begin."""
    speed_mps: float
    """Speed limit before it."""


@dataclass(frozen=True)
class Corridor:
    """One direction of a street."""

    stops: tuple[Stop, ...]
    """In the direction of traffic, at least two."""
    lane_begin_m: dict[str, float]
    """By lane, its begin from the corridor's begin."""

    @property
    def signals(self) -> tuple[str, ...]:
        return tuple(stop.signal for stop in self.stops)


@dataclass(frozen=True)
class _Approach:
    """A road before a signal, from which vehicles go straight on."""

    signal: str
    road: str
    heading_deg: float
    links: frozenset[int]
    onto: tuple[str, ...]
    """The roads onto which its through movement leads."""


def find(street: StreetNetwork, phases: Mapping[str, PhaseNumbers], signals: Container[str]) -> list[Corridor]:
    """The corridor with the most signals, then the longest one, and the longest one in the opposite direction.

    `signals`: those that may be part of it.
    """
    approaches = {
        (each.signal, each.road): each
        for signal in street.signals.values()
        if signal.id in signals and signal.id in phases
        for each in _approaches(signal)
    }
    lanes_of: dict[str, list[str]] = {}
    for lane in street.lane_length_m:
        lanes_of.setdefault(_road(lane), []).append(lane)
    length_m = {road: max(street.lane_length_m[lane] for lane in lanes) for road, lanes in lanes_of.items()}
    graphs = [signal.lane_graph for signal in street.signals.values()]
    next_roads: dict[str, set[str]] = {}
    for lane, following in graphs[0].following.items() if graphs else ():
        next_roads.setdefault(_road(lane), set()).update(map(_road, following))
    signal_of_road = {_road(lane): signal.id for signal in street.signals.values() for lane in signal.lanes}
    found = []
    for first in approaches.values():
        way: list[tuple[_Approach, tuple[str, ...]]] = [(first, (first.road,))]
        visited = {first.signal}
        while (onward := _following(way[-1][0], approaches, next_roads, signal_of_road, length_m)) is not None:
            if onward[0].signal in visited:
                break
            visited.add(onward[0].signal)
            way.append(onward)
        if len(way) > 1:
            found.append(_corridor(way, street, phases, lanes_of))
    if not found:
        return []
    best = max(found, key=_length)
    opposite = [each for each in found if [s for s in best.signals[::-1] if s in each.signals] == list(each.signals)]
    return [best, max(opposite, key=_length)] if opposite else [best]


def _approaches(signal: SignalNetwork) -> Iterable[_Approach]:
    links: dict[str, set[int]] = {}
    onto: dict[str, dict[str, None]] = {}
    heading_deg: dict[str, float] = {}
    for k, (pairs, movements) in enumerate(zip(signal.links, signal.movements, strict=True)):
        for (_, to_lane), movement in zip(pairs, movements, strict=True):
            if not movement.is_crossing and movement.turn == STRAIGHT_ON:
                heading_deg.setdefault(movement.road, movement.heading_deg)
                links.setdefault(movement.road, set()).add(k)
                onto.setdefault(movement.road, {})[_road(to_lane)] = None
    for road, own in links.items():
        yield _Approach(signal.id, road, heading_deg[road], frozenset(own), tuple(onto[road]))


def _following(
    approach: _Approach,
    approaches: Mapping[tuple[str, str], _Approach],
    next_roads: Mapping[str, set[str]],
    signal_of_road: Mapping[str, str],
    length_m: Mapping[str, float],
) -> tuple[_Approach, tuple[str, ...]] | None:
    """The nearest approach of another signal in nearly the same direction, and the roads to it; None if there is
    none."""
    first = approach.onto[0]
    queue: list[tuple[float, tuple[str, ...]]] = [(length_m[first], (first,))]
    reached = {first}
    while queue:
        distance_m, roads = heapq.heappop(queue)
        road = roads[-1]
        if road in signal_of_road:
            found = approaches.get((signal_of_road[road], road))
            if found is not None and _angle(found.heading_deg, approach.heading_deg) <= MAX_CURVE_DEG:
                return found, roads
            continue
        for onward in sorted(next_roads.get(road, set()) - reached) if distance_m < MAX_BETWEEN_M else ():
            reached.add(onward)
            heapq.heappush(queue, (distance_m + length_m[onward], (*roads, onward)))
    return None


def _corridor(
    way: Iterable[tuple[_Approach, tuple[str, ...]]],
    street: StreetNetwork,
    phases: Mapping[str, PhaseNumbers],
    lanes_of: Mapping[str, list[str]],
) -> Corridor:
    at_m = 0.0
    stops, begins = [], {}
    for approach, roads in way:
        for road in roads:
            begins.update(dict.fromkeys(lanes_of[road], at_m))
            at_m += max(street.lane_length_m[lane] for lane in lanes_of[road])
        limits = street.signals[approach.signal].lane_graph.limit_mps
        phase = next(p.number for p in phases[approach.signal].phases if approach.links & set(p.links))
        stops.append(Stop(approach.signal, phase, at_m, max(limits.get(lane, 0.0) for lane in lanes_of[roads[-1]])))
    return Corridor(tuple(stops), begins)


def _length(corridor: Corridor) -> tuple[int, float, float]:
    """Sort key: signals, length, speed limits."""
    return len(corridor.stops), corridor.stops[-1].at_m, sum(stop.speed_mps for stop in corridor.stops)


def _road(lane: str) -> str:
    return lane.rpartition("_")[0]


def _angle(a_deg: float, b_deg: float) -> float:
    """The angle between two headings, 0 to 180 degrees."""
    return abs((a_deg - b_deg + 180.0) % 360.0 - 180.0)
