"""Rewards by name, each for the time since a TL's last decision. Larger is better.

- `delay`: -(sum of n max(0, 1 - v / l) + p) / (20 k), over the lanes that lead to the TL:
  n vehicles, v their mean speed, l the speed limit, p vehicles that wait to depart there, k
  the number of the TL's signals. Multiplied by -20 k and summed over all TLs, it is the time
  lost per second on the way to signals.
- `delay-downstream`: `delay`, and half of what the TLs lose that the TL's links lead to next, each by its share of the
  links: a TL pays for a queue that it sends into a full junction.
- `queue`: -h / (40 k), h halting vehicles (speed < 0.1 m/s) on the incoming lanes.
- `pressure`: (o - n) / (40 k), n vehicles on the incoming lanes, o on the outgoing
  ones: sumo-rl's pressure.
- `waiting-time`: (W - W') / 100, W the waiting time in s of all vehicles on the incoming
  lanes at the last decision, W' now: sumo-rl's diff-waiting-time, with SUMO's waiting
  time, which restarts when a vehicle moves.

All but the last are means over time of samples at the decision and at every multiple of
REWARD_INTERVAL_S before it: each sample is weighted by the time since the TL's previous one.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from city.network import StreetNetwork
from controller.sumo.connection import SumoConnection
from protos import policy_pb2 as pb
from simulation.approaches import upstream_lanes
from simulation.lost_time import LostTime

REWARD_INTERVAL_S = 5.0
"""Simulated seconds between two samples of all TLs."""
DELAY_SCALE, QUEUE_SCALE, WAITING_SCALE_S = 20.0, 40.0, 100.0

DOWNSTREAM_SHARE = 0.5

Measure = Callable[[Iterable[str]], dict[str, float]]
"""TLs -> their values now, by TL."""
Kind = Callable[[SumoConnection, StreetNetwork, Sequence[pb.PolicyContract]], Measure]


class Rewards:
    """The rewards of one episode."""

    def __init__(
        self, name: str, connection: SumoConnection, street: StreetNetwork, contracts: Sequence[pb.PolicyContract], begin_s: float
    ) -> None:
        """`name`: one of `names()`. `contracts`: of the TLs that are rewarded. `begin_s`: second at which the episode begins."""
        self._measure = _KINDS[name](connection, street, contracts)
        self._is_difference = name in _DIFFERENCES
        tls = [contract.tl for contract in contracts]
        self._last = dict.fromkeys(tls, 0.0)
        """Value of a difference at the TL's last decision."""
        self._sum = dict.fromkeys(tls, 0.0)
        """Sum of the weighted samples since the TL's last decision."""
        self._weight = dict.fromkeys(tls, 0.0)
        """Sum of their weights, in units of REWARD_INTERVAL_S."""
        self._sampled_s = dict.fromkeys(tls, begin_s)
        """Second of the TL's last sample."""

    def sample(self, now: float) -> None:
        """Sample all TLs at second `now`. Call it every REWARD_INTERVAL_S."""
        if not self._is_difference:
            self._sample(self._sampled_s, now)

    def since_last(self, tls: Sequence[str], now: float) -> list[float]:
        """The rewards of TLs that decide at second `now`, each for the time since its last decision; 0 at the first one."""
        if self._is_difference:
            values = self._measure(tls)
            rewards = [values[tl] - self._last[tl] for tl in tls]
            self._last.update(values)
            return rewards
        self._sample(tls, now)
        rewards = [self._sum[tl] / self._weight[tl] if self._weight[tl] else 0.0 for tl in tls]
        for tl in tls:
            self._sum[tl] = self._weight[tl] = 0.0
        return rewards

    def _sample(self, tls: Iterable[str], now: float) -> None:
        """Sample the TLs that have no sample of this second yet."""
        due = [tl for tl in tls if self._sampled_s[tl] < now]
        for tl, value in self._measure(due).items() if due else ():
            weight = (now - self._sampled_s[tl]) / REWARD_INTERVAL_S
            self._sum[tl] += weight * value
            self._weight[tl] += weight
            self._sampled_s[tl] = now


def names() -> list[str]:
    """The names of all rewards."""
    return sorted(_KINDS)


def _delay(connection: SumoConnection, street: StreetNetwork, contracts: Sequence[pb.PolicyContract]) -> Measure:
    lost_time = LostTime(connection.api, upstream_lanes(street, {contract.tl: contract.signal_ids for contract in contracts}))
    scale = {contract.tl: DELAY_SCALE * len(contract.signal_ids) for contract in contracts}
    return lambda tls: {tl: -sum(by_road.values()) / scale[tl] for tl, by_road in lost_time.by_road(tls).items()}


def _delay_downstream(connection: SumoConnection, street: StreetNetwork, contracts: Sequence[pb.PolicyContract]) -> Measure:
    lanes = upstream_lanes(street, {contract.tl: contract.signal_ids for contract in contracts})
    lost_time = LostTime(connection.api, lanes)
    tl_of = {lane: tl for tl, own in lanes.items() for lane in own}
    downstream: dict[str, Counter[str]] = {}
    links: dict[str, int] = {}
    for contract in contracts:
        exits = [out for signal in contract.signal_ids for link in street.signals[signal].links for _, out in link]
        downstream[contract.tl] = Counter(tl_of[out] for out in exits if tl_of.get(out, contract.tl) != contract.tl)
        links[contract.tl] = max(len(exits), 1)
    scale = {contract.tl: DELAY_SCALE * len(contract.signal_ids) for contract in contracts}

    def measure(tls: Iterable[str]) -> dict[str, float]:
        due = list(tls)
        needed = dict.fromkeys([*due, *(after for tl in due for after in downstream[tl])])
        lost = {tl: sum(by_road.values()) for tl, by_road in lost_time.by_road(needed).items()}
        values = {}
        for tl in due:
            after = sum(count / links[tl] * lost[other] for other, count in downstream[tl].items())
            values[tl] = -(lost[tl] + DOWNSTREAM_SHARE * after) / scale[tl]
        return values

    return measure


def _queue(connection: SumoConnection, street: StreetNetwork, contracts: Sequence[pb.PolicyContract]) -> Measure:
    halting = connection.api.lane.getLastStepHaltingNumber
    lanes = {contract.tl: _incoming(contract) for contract in contracts}
    scale = {contract.tl: QUEUE_SCALE * len(contract.signal_ids) for contract in contracts}
    return lambda tls: {tl: -sum(map(halting, lanes[tl])) / scale[tl] for tl in tls}


def _pressure(connection: SumoConnection, street: StreetNetwork, contracts: Sequence[pb.PolicyContract]) -> Measure:
    vehicles = connection.api.lane.getLastStepVehicleNumber
    parts = {}
    for contract in contracts:
        outgoing = {lane for signal in contract.signal_ids for link in street.signals[signal].links for _, lane in link}
        parts[contract.tl] = sorted(outgoing), _incoming(contract), QUEUE_SCALE * len(contract.signal_ids)

    def measure(tls: Iterable[str]) -> dict[str, float]:
        values = {}
        for tl in tls:
            outgoing, incoming, scale = parts[tl]
            values[tl] = (sum(map(vehicles, outgoing)) - sum(map(vehicles, incoming))) / scale
        return values

    return measure


def _waiting_time(connection: SumoConnection, street: StreetNetwork, contracts: Sequence[pb.PolicyContract]) -> Measure:
    waiting_s = connection.api.lane.getWaitingTime
    lanes = {contract.tl: _incoming(contract) for contract in contracts}
    return lambda tls: {tl: -sum(map(waiting_s, lanes[tl])) / WAITING_SCALE_S for tl in tls}


def _incoming(contract: pb.PolicyContract) -> list[str]:
    return [lane for signal in contract.signals for lane in signal.lane_ids]


_KINDS: dict[str, Kind] = {
    "delay": _delay, "delay-downstream": _delay_downstream, "queue": _queue, "pressure": _pressure, "waiting-time": _waiting_time,
}  # fmt: skip
_DIFFERENCES = ("waiting-time",)
"""Rewards that are the difference of a value since the last decision, instead of a mean."""
