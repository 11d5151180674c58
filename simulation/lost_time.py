"""Lost time of vehicles by lane, sampled from SUMO, for rewards and evaluation."""

from collections.abc import Iterable, Mapping

from city.lanes import road_of
from controller.sumo.connection import TrafficConnection


class LostTime:
    """Time lost per second, in vehicle seconds per second.

    A vehicle at speed v on a lane with speed limit l loses 1 - v / l, a vehicle that waits to depart 1.
    """

    def __init__(self, connection: TrafficConnection, lanes: Mapping[str, Mapping[str, float]]) -> None:
        """`lanes`: TL -> lane -> speed limit in m/s (`upstream_lanes`)."""
        self._connection = connection
        self._lanes = {tl: list(by_lane.items()) for tl, by_lane in lanes.items()}
        self._tl_of = {road_of(lane): tl for tl, by_lane in lanes.items() for lane in by_lane}

    def by_road(self, tls: Iterable[str] | None = None) -> dict[str, dict[str, float]]:
        """The time lost now: TL -> road -> vehicle seconds per second; roads without vehicles are left out.

        `tls`: the TLs to measure (default: all).
        """
        # lane by lane: SUMO counts an empty lane as a vehicle in a road's mean speed
        due = list(self._lanes if tls is None else tls)
        traffic = self._connection.traffic(tuple(lane for tl in due for lane, _ in self._lanes[tl]))
        values = zip(traffic.counts.tolist(), traffic.speeds_mps.tolist(), strict=True)
        lost: dict[str, dict[str, float]] = {}
        for tl in due:
            by_road = lost[tl] = {}
            for (lane, limit_mps), (count, speed_mps) in zip(self._lanes[tl], values, strict=False):
                if count:
                    road = road_of(lane)
                    by_road[road] = by_road.get(road, 0.0) + count * max(0.0, 1.0 - speed_mps / limit_mps)
        for origin in traffic.waiting:
            origin_tl = self._tl_of.get(origin)
            if origin_tl in lost:
                lost[origin_tl][origin] = lost[origin_tl].get(origin, 0.0) + 1.0
        return lost
