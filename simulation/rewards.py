"""Rewards of TLs, each for the time since a TL's last decision. Larger is better.

Means over time, of samples at the decision and at every multiple of REWARD_INTERVAL_S before it, each weighted by the
time since the TL's previous sample:

- `delay`: -(sum of n max(0, 1 - v / l) + p + w) / (20 k), over the lanes that lead to the TL:
  n vehicles, v their mean speed, l the speed limit, p vehicles that wait to depart there, w persons who stand before
  the TL's pedestrian crossings (dialect street, which observes them), k
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

A function of the user's own takes `TlReadings`; `module:function` names one.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from city import user_code
from city.errors import InputError
from city.lanes import road_of
from city.network import StreetNetwork
from controller.sumo.connection import SumoConnection
from protos import policy_pb2 as pb
from simulation.approaches import LostTime, upstream_lanes
from simulation.tl_readings import AccumulatedWaiting, TlReadings

REWARD_INTERVAL_S = 5.0
"""Simulated seconds between two samples of all TLs."""
DELAY_SCALE, QUEUE_SCALE, WAITING_SCALE_S = 20.0, 40.0, 100.0

DOWNSTREAM_SHARE = 0.5

Measure = Callable[[Iterable[str]], dict[str, float]]
"""TLs -> their values now, by TL."""
RewardFunction = Callable[[TlReadings], float]
"""Rewards of the readings at a decision."""
SimpleReward = str | RewardFunction
"""One of `names()`, `module:function`, or a function."""


@dataclass(frozen=True)
class RewardPart:
    """A part of the reward of some TLs."""

    reward: SimpleReward
    weight: float
    tls: frozenset[str]


Reward = SimpleReward | tuple[RewardPart, ...]
"""A TL's reward is the weighted sum of its parts."""


class RewardedTls:
    """The TLs that are rewarded, and how: the same in all episodes."""

    def __init__(self, reward: SimpleReward, street: StreetNetwork, contracts: Sequence[pb.PolicyContract]) -> None:
        self.street, self.contracts = street, contracts
        if isinstance(reward, str) and ":" in reward:
            reward = load(reward)
        name = reward if isinstance(reward, str) else ""
        self.function = _FUNCTIONS.get(reward) if isinstance(reward, str) else reward
        """Evaluates a TL's readings; None for a reward of the time that is lost on the way to a TL."""
        self.measure_of = (
            None if self.function is not None else _lost_time_measures(street, contracts, _LOST_TIME[name])
        )
        """Connection -> measure, without a function."""
        self.is_sampled, self.is_difference = name in _SAMPLED, name in _DIFFERENCES


class Rewards:
    """The rewards of one episode."""

    def __init__(self, rewarded: RewardedTls, connection: SumoConnection, begin_s: float) -> None:
        waiting = AccumulatedWaiting(connection)
        self._readings = {
            c.tl: TlReadings(c, connection, rewarded.street, waiting, begin_s) for c in rewarded.contracts
        }
        self._function = rewarded.function
        self._measure: Measure = rewarded.measure_of(connection) if rewarded.measure_of else self._evaluate
        self.is_sampled, self.is_difference = rewarded.is_sampled, rewarded.is_difference
        """`is_sampled`: `sample` must be called between decisions. `is_difference`: time does not multiply a reward."""
        self._last = dict.fromkeys(self._readings, 0.0)
        """Value of a difference at the TL's last decision."""
        self._sum = dict.fromkeys(self._readings, 0.0)
        """Sum of the weighted samples since the TL's last decision."""
        self._weight = dict.fromkeys(self._readings, 0.0)
        """Sum of their weights, in units of REWARD_INTERVAL_S."""
        self._sampled_s = dict.fromkeys(self._readings, begin_s)
        """Second of the TL's last sample."""

    def sample(self, now: float) -> None:
        """Sample all TLs at second `now`. Call it every REWARD_INTERVAL_S."""
        if self.is_sampled:
            self._sample(self._sampled_s, now)

    def begin(self, tls: Sequence[str], now: float) -> None:
        """Count from second `now`, at which TLs take their first decision. Not needed if it is that of the begin."""
        if self.is_difference:
            self._last.update(self._measure(tls))
        for tl in tls:
            self._sum[tl] = self._weight[tl] = 0.0
            self._sampled_s[tl] = self._readings[tl].decided_s = now

    def since_last(self, tls: Sequence[str], now: float) -> list[float]:
        """The rewards of TLs that decide at second `now`, each for the time since its last decision; 0 at the first
        one.

        Raises InputError if the user's function has no number as its result.
        """
        for tl in tls:
            self._readings[tl].now_s = now
        if self.is_sampled:
            self._sample(tls, now)
            rewards = [self._sum[tl] / self._weight[tl] if self._weight[tl] else 0.0 for tl in tls]
        else:
            values = self._measure(tls)
            rewards = [values[tl] - self._last[tl] for tl in tls]
            if self.is_difference:
                self._last.update(values)
        for tl in tls:
            self._sum[tl] = self._weight[tl] = 0.0
            self._readings[tl].decided_s = now
        return rewards

    def _evaluate(self, tls: Iterable[str]) -> dict[str, float]:
        assert self._function is not None
        values = {}
        for tl in tls:
            value = self._function(self._readings[tl])
            name = getattr(self._function, "__name__", type(self._function).__name__)
            try:
                values[tl] = float(value)
            except (TypeError, ValueError):
                raise InputError(f"reward: {name} gave {value!r} for {tl}, not a number; correct it") from None
            if not math.isfinite(values[tl]):
                raise InputError(f"reward: {name} gave {value!r} for {tl}, which is not finite; correct it")
        return values

    def _sample(self, tls: Iterable[str], now: float) -> None:
        """Sample the TLs that have no sample of this second yet."""
        due = [tl for tl in tls if self._sampled_s[tl] < now]
        for tl, value in self._measure(due).items() if due else ():
            weight = (now - self._sampled_s[tl]) / REWARD_INTERVAL_S
            self._sum[tl] += weight * value
            self._weight[tl] += weight
            self._sampled_s[tl] = now


class CombinedRewards:
    """The rewards of one episode, each the weighted sum of its parts."""

    def __init__(self, parts: Sequence[tuple[RewardPart, Rewards]]) -> None:
        self._parts = parts
        self.is_sampled = any(rewards.is_sampled for _, rewards in parts)
        self.is_difference = all(rewards.is_difference for _, rewards in parts)

    def sample(self, now: float) -> None:
        for _, rewards in self._parts:
            rewards.sample(now)

    def begin(self, tls: Sequence[str], now: float) -> None:
        for _, rewards in self._parts:
            rewards.begin(tls, now)

    def since_last(self, tls: Sequence[str], now: float) -> list[float]:
        total = dict.fromkeys(tls, 0.0)
        for part, rewards in self._parts:
            own = [tl for tl in tls if tl in part.tls]
            for tl, value in zip(own, rewards.since_last(own, now), strict=True):
                total[tl] += part.weight * value
        return list(total.values())


def names() -> list[str]:
    """The names of all rewards."""
    return sorted({*_LOST_TIME, *_FUNCTIONS})


def check(reward: str, where: str) -> None:
    """Raise InputError unless a text is one of `names()` or a `module:function` that can be imported.

    `where`: the argument's name.
    """
    if ":" in reward:
        load(reward)
    elif reward not in names():
        raise InputError(f"{where} {reward!r} must be module:function, or one of {', '.join(names())}")


def load(spec: str) -> RewardFunction:
    """Import the function that `module:function` names. Raises InputError."""
    function: RewardFunction = user_code.imported(lambda: user_code.named(spec), f"reward {spec} ")
    if not callable(function):
        raise InputError(f"reward {spec} is not a function")
    return function


def _lost_time_measures(
    street: StreetNetwork, contracts: Sequence[pb.PolicyContract], downstream_share: float
) -> Callable[[SumoConnection], Measure]:
    """Measures of `delay` and `delay-downstream`. `downstream_share`: how much the next TLs' lost time counts."""
    lanes = upstream_lanes(street, {contract.tl: contract.signal_ids for contract in contracts})
    tl_of = {lane: tl for tl, own in lanes.items() for lane in own}
    scale = {contract.tl: DELAY_SCALE * len(contract.signal_ids) for contract in contracts}
    crossings = {
        contract.tl: [a for signal in contract.signals for a in signal.approaches if a.walking_areas]
        for contract in contracts
    }
    downstream: dict[str, dict[str, float]] = {contract.tl: {} for contract in contracts}
    """TL -> next TL downstream -> weight of its lost time."""
    for contract in contracts if downstream_share else ():
        exits = [out for signal in contract.signal_ids for link in street.signals[signal].links for _, out in link]
        links = Counter(tl_of[out] for out in exits if tl_of.get(out, contract.tl) != contract.tl)
        downstream[contract.tl] = {tl: downstream_share * count / len(exits) for tl, count in links.items()}

    def measure_of(connection: SumoConnection) -> Measure:
        lost_time = LostTime(connection, lanes)

        def measure(tls: Iterable[str]) -> dict[str, float]:
            due = list(tls)
            needed = dict.fromkeys([*due, *(after for tl in due for after in downstream[tl])])
            lost = {tl: sum(by_road.values()) for tl, by_road in lost_time.by_road(needed).items()}
            areas = dict.fromkeys(
                area for tl in needed for crossing in crossings[tl] for area in crossing.walking_areas
            )
            persons = connection.persons(tuple(areas)) if areas else ()
            standing = Counter(person.next_edge for person in persons if person.stands)
            for tl in needed:
                lost[tl] += sum(standing[road_of(crossing.lane_id)] for crossing in crossings[tl])
            values = {}
            for tl in due:
                after = sum(weight * lost[other] for other, weight in downstream[tl].items())
                values[tl] = -(lost[tl] + after) / scale[tl]
            return values

        return measure

    return measure_of


_LOST_TIME = {"delay": 0.0, "delay-downstream": DOWNSTREAM_SHARE}
"""Rewards of the time lost on the way to TLs: how much that of the next TLs downstream counts."""
_FUNCTIONS: dict[str, RewardFunction] = {
    "mean-queue": lambda tl: -tl.queued() / (QUEUE_SCALE * len(tl.signals)),
    "mean-pressure": lambda tl: (
        (sum(map(tl.vehicles, tl.exit_lanes)) - sum(map(tl.vehicles, tl.lanes))) / (QUEUE_SCALE * len(tl.signals))
    ),
    "waiting-time": lambda tl: -sum(map(tl.waiting_s, tl.lanes)) / WAITING_SCALE_S,
    "diff-waiting-time": lambda tl: -sum(tl.accumulated_waiting_s()) / WAITING_SCALE_S,
    "average-speed": lambda tl: tl.average_speed(),
    "queue": lambda tl: -tl.queued(),
    "pressure": lambda tl: tl.pressure(),
}
_SAMPLED = (*_LOST_TIME, "mean-queue", "mean-pressure")
"""Rewards that are means of samples since the last decision."""
_DIFFERENCES = ("waiting-time", "diff-waiting-time")
"""Rewards that are the difference of a value since the last decision."""
