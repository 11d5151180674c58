"""How traffic moves over a junction: approaches, turns and crossings, from a network's shapes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

APPROACH_M = 10.0
"""Length of road next to the junction that gives its direction."""


@dataclass(frozen=True)
class Movement:
    """One controlled connection of a signal."""

    road: str
    """The road (SUMO's edge) that it leaves; of a crossing, the first one that it crosses, or "" if unknown."""
    turn: str
    """SUMO's `dir`: s, l, L, r, R or t; "" for a pedestrian crossing."""
    heading_deg: float
    """Compass heading of its traffic at the stop line, clockwise from north; of a crossing, the direction in which the
    road that it crosses lies, seen from the junction."""
    crossed_roads: tuple[str, ...] = ()
    """The roads that a pedestrian crossing crosses."""
    street: str = ""
    """Name of the street that it leaves, or that a crossing crosses; "" if the network has none."""

    @property
    def is_crossing(self) -> bool:
        """True if it is a pedestrian crossing."""
        return not self.turn


def points(shape: str) -> list[tuple[float, float]]:
    """Parse a shape: `x,y[,z] x,y[,z] ...`. Raises ValueError."""
    return [(float(x), float(y)) for x, y in (point.split(",")[:2] for point in shape.split())]


def heading_deg(shape: Sequence[tuple[float, float]], at_end: bool) -> float:
    """Compass heading of the last, or first, APPROACH_M of a polyline; 0 if it has no length.

    Args:
        shape: its points, in m, x to the east and y to the north.
        at_end: whether its last part counts, not its first.
    """
    path = list(reversed(shape)) if at_end else list(shape)
    near, far = path[0], path[-1]
    for point in path[1:]:
        if math.dist(near, point) >= APPROACH_M:
            far = point
            break
    start, end = (far, near) if at_end else (near, far)
    return math.degrees(math.atan2(end[0] - start[0], end[1] - start[1])) % 360.0


def leg_deg(crossing: Sequence[tuple[float, float]], road: Sequence[tuple[float, float]]) -> float:
    """Direction in which a road lies, seen from the junction on which a crossing crosses it."""
    middle = crossing[len(crossing) // 2 - 1], crossing[len(crossing) // 2]
    at = (middle[0][0] + middle[1][0]) / 2, (middle[0][1] + middle[1][1]) / 2
    ends_here = math.dist(at, road[-1]) <= math.dist(at, road[0])
    return (heading_deg(road, at_end=True) + 180.0) % 360.0 if ends_here else heading_deg(road, at_end=False)
