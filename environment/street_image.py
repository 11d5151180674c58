"""A picture of the street around signals: lanes, vehicles and the colours at the stop lines."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from city.lanes import is_internal
from city.network import StreetNetwork
from protos import policy_pb2 as pb
from signals.approach_features import REACH_M
from simulation.approaches import read_net

Point = tuple[float, float]

LONGEST_SIDE_PX, SHORTEST_SIDE_PX = 960, 240
EXIT_M = 150.0
"""Exits are shown up to here from the signals' junctions."""
MARGIN_M = 15.0
SMOOTHING = 2
"""The picture is drawn this much larger, and scaled down."""
MIN_LANE_PX, MIN_BAR_PX = 1.5, 4.0
BAR_M = 1.5
"""Thickness of the bar at a stop line."""
GROUND, ROAD, EDGE, TEXT = (58, 94, 62), (52, 54, 60), (120, 122, 128), (245, 245, 245)
COLOURS = {
    "G": (60, 220, 90), "g": (30, 150, 60), "y": (250, 210, 50), "Y": (250, 210, 50), "u": (250, 140, 40),
    "r": (225, 50, 45), "s": (150, 60, 160), "o": (250, 160, 60), "O": (130, 130, 130),
}  # fmt: skip
"""By a link's state in SUMO."""
SLOW, FAST = (255, 90, 70), (120, 200, 255)
"""A vehicle that halts, and one at its allowed speed."""


class StreetImage:
    """Draws the street around signals at any moment of a simulation."""

    def __init__(self, street: StreetNetwork, contracts: Iterable[pb.PolicyContract]) -> None:
        """`contracts`: of the TLs, whose approaches are shown as far as their observations see."""
        signals = [signal for contract in contracts for signal in contract.signals]
        self._net = read_net(street.net_file)
        links = [link for signal in signals for link in street.signals[signal.id].links]
        exits = {out for link in links for _, out in link if not is_internal(out)}
        points = [
            point
            for signal in signals
            for lane, length_m in _seen_m(signal).items()
            for point in _tail(self._shape(lane), length_m)
        ]
        points += [point for lane in exits for point in _tail(self._shape(lane)[::-1], EXIT_M)]
        xs, ys = zip(*(points or [(0.0, 0.0)]), strict=True)
        self._left, self._top = min(xs) - MARGIN_M, max(ys) + MARGIN_M
        width_m, height_m = max(xs) + MARGIN_M - self._left, self._top - min(ys) + MARGIN_M
        self._scale = SMOOTHING * LONGEST_SIDE_PX / max(width_m, height_m)
        """Pixels per metre, before the picture is scaled down."""
        shortest_px = SMOOTHING * SHORTEST_SIDE_PX
        self._size = max(int(width_m * self._scale), shortest_px), max(int(height_m * self._scale), shortest_px)
        self._bars = [
            (signal, bars)
            for signal, network in street.signals.items()
            if (bars := self._stop_bars(network.links, network.lanes))
        ]
        """(signal, its stop lines in the picture: (two ends, indices of the links))."""
        self._road = self._draw_road()

    def draw(self, api: Any) -> NDArray[np.uint8]:
        """The picture now, uint8 [height, width, 3]. `api`: traci's connection, or libsumo."""
        image = self._road.copy()
        draw = ImageDraw.Draw(image)
        bar_px = max(BAR_M * self._scale, MIN_BAR_PX * SMOOTHING)
        for signal, bars in self._bars:
            state = api.trafficlight.getRedYellowGreenState(signal)
            for (a, b), links in bars:
                for k, link in enumerate(links):
                    # one part of the bar for each link of the lane
                    begin, end = _between(a, b, k / len(links)), _between(a, b, (k + 1) / len(links))
                    draw.line([begin, end], COLOURS.get(state[link], EDGE), round(bar_px))
        for vehicle in api.vehicle.getIDList():
            self._draw_vehicle(draw, api.vehicle, vehicle)
        seconds = int(api.simulation.getTime())
        text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        draw.text((10 * SMOOTHING, 8 * SMOOTHING), text, TEXT, ImageFont.load_default(18 * SMOOTHING))
        width_px, height_px = self._size
        return np.asarray(image.resize((width_px // SMOOTHING, height_px // SMOOTHING), Image.Resampling.LANCZOS))

    def _draw_road(self) -> Image.Image:
        image = Image.new("RGB", self._size, GROUND)
        draw = ImageDraw.Draw(image)
        for node in self._net.getNodes():
            shape = [self._pixel(point[:2]) for point in node.getShape()]
            if len(shape) > 2 and self._is_seen(shape):
                draw.polygon(shape, ROAD)
        for edge in self._net.getEdges(withInternal=False):
            for lane in edge.getLanes():
                shape = [self._pixel(point) for point in lane.getShape()]
                if not self._is_seen(shape):
                    continue
                width = max(lane.getWidth() * self._scale, MIN_LANE_PX * SMOOTHING)
                draw.line(shape, EDGE, round(width + SMOOTHING), joint="curve")
                draw.line(shape, ROAD, round(width - SMOOTHING), joint="curve")
        return image

    def _stop_bars(
        self, links: Sequence[Sequence[tuple[str, str]]], lanes: Iterable[str]
    ) -> list[tuple[tuple[Point, Point], list[int]]]:
        """The stop lines of a signal that the picture shows."""
        bars = []
        for lane in lanes:
            if is_internal(lane):
                continue
            before, end = self._shape(lane)[-2:]
            # half the lane's width, to the left of its direction
            share = self._net.getLane(lane).getWidth() / 2 / (math.dist(before, end) or 1.0)
            side = (before[1] - end[1]) * share, (end[0] - before[0]) * share
            ends = self._pixel((end[0] + side[0], end[1] + side[1])), self._pixel((end[0] - side[0], end[1] - side[1]))
            # from the left of the lane to its right, in which order SUMO numbers links from right to left
            indices = [k for k, link in enumerate(links) if any(incoming == lane for incoming, _ in link)][::-1]
            if indices and self._is_seen(ends):
                bars.append((ends, indices))
        return bars

    def _draw_vehicle(self, draw: ImageDraw.ImageDraw, vehicles: Any, vehicle: str) -> None:
        x, y = vehicles.getPosition(vehicle)[:2]
        if not self._is_seen([self._pixel((x, y))]):
            return
        # SUMO's position is that of the front's middle, its angle is clockwise from north
        angle = math.radians(vehicles.getAngle(vehicle))
        ahead, side = (math.sin(angle), math.cos(angle)), (math.cos(angle), -math.sin(angle))
        length_m = vehicles.getLength(vehicle)
        half_m = max(vehicles.getWidth(vehicle) / 2, 1.5 * SMOOTHING / self._scale)
        corners = [
            self._pixel((x - along * ahead[0] + across * side[0], y - along * ahead[1] + across * side[1]))
            for along, across in ((0.0, half_m), (0.0, -half_m), (length_m, -half_m), (length_m, half_m))
        ]
        share = min(vehicles.getSpeed(vehicle) / max(vehicles.getAllowedSpeed(vehicle), 0.1), 1.0)
        colour = tuple(round(slow + share * (fast - slow)) for slow, fast in zip(SLOW, FAST, strict=True))
        draw.polygon(corners, colour)

    def _shape(self, lane: str) -> list[Point]:
        return [point[:2] for point in self._net.getLane(lane).getShape()]

    def _pixel(self, point: Sequence[float]) -> Point:
        return (point[0] - self._left) * self._scale, (self._top - point[1]) * self._scale

    def _is_seen(self, pixels: Sequence[Point]) -> bool:
        """True if the box around points overlaps the picture."""
        xs, ys = [x for x, _ in pixels], [y for _, y in pixels]
        return max(xs) >= 0 and min(xs) <= self._size[0] and max(ys) >= 0 and min(ys) <= self._size[1]


def _seen_m(signal: pb.Signal) -> dict[str, float]:
    """By lane, the length of its end that an observation sees, in m."""
    upstream = [lane for approach in signal.approaches for lane in approach.upstream]
    upstream.sort(key=lambda lane: -lane.distance_m)  # a lane of several approaches: the nearest one's
    seen = {lane.lane_id: REACH_M - lane.distance_m for lane in upstream} or dict.fromkeys(signal.lane_ids, math.inf)
    return {lane: length_m for lane, length_m in seen.items() if not is_internal(lane)}


def _tail(shape: Sequence[Point], length_m: float) -> list[Point]:
    """The last part of a line, of this length at most."""
    tail = [shape[-1]]
    for point in reversed(shape[:-1]):
        step_m = math.dist(tail[-1], point)
        if step_m >= length_m:
            return [*tail, _between(tail[-1], point, length_m / step_m)]
        tail.append(point)
        length_m -= step_m
    return tail


def _between(a: Point, b: Point, share: float) -> Point:
    return a[0] + share * (b[0] - a[0]), a[1] + share * (b[1] - a[1])
