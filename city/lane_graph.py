"""The lanes of a network and how they follow one another, as far as a signal's approaches need it."""

import heapq
from dataclasses import dataclass, field
from typing import NamedTuple

MIN_SHARE = 0.1
"""A path to a lane that a smaller share of the vehicles takes does not count as its approach."""


class UpstreamLane(NamedTuple):
    """A lane whose vehicles may arrive at a stop line without passing another signal."""

    lane: str
    distance_m: float
    """From the lane's end to the stop line by the shortest path, over lanes; the length inside junctions is not
    counted."""
    share: float
    """Share of its vehicles that goes to the stop line, if each lane that follows is chosen equally often.

    The sum of all paths that visit no lane twice and have more than MIN_SHARE each.
    """


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
    walking_areas: dict[str, list[str]] = field(default_factory=dict)
    """By lane of a pedestrian crossing, the walking areas (SUMO's edges) at its ends."""

    def add_connection(self, from_lane: str, to_lane: str, is_signalled: bool) -> None:
        """Add a connection of two lanes outside of junctions."""
        self.following.setdefault(from_lane, set()).add(to_lane)
        before = self.unsignalled_before.setdefault(to_lane, [])
        if not is_signalled and from_lane not in before:
            before.append(from_lane)

    def add_walking_area(self, crossing: str, area: str) -> None:
        """Add a walking area at an end of a crossing's lane."""
        areas = self.walking_areas.setdefault(crossing, [])
        if area not in areas:
            areas.append(area)

    def upstream(self, lane: str, reach_m: float) -> list[UpstreamLane]:
        """The lanes that begin to lead to the end of `lane` within `reach_m`, that lane first."""
        found: dict[str, UpstreamLane] = {}
        paths: list[tuple[str, float, float, tuple[str, ...]]] = [(lane, 0.0, 1.0, (lane,))]
        while paths:
            first, distance_m, share, path = paths.pop()
            shorter = found.get(first, UpstreamLane(first, distance_m, 0.0))
            found[first] = UpstreamLane(first, min(distance_m, shorter.distance_m), shorter.share + share)
            distance_m += self.length_m[first]
            for before in self.unsignalled_before.get(first, ()) if distance_m < reach_m else ():
                share_before = share / len(self.following[before])
                if share_before > MIN_SHARE and before not in path:
                    paths.append((before, distance_m, share_before, (*path, before)))
        return list(found.values())

    def downstream(self, lane: str, reach_m: float) -> list[tuple[str, float, float]]:
        """(lane, distance of its begin, share of the vehicles that go there), from the begin of `lane` to the next
        signal; that lane first, the others as far as they begin within `reach_m`."""
        found: dict[str, tuple[float, float]] = {}
        paths: list[tuple[str, float, float]] = [(lane, 0.0, 1.0)]
        while paths:
            current, begin_m, share = paths.pop()
            if current in found:
                continue
            found[current] = begin_m, share
            end_m = begin_m + self.length_m[current]
            following = sorted(self.following.get(current, ()))
            share /= max(len(following), 1)
            for ahead in following if end_m < reach_m and share > MIN_SHARE else ():
                if current in self.unsignalled_before.get(ahead, ()):
                    paths.append((ahead, end_m, share))
        return [(current, begin_m, share) for current, (begin_m, share) in found.items()]

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
