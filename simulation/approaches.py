"""Which lanes lead to which TL: a vehicle's delay is attributed to the next TL on its way."""

import functools
import heapq
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import sumolib

from city.lanes import is_internal
from city.network import StreetNetwork


def upstream_lanes(street: StreetNetwork, signals_of: Mapping[str, Iterable[str]]) -> dict[str, dict[str, float]]:
    """By TL, the lanes of the roads from which it is the nearest signal downstream, by length. Lane -> speed limit in m/s.

    Roads that lead to a signal of no TL first are left out. `signals_of`: by TL.
    """
    net = _net(street.net_file)
    tl_of = {signal: tl for tl, signals in signals_of.items() for signal in signals}
    lanes_of: dict[str, dict[str, float]] = {tl: {} for tl in signals_of}
    queue = [
        (0.0, net.getLane(lane).getEdge().getID(), tl_of.get(signal.id, ""))
        for signal in street.signals.values()
        for lane in signal.lanes
        if not is_internal(lane)
    ]
    heapq.heapify(queue)
    seen: set[str] = set()
    while queue:
        distance_m, name, tl = heapq.heappop(queue)
        if name in seen:
            continue
        seen.add(name)
        edge = net.getEdge(name)
        if tl:
            lanes_of[tl].update((lane.getID(), lane.getSpeed()) for lane in edge.getLanes())
        for before in edge.getIncoming():
            if before.getID() not in seen and before.getFunction() != "internal":
                heapq.heappush(queue, (distance_m + edge.getLength(), before.getID(), tl))
    return lanes_of


@functools.lru_cache(maxsize=2)
def _net(net_file: Path) -> Any:
    """sumolib's network; kept, because every episode asks for it."""
    return sumolib.net.readNet(str(net_file))
