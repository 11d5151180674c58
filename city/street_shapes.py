"""Shapes of lanes, junctions and crossings of a network, for maps. Read in one streaming pass."""

import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

from city.lanes import is_internal
from city.movements import points
from city.sumo_files import read_elements

LANE_WIDTH_M = 3.2
"""SUMO's default."""

Polyline = tuple[tuple[float, float], ...]
"""Points (x, y) in m."""


@dataclass(frozen=True)
class LaneShape:
    id: str
    width_m: float
    points: Polyline
    is_crossing: bool = False


@dataclass(frozen=True)
class JunctionShape:
    id: str
    x: float
    y: float
    points: Polyline
    """Outline; empty if the file has none."""


@dataclass(frozen=True)
class StreetShapes:
    """The shapes of a network's lanes outside of junctions, its crossings, and its junctions."""

    lanes: tuple[LaneShape, ...]
    junctions: tuple[JunctionShape, ...]
    junctions_of_signal: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By signal, the junctions at which its controlled lanes end."""

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """(min x, min y, max x, max y) of all shapes, in m; zeros without any."""
        shapes = (*(lane.points for lane in self.lanes), *(junction.points for junction in self.junctions))
        corners = [point for shape in shapes for point in shape]
        if not corners:
            return 0.0, 0.0, 0.0, 0.0
        xs, ys = zip(*corners, strict=True)
        return min(xs), min(ys), max(xs), max(ys)


def read(net_file: Path) -> StreetShapes:
    """Read a .net.xml (or .gz). Raises InputError."""
    lanes: list[LaneShape] = []
    junctions: list[JunctionShape] = []
    end_of: dict[str, str] = {}
    signal_roads: dict[str, dict[str, None]] = {}

    def add_element(element: ET.Element) -> None:
        attributes = element.attrib
        if element.tag == "edge":
            is_crossing = attributes.get("function") == "crossing"
            if is_crossing or not is_internal(attributes["id"]):
                end_of[attributes["id"]] = attributes.get("to", "")
                for lane in element.iter("lane"):
                    width_m = float(lane.get("width", LANE_WIDTH_M))
                    shape = tuple(points(lane.get("shape", "")))
                    lanes.append(LaneShape(lane.attrib["id"], width_m, shape, is_crossing))
        elif element.tag == "junction" and attributes.get("type") != "internal":
            x, y = float(attributes["x"]), float(attributes["y"])
            junctions.append(JunctionShape(attributes["id"], x, y, tuple(points(attributes.get("shape", "")))))
        elif element.tag == "connection" and "tl" in attributes:
            signal_roads.setdefault(attributes["tl"], {})[attributes["from"]] = None

    read_elements(net_file, add_element, "write the file again with netconvert")
    at_signal = {}
    for signal, roads in signal_roads.items():
        ends = [end_of.get(road, "") for road in roads]
        at_signal[signal] = tuple(dict.fromkeys(filter(None, ends)))
    return StreetShapes(tuple(lanes), tuple(junctions), at_signal)
