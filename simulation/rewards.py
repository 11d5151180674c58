"""Rewards of TLs, each for the time since a TL's last decision. Larger is better.

Means over time, of samples at the decision and at every multiple of REWARD_INTERVAL_S before it, each weighted by the
time since the TL's previous sample:

- `delay`: -(sum of n max(0, 1 - v / l) + p) / (20 k), over the lanes that lead to the TL:
  n vehicles, v their mean speed, l the speed limit, p vehicles that wait to depart there, k
  the number of the TL's signals. Multiplied by -20 k and summed over all TLs, it is the time
  lost per second on the way to signals.
- `delay-downstream`: `delay` plus half the time lost before the next TLs downstream, weighted by the share of links
  that lead
  to each: a TL pays for a queue that it sends into a full junction.
- `mean-queue`: -h / (40 k), h halting vehicles (speed < 0.1 m/s) on the incoming lanes.
- `mean-pressure`: (o - n) / (40 k), n vehicles on the incoming lanes, o on the outgoing ones.

The difference since the last decision:

- `waiting-time`: (W - W') / 100, W the waiting time in s of all vehicles on the incoming
  lanes at the last decision, W' now; it is SUMO's, which restarts when a vehicle moves.

Those of sumo-rl, with its names and numbers (sumo_rl/environment/traffic_signal.py of 1.4.5), from the readings at the
decision alone:

- `diff-waiting-time`: (W - W') / 100, W the waiting time in s that the vehicles on the incoming lanes have accumulated
  there (SUMO's `--waiting-time-memory` bounds it).
- `average-speed`: mean of speed / allowed speed over the vehicles on the incoming lanes; 1 without vehicles.
- `queue`: -h, h halting vehicles on the incoming lanes.
- `pressure`: o - n, n vehicles on the incoming lanes, o on the outgoing ones.

A function of the user's own takes `TlReadings`.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from city.errors import InputError
from city.network import StreetNetwork
from controller.sumo.connection import SumoConnection
from protos import policy_pb2 as pb
from simulation.approaches import upstream_lanes
from simulation.lost_time import LostTime
from simulation.tl_readings import AccumulatedWaiting, TlReadings

REWARD_INTERVAL_S = 5.0
"""Simulated seconds between two samples of all TLs."""
DELAY_SCALE, QUEUE_SCALE, WAITING_SCALE_S = 20.0, 40.0, 100.0

DOWNSTREAM_SHARE = 0.5

Measure = Callable[[Iterable[str]], dict[str, float]]
"""TLs -> their values now, by TL."""
Kind = Callable[[StreetNetwork, Sequence[pb.PolicyContract]], Callable[[SumoConnection], Measure]]
"""Street and contracts -> (connection -> measure): what is the same in all episodes is computed once."""
RewardFunction = Callable[[TlReadings], float]
"""Rewards of the readings at a decision."""
Reward = str | RewardFunction
"""One of `names()`, or a function of the user's own."""


class RewardedTls:
    """The TLs that are rewarded, and how: the same in all episodes."""

    def __init__(self, reward: Reward, street: StreetNetwork, contracts: Sequence[pb.PolicyContract]) -> None:
        """`contracts`: of the TLs."""
        self.street, self.contracts = street, contracts
        self.function = _FUNCTIONS.get(reward) if isinstance(reward, str) else reward
        """Evaluates a TL's readings; None for a reward that is measured on the lanes."""
        self.measure_of: Callable[[SumoConnection], Measure] | None = None
        """Connection -> measure, without a function."""
        if self.function is None:
            assert isinstance(reward, str)
            self.measure_of = _KINDS[reward](street, contracts)
        self.is_difference = reward in _DIFFERENCES


class Rewards:
    """The rewards of one episode."""

    def __init__(self, rewarded: RewardedTls, connection: SumoConnection, begin_s: float) -> None:
        """`begin_s`: second at which the episode begins."""
        tls = [contract.tl for contract in rewarded.contracts]
        self._function = rewarded.function
        self._readings: dict[str, TlReadings] = {}
        self._measure: Measure
        if rewarded.measure_of is None:
            waiting = AccumulatedWaiting(connection)
            self._readings = {
                c.tl: TlReadings(c, connection, rewarded.street, waiting, begin_s) for c in rewarded.contracts
            }
            self._measure = self._evaluate
        else:
            self._measure = rewarded.measure_of(connection)
        self._is_difference = rewarded.is_difference
        self._last = dict.fromkeys(tls, 0.0)
        """Value of a difference at the TL's last decision."""
        self._sum = dict.fromkeys(tls, 0.0)
        """Sum of the weighted samples since the TL's last decision."""
        self._weight = dict.fromkeys(tls, 0.0)
        """Sum of their weights, in units of REWARD_INTERVAL_S."""
        self._sampled_s = dict.fromkeys(tls, begin_s)
        """Second of the TL's last sample."""

    @property
    def is_sampled(self) -> bool:
        """True if `sample` must be called between decisions."""
        return self._function is None and not self._is_difference

    def sample(self, now: float) -> None:
        """Sample all TLs at second `now`. Call it every REWARD_INTERVAL_S."""
        if self.is_sampled:
            self._sample(self._sampled_s, now)

    def begin(self, tls: Sequence[str], now: float) -> None:
        """Count from second `now`, at which TLs take their first decision. Not needed if it is that of the begin."""
        if self._is_difference:
            self._last.update(self._measure(tls))
        for tl in tls:
            self._sum[tl] = self._weight[tl] = 0.0
            self._sampled_s[tl] = now
            if self._readings:
                self._readings[tl].decided_s = now

    def since_last(self, tls: Sequence[str], now: float) -> list[float]:
        """The rewards of TLs that decide at second `now`, each for the time since its last decision; 0 at the first
        one.

        Raises InputError if the user's function has no number as its result.
        """
        due = [self._readings[tl] for tl in tls] if self._readings else []
        for readings in due:
            readings.now_s = now
        if self._is_difference:
            values = self._measure(tls)
            rewards = [values[tl] - self._last[tl] for tl in tls]
            self._last.update(values)
        elif self._function is not None:
            values = self._measure(tls)
            rewards = [values[tl] for tl in tls]
        else:
            self._sample(tls, now)
            rewards = [self._sum[tl] / self._weight[tl] if self._weight[tl] else 0.0 for tl in tls]
            for tl in tls:
                self._sum[tl] = self._weight[tl] = 0.0
        for readings in due:
            readings.decided_s = now
        return rewards

    def _evaluate(self, tls: Iterable[str]) -> dict[str, float]:
        """Evaluate the function of the readings."""
        assert self._function is not None
        values = {}
        for tl in tls:
            value = self._function(self._readings[tl])
            try:
                values[tl] = float(value)
            except (TypeError, ValueError):
                raise InputError(
                    f"reward: {_name(self._function)} gave {value!r} for {tl}, not a number; correct it"
                ) from None
            if not math.isfinite(values[tl]):
                raise InputError(
                    f"reward: {_name(self._function)} gave {value!r} for {tl}, which is not finite; correct it"
                )
        return values

    def _sample(self, tls: Iterable[str], now: float) -> None:
        """Sample the TLs that have no sample of this second yet."""
        due = [tl for tl in tls if self._sampled_s[tl] < now]
        for tl, value in self._measure(due).items() if due else ():
            weight = (now - self._sampled_s[tl]) / REWARD_INTERVAL_S
            self._sum[tl] += weight * value
            self._weight[tl] += weight
            self._sampled_s[tl] = now


def _name(function: RewardFunction) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def names() -> list[str]:
    """The names of all rewards."""
    return sorted({*_KINDS, *_FUNCTIONS})


def _delay(street: StreetNetwork, contracts: Sequence[pb.PolicyContract]) -> Callable[[SumoConnection], Measure]:
    lanes = upstream_lanes(street, {contract.tl: contract.signal_ids for contract in contracts})
    scale = {contract.tl: DELAY_SCALE * len(contract.signal_ids) for contract in contracts}

    def measure_of(connection: SumoConnection) -> Measure:
        lost_time = LostTime(connection, lanes)
        return lambda tls: {tl: -sum(by_road.values()) / scale[tl] for tl, by_road in lost_time.by_road(tls).items()}

    return measure_of


def _delay_downstream(
    street: StreetNetwork, contracts: Sequence[pb.PolicyContract]
) -> Callable[[SumoConnection], Measure]:
    lanes = upstream_lanes(street, {contract.tl: contract.signal_ids for contract in contracts})
    tl_of = {lane: tl for tl, own in lanes.items() for lane in own}
    downstream: dict[str, Counter[str]] = {}
    links: dict[str, int] = {}
    for contract in contracts:
        exits = [out for signal in contract.signal_ids for link in street.signals[signal].links for _, out in link]
        downstream[contract.tl] = Counter(tl_of[out] for out in exits if tl_of.get(out, contract.tl) != contract.tl)
        links[contract.tl] = max(len(exits), 1)
    scale = {contract.tl: DELAY_SCALE * len(contract.signal_ids) for contract in contracts}

    def measure_of(connection: SumoConnection) -> Measure:
        lost_time = LostTime(connection, lanes)

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

    return measure_of


def _mean_queue(street: StreetNetwork, contracts: Sequence[pb.PolicyContract]) -> Callable[[SumoConnection], Measure]:
    lanes = {contract.tl: _incoming(contract) for contract in contracts}
    scale = {contract.tl: QUEUE_SCALE * len(contract.signal_ids) for contract in contracts}

    def measure_of(connection: SumoConnection) -> Measure:
        halting = connection.api.lane.getLastStepHaltingNumber
        return lambda tls: {tl: -sum(map(halting, lanes[tl])) / scale[tl] for tl in tls}

    return measure_of


def _mean_pressure(
    street: StreetNetwork, contracts: Sequence[pb.PolicyContract]
) -> Callable[[SumoConnection], Measure]:
    parts = {}
    for contract in contracts:
        outgoing = {lane for signal in contract.signal_ids for link in street.signals[signal].links for _, lane in link}
        parts[contract.tl] = sorted(outgoing), _incoming(contract), QUEUE_SCALE * len(contract.signal_ids)

    def measure_of(connection: SumoConnection) -> Measure:
        vehicles = connection.api.lane.getLastStepVehicleNumber

        def measure(tls: Iterable[str]) -> dict[str, float]:
            values = {}
            for tl in tls:
                outgoing, incoming, scale = parts[tl]
                values[tl] = (sum(map(vehicles, outgoing)) - sum(map(vehicles, incoming))) / scale
            return values

        return measure

    return measure_of


def _waiting_time(street: StreetNetwork, contracts: Sequence[pb.PolicyContract]) -> Callable[[SumoConnection], Measure]:
    lanes = {contract.tl: _incoming(contract) for contract in contracts}

    def measure_of(connection: SumoConnection) -> Measure:
        waiting_s = connection.api.lane.getWaitingTime
        return lambda tls: {tl: -sum(map(waiting_s, lanes[tl])) / WAITING_SCALE_S for tl in tls}

    return measure_of


def _incoming(contract: pb.PolicyContract) -> list[str]:
    return [lane for signal in contract.signals for lane in signal.lane_ids]


_KINDS: dict[str, Kind] = {
    "delay": _delay, "delay-downstream": _delay_downstream, "mean-queue": _mean_queue, "mean-pressure": _mean_pressure,
    "waiting-time": _waiting_time,
}  # fmt: skip
_FUNCTIONS: dict[str, RewardFunction] = {
    "diff-waiting-time": lambda tl: -sum(tl.accumulated_waiting_s()) / WAITING_SCALE_S,
    "average-speed": lambda tl: tl.average_speed(),
    "queue": lambda tl: -tl.queued(),
    "pressure": lambda tl: tl.pressure(),
}
_DIFFERENCES = ("waiting-time", "diff-waiting-time")
"""Rewards that are the difference of a value since the last decision."""
