"""Corridors of a network: signals on one street, one after the other straight on.

Distances are over lanes; the length inside junctions is not counted.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from city.network import SignalNetwork, StreetNetwork
from controller.recording.atspm.phase_numbers import PhaseNumbers

STRAIGHT_ON = "s"
MAX_ROADS_BETWEEN = 50
"""Roads without a signal between two signals."""


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
    links: frozenset[int]
    onto: tuple[str, ...]
    """The roads onto which its through movement leads."""


def find(street: StreetNetwork, phases: Mapping[str, PhaseNumbers], signals: Container[str]) -> list[Corridor]:
    """The corridor with the most signals, then the longest one, and its opposite direction if it has the same signals.

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
    graphs = [signal.lane_graph for signal in street.signals.values()]
    next_roads: dict[str, set[str]] = {}
    for lane, following in graphs[0].following.items() if graphs else ():
        next_roads.setdefault(_road(lane), set()).update(map(_road, following))
    signal_of_road = {_road(lane): signal.id for signal in street.signals.values() for lane in signal.lanes}
    found = []
    for first in approaches.values():
        way: list[tuple[_Approach, tuple[str, ...]]] = [(first, (first.road,))]
        visited = {first.signal}
        while (onward := _following(way[-1][0], approaches, next_roads, signal_of_road)) is not None:
            if onward[0].signal in visited:
                break
            visited.add(onward[0].signal)
            way.append(onward)
        if len(way) > 1:
            found.append(_corridor(way, street, phases, lanes_of))
    if not found:
        return []
    best = max(found, key=lambda each: (len(each.stops), each.stops[-1].at_m, _speeds(each)))
    opposite = [each for each in found if each.signals == best.signals[::-1]]
    return [best, *opposite[:1]]


def _approaches(signal: SignalNetwork) -> Iterable[_Approach]:
    links: dict[str, set[int]] = {}
    onto: dict[str, dict[str, None]] = {}
    for k, (pairs, movements) in enumerate(zip(signal.links, signal.movements, strict=True)):
        for (_, to_lane), movement in zip(pairs, movements, strict=True):
            if not movement.is_crossing and movement.turn == STRAIGHT_ON:
                links.setdefault(movement.road, set()).add(k)
                onto.setdefault(movement.road, {})[_road(to_lane)] = None
    for road, own in links.items():
        yield _Approach(signal.id, road, frozenset(own), tuple(onto[road]))


def _following(
    approach: _Approach,
    approaches: Mapping[tuple[str, str], _Approach],
    next_roads: Mapping[str, set[str]],
    signal_of_road: Mapping[str, str],
) -> tuple[_Approach, tuple[str, ...]] | None:
    """The next approach straight on, and the roads to it; None if there is none, or several ways."""
    road = approach.onto[0]
    roads: list[str] = []
    while len(roads) < MAX_ROADS_BETWEEN:
        roads.append(road)
        if road in signal_of_road:
            reached = approaches.get((signal_of_road[road], road))
            return None if reached is None else (reached, tuple(roads))
        onward = sorted(next_roads.get(road, ()))
        if len(onward) != 1:
            return None
        road = onward[0]
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
            lanes = lanes_of[road]
            begins.update(dict.fromkeys(lanes, at_m))
            at_m += max(street.lane_length_m[lane] for lane in lanes)
        limits = street.signals[approach.signal].lane_graph.limit_mps
        phase = next(p.number for p in phases[approach.signal].phases if approach.links & set(p.links))
        stops.append(Stop(approach.signal, phase, at_m, max(limits.get(lane, 0.0) for lane in lanes_of[roads[-1]])))
    return Corridor(tuple(stops), begins)


def _speeds(corridor: Corridor) -> float:
    return sum(stop.speed_mps for stop in corridor.stops)


def _road(lane: str) -> str:
    return lane.rpartition("_")[0]
