"""A TL under the names of sumo-rl's `TrafficSignal`, for reward functions and observation classes that were written for
it (sumo_rl/environment/traffic_signal.py of sumo-rl 1.4.5)."""

from typing import Any

from city.network import StreetNetwork
from controller.sumo.connection import ApiConnection
from protos import policy_pb2 as pb
from signals.intersection import Intersection
from simulation.tl_readings import AccumulatedWaiting, TlReadings


class TrafficSignal(TlReadings):
    """A TL of dialect sumo-rl: `TlReadings`, and sumo-rl's names for the same."""

    MIN_GAP = 2.5
    get_total_queued, get_pressure = TlReadings.queued, TlReadings.pressure
    get_average_speed, get_accumulated_waiting_time_per_lane = (
        TlReadings.average_speed,
        TlReadings.accumulated_waiting_s,
    )

    def __init__(
        self,
        contract: pb.PolicyContract,
        street: StreetNetwork,
        connection: ApiConnection | None = None,
        waiting: AccumulatedWaiting | None = None,
        intersection: Intersection | None = None,
        begin_s: float = 0.0,
    ) -> None:
        """Without a connection, before an episode, it has lanes, number of phases and times alone, as in sumo-rl."""
        connected: Any = connection, waiting
        super().__init__(contract, connected[0], street, connected[1], begin_s)
        self._intersection: Any = intersection
        self.id = self.signals[0]
        self.sumo: Any = None if connection is None else connection.api
        timing = contract.timing
        self.delta_time, self.yellow_time = timing.decision_interval_s, timing.yellow_s
        self.min_green, self.max_green = timing.min_green_s, timing.max_green_s
        self.num_green_phases = contract.action.size
        self.lanes_length = {lane: street.lane_length_m[lane] for lane in (*self.lanes, *self.out_lanes)}
        self.last_measure = 0.0
        """Kept from one decision to the next, for the user's function."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"TrafficSignal.{name} of sumo-rl is not available here; use the other values of it, or ts.sumo "
            "(docs/coming-from-sumo-rl.md)"
        )

    @property
    def green_phase(self) -> int:
        """Index of the green phase that is shown, or follows the yellow."""
        return 0 if self._intersection is None else int(self._intersection.state.sequencer.green)

    @property
    def time_since_last_phase_change(self) -> float:
        """The time since the yellow began, in s; if the safety rules delayed the green, since it would have begun."""
        if self._intersection is None:
            return 0.0
        timing = self._intersection.contract.timing
        changed_s = self._intersection.state.sequencer.change_allowed_s - (
            timing.min_green_s + timing.yellow_s + timing.all_red_s
        )
        return float(self.sumo.simulation.getTime() - changed_s)

    def get_lanes_density(self) -> list[float]:
        return [self._share(lane, self.vehicles(lane)) for lane in self.lanes]

    def get_lanes_queue(self) -> list[float]:
        return [self._share(lane, self.halting(lane)) for lane in self.lanes]

    def get_out_lanes_density(self) -> list[float]:
        return [self._share(lane, self.vehicles(lane)) for lane in self.out_lanes]

    def _share(self, lane: str, vehicles: int) -> float:
        """Vehicles of those that have room on a lane, at most 1."""
        room = self.lanes_length[lane] / (self.MIN_GAP + self.sumo.lane.getLastStepLength(lane))
        return float(min(1, vehicles / room))

    def _get_veh_list(self) -> list[str]:
        return [vehicle for lane in self.lanes for vehicle in self._vehicle_ids(lane)]
