"""Rewards by name, each for the time since a TL's last decision. Larger is better.

- `delay`: -(sum of n max(0, 1 - v / l) + p) / (20 k), over the lanes that lead to the TL:
  n vehicles, v their mean speed, l the speed limit, p vehicles that wait to depart there, k
  the number of the TL's signals. Multiplied by -20 k and summed over all TLs, it is the time
  lost per second on the way to signals.
- `queue`: -h / (40 k), h halting vehicles (speed < 0.1 m/s) on the incoming lanes.
- `pressure`: (o - n) / (40 k), n vehicles on the incoming lanes, o on the outgoing
  ones: sumo-rl's pressure.
- `waiting-time`: (W - W') / 100, W the waiting time in s of all vehicles on the incoming
  lanes at the last decision, W' now: sumo-rl's diff-waiting-time, with SUMO's waiting
  time, which restarts when a vehicle moves.

The first three are means of samples every REWARD_INTERVAL_S.
"""

from collections.abc import Callable, Sequence

from city.network import StreetNetwork
from controller.sumo.connection import SumoConnection
from protos import policy_pb2 as pb
from simulation.approaches import upstream_lanes
from simulation.lost_time import LostTime

REWARD_INTERVAL_S = 5.0
"""Simulated seconds between two samples."""
DELAY_SCALE, QUEUE_SCALE, WAITING_SCALE_S = 20.0, 40.0, 100.0

Sample = Callable[[], dict[str, float]]
Kind = Callable[[SumoConnection, StreetNetwork, Sequence[pb.PolicyContract]], Sample]


class Rewards:
    """The rewards of one episode."""

    def __init__(
        self, name: str, connection: SumoConnection, street: StreetNetwork, contracts: Sequence[pb.PolicyContract]
    ) -> None:
        """`name`: one of `names()`. `contracts`: of the TLs that are rewarded."""
        self._sample = _KINDS[name](connection, street, contracts)
        self._is_difference = name in _DIFFERENCES
        self._sum = {contract.tl: 0.0 for contract in contracts}
        self._count = dict.fromkeys(self._sum, 0)
        self._last = dict.fromkeys(self._sum, 0.0)

    def sample(self) -> None:
        """Measure now. Call it every REWARD_INTERVAL_S."""
        for tl, value in self._sample().items():
            self._sum[tl] = value if self._is_difference else self._sum[tl] + value
            self._count[tl] += 1

    def since_last(self, tls: Sequence[str]) -> list[float]:
        """The rewards of TLs that decide now, each for the time since its last decision."""
        rewards = []
        for tl in tls:
            if self._is_difference:
                rewards.append(self._sum[tl] - self._last[tl])
                self._last[tl] = self._sum[tl]
            else:
                rewards.append(self._sum[tl] / max(self._count[tl], 1))
                self._sum[tl], self._count[tl] = 0.0, 0
        return rewards


def names() -> list[str]:
    """The names of all rewards."""
    return sorted(_KINDS)


def _delay(connection: SumoConnection, street: StreetNetwork, contracts: Sequence[pb.PolicyContract]) -> Sample:
    lost_time = LostTime(connection.api, upstream_lanes(street, {contract.tl: contract.signal_ids for contract in contracts}))
    scale = {contract.tl: DELAY_SCALE * len(contract.signal_ids) for contract in contracts}
    return lambda: {tl: -sum(by_road.values()) / scale[tl] for tl, by_road in lost_time.by_road().items()}


def _queue(connection: SumoConnection, street: StreetNetwork, contracts: Sequence[pb.PolicyContract]) -> Sample:
    halting = connection.api.lane.getLastStepHaltingNumber
    parts = [(contract.tl, _incoming(contract), QUEUE_SCALE * len(contract.signal_ids)) for contract in contracts]
    return lambda: {tl: -sum(map(halting, lanes)) / scale for tl, lanes, scale in parts}


def _pressure(connection: SumoConnection, street: StreetNetwork, contracts: Sequence[pb.PolicyContract]) -> Sample:
    vehicles = connection.api.lane.getLastStepVehicleNumber
    parts = []
    for contract in contracts:
        outgoing = {lane for signal in contract.signal_ids for link in street.signals[signal].links for _, lane in link}
        parts.append((contract.tl, sorted(outgoing), _incoming(contract), QUEUE_SCALE * len(contract.signal_ids)))
    return lambda: {tl: (sum(map(vehicles, out)) - sum(map(vehicles, into))) / scale for tl, out, into, scale in parts}


def _waiting_time(connection: SumoConnection, street: StreetNetwork, contracts: Sequence[pb.PolicyContract]) -> Sample:
    waiting_s = connection.api.lane.getWaitingTime
    lanes = {contract.tl: _incoming(contract) for contract in contracts}
    return lambda: {tl: -sum(map(waiting_s, incoming)) / WAITING_SCALE_S for tl, incoming in lanes.items()}


def _incoming(contract: pb.PolicyContract) -> list[str]:
    return [lane for signal in contract.signals for lane in signal.lane_ids]


_KINDS: dict[str, Kind] = {"delay": _delay, "queue": _queue, "pressure": _pressure, "waiting-time": _waiting_time}
_DIFFERENCES = ("waiting-time",)
"""Rewards that are the difference of a value since the last decision, instead of a mean."""
