"""The lanes of a network and how they follow one another, as far as a signal's approaches need it."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

MIN_SHARE = 0.1
"""A lane upstream of which a smaller share of the vehicles goes to a lane does not count as its approach."""


class UpstreamLane(NamedTuple):
    """A lane whose vehicles may arrive at a stop line without passing another signal."""

    lane: str
    distance_m: float
    """From the lane's end to the stop line, over lanes; paths inside junctions without a signal are not counted."""
    share: float
    """Of its vehicles, the share that goes to the stop line if they choose each of the lanes that follow equally often."""


@dataclass
class LaneGraph:
    """Lanes outside of junctions."""

    length_m: dict[str, float] = field(default_factory=dict)
    """By lane, those inside junctions too."""
    limit_mps: dict[str, float] = field(default_factory=dict)
    """Speed limit, by lane."""
    unsignalled_before: dict[str, list[str]] = field(default_factory=dict)
    """By lane, the lanes that lead to it without a signal in between."""
    following: dict[str, set[str]] = field(default_factory=dict)
    """By lane, the lanes that it leads to."""

    def add_connection(self, from_lane: str, to_lane: str, is_signalled: bool) -> None:
        """Add a connection of two lanes outside of junctions."""
        self.following.setdefault(from_lane, set()).add(to_lane)
        if not is_signalled:
            self.unsignalled_before.setdefault(to_lane, []).append(from_lane)

    def upstream(self, lane: str, reach_m: float) -> Iterator[UpstreamLane]:
        """The lanes that begin to lead to the end of `lane` within `reach_m`, that lane first."""
        seen: set[str] = set()
        queue = [UpstreamLane(lane, 0.0, 1.0)]
        while queue:
            upstream = queue.pop()
            if upstream.lane in seen:
                continue
            seen.add(upstream.lane)
            yield upstream
            distance_m = upstream.distance_m + self.length_m[upstream.lane]
            for before in self.unsignalled_before.get(upstream.lane, ()) if distance_m < reach_m else ():
                share = upstream.share / len(self.following[before])
                if share > MIN_SHARE:
                    queue.append(UpstreamLane(before, distance_m, share))

    def behind(self, lane: str, reach_m: float) -> dict[str, float]:
        """The lanes within `reach_m` upstream of the end of a lane, without it, up to the next signal, nearest first.

        Lane -> distance from its end in m.
        """
        behind: dict[str, float] = {}
        queue = [(self.length_m[lane], lane)]
        while queue:
            distance_m, current = heapq.heappop(queue)
            for upstream in self.unsignalled_before.get(current, ()) if distance_m < reach_m else ():
                if upstream not in behind and upstream != lane:
                    behind[upstream] = distance_m
                    heapq.heappush(queue, (distance_m + self.length_m[upstream], upstream))
        return behind
