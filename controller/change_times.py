"""How long a change of greens takes with the street's floors, compared with training.

A policy that was trained with short changes changes often. If each change then costs
much more, hardly any green remains; so its greens last longer in the same proportion.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from city.config import Safety
from city.network import StreetNetwork, green_states
from controller import dialects
from controller.safety.safety_times import times_for
from controller.safety.signal_safety import SignalSafety
from protos import policy_pb2 as pb
from serving.contract import CATEGORICAL

MAX_RATIO = 2.0
"""A change that takes longer than this many times its duration in training changes the policy's timing by much."""
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

    @property
    def is_slow(self) -> bool:
        return self.total_s > MAX_RATIO * self.training_s

    @property
    def min_green_factor(self) -> float:
        """How many times its min green of training a green lasts at least, so that no larger share is lost to changes."""
        return self.vehicles_s / self.training_s if self.vehicles_s > MAX_RATIO * self.training_s > 0 else 1.0


def signal_safeties(contract: pb.PolicyContract, street: StreetNetwork, safety: Safety) -> list[SignalSafety]:
    """The safety rules of a TL's signals, in the contract's order."""
    times = times_for(contract, safety, dialects.of(contract).runs_plan(contract))
    return [
        SignalSafety(street.signals[signal.id], times, green_states(phase.state for phase in signal.phases))
        for signal in contract.signals
    ]


def change_times(contract: pb.PolicyContract, safeties: Sequence[SignalSafety]) -> ChangeTimes | None:
    """The change times of a TL; None if its policy does not choose greens: its changes are those of its program."""
    if contract.action.kind != CATEGORICAL:
        return None
    timing = contract.timing
    return ChangeTimes(
        contract.tl,
        timing.yellow_s + timing.all_red_s,
        max(safety.vehicle_change_s for safety in safeties),
        max(safety.change_s for safety in safeties),
        max(max(safety.yellow_s, default=0.0) for safety in safeties),
    )


def with_street_changes(contract: pb.PolicyContract, times: ChangeTimes | None) -> pb.PolicyContract:
    """The contract with the min green that suits the street's changes."""
    if times is None or times.min_green_factor == 1.0:
        return contract
    adapted = pb.PolicyContract()
    adapted.CopyFrom(contract)
    adapted.timing.min_green_s *= times.min_green_factor
    return adapted


def describe_slow(all_times: Iterable[ChangeTimes | None]) -> str:
    """One line about the TLs whose changes take much longer than in training; "" if there are none."""
    slow = sorted(
        (times for times in all_times if times is not None and times.is_slow), key=lambda times: times.training_s - times.total_s
    )
    if not slow:
        return ""
    worst = slow[0]
    named = ", ".join(times.tl for times in slow[:MAX_NAMED_TLS])
    more = f" and {len(slow) - MAX_NAMED_TLS} more" if len(slow) > MAX_NAMED_TLS else ""
    greens = f", and its greens last {worst.min_green_factor:.2g} times their min green" if worst.min_green_factor > 1 else ""
    yellow_s = math.ceil(worst.yellow_s)
    return (
        f"{named}{more}: changing greens takes much longer than in training (in {worst.tl} up to {worst.total_s:.3g} s, not "
        f"{worst.training_s:.3g} s{greens}), by [safety] in city.toml, approach speeds and pedestrian crossings; train with "
        f"yellow_s = {yellow_s} and all_red_s = {math.ceil(worst.total_s - yellow_s)} in [tl.{worst.tl}]"
    )
