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
