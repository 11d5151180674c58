"""Lost time of vehicles by lane, sampled from SUMO, for rewards and evaluation."""

from collections.abc import Iterable, Mapping
from typing import Any

from city.lanes import road_of


class LostTime:
    """Time lost per second, in vehicle seconds per second.

    A vehicle at speed v on a lane with speed limit l loses 1 - v / l, a vehicle that waits to depart 1.
    """

    def __init__(self, api: Any, lanes: Mapping[str, Mapping[str, float]]) -> None:
        """`lanes`: TL -> lane -> speed limit in m/s (`upstream_lanes`)."""
        self._api = api
        self._lanes = {tl: list(by_lane.items()) for tl, by_lane in lanes.items()}
        self._tl_of = {road_of(lane): tl for tl, by_lane in lanes.items() for lane in by_lane}
        self._origin: dict[str, str] = {}
        """Road on which a vehicle waits to depart."""

    def by_road(self, tls: Iterable[str] | None = None) -> dict[str, dict[str, float]]:
        """The time lost now: TL -> road -> vehicle seconds per second; roads without vehicles are left out.

        `tls`: the TLs to measure (default: all).
        """
        # lane by lane: SUMO counts an empty lane as a vehicle in a road's mean speed
        vehicles, speed_mps = self._api.lane.getLastStepVehicleNumber, self._api.lane.getLastStepMeanSpeed
        lost: dict[str, dict[str, float]] = {}
        for tl in self._lanes if tls is None else tls:
            by_road = lost[tl] = {}
            for lane, limit_mps in self._lanes[tl]:
                if count := vehicles(lane):
                    road = road_of(lane)
                    by_road[road] = by_road.get(road, 0.0) + count * max(0.0, 1.0 - speed_mps(lane) / limit_mps)
        for vehicle in self._api.simulation.getPendingVehicles():
            if vehicle not in self._origin:
                self._origin[vehicle] = self._api.vehicle.getRoute(vehicle)[0]
            origin = self._origin[vehicle]
            origin_tl = self._tl_of.get(origin)
            if origin_tl in lost:
                lost[origin_tl][origin] = lost[origin_tl].get(origin, 0.0) + 1.0
        return lost
