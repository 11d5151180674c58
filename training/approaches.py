"""Which lanes lead to which TL: a vehicle's delay on a road is that of the TL that it comes to next."""

import heapq
from collections.abc import Mapping, Sequence
from pathlib import Path

import sumolib


def lanes_before(net_file: Path, incoming_lanes: Mapping[str, Sequence[str]]) -> dict[str, dict[str, float]]:
    """By TL, the lanes of the roads from which it is the nearest TL downstream, by length. Lane -> speed limit in m/s.

    `incoming_lanes`: by TL.
    """
    net = sumolib.net.readNet(str(net_file))
    lanes_of: dict[str, dict[str, float]] = {tl: {} for tl in incoming_lanes}
    queue = [
        (0.0, net.getLane(lane).getEdge().getID(), tl)
        for tl, lanes in incoming_lanes.items()
        for lane in lanes
        if not lane.startswith(":")
    ]
    heapq.heapify(queue)
    seen: set[str] = set()
    while queue:
        distance_m, name, tl = heapq.heappop(queue)
        if name in seen:
            continue
        seen.add(name)
        edge = net.getEdge(name)
        lanes_of[tl].update((lane.getID(), lane.getSpeed()) for lane in edge.getLanes())
        for before in edge.getIncoming():
            if before.getID() not in seen and before.getFunction() != "internal":
                heapq.heappush(queue, (distance_m + edge.getLength(), before.getID(), tl))
    return lanes_of
