"""Corridors of a network: signals on one street, one after the other straight on.

Distances are over lanes; the length inside junctions is not counted.
"""

import heapq
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from city.lanes import road_of
from city.network import SignalNetwork, StreetNetwork
from signals.phase_numbers import PhaseNumbers, angle_deg

STRAIGHT_ON = "s"
MAX_BETWEEN_M = 1500.0
"""Distance of two signals up to which they are of one corridor."""
MAX_CURVE_DEG = 60.0
"""Difference of the directions of two stop lines up to which a street goes on: farther, it has turned off."""


@dataclass(frozen=True)
class StopLine:
    """A stop line of a corridor."""

    signal: str
    phase: int
    """Phase of the through movement."""
    at_m: float
    """From the corridor's begin."""
    speed_mps: float
    """Speed limit before it."""


@dataclass(frozen=True)
class Corridor:
    """One direction of a street."""

    stop_lines: tuple[StopLine, ...]
    """In the direction of traffic, at least two."""
    lane_begin_m: dict[str, float]
    """By lane, its begin from the corridor's begin."""

    @property
    def signals(self) -> tuple[str, ...]:
        return tuple(stop_line.signal for stop_line in self.stop_lines)


@dataclass(frozen=True)
class _Approach:
    """A road before a signal, from which vehicles go straight on."""

    signal: str
    road: str
    heading_deg: float
    onto: str
    """The road onto which its through movement leads."""
    links: set[int]


Leg = tuple[_Approach, tuple[str, ...]]
"""An approach of a corridor, and the roads that lead to it."""


def find(street: StreetNetwork, phases: Mapping[str, PhaseNumbers], signals: Container[str]) -> list[Corridor]:
    """The corridor with the most signals, then the longest one, and the longest one in the opposite direction.

    `signals`: those that may be part of it.
    """
    roads = _Roads(street, phases, signals)
    ways = [roads.way_from(first) for first in roads.approaches.values()]
    found = [roads.corridor(way) for way in ways if len(way) > 1]
    if not found:
        return []
    best = max(found, key=_length)
    opposite = [each for each in found if each.signals == tuple(s for s in best.signals[::-1] if s in each.signals)]
    return [best, max(opposite, key=_length)] if opposite else [best]


class _Roads:
    def __init__(self, street: StreetNetwork, phases: Mapping[str, PhaseNumbers], signals: Container[str]) -> None:
        self._street, self._phases = street, phases
        chosen = [signal for signal in street.signals.values() if signal.id in signals and signal.id in phases]
        self.approaches = {(each.signal, each.road): each for signal in chosen for each in _approaches(signal)}
        self._lanes_of: dict[str, list[str]] = {}
        for lane in street.lane_length_m:
            self._lanes_of.setdefault(road_of(lane), []).append(lane)
        graphs = [signal.lane_graph for signal in street.signals.values()]
        self._following: dict[str, set[str]] = {}
        for lane, following in graphs[0].following.items() if graphs else ():
            self._following.setdefault(road_of(lane), set()).update(map(road_of, following))
        self._signal_of = {road_of(lane): signal.id for signal in street.signals.values() for lane in signal.lanes}

    def _length_m(self, road: str) -> float:
        return max(self._street.lane_length_m[lane] for lane in self._lanes_of[road])

    def way_from(self, first: _Approach) -> list[Leg]:
        """The approaches straight on from a first one, up to the last, or one of a signal that was passed before."""
        way: list[Leg] = [(first, (first.road,))]
        passed = {first.signal}
        while (leg := self._next_leg(way[-1][0])) is not None and leg[0].signal not in passed:
            passed.add(leg[0].signal)
            way.append(leg)
        return way

    def _next_leg(self, approach: _Approach) -> Leg | None:
        """The nearest approach of another signal in nearly the same direction."""
        queue: list[tuple[float, tuple[str, ...]]] = [(self._length_m(approach.onto), (approach.onto,))]
        reached = {approach.onto}
        while queue:
            distance_m, roads = heapq.heappop(queue)
            road = roads[-1]
            if road in self._signal_of:
                found = self.approaches.get((self._signal_of[road], road))
                if found is not None and angle_deg(found.heading_deg, approach.heading_deg) <= MAX_CURVE_DEG:
                    return found, roads
            elif distance_m < MAX_BETWEEN_M:
                for onward in sorted(self._following.get(road, set()) - reached):
                    reached.add(onward)
                    heapq.heappush(queue, (distance_m + self._length_m(onward), (*roads, onward)))
        return None

    def corridor(self, way: Iterable[Leg]) -> Corridor:
        at_m = 0.0
        stop_lines: list[StopLine] = []
        begin_m: dict[str, float] = {}
        for approach, roads in way:
            for road in roads:
                begin_m.update(dict.fromkeys(self._lanes_of[road], at_m))
                at_m += self._length_m(road)
            limits = self._street.signals[approach.signal].lane_graph.limit_mps
            limit_mps = max(limits.get(lane, 0.0) for lane in self._lanes_of[roads[-1]])
            phases = self._phases[approach.signal].phases
            phase = next(phase.number for phase in phases if not approach.links.isdisjoint(phase.links))
            stop_lines.append(StopLine(approach.signal, phase, at_m, limit_mps))
        return Corridor(tuple(stop_lines), begin_m)


def _approaches(signal: SignalNetwork) -> Iterable[_Approach]:
    found: dict[str, _Approach] = {}
    for k, (pairs, movements) in enumerate(zip(signal.links, signal.movements, strict=True)):
        for (_, to_lane), movement in zip(pairs, movements, strict=True):
            if movement.turn == STRAIGHT_ON:
                own = _Approach(signal.id, movement.road, movement.heading_deg, road_of(to_lane), set())
                found.setdefault(movement.road, own).links.add(k)
    return found.values()


def _length(corridor: Corridor) -> tuple[int, float, float]:
    """Sort key: signals, length, speed limits."""
    return len(corridor.stop_lines), corridor.stop_lines[-1].at_m, sum(each.speed_mps for each in corridor.stop_lines)
