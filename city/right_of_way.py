"""Foes and right of way on a junction, from netconvert's requests; without requests, from the geometry of paths.

https://sumo.dlr.de/docs/Networks/SUMO_Road_Networks.html#requests
"""

import math
import xml.etree.ElementTree as ET
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from city.lanes import is_internal, road_of
from city.movements import points

Foes = NDArray[np.bool_]

VEHICLE_WIDTH_M = 2.5
"""SUMO's default width of a bus: closer paths are foes."""
BICYCLE_AND_BUS_M = 1.6
"""Distance of the middles of a bicycle and a bus that touch: closer paths of a bicycle's turn in two parts are foes."""
PATH_STEP_M = 0.5
"""Distance between the points at which two paths are compared."""
MAX_PATH_M = 1000.0
"""Maximum length of a path over a junction. A longer one has wrong points: netconvert's numbers overflow with very many
lanes."""
CURVES = 5
"""Curves on which a vehicle may cross a junction without internal lanes."""


@dataclass(frozen=True)
class Connection:
    """A connection over a junction that a signal controls."""

    signal: str
    index: int
    from_lane: str
    to_lane: str
    via: str
    """Its internal lane, inside the junction; empty in a network without internal lanes."""
    turn: str = "s"
    """SUMO's `dir`."""


class Junctions:
    """The junctions of a network, with their requests and the connections over them."""

    def __init__(self) -> None:
        self.requests: dict[str, dict[int, tuple[str, str]]] = {}
        """By junction and index of a request, (foes, response)."""
        self.continuation: dict[str, str] = {}
        """By internal lane, the internal lane that continues it."""
        self.of_lane: dict[str, str] = {}
        """By incoming lane, its junction."""
        self._request_of: dict[str, tuple[str, int]] = {}
        """By internal lane, (junction, index) of its request."""
        self._incoming: dict[str, list[str]] = {}
        """By junction without internal lanes, its incoming lanes."""
        self._outgoing: dict[str, list[str]] = {}
        """By incoming lane, the lanes that its connections lead to, in the file's order."""

    def add_junction(self, junction: ET.Element) -> None:
        """Add a junction. Raises KeyError or ValueError if it is malformed."""
        name = junction.attrib["id"]
        internal, incoming = (junction.attrib.get(key, "").split() for key in ("intLanes", "incLanes"))
        self._request_of.update((lane, (name, k)) for k, lane in enumerate(internal))
        self.of_lane.update(dict.fromkeys(incoming, name))
        self._incoming[name] = [] if internal else incoming
        self.requests[name] = {
            int(r.attrib["index"]): (r.attrib["foes"], r.attrib["response"]) for r in junction.iter("request")
        }

    def add_connection(self, from_lane: str, to_lane: str) -> None:
        """Add a connection from a lane outside a junction, controlled or not."""
        self._outgoing.setdefault(from_lane, []).append(to_lane)

    def find_request(self, connection: Connection) -> tuple[str, int] | None:
        """(junction, index) of a connection's request, or None without a request."""
        lane = connection.via
        while lane in self.continuation and lane not in self._request_of:
            # a connection of several internal lanes is listed by its last one
            lane = self.continuation[lane]
        junction, k = self._request_of.get(lane) or self._place(connection)
        return (junction, k) if k in self.requests.get(junction, ()) else None

    def _place(self, connection: Connection) -> tuple[str, int]:
        """(junction, index) of a connection without internal lane: by incoming lane, then by connection; -1 if none."""
        junction = self.of_lane.get(connection.from_lane, "")
        ends = [(lane, target) for lane in self._incoming.get(junction, ()) for target in self._outgoing.get(lane, ())]
        pair = connection.from_lane, connection.to_lane
        return junction, ends.index(pair) if pair in ends else -1

    def right_of_way(self, request: tuple[str, int], other: tuple[str, int]) -> tuple[bool, bool] | None:
        """(whether the first request's connection yields, whether the other one's does); None if they are not foes.

        netconvert lists some foes in one of the two requests only, and may leave out the
        response: a car and a bicycle that turn left close beside each other. The network's
        own programs show both g. The connection that lists the other one counts as yielding.
        """
        (junction, k), (other_junction, j) = request, other
        if junction != other_junction or k == j:
            return None
        (foes, response), (other_foes, other_response) = self.requests[junction][k], self.requests[junction][j]
        lists, is_listed = _is_set(foes, j), _is_set(other_foes, k)
        if not (lists or is_listed):
            return None
        return _is_set(response, j) or not is_listed, _is_set(other_response, k) or not lists


def _is_set(text: str, k: int) -> bool:
    """True if a request's text has a 1 for request k; it is read from right to left, and what is missing is a 0."""
    return k < len(text) and text[-1 - k] == "1"


def conflicts(
    size: int, connections: Sequence[Connection], junctions: Junctions, shapes: Mapping[str, str]
) -> tuple[Foes, Foes, Foes]:
    """Foes and right of way between the links of a signal, each bool [size, size].

    The two directions of a pedestrian crossing share a request. Connections
    without a request, as on junctions of type traffic_light_unregulated, are foes if
    their paths come closer than a vehicle is wide, and none of them yields. A path
    longer than MAX_PATH_M is wrong: its connection is a foe of all others.

    An indirect left turn is two connections with one request: bicycles wait inside the junction for the green of the
    second one. Each has those foes of the request that its own part of the path meets.

    Args:
        size: number of links.
        connections: the signal's connections.
        junctions: the network's junctions.
        shapes: by lane, the points of its centre line in m, as SUMO writes them.

    Returns:
        (foes, yields, permissive), as `SignalNetwork` has them.
    """
    approaches = [(link, junctions.find_request(link), road_of(link.from_lane)) for link in connections]
    waiting = {link.from_lane for link in connections} & junctions.continuation.keys()
    paths: dict[Connection, NDArray[np.float64]] = {}
    if waiting or any(request is None for _, request, _ in approaches):
        for link in connections:
            corners = _corners(link, junctions.continuation, shapes)
            if link.via in waiting:
                corners = _corners(link, {}, shapes)[:-1]
            if sum(math.dist(a, b) for a, b in pairwise(corners)) <= MAX_PATH_M:
                paths[link] = _path(link, corners, shapes)
    foes = np.zeros((size, size), bool)
    yields = np.ones((size, size), bool)
    permissive = np.ones((size, size), bool)
    for (link, request, road), (foe, foe_request, foe_road) in combinations(approaches, 2):
        # links that leave the same road are no foes: drivers merge by the ordinary rules there
        if link.index == foe.index or road == foe_road:
            continue
        if request is not None and foe_request is not None:
            yielding = junctions.right_of_way(request, foe_request)
            is_part = waiting.intersection((link.from_lane, link.via, foe.from_lane, foe.via))
            if is_part and not _is_near(link, foe, paths, waiting):
                continue
        else:
            yielding = (False, False) if _may_meet(link, foe, junctions.of_lane, paths) else None
        if yielding is None:
            continue
        for i, j, i_yields in ((link.index, foe.index, yielding[0]), (foe.index, link.index, yielding[1])):
            foes[i, j] = True
            yields[i, j] &= i_yields
            permissive[i, j] &= any(yielding)
    return foes, yields & foes, permissive & foes


def _may_meet(
    link: Connection,
    foe: Connection,
    junction_of: Mapping[str, str],
    paths: Mapping[Connection, NDArray[np.float64]],
) -> bool:
    """True if two connections without requests are foes: they lead to the same road, or their paths come closer than a
    vehicle is wide, or a path is unknown."""
    junctions = {junction_of.get(link.from_lane, ""), junction_of.get(foe.from_lane, "")} - {""}
    if len(junctions) > 1:
        return False
    path, other = paths.get(link), paths.get(foe)
    if road_of(foe.to_lane) == road_of(link.to_lane) or path is None or other is None:
        return True
    return bool(np.linalg.norm(path[:, None] - other[None], axis=2).min() < VEHICLE_WIDTH_M)


def _is_near(
    link: Connection, foe: Connection, paths: Mapping[Connection, NDArray[np.float64]], waiting: Container[str]
) -> bool:
    """True if two paths, one of them a part of an indirect turn, meet, or one is unknown. `waiting`: the lanes on which
    bicycles wait between the parts."""
    path, other = paths.get(link), paths.get(foe)
    if path is None or other is None:
        return True
    has_crossing = any(is_internal(each.from_lane) and each.from_lane not in waiting for each in (link, foe))
    near_m = VEHICLE_WIDTH_M if has_crossing else BICYCLE_AND_BUS_M
    return bool(np.linalg.norm(path[:, None] - other[None], axis=2).min() < near_m)


def _path(connection: Connection, corners: list[tuple[float, float]], shapes: Mapping[str, str]) -> NDArray[np.float64]:
    """Points on a connection's path over its junction, [n, 2] in m, at most PATH_STEP_M apart.

    Without an internal lane the path is unknown: the points lie on curves between the
    straight line and the sharpest turn.
    """
    if connection.via not in shapes:
        return _curves(points(shapes[connection.from_lane]), points(shapes[connection.to_lane]))
    steps = [np.array(corners[:1])]
    for a, b in pairwise(corners):
        count = max(1, math.ceil(math.dist(a, b) / PATH_STEP_M))
        steps.append(np.linspace(a, b, count + 1)[1:])
    return np.concatenate(steps)


def _curves(lane: list[tuple[float, float]], next_lane: list[tuple[float, float]]) -> NDArray[np.float64]:
    """Points, [n, 2] in m, on curves from the end of a lane to the start of the next.

    The curves are quadratic Bezier curves; their middle point moves from the straight line to
    the point at which the two lanes' directions meet.
    """
    start, end = np.array(lane[-1]), np.array(next_lane[0])
    meeting = middle = (start + end) / 2
    ahead, back = start - np.array(lane[-2]), end - np.array(next_lane[1])
    across = ahead[0] * back[1] - ahead[1] * back[0]
    if abs(across) > 1e-6 * np.linalg.norm(ahead) * np.linalg.norm(back):
        gap = end - start
        along = (gap[0] * back[1] - gap[1] * back[0]) / across
        along_back = (gap[0] * ahead[1] - gap[1] * ahead[0]) / across
        # nearly parallel lanes meet far away, where no vehicle drives
        far_m = 2 * float(np.linalg.norm(gap))
        if 0 < along * np.linalg.norm(ahead) < far_m and 0 < along_back * np.linalg.norm(back) < far_m:
            meeting = start + along * ahead
    steps = max(1, math.ceil((np.linalg.norm(meeting - start) + np.linalg.norm(end - meeting)) / PATH_STEP_M))
    t = np.linspace(0.0, 1.0, steps + 1)[:, None]
    blends = [middle + share * (meeting - middle) for share in np.linspace(0.0, 1.0, CURVES)]
    return np.concatenate([(1 - t) ** 2 * start + 2 * t * (1 - t) * blend + t**2 * end for blend in blends])


def path_length_m(connection: Connection, continuation: Mapping[str, str], shapes: Mapping[str, str]) -> float:
    """Length of a connection's path over its junction, m; straight from lane to lane without internal lanes."""
    return sum(math.dist(a, b) for a, b in pairwise(_corners(connection, continuation, shapes)))


def _corners(
    connection: Connection, continuation: Mapping[str, str], shapes: Mapping[str, str]
) -> list[tuple[float, float]]:
    """The corners of a connection's path over its junction, in m, from lane end to lane start."""
    corners = [points(shapes[connection.from_lane])[-1]]
    lane = connection.via
    while lane in shapes:
        corners += points(shapes[lane])
        lane = continuation.get(lane, "")
    corners.append(points(shapes[connection.to_lane])[0])
    return corners


def green_together(size: int, states: Iterable[str]) -> Foes:
    """True if some state shows two links green at the same time, bool [size, size].

    The requests also let a turning link yield to the crossing street, which drivers do not
    expect: a pair of greens that no phase shows must not appear in a transition.
    """
    together = np.zeros((size, size), bool)
    for state in set(states):
        green = np.array([c in "gG" for c in state.ljust(size, "r")[:size]], bool)
        together |= np.outer(green, green)
    return together
