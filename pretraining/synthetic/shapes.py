"""Junctions and roads of a street, as points and lines, before lanes are drawn.

Roads end at a junction, with or without a signal, or at an outer end, where vehicles come and go.
"""

import math
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pretraining.synthetic.street_kinds import (
    MAX_BLOCK_M,
    MAX_SHORT_BLOCK_M,
    MIN_BLOCK_M,
    MIN_SHORT_BLOCK_M,
    Shape,
    StreetKind,
)

MIN_ARM_M, MAX_ARM_M = 100.0, 400.0
"""Length of a road between a junction and an outer end."""
MIN_ANGLE = math.radians(38)
"""Between two arms of an irregular junction."""
MIN_RADIUS_M, MAX_RADIUS_M = 22.0, 45.0
"""Radius of a roundabout."""
RING_STEP = math.radians(15)
"""Angle between two points of a roundabout's lanes."""
MIN_MERGE_M, MAX_MERGE_M = 60.0, 150.0
"""Distance of an on-ramp from the signal behind it."""
MIN_SIGNAL_ROADS = 3
"""A junction of fewer roads has no signal: nothing crosses there."""
UNSIGNALISED_SHARE = 0.1
"""Share of the junctions without a signal, on streets of several."""
YIELDING_RING_SHARE = 0.5
"""Share of the roundabouts whose signals are on the roads that lead there, and not at the ring."""
MIN_RING_WAY_M, MAX_RING_WAY_M = 45.0, 150.0
"""Distance of these signals from the ring: a queue before one reaches through the roundabout to another."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Road:
    """A road between two nodes."""

    start: str
    end: str
    is_one_way: bool = False
    is_ramp: bool = False
    """It yields where it merges."""
    is_ring: bool = False
    """It is a part of a roundabout."""
    bend: tuple[Point, ...] = ()
    """Points between its ends, m."""
    street: str = ""
    """The street that it is a part of, whose roads mostly have the same lanes; "" if none."""


@dataclass(frozen=True)
class RoadLayout:
    """The nodes and roads of a street."""

    places: dict[str, Point]
    """By node, its place in m."""
    signals: frozenset[str]
    """Nodes with a signal."""
    roads: tuple[Road, ...]

    def roads_at(self) -> Counter[str]:
        """The number of roads at each node."""
        return Counter(node for road in self.roads for node in (road.start, road.end))

    def length_m(self, road: Road) -> float:
        """The distance of a road's ends."""
        return math.dist(self.places[road.start], self.places[road.end])


def draw(kind: StreetKind, rng: np.random.Generator) -> RoadLayout:
    """Draw the nodes and roads of a street of any shape but RANDOM, which netgenerate draws."""
    if kind.shape is Shape.IRREGULAR:
        layout = _irregular(kind, rng)
    elif kind.shape is Shape.ROUNDABOUT:
        layout = _roundabout(kind, rng)
    else:
        layout = _grid(kind, rng)
    return finish(layout, kind, rng)


def read_plain(nodes: Path, edges: Path) -> RoadLayout:
    """The nodes and roads of a network in netconvert's plain XML."""
    places = {
        node.attrib["id"]: (float(node.attrib["x"]), float(node.attrib["y"]))
        for node in ET.parse(nodes).getroot().iter("node")
    }
    names = {name: f"J{k}" for k, name in enumerate(places)}
    pairs = {
        tuple(sorted((names[edge.attrib["from"]], names[edge.attrib["to"]])))
        for edge in ET.parse(edges).getroot().iter("edge")
    }
    roads = tuple(Road(a, b) for a, b in sorted(pairs))
    return RoadLayout({names[name]: place for name, place in places.items()}, frozenset(names.values()), roads)


def finish(layout: RoadLayout, kind: StreetKind, rng: np.random.Generator) -> RoadLayout:
    """Remove roads, move nodes, add on-ramps, and take the signals from junctions that need none."""
    layout = _jitter(_remove_roads(layout, kind, rng), kind, rng)
    degrees = layout.roads_at()
    signals = sorted(node for node in layout.signals if degrees[node] >= MIN_SIGNAL_ROADS)
    if len(signals) > 2 and kind.shape in (Shape.GRID, Shape.LINE, Shape.RANDOM):
        signals = [node for node in signals if rng.random() >= UNSIGNALISED_SHARE]
    layout = replace(layout, signals=frozenset(signals))
    for number in range(kind.merges):
        layout = _add_ramp(layout, number, rng)
    return layout


def _block_m(kind: StreetKind, rng: np.random.Generator, is_short: bool = False) -> float:
    """The distance of two neighbouring junctions."""
    if is_short:
        return float(rng.uniform(MIN_SHORT_BLOCK_M, MAX_SHORT_BLOCK_M))
    return float(np.clip(kind.block_m * rng.lognormal(0, 0.3), MIN_BLOCK_M, MAX_BLOCK_M))


def _arm_m(rng: np.random.Generator) -> float:
    return float(rng.uniform(MIN_ARM_M, MAX_ARM_M))


def _grid(kind: StreetKind, rng: np.random.Generator) -> RoadLayout:
    """A grid, a line or a single junction, with an arm on each open side."""
    short = int(rng.integers(max(kind.columns - 1, 1))) if kind.has_short_blocks else -1
    xs = np.cumsum([0.0, *(_block_m(kind, rng, k == short) for k in range(kind.columns - 1))])
    ys = np.cumsum([0.0, *(_block_m(kind, rng) for _ in range(kind.rows - 1))])
    places: dict[str, Point] = {}
    roads: list[Road] = []
    arms = {side: _arm_m(rng) for side in ("west", "east", "south", "north")}

    def add_arm(node: str, dx: float, dy: float, street: str) -> None:
        _add_end(places, roads, node, (places[node][0] + dx, places[node][1] + dy), street)

    names = [[f"J{column}{row}" for row in range(kind.rows)] for column in range(kind.columns)]
    for column, row in np.ndindex(kind.columns, kind.rows):
        places[names[column][row]] = (float(xs[column]), float(ys[row]))
    signals = frozenset(places)
    for column, row in np.ndindex(kind.columns, kind.rows):
        node, along, across = names[column][row], f"row {row}", f"column {column}"
        if column + 1 < kind.columns:
            roads.append(Road(node, names[column + 1][row], street=along))
        else:
            add_arm(node, arms["east"], 0, along)
        if row + 1 < kind.rows:
            roads.append(Road(node, names[column][row + 1], street=across))
        else:
            add_arm(node, 0, arms["north"], across)
        if column == 0:
            add_arm(node, -arms["west"], 0, along)
        if row == 0:
            add_arm(node, 0, -arms["south"], across)
    return RoadLayout(places, signals, tuple(roads))


def _irregular(kind: StreetKind, rng: np.random.Generator) -> RoadLayout:
    """A junction of 3 to 6 arms; some of them lead to a further junction."""
    arms = int(rng.choice((3, 4, 5, 6), p=(0.1, 0.2, 0.55, 0.15)))
    places: dict[str, Point] = {"J0": (0.0, 0.0)}
    roads: list[Road] = []
    first = float(rng.uniform(0, 2 * math.pi))
    gaps = rng.dirichlet(np.full(arms, 2.0)) * (2 * math.pi - arms * MIN_ANGLE) + MIN_ANGLE
    for number, angle in enumerate((first + np.cumsum(gaps)).tolist()):
        if number >= kind.columns - 1:
            _add_end(places, roads, "J0", _ahead(places["J0"], angle, _arm_m(rng)))
            continue
        # arms of two further junctions do not cross: each spreads away from the first one
        neighbour = f"J{number + 1}"
        length_m = _block_m(kind, rng, kind.has_short_blocks and number == 0)
        places[neighbour] = _ahead((0.0, 0.0), angle, length_m)
        roads.append(Road("J0", neighbour))
        more = int(rng.integers(2, 4))
        for turn in (np.linspace(-1, 1, more) * rng.uniform(0.7, 1.4)).tolist():
            _add_end(places, roads, neighbour, _ahead(places[neighbour], angle + turn, _arm_m(rng)))
    return RoadLayout(places, frozenset(node for node in places if node.startswith("J")), tuple(roads))


def _add_end(places: dict[str, Point], roads: list[Road], node: str, place: Point, street: str = "") -> None:
    """Add an outer end at a place, and the road from it to a node."""
    end = f"E{len(places)}"
    places[end] = place
    roads.append(Road(end, node, street=street))


def _ahead(place: Point, angle: float, distance_m: float) -> Point:
    return place[0] + distance_m * math.cos(angle), place[1] + distance_m * math.sin(angle)


def _roundabout(kind: StreetKind, rng: np.random.Generator) -> RoadLayout:
    """A ring of one-way roads, counterclockwise, with a two-way arm at each node; some have further signals there."""
    radius_m = float(rng.uniform(MIN_RADIUS_M, MAX_RADIUS_M))
    angles = [2 * math.pi * (k + float(rng.uniform(-0.15, 0.15))) / kind.columns for k in range(kind.columns)]
    places = {f"J{k}": _ahead((0.0, 0.0), angle, radius_m) for k, angle in enumerate(angles)}
    has_yielding_ring = rng.random() < YIELDING_RING_SHARE
    signals = set() if has_yielding_ring else set(places)
    roads: list[Road] = []
    for k, angle in enumerate(angles):
        following = angles[(k + 1) % kind.columns] + (2 * math.pi if k + 1 == kind.columns else 0)
        steps = max(2, math.ceil((following - angle) / RING_STEP))
        bend = tuple(
            _ahead((0.0, 0.0), angle + (following - angle) * step / steps, radius_m) for step in range(1, steps)
        )
        roads.append(Road(f"J{k}", f"J{(k + 1) % kind.columns}", is_one_way=True, is_ring=True, bend=bend))
        if not has_yielding_ring:
            _add_end(places, roads, f"J{k}", _ahead(places[f"J{k}"], angle, _arm_m(rng)))
            continue
        way_m = float(rng.uniform(MIN_RING_WAY_M, MAX_RING_WAY_M))
        places[f"S{k}"] = _ahead(places[f"J{k}"], angle, way_m)
        signals.add(f"S{k}")
        roads.append(Road(f"S{k}", f"J{k}"))
        for turn in (-1.2, 1.2) if rng.random() < 0.5 else (-1.4, 0.0, 1.4):
            _add_end(places, roads, f"S{k}", _ahead(places[f"S{k}"], angle + turn, _arm_m(rng)))
    return RoadLayout(places, frozenset(signals), tuple(roads))


def _remove_roads(layout: RoadLayout, kind: StreetKind, rng: np.random.Generator) -> RoadLayout:
    """Remove a share of the roads, but keep three at each junction."""
    degrees = layout.roads_at()
    kept = []
    for road in layout.roads:
        junctions = [node for node in (road.start, road.end) if node in layout.signals]
        if rng.random() < kind.removed_share and all(degrees[node] > MIN_SIGNAL_ROADS for node in junctions):
            degrees.subtract((road.start, road.end))
        else:
            kept.append(road)
    used = {node for road in kept for node in (road.start, road.end)}
    places = {node: place for node, place in layout.places.items() if node in used}
    return RoadLayout(places, layout.signals & used, tuple(kept))


def _jitter(layout: RoadLayout, kind: StreetKind, rng: np.random.Generator) -> RoadLayout:
    """Move the nodes, by less than a tenth of the shortest road at them."""
    if not kind.jitter_m or kind.shape is Shape.ROUNDABOUT:
        return layout
    nearest = dict.fromkeys(layout.places, MAX_BLOCK_M)
    for road in layout.roads:
        for node in (road.start, road.end):
            nearest[node] = min(nearest[node], layout.length_m(road))
    places = {}
    for node, (x, y) in layout.places.items():
        deviation_m = min(kind.jitter_m, nearest[node] / 10)
        dx, dy = np.clip(rng.normal(0, deviation_m, 2), -2 * deviation_m, 2 * deviation_m).tolist()
        places[node] = x + dx, y + dy
    return replace(layout, places=places)


def _add_ramp(layout: RoadLayout, number: int, rng: np.random.Generator) -> RoadLayout:
    """Split an outer road by a junction at which an on-ramp merges, if one is long enough."""
    longest = [
        road
        for road in layout.roads
        if road.start.startswith("E")
        and road.end in layout.signals
        and layout.length_m(road) > MAX_MERGE_M + MIN_ARM_M / 2
    ]
    if not longest:
        return layout
    road = longest[int(rng.integers(len(longest)))]
    (x0, y0), (x1, y1) = layout.places[road.start], layout.places[road.end]
    angle = math.atan2(y1 - y0, x1 - x0)
    merge, ramp = f"M{number}", f"R{number}"
    place = _ahead(layout.places[road.end], angle + math.pi, float(rng.uniform(MIN_MERGE_M, MAX_MERGE_M)))
    # from the right-hand side
    ramp_place = _ahead(place, angle + math.pi + math.radians(float(rng.uniform(20, 40))), float(rng.uniform(100, 200)))
    roads = (
        *(other for other in layout.roads if other is not road),
        replace(road, end=merge, street=road.street or merge),
        replace(road, start=merge, street=road.street or merge),
        Road(ramp, merge, is_one_way=True, is_ramp=True),
    )
    return replace(layout, places={**layout.places, merge: place, ramp: ramp_place}, roads=roads)
