"""Lanes, speed limits, turn lanes and lane uses of a street, in netconvert's plain XML.

https://sumo.dlr.de/docs/Networks/PlainXML.html
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pretraining.synthetic.shapes import Point, Road, RoadLayout
from pretraining.synthetic.street_kinds import LANES, SPEEDS_KMH, StreetKind

TURN_LANE_SHARE = 0.8
"""Share of the approaches with a turn lane, on streets that have some."""
FEWER_LANES_SHARE = 0.1
"""Share of the directions with a lane fewer than the other direction."""
OTHER_SPEED_SHARE = 0.4
"""Share of the roads with a speed limit of their own."""
OTHER_ROAD_SHARE = 0.25
"""Share of the roads with other lanes than the rest of their street."""
ONE_WAY_SHARE = 0.03
MAX_LANE_DROP_M, MIN_LANE_DROP_M = 80.0, 30.0
MAX_LANES = 4
MAX_RING_LANES = 3
MAX_RING_KMH = 40
RAMP_LANES = 1
RAMP_PRIORITY, ROAD_PRIORITY, MAIN_PRIORITY = 1, 2, 3
"""Priorities for netconvert: an edge yields to those of a higher priority, where there is no signal."""


@dataclass(frozen=True)
class Edge:
    """A direction of a road."""

    start: str
    end: str
    lanes: int
    speed_kmh: int
    priority: int
    bend: tuple[Point, ...]
    turn_lane_m: float = 0.0
    """Length of an additional lane on the left before the junction."""
    lane_drop_m: float = 0.0
    """Distance from the junction at which an additional lane on the left ends."""

    @property
    def id(self) -> str:
        return f"{self.start}-{self.end}"

    @property
    def is_split(self) -> bool:
        """True if its number of lanes changes."""
        return bool(self.turn_lane_m or self.lane_drop_m)


def write(folder: Path, layout: RoadLayout, kind: StreetKind, rng: np.random.Generator) -> list[str]:
    """Write nodes, edges and connections into a folder; return netconvert's options that read them."""
    edges = _edges(layout, kind, rng)
    nodes = [
        f'<node id="{node}" x="{x:.2f}" y="{y:.2f}" '
        f'type="{"traffic_light" if node in layout.signals else "priority"}"/>\n'
        for node, (x, y) in layout.places.items()
    ]
    connections = _connections_xml(layout, edges, kind, rng)
    return write_xml(folder, nodes, [_edge_xml(layout, edge) for edge in edges], connections)


def write_xml(folder: Path, nodes: Sequence[str], edges: Sequence[str], connections: Sequence[str]) -> list[str]:
    """Write elements of plain XML into a folder; return netconvert's options that read them."""
    options = []
    for name, elements in (("node", nodes), ("edge", edges), ("connection", connections)):
        path = folder / f"plain.{name}.xml"
        path.write_text(f"<{name}s>\n{''.join(elements)}</{name}s>\n")
        options += [f"--{name}-files", str(path)]
    return options


def _edges(layout: RoadLayout, kind: StreetKind, rng: np.random.Generator) -> list[Edge]:
    edges = []
    ring_lanes = int(rng.integers(1, MAX_RING_LANES + 1))
    of_street: dict[str, tuple[int, int]] = {}
    for road in layout.roads:
        lanes, speed_kmh = int(rng.choice(list(LANES), p=list(LANES.values()))), int(rng.choice(SPEEDS_KMH))
        if kind.is_uniform:
            lanes, speed_kmh = kind.lanes, kind.speed_kmh
        elif rng.random() >= OTHER_SPEED_SHARE:
            speed_kmh = kind.speed_kmh
        if road.street and rng.random() >= OTHER_ROAD_SHARE:
            lanes, speed_kmh = of_street.setdefault(road.street, (lanes, speed_kmh))
        if road.is_ring:
            edges.append(Edge(road.start, road.end, ring_lanes, min(speed_kmh, MAX_RING_KMH), MAIN_PRIORITY, road.bend))
            continue
        if road.is_ramp:
            edges.append(Edge(road.start, road.end, RAMP_LANES, speed_kmh, RAMP_PRIORITY, road.bend))
            continue
        is_one_way = not kind.is_uniform and rng.random() < ONE_WAY_SHARE
        ends = [(road.start, road.end), (road.end, road.start)]
        for start, end in ends[: 1 if is_one_way else 2]:
            fewer = lanes > 1 and rng.random() < FEWER_LANES_SHARE
            edge = Edge(start, end, lanes - fewer, speed_kmh, ROAD_PRIORITY, road.bend)
            edges.append(_with_lane_changes(layout, road, edge, kind, rng))
    return edges


def _with_lane_changes(layout: RoadLayout, road: Road, edge: Edge, kind: StreetKind, rng: np.random.Generator) -> Edge:
    """The edge with a turn lane or a lane drop, if one is drawn."""
    turn, drop = rng.random() < TURN_LANE_SHARE, rng.random() < kind.lane_drop_share
    drop_m = float(rng.uniform(MIN_LANE_DROP_M, MAX_LANE_DROP_M))
    if edge.end not in layout.signals or edge.lanes >= MAX_LANES:
        return edge
    # the junctions at both ends take some of the road
    usable_m = layout.length_m(road) - 35.0
    if drop and usable_m > drop_m + 30.0:
        return replace(edge, lane_drop_m=drop_m)
    if turn and kind.turn_lane_m and usable_m > kind.turn_lane_m + 10.0:
        return replace(edge, turn_lane_m=kind.turn_lane_m)
    return edge


def _edge_xml(layout: RoadLayout, edge: Edge) -> str:
    few, more = (" ".join(map(str, range(edge.lanes + extra))) for extra in (0, 1))
    splits = ""
    if edge.turn_lane_m:
        splits = f'<split pos="0" lanes="{few}"/><split pos="{-edge.turn_lane_m:g}" lanes="{more}"/>'
    elif edge.lane_drop_m:
        splits = f'<split pos="0" lanes="{more}"/><split pos="{-edge.lane_drop_m:.1f}" lanes="{few}"/>'
    shape = ""
    if edge.bend:
        points = (layout.places[edge.start], *edge.bend, layout.places[edge.end])
        shape = f' shape="{" ".join(f"{x:.2f},{y:.2f}" for x, y in points)}"'
    return (
        f'<edge id="{edge.id}" from="{edge.start}" to="{edge.end}" numLanes="{edge.lanes + edge.is_split}" '
        f'speed="{edge.speed_kmh / 3.6:.2f}" priority="{edge.priority}"{shape}>{splits}</edge>\n'
    )


def _connections_xml(
    layout: RoadLayout, edges: Sequence[Edge], kind: StreetKind, rng: np.random.Generator
) -> list[str]:
    """Connections of the approaches whose lanes have uses of their own; netconvert guesses the others'."""
    lines = []
    for edge in edges:
        is_own = rng.random() < kind.own_lane_uses_share
        if is_own and edge.end in layout.signals and edge.lanes > 1 and not (edge.is_split or edge.bend):
            lines += [
                f'<connection from="{edge.id}" to="{to.id}" fromLane="{lane}" toLane="{to_lane}"/>\n'
                for to, lane, to_lane in _lane_uses(edge, _exits(layout, edge, edges), rng)
            ]
    return lines


def _exits(layout: RoadLayout, edge: Edge, edges: Sequence[Edge]) -> list[Edge]:
    """The edges that an approach leads to, from its right to its left."""
    (x0, y0), (x1, y1) = layout.places[edge.start], layout.places[edge.end]
    ahead = math.atan2(y1 - y0, x1 - x0)

    def turn(exit_edge: Edge) -> float:
        x, y = layout.places[exit_edge.end]
        return (math.atan2(y - y1, x - x1) - ahead + math.pi) % (2 * math.pi)

    return sorted((to for to in edges if to.start == edge.end and to.end != edge.start), key=turn)


def _lane_uses(edge: Edge, exits: Sequence[Edge], rng: np.random.Generator) -> list[tuple[Edge, int, int]]:
    """Draw (exit, lane, its lane) of an approach: each exit has a range of lanes, and two neighbours share one or none.

    Lanes never cross: a movement further left starts at no lane further right. Empty if a lane would lead nowhere, or
    there is one exit only.
    """
    if len(exits) < 2:
        return []
    uses, lane = [], 0
    for number, to in enumerate(exits):
        is_last = number == len(exits) - 1
        width = int(rng.integers(1, min(to.lanes, edge.lanes - lane) + 1))
        if is_last:
            # every lane leads somewhere
            lane = max(lane, edge.lanes - to.lanes)
            width = edge.lanes - lane
        lanes = range(lane, lane + width)
        # a left turn keeps left, others keep right
        shift = to.lanes - width if is_last else 0
        uses += [(to, k, k - lane + shift) for k in lanes]
        reached = lane + width - 1
        lane = reached if reached == edge.lanes - 1 or rng.random() < 0.5 else reached + 1
    # the last exit may have fewer lanes than are left
    return uses if {k for _, k, _ in uses} == set(range(edge.lanes)) else []
