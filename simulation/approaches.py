"""Lanes that lead to each TL, and the time that is lost there: a delay is attributed to the next TL on the way."""

import functools
import heapq
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import sumolib

from city.lanes import is_internal, road_of
from city.network import StreetNetwork
from controller.sumo.connection import TrafficConnection


def upstream_lanes(street: StreetNetwork, signals_of: Mapping[str, Iterable[str]]) -> dict[str, dict[str, float]]:
    """Lanes that lead to each TL, with their speed limits: TL -> lane -> m/s.

    A road leads to the TL of the nearest signal downstream, by length; if that signal belongs
    to no TL, the road is left out. `signals_of`: TL -> signals.
    """
    net = read_net(street.net_file)
    tl_of = {signal: tl for tl, signals in signals_of.items() for signal in signals}
    lanes_of: dict[str, dict[str, float]] = {tl: {} for tl in signals_of}
    for road, (_, signal) in nearest_approaches(street).items():
        if tl := tl_of.get(signal):
            lanes_of[tl].update((lane.getID(), lane.getSpeed()) for lane in net.getEdge(road).getLanes())
    return lanes_of


def nearest_approaches(street: StreetNetwork) -> dict[str, tuple[str, str]]:
    """By road that leads to a signal, the nearest one downstream by length: (the road that ends at it, the signal)."""
    net = read_net(street.net_file)
    queue = [
        (0.0, road, signal.id, road)
        for signal in street.signals.values()
        for road in (net.getLane(lane).getEdge().getID() for lane in signal.lanes if not is_internal(lane))
    ]
    heapq.heapify(queue)
    found: dict[str, tuple[str, str]] = {}
    while queue:
        distance_m, road, signal, last = heapq.heappop(queue)
        if road in found:
            continue
        found[road] = last, signal
        edge = net.getEdge(road)
        for upstream in edge.getIncoming():
            if upstream.getID() not in found and upstream.getFunction() != "internal":
                heapq.heappush(queue, (distance_m + edge.getLength(), upstream.getID(), signal, last))
    return found


@functools.lru_cache(maxsize=2)
def read_net(net_file: Path) -> Any:
    """sumolib's network; cached, because an environment needs it for its rewards and for its pictures."""
    return sumolib.net.readNet(str(net_file))


class LostTime:
    """Time lost per second, in vehicle seconds per second.

    A vehicle at speed v on a lane with speed limit l loses 1 - v / l, a vehicle that waits to depart 1.
    """

    def __init__(self, connection: TrafficConnection, lanes: Mapping[str, Mapping[str, float]]) -> None:
        """`lanes`: TL -> lane -> speed limit in m/s (`upstream_lanes`)."""
        self._connection = connection
        self._lanes = {tl: list(by_lane.items()) for tl, by_lane in lanes.items()}
        self._tl_of = {road_of(lane): tl for tl, by_lane in lanes.items() for lane in by_lane}

    def by_road(self, tls: Iterable[str] | None = None) -> dict[str, dict[str, float]]:
        """The time lost now: TL -> road -> vehicle seconds per second; roads without vehicles are left out.

        `tls`: the TLs to measure (default: all).
        """
        # lane by lane: SUMO counts an empty lane as a vehicle in a road's mean speed
        due = list(self._lanes if tls is None else tls)
        traffic = self._connection.traffic(tuple(lane for tl in due for lane, _ in self._lanes[tl]))
        values = zip(traffic.counts.tolist(), traffic.speeds_mps.tolist(), strict=True)
        lost: dict[str, dict[str, float]] = {}
        for tl in due:
            by_road = lost[tl] = {}
            for (lane, limit_mps), (count, speed_mps) in zip(self._lanes[tl], values, strict=False):
                if count:
                    road = road_of(lane)
                    by_road[road] = by_road.get(road, 0.0) + count * max(0.0, 1.0 - speed_mps / limit_mps)
        for origin in traffic.waiting:
            origin_tl = self._tl_of.get(origin)
            if origin_tl in lost:
                lost[origin_tl][origin] = lost[origin_tl].get(origin, 0.0) + 1.0
        return lost
