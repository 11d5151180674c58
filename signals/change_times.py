"""How long a change of greens takes with the street's floors, compared with training.

A policy that was trained with short changes changes often. If each change then costs
much more, hardly any green remains; so its greens last longer in the same proportion.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from city.config import Safety
from city.network import StreetNetwork, green_states
from protos import policy_pb2 as pb
from serving.contract import CATEGORICAL
from signals import dialects
from signals.safety.safety_times import times_for
from signals.safety.signal_safety import SignalSafety

MAX_RATIO = 2.0
"""Ratio to the duration in training beyond which a change of greens counts as slow."""
MAX_NAMED_TLS = 5


@dataclass(frozen=True)
class ChangeTimes:
    """The duration of one TL's changes of greens, in s."""

    tl: str
    training_s: float
    """Yellow and all-red of the contract."""
    vehicles_s: float
    """The longest time for which vehicles lose their green to yellow and red clearance."""
    total_s: float
    """The longest change: with pedestrians, who clear their crossings while vehicles keep their green."""
    yellow_s: float
    """The longest yellow."""
    max_green_s: float = math.inf

    @property
    def is_slow(self) -> bool:
        return self.total_s > MAX_RATIO * self.training_s

    @property
    def min_green_factor(self) -> float:
        """Factor on the min green of training, so that changes take no larger share of the time than in training."""
        return self.vehicles_s / self.training_s if self.vehicles_s > MAX_RATIO * self.training_s > 0 else 1.0


def signal_safeties(contract: pb.PolicyContract, street: StreetNetwork, safety: Safety) -> list[SignalSafety]:
    """The safety rules of a TL's signals, in the contract's order."""
    times = times_for(contract, safety, dialects.of(contract).runs_plan(contract))
    return [
        SignalSafety(street.signals[signal.id], times, green_states(phase.state for phase in signal.phases))
        for signal in contract.signals
    ]


def change_times(contract: pb.PolicyContract, safeties: Sequence[SignalSafety]) -> ChangeTimes | None:
    """The change times of a TL; None if its policy does not choose greens, so that its program sets the changes."""
    if contract.action.kind != CATEGORICAL:
        return None
    timing = contract.timing
    return ChangeTimes(
        contract.tl,
        timing.yellow_s + timing.all_red_s,
        max(safety.vehicle_change_s for safety in safeties),
        max(safety.change_s for safety in safeties),
        max(max(safety.yellow_s, default=0.0) for safety in safeties),
        min(safety.times.max_green_s for safety in safeties),
    )


def with_street_changes(contract: pb.PolicyContract, change: ChangeTimes | None) -> pb.PolicyContract:
    """The contract with its min green scaled to the street's change times, at most max green."""
    if change is None or change.min_green_factor == 1.0:
        return contract
    adapted = pb.PolicyContract()
    adapted.CopyFrom(contract)
    adapted.timing.min_green_s = min(contract.timing.min_green_s * change.min_green_factor, change.max_green_s)
    return adapted


def describe_slow(changes: Iterable[ChangeTimes | None]) -> str:
    """One line about the TLs whose changes take much longer than in training; "" if there are none."""
    return _describe([change for change in changes if change is not None and change.is_slow], "much longer")


def describe_longer(changes: Iterable[ChangeTimes | None]) -> str:
    """One line about the TLs whose changes take somewhat longer than in training; "" if there are none."""
    return _describe([c for c in changes if c is not None and c.total_s > c.training_s and not c.is_slow], "longer")


def _describe(changes: list[ChangeTimes], how: str) -> str:
    """Name the TLs, those with the largest difference first, and the settings to train the first one with."""
    if not changes:
        return ""
    changes = sorted(changes, key=lambda change: change.training_s - change.total_s)
    worst = changes[0]
    named = ", ".join(change.tl for change in changes[:MAX_NAMED_TLS])
    more = f" and {len(changes) - MAX_NAMED_TLS} more" if len(changes) > MAX_NAMED_TLS else ""
    factor = worst.min_green_factor
    greens = f", and its greens last at least {factor:.2g} times its min green of training" if factor > 1 else ""
    # pedestrians clear their crossing beside a green, so their time is not all-red
    yellow_s, all_red_s = math.ceil(worst.yellow_s), math.ceil(worst.vehicles_s - worst.yellow_s)
    return (
        f"{named}{more}: changing greens takes {how} than in training (in {worst.tl} up to {worst.total_s:.3g} s, not "
        f"{worst.training_s:.3g} s{greens}), by [safety] in city.toml, approach speeds and pedestrian crossings; train with "
        f"yellow_s = {yellow_s} and all_red_s = {all_red_s} in [tl.{worst.tl}] (sumo-rl has no all-red: train there with "
        f"yellow_time={yellow_s + all_red_s} and a larger delta_time, and keep both keys here)"
    )
