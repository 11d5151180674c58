"""Readings of a TL for a reward function: SUMO's at a decision."""

from collections.abc import Sequence

from city.network import StreetNetwork
from controller.sumo.connection import ApiConnection
from protos import policy_pb2 as pb


class AccumulatedWaiting:
    """The waiting time that each vehicle has accumulated on each lane, as sumo-rl keeps it for all its signals."""

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection
        self._by_lane: dict[str, dict[str, float]] = {}
        """Vehicle -> lane -> seconds, as of the last time that it was seen there."""

    def on(self, lanes: Sequence[str]) -> list[float]:
        """By lane, vehicle seconds that its vehicles have waited there."""
        api = self._connection.api
        accumulated_s, vehicles_on = api.vehicle.getAccumulatedWaitingTime, api.lane.getLastStepVehicleIDs
        of_vehicle, totals_s = self._by_lane, []
        for lane in lanes:
            total_s = 0.0
            for vehicle in vehicles_on(lane):
                by_lane = of_vehicle.get(vehicle)
                waited_s = accumulated_s(vehicle)
                if by_lane is None:
                    of_vehicle[vehicle] = {lane: waited_s}
                else:
                    if len(by_lane) > 1 or lane not in by_lane:
                        # in sumo-rl's order of operations, so that the sums are equal to the last bit
                        waited_s -= sum([seconds for other, seconds in by_lane.items() if other != lane])
                    by_lane[lane] = waited_s
                total_s += waited_s
            totals_s.append(total_s)
        return totals_s


class TlReadings:
    """A TL at a decision. Values are those of SUMO's last step; a function may keep numbers, but not this object.

    `queued`, `pressure`, `average_speed` and `accumulated_waiting_s` are sumo-rl's `get_total_queued`, `get_pressure`,
    `get_average_speed` and `get_accumulated_waiting_time_per_lane`.
    """

    def __init__(
        self,
        contract: pb.PolicyContract,
        connection: ApiConnection,
        street: StreetNetwork,
        waiting: AccumulatedWaiting,
        begin_s: float,
    ) -> None:
        self._connection, self._waiting = connection, waiting
        self.tl = contract.tl
        self.signals = tuple(contract.signal_ids)
        self.lanes = tuple(lane for signal in contract.signals for lane in signal.lane_ids)
        """Incoming lanes, in the order of the observation."""
        links = [link for signal in self.signals for link in street.signals[signal].links]
        self.out_lanes = tuple(dict.fromkeys(link[0][1] for link in links if link))
        """Outgoing lanes: the first one of each link, as in sumo-rl."""
        self.exit_lanes = tuple(dict.fromkeys(lane for link in links for _, lane in link))
        """All outgoing lanes."""
        self.lane_length_m = {lane: street.lane_length_m[lane] for lane in self.lanes}
        self.now_s = self.decided_s = begin_s
        """The second of the readings, and that of the TL's last decision."""

    @property
    def seconds(self) -> float:
        """The time since the TL's last decision, in s."""
        return self.now_s - self.decided_s

    def vehicles(self, lane: str) -> int:
        """The number of vehicles on a lane."""
        return int(self._connection.api.lane.getLastStepVehicleNumber(lane))

    def halting(self, lane: str) -> int:
        """The number of vehicles on a lane that are slower than 0.1 m/s."""
        return int(self._connection.api.lane.getLastStepHaltingNumber(lane))

    def mean_speed_mps(self, lane: str) -> float:
        """The mean speed on a lane, in m/s; the speed limit without vehicles."""
        return float(self._connection.api.lane.getLastStepMeanSpeed(lane))

    def waiting_s(self, lane: str) -> float:
        """SUMO's waiting time of all vehicles on a lane, in vehicle seconds; a vehicle's restarts when it moves."""
        return float(self._connection.api.lane.getWaitingTime(lane))

    def speeds_mps(self, lane: str) -> list[float]:
        """The speeds of the vehicles on a lane, in m/s."""
        return [float(self._connection.api.vehicle.getSpeed(vehicle)) for vehicle in self._vehicle_ids(lane)]

    def queued(self) -> int:
        """The number of halting vehicles on the incoming lanes."""
        return sum(map(self.halting, self.lanes))

    def pressure(self) -> int:
        """The number of vehicles on the outgoing lanes less that on the incoming ones."""
        return sum(map(self.vehicles, self.out_lanes)) - sum(map(self.vehicles, self.lanes))

    def average_speed(self) -> float:
        """The mean of speed / allowed speed over the vehicles on the incoming lanes; 1 without vehicles."""
        api = self._connection.api
        vehicles = [vehicle for lane in self.lanes for vehicle in self._vehicle_ids(lane)]
        total = 0.0
        for vehicle in vehicles:
            total += api.vehicle.getSpeed(vehicle) / api.vehicle.getAllowedSpeed(vehicle)
        return total / len(vehicles) if vehicles else 1.0

    def accumulated_waiting_s(self) -> list[float]:
        """By incoming lane, the time that its vehicles have waited there, in vehicle seconds."""
        return self._waiting.on(self.lanes)

    def _vehicle_ids(self, lane: str) -> list[str]:
        return list(self._connection.api.lane.getLastStepVehicleIDs(lane))
