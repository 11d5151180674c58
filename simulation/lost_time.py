"""Vehicles' lost time by lane, sampled from SUMO: what TLs are rewarded for, and evaluated by."""

from collections.abc import Mapping
from typing import Any

from city.lanes import road_of


class LostTime:
    """The time that is lost at one moment, in vehicles: seconds per second.

    A vehicle at speed v on a lane with limit l loses 1 - v / l, one that waits to depart 1.
    """

    def __init__(self, api: Any, lanes: Mapping[str, Mapping[str, float]]) -> None:
        """`lanes`: by TL, lane -> speed limit in m/s (`upstream_lanes`)."""
        self._api = api
        self._lanes = {tl: list(by_lane.items()) for tl, by_lane in lanes.items()}
        self._tl_of = {road_of(lane): tl for tl, by_lane in lanes.items() for lane in by_lane}
        self._origin: dict[str, str] = {}
        """Road on which a vehicle waits to depart."""

    def by_road(self) -> dict[str, dict[str, float]]:
        """By TL and road, the time lost now; roads without vehicles are left out."""
        # of single lanes: in the mean speed of a road an empty lane counts as a vehicle
        vehicles, speed_mps = self._api.lane.getLastStepVehicleNumber, self._api.lane.getLastStepMeanSpeed
        lost: dict[str, dict[str, float]] = {}
        for tl, lanes in self._lanes.items():
            own = lost[tl] = {}
            for lane, limit_mps in lanes:
                if count := vehicles(lane):
                    road = road_of(lane)
                    own[road] = own.get(road, 0.0) + count * max(0.0, 1.0 - speed_mps(lane) / limit_mps)
        for vehicle in self._api.simulation.getPendingVehicles():
            if vehicle not in self._origin:
                self._origin[vehicle] = self._api.vehicle.getRoute(vehicle)[0]
            origin = self._origin[vehicle]
            owner = self._tl_of.get(origin)
            if owner is not None:
                lost[owner][origin] = lost[owner].get(origin, 0.0) + 1.0
        return lost
