"""Which roads lead to which TL: a vehicle's delay on a road is that of the TL that it comes to next."""

import heapq
from collections.abc import Mapping, Sequence
from pathlib import Path

import sumolib


def roads_before(net_file: Path, incoming_lanes: Mapping[str, Sequence[str]]) -> dict[str, dict[str, float]]:
    """By TL, its roads: those from which it is the nearest TL downstream, by length. Road -> speed limit in m/s.

    `incoming_lanes`: by TL.
    """
    net = sumolib.net.readNet(str(net_file))
    roads: dict[str, dict[str, float]] = {tl: {} for tl in incoming_lanes}
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
        roads[tl][name] = edge.getSpeed()
        for before in edge.getIncoming():
            if before.getID() not in seen and before.getFunction() != "internal":
                heapq.heappush(queue, (distance_m + edge.getLength(), before.getID(), tl))
    return roads
