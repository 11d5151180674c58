"""Rewards by name: what a TL is told about the time since its last decision. Larger is better.

- `queue`: -h / (40 s), h halting vehicles (speed < 0.1 m/s) on its incoming lanes, s its
  number of signals.
- `waiting-time`: (W - W') / 100, W the waiting time in s of all vehicles on its incoming
  lanes at the last decision, W' now: sumo-rl's diff-waiting-time, with SUMO's waiting
  time, which begins again when a vehicle moves.
- `pressure`: (o - n) / (40 s), n vehicles on its incoming lanes, o on its outgoing
  ones: sumo-rl's pressure.
- `delay`: -(sum of n (1 - v / l) + p) / (20 s), over the lanes from which this is the
  nearest TL downstream: n vehicles, v their mean speed, at most l, the speed limit, p
  vehicles that wait to depart there. It is the time lost per second, and its sum over
  all TLs is the network's: time loss and departure delay.
"""

from collections.abc import Callable, Sequence

from city.network import StreetNetwork
from controller.sumo.connection import SumoConnection
from protos import policy_pb2 as pb
from training.approaches import lanes_before

QUEUE_SCALE, WAITING_SCALE_S, DELAY_SCALE = 40.0, 100.0, 20.0

SinceLast = Callable[[Sequence[str]], list[float]]
Kind = Callable[[SumoConnection, StreetNetwork, Sequence[pb.PolicyContract]], SinceLast]


class Rewards:
    """The rewards of one run."""

    def __init__(
        self, name: str, connection: SumoConnection, street: StreetNetwork, contracts: Sequence[pb.PolicyContract]
    ) -> None:
        """`name`: one of `names()`."""
        self._reward = _KINDS[name](connection, street, contracts)

    def since_last(self, tls: Sequence[str]) -> list[float]:
        """The rewards of TLs that decide now, for the time since each one's last decision."""
        return self._reward(tls)


def names() -> list[str]:
    return sorted(_KINDS)


def _queue(connection: SumoConnection, street: StreetNetwork, contracts: Sequence[pb.PolicyContract]) -> SinceLast:
    rows = {contract.tl: [connection.lanes.index(lane) for lane in _incoming(contract)] for contract in contracts}
    scale = {contract.tl: QUEUE_SCALE * len(contract.signal_ids) for contract in contracts}

    def since_last(tls: Sequence[str]) -> list[float]:
        halting = connection.readings.halting
        return [-float(halting[rows[tl]].sum()) / scale[tl] for tl in tls]

    return since_last


def _waiting_time(connection: SumoConnection, street: StreetNetwork, contracts: Sequence[pb.PolicyContract]) -> SinceLast:
    lanes = {contract.tl: _incoming(contract) for contract in contracts}
    before = dict.fromkeys(lanes, 0.0)
    waiting_s = connection.api.lane.getWaitingTime

    def since_last(tls: Sequence[str]) -> list[float]:
        rewards = []
        for tl in tls:
            now_s = sum(map(waiting_s, lanes[tl]))
            rewards.append((before[tl] - now_s) / WAITING_SCALE_S)
            before[tl] = now_s
        return rewards

    return since_last


def _pressure(connection: SumoConnection, street: StreetNetwork, contracts: Sequence[pb.PolicyContract]) -> SinceLast:
    incoming = {contract.tl: _incoming(contract) for contract in contracts}
    outgoing = {
        contract.tl: sorted({lane for s in contract.signal_ids for link in street.signals[s].links for _, lane in link})
        for contract in contracts
    }
    scale = {contract.tl: QUEUE_SCALE * len(contract.signal_ids) for contract in contracts}
    vehicles = connection.api.lane.getLastStepVehicleNumber

    def since_last(tls: Sequence[str]) -> list[float]:
        return [(sum(map(vehicles, outgoing[tl])) - sum(map(vehicles, incoming[tl]))) / scale[tl] for tl in tls]

    return since_last


def _delay(connection: SumoConnection, street: StreetNetwork, contracts: Sequence[pb.PolicyContract]) -> SinceLast:
    api = connection.api
    before = lanes_before(street.net_file, {contract.tl: _incoming(contract) for contract in contracts})
    lanes = {tl: list(by_lane.items()) for tl, by_lane in before.items()}
    tl_of = {lane.rpartition("_")[0]: tl for tl, by_lane in before.items() for lane in by_lane}
    scale = {contract.tl: DELAY_SCALE * len(contract.signal_ids) for contract in contracts}
    # of single lanes: in the mean speed of a road an empty lane counts as a vehicle
    vehicles, speed_mps = api.lane.getLastStepVehicleNumber, api.lane.getLastStepMeanSpeed
    origin: dict[str, str] = {}
    """TL of the road on which a vehicle waits to depart."""

    def since_last(tls: Sequence[str]) -> list[float]:
        waiting = dict.fromkeys(lanes, 0)
        for vehicle in api.simulation.getPendingVehicles():
            if vehicle not in origin:
                origin[vehicle] = tl_of.get(api.vehicle.getRoute(vehicle)[0], "")
            if origin[vehicle]:
                waiting[origin[vehicle]] += 1
        rewards = []
        for tl in tls:
            lost = float(waiting[tl])
            for lane, limit_mps in lanes[tl]:
                if count := vehicles(lane):
                    lost += count * max(0.0, 1.0 - speed_mps(lane) / limit_mps)
            rewards.append(-lost / scale[tl])
        return rewards

    return since_last


def _incoming(contract: pb.PolicyContract) -> list[str]:
    return [lane for signal in contract.signals for lane in signal.lane_ids]


_KINDS: dict[str, Kind] = {"queue": _queue, "waiting-time": _waiting_time, "pressure": _pressure, "delay": _delay}
