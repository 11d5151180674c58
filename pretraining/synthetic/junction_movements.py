"""The movements at a signal: its approaches by direction, and which of their links turn left, go straight on or turn
right."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from city.lanes import is_internal
from city.movements import points
from city.sumo_files import elements

LEFT, RIGHT = "lLt", "rR"
"""SUMO's directions of connections; others are straight on."""
MAX_SKEW = math.radians(40)
"""Angle by which two opposite approaches may miss a straight line."""


@dataclass
class SyntheticApproach:
    """An incoming road of a signal, with the signal's links by direction, each from right to left."""

    edge: str
    heading: float
    """Direction of travel at its end, radians."""
    left: list[int] = field(default_factory=list)
    straight: list[int] = field(default_factory=list)
    right: list[int] = field(default_factory=list)

    @property
    def links(self) -> list[int]:
        return [*self.straight, *self.left, *self.right]


@dataclass
class Movements:
    """The links of a signal."""

    approaches: list[SyntheticApproach] = field(default_factory=list)
    crossings: list[int] = field(default_factory=list)
    """Links of pedestrian crossings."""

    def axes(self) -> list[tuple[SyntheticApproach, ...]]:
        """Pairs of opposite approaches, those that are most nearly opposite first, then single ones."""
        pairs = sorted(
            (skew, i, j)
            for i, a in enumerate(self.approaches)
            for j, b in enumerate(self.approaches[:i])
            if (skew := abs(math.remainder(a.heading - b.heading - math.pi, 2 * math.pi))) < MAX_SKEW
        )
        axes: list[tuple[SyntheticApproach, ...]] = []
        paired: set[int] = set()
        for _, i, j in pairs:
            if not paired & {i, j}:
                paired |= {i, j}
                axes.append((self.approaches[i], self.approaches[j]))
        return axes + [(approach,) for i, approach in enumerate(self.approaches) if i not in paired]


def read(net_file: Path) -> dict[str, Movements]:
    """The movements of each signal of a network. Raises InputError."""
    headings: dict[str, float] = {}
    signals: dict[str, Movements] = {}
    for depth, element in elements(net_file):
        attributes = element.attrib
        if element.tag == "lane" and not is_internal(attributes["id"]):
            (x0, y0), (x1, y1) = points(attributes["shape"])[-2:]  # the last part of the lane
            headings[attributes["id"]] = math.atan2(y1 - y0, x1 - x0)
        elif element.tag == "connection" and "tl" in attributes:
            movements = signals.setdefault(attributes["tl"], Movements())
            link, edge = int(attributes["linkIndex"]), attributes["from"]
            if is_internal(edge) or is_internal(attributes["to"]):
                movements.crossings.append(link)
                continue
            approach = next((a for a in movements.approaches if a.edge == edge), None)
            if approach is None:
                approach = SyntheticApproach(edge, headings[f"{edge}_{attributes['fromLane']}"])
                movements.approaches.append(approach)
            turn = attributes["dir"]
            own = approach.left if turn in LEFT else approach.right if turn in RIGHT else approach.straight
            own.append(link)
        if depth == 1:
            element.clear()
    return signals
