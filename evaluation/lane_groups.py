"""Traffic of a signal's lane groups in one simulation: volume, capacity, delay and queue.

A lane group is the Highway Capacity Manual's: the lanes of an approach with the same movements. A shared lane is a
group of its own. Lanes that cars may not use are left out.
"""

import math
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from city.lanes import road_of
from city.network import SignalNetwork
from signals.movement_names import LEFT, RIGHT, U_TURN, MovementGroup, MovementNames, kind_of

SATURATION_VEH_H = 1900.0
"""Assumed saturation flow of a lane, vehicles per hour of effective green.

Source: Highway Capacity Manual (6th edition), chapter 19, base value of metropolitan areas. By its default start-up
lost time and extension of effective green, 2 s each, effective green lasts as long as the shown one.
"""
TURN_FACTORS = {LEFT: 1 / 1.05, RIGHT: 1 / 1.18}
"""Factors of the saturation flow of lanes with this protected turn alone (same source)."""
QUEUED_VEHICLE_M = 7.5
"""Length of lane that a halting vehicle takes: SUMO's default car, 5 m, and its gap, 2.5 m."""
QUEUE_PERCENTILE = 95
BOUNDS_S = (("A", 10.0), ("B", 20.0), ("C", 35.0), ("D", 55.0), ("E", 80.0))
"""(letter, largest delay per vehicle in s); F is above all of them.

Source: Highway Capacity Manual (6th edition), criteria of motorised vehicles at signalised intersections.
"""


def level_of_service(delay_s: float, saturation: float = 0.0) -> str:
    """The level of service, A to F.

    Args:
        delay_s: delay per vehicle.
        saturation: volume / capacity of a lane group; above 1 it is F, whatever the delay. Approaches and intersections
            are judged by their delay alone (same source).
    """
    return next((letter for letter, bound_s in BOUNDS_S if delay_s <= bound_s and saturation <= 1.0), "F")


@dataclass(frozen=True)
class LaneGroup:
    """The lanes of an approach with the same movements."""

    name: str
    """Such as `northbound through + right`."""
    road: str
    lanes: tuple[str, ...]
    links: tuple[int, ...]
    saturation_veh_h: float
    """Saturation flow of all its lanes together, vehicles per hour of green."""
    is_permissive: bool
    """True if a movement yields to others in a green of the programs: its capacity is less than computed here."""


@dataclass(frozen=True)
class LaneGroupTraffic:
    """The traffic of a lane group in one simulation, or means over several."""

    volume_veh_h: float
    """Vehicles that passed the signal, and those by which the queue grew."""
    capacity_veh_h: float
    """Saturation flow times the share of green; an upper bound if `is_permissive`."""
    is_permissive: bool
    delay_s: float | None
    """Per vehicle that passed; None if none did."""
    queue_m: float
    """95th percentile of the queue, of the lane that it fills most."""
    storage_m: float
    """Length of this lane."""

    @property
    def saturation(self) -> float:
        """Degree of saturation, volume / capacity."""
        if self.capacity_veh_h <= 0:
            return math.inf if self.volume_veh_h > 0 else 0.0
        return self.volume_veh_h / self.capacity_veh_h

    @property
    def level(self) -> str:
        """The level of service; "" without vehicles."""
        if self.volume_veh_h <= 0:
            return ""
        return level_of_service(math.inf if self.delay_s is None else self.delay_s, self.saturation)


class PassedVehicles:
    """Counts the vehicles that leave the roads towards each TL, by lane."""

    def __init__(self, folder: Path, roads: Mapping[str, Sequence[str]]) -> None:
        """Write the additional file with which SUMO counts.

        Args:
            folder: folder of the additional file and the output.
            roads: TL -> roads that end at its signals.
        """
        self._roads, self._output = roads, folder / "passed.xml"
        self.additional_file = folder / "passed.add.xml"
        """SUMO must load this file."""
        self.by_lane: Counter[str] = Counter()
        """Lane -> vehicles that left it over its end, after `read`."""
        self.lost_s: defaultdict[str, float] = defaultdict(float)
        """Lane -> vehicle seconds lost on it, after `read`."""
        root = ET.Element("additional")
        edges = " ".join(sorted({road for of_tl in roads.values() for road in of_tl}))
        if edges:
            ET.SubElement(
                root, "laneData", id="greenserve_passed", file=str(self._output), edges=edges, excludeEmpty="true"
            )
        ET.ElementTree(root).write(self.additional_file)

    def read(self) -> dict[str, int]:
        """TL -> vehicles that left its roads, once for each signal passed. Call it after the simulation has ended."""
        by_road: Counter[str] = Counter()
        if self._output.exists():
            for _, element in ET.iterparse(self._output):
                if element.tag == "edge":
                    for lane in element:
                        self.by_lane[lane.attrib["id"]] += int(lane.attrib["left"])
                        self.lost_s[lane.attrib["id"]] += float(lane.get("timeLoss", 0.0))
                        by_road[element.attrib["id"]] += int(lane.attrib["left"])
        return {tl: sum(by_road[road] for road in roads) for tl, roads in self._roads.items()}


@dataclass(frozen=True)
class RoadTraffic:
    """Measurements of one simulation on roads and lanes."""

    seconds: float
    lanes_of: Mapping[str, Sequence[str]]
    """By road, its lanes with vehicles."""
    passed: Mapping[str, int]
    """Vehicles that left each lane over its end."""
    lost_on_lane_s: Mapping[str, float]
    """Vehicle seconds lost on each lane."""
    lost_s: Mapping[str, float]
    """Vehicle seconds lost on each road, by vehicles that wait to depart too."""
    halting: Mapping[str, NDArray[np.int32]]
    """Halting vehicles on each lane that ends at a signal [samples]."""
    growth: Mapping[str, float]
    """By road, growth of its queue from begin to end, vehicles that wait to depart included; without the lanes of
    `halting`."""
    upstream: Mapping[str, Sequence[str]]
    """By road that ends at a signal, the roads that lead to it from no other signal."""


def lane_groups(signal: SignalNetwork, names: MovementNames, takes_cars: Callable[[str], bool]) -> list[LaneGroup]:
    """The lane groups of a signal. `takes_cars`: True for a lane that cars may use."""
    on_lane = _links_by_lane(signal, names, takes_cars)
    lanes_of: dict[tuple[MovementGroup, ...], list[str]] = {}
    for lane, groups in on_lane.items():
        own = [group for group in names.groups if group in groups]
        lanes_of.setdefault(tuple([group for group in own if group.kind != U_TURN] or own), []).append(lane)
    states = [phase.state for program in signal.programs for phase in program.phases]
    found = []
    for key in sorted(lanes_of, key=lambda key: [names.groups.index(group) for group in key]):
        lanes, first = lanes_of[key], key[0]
        links = sorted({link for lane in lanes for group in key for link in on_lane[lane][group]})
        name = first.name if len(key) == 1 else f"{first.approach} {' + '.join(group.kind for group in key)}"
        factor = TURN_FACTORS.get(first.kind, 1.0) if len(key) == 1 else 1.0
        is_permissive = any(state[link] == "g" for state in states for link in links)
        flow = SATURATION_VEH_H * factor * len(lanes)
        found.append(LaneGroup(name, road_of(lanes[0]), tuple(lanes), tuple(links), flow, is_permissive))
    return found


def _links_by_lane(
    signal: SignalNetwork, names: MovementNames, takes_cars: Callable[[str], bool]
) -> dict[str, dict[MovementGroup, set[int]]]:
    """By lane and group, the links of cars."""
    on_lane: dict[str, dict[MovementGroup, set[int]]] = {}
    for link, (pairs, movements) in enumerate(zip(signal.links, signal.movements, strict=True)):
        for (lane, _), movement in zip(pairs, movements, strict=True):
            if not movement.is_crossing and takes_cars(lane):
                kind = kind_of(movement)
                group = next(each for each in names.groups if link in each.links and each.kind == kind)
                on_lane.setdefault(lane, {}).setdefault(group, set()).add(link)
    return on_lane


def lane_group_traffic(
    groups: list[LaneGroup],
    road: RoadTraffic,
    green_share: Callable[[tuple[int, ...]], float],
    lane_length_m: Mapping[str, float],
) -> dict[str, LaneGroupTraffic]:
    """By name of a lane group of a signal, its traffic.

    A road's lost time and queue belong to its lanes as SUMO counts them there, those of the roads before it to its lane
    groups in proportion to the vehicles that passed.

    Args:
        groups: the lane groups of a signal.
        road: measurements.
        green_share: share of the time in which one of some links is green.
        lane_length_m: lengths of the lanes.
    """
    found = {}
    for group in groups:
        on_road = road.lanes_of.get(group.road, ())
        passed = sum(road.passed.get(lane, 0) for lane in group.lanes)
        passed_share = passed / max(1, sum(road.passed[lane] for lane in on_road))
        lost_on_road_s = sum(road.lost_on_lane_s[lane] for lane in on_road)
        lost_share = sum(road.lost_on_lane_s.get(lane, 0.0) for lane in group.lanes) / max(lost_on_road_s, 1e-9)
        upstream = road.upstream.get(group.road, ())
        lost_s = lost_share * road.lost_s.get(group.road, 0.0)
        lost_s += passed_share * sum(road.lost_s.get(each, 0.0) for each in upstream)
        growth = sum(float(road.halting[lane][-1]) - float(road.halting[lane][0]) for lane in group.lanes)
        growth += passed_share * sum(road.growth.get(each, 0.0) for each in (group.road, *upstream))
        queues = []
        for lane in group.lanes:
            vehicles, length_m = float(np.percentile(road.halting[lane], QUEUE_PERCENTILE)), lane_length_m[lane]
            queues.append((min(QUEUED_VEHICLE_M * vehicles, length_m), length_m))
        queue_m, storage_m = max(queues, key=lambda queue: queue[0] / max(queue[1], 1.0))
        found[group.name] = LaneGroupTraffic(
            volume_veh_h=3600.0 * max(0.0, passed + growth) / road.seconds,
            capacity_veh_h=group.saturation_veh_h * green_share(group.links),
            is_permissive=group.is_permissive,
            delay_s=lost_s / passed if passed else None,
            queue_m=queue_m,
            storage_m=storage_m,
        )
    return found
