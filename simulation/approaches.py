"""Lanes that lead to each TL: a vehicle's delay is attributed to the next TL on its way."""

import functools
import heapq
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import sumolib

from city.lanes import is_internal
from city.network import StreetNetwork


def upstream_lanes(street: StreetNetwork, signals_of: Mapping[str, Iterable[str]]) -> dict[str, dict[str, float]]:
    """Lanes that lead to each TL, with their speed limits: TL -> lane -> m/s.

    A road leads to the TL of the nearest signal downstream, by length; if that signal belongs
    to no TL, the road is left out. `signals_of`: TL -> signals.
    """
    net = read_net(street.net_file)
    tl_of = {signal: tl for tl, signals in signals_of.items() for signal in signals}
    lanes_of: dict[str, dict[str, float]] = {tl: {} for tl in signals_of}
    queue = [
        (0.0, net.getLane(lane).getEdge().getID(), tl_of.get(signal.id, ""))
        for signal in street.signals.values()
        for lane in signal.lanes
        if not is_internal(lane)
    ]
    heapq.heapify(queue)
    visited: set[str] = set()
    while queue:
        distance_m, road, tl = heapq.heappop(queue)
        if road in visited:
            continue
        visited.add(road)
        edge = net.getEdge(road)
        if tl:
            lanes_of[tl].update((lane.getID(), lane.getSpeed()) for lane in edge.getLanes())
        for upstream in edge.getIncoming():
            if upstream.getID() not in visited and upstream.getFunction() != "internal":
                heapq.heappush(queue, (distance_m + edge.getLength(), upstream.getID(), tl))
    return lanes_of


@functools.lru_cache(maxsize=2)
def read_net(net_file: Path) -> Any:
    """sumolib's network; cached, because an environment needs it for its rewards and for its pictures."""
    return sumolib.net.readNet(str(net_file))
