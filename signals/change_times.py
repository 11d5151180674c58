"""How long a change of greens takes with the street's floors, compared with training.

A policy that was trained with short changes changes often. If each change then costs
much more, hardly any green remains; so its greens last longer in the same proportion.
"""

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from city import names
from city.config import City, Safety
from city.errors import InputError
from city.network import StreetNetwork
from city.toml_text import key as toml_key
from protos import policy_pb2 as pb
from serving.contract import CATEGORICAL
from signals import contract as contracts
from signals import dialects
from signals.policy_signals import greens_of
from signals.safety.safety_times import movement_max_reds_s, program_times, red_clearance_s, times_for
from signals.safety.signal_safety import SignalSafety

MAX_RATIO = 2.0
"""Ratio to the duration in training beyond which a change of greens counts as slow."""
MAX_NAMED_TLS = 3
MAX_NAMED_PROGRAMS = 5
MIN_DIFFERENCE_S = 0.05
"""Change times that differ by less are equal."""
CAUSE_AND_REMEDY = (
    "[safety] in city.toml, approach speeds and pedestrian crossings set these times; "
    "train with them: greenserve train, or greenserve check prints them"
)


@dataclass(frozen=True)
class ChangeTimes:
    """The duration of one TL's changes of greens, in s."""

    tl: str
    nominal_s: float
    """Yellow and all-red of the contract."""
    vehicles_s: float
    """The longest time for which vehicles lose their green to yellow and red clearance."""
    total_s: float
    """The longest change: with pedestrians, who clear their crossings while vehicles keep their green."""
    yellow_s: float
    max_green_s: float = math.inf
    recorded_s: float = 0.0
    """The longest change in a training that recorded it (with the street's floors), else 0."""

    @property
    def training_s(self) -> float:
        """The longest change in the training."""
        return self.recorded_s or self.nominal_s

    @property
    def street_yellow_s(self) -> int:
        """`yellow_s` to train with, in whole s."""
        return math.ceil(self.yellow_s)

    @property
    def street_all_red_s(self) -> int:
        """`all_red_s` to train with, in whole s. It excludes pedestrians, who clear their crossing beside a green."""
        return math.ceil(self.vehicles_s - self.yellow_s)

    @property
    def is_longer(self) -> bool:
        """True if changes take longer than in training, and a training with the street's times would avoid that.

        yellow_s and all_red_s cannot express the time of pedestrians, which only a training with a record includes.
        """
        has_street_times = self.nominal_s >= self.street_yellow_s + self.street_all_red_s
        return self.total_s > self.training_s and (self.recorded_s > 0 or not has_street_times)

    @property
    def is_slow(self) -> bool:
        return self.is_longer and self.total_s > MAX_RATIO * self.training_s

    @property
    def min_green_factor(self) -> float:
        """Factor on the contract's min green that keeps the changes' share of the time as in training."""
        return self.vehicles_s / self.nominal_s if self.vehicles_s > MAX_RATIO * self.nominal_s > 0 else 1.0


def signal_safeties(contract: pb.PolicyContract, street: StreetNetwork, safety: Safety) -> list[SignalSafety]:
    """The safety rules of a TL's signals, in the contract's order."""
    times = times_for(contract, safety, dialects.of(contract).runs_plan(contract))
    networks = [street.signals[signal.id] for signal in contract.signals]
    bounds_s = [movement_max_reds_s(network, safety) for network in networks]
    own_times = [
        replace(times, movement_max_red_s=reds, max_unprotected_s=unprotected) for reds, unprotected in bounds_s
    ]
    return [SignalSafety(*each) for each in zip(networks, own_times, map(greens_of, contract.signals), strict=True)]


def change_times(contract: pb.PolicyContract, safeties: Sequence[SignalSafety]) -> ChangeTimes | None:
    """The change times of a TL.

    None if they need no comparison with training: its policy does not choose greens, so that its program sets the
    changes, or observes how long each change takes (dialect street).
    """
    if contract.action.kind != CATEGORICAL or any(signal.change_s for signal in contract.signals):
        return None
    timing = contract.timing
    return ChangeTimes(
        contract.tl,
        timing.yellow_s + timing.all_red_s,
        max(safety.vehicle_change_s for safety in safeties),
        max(safety.change_s for safety in safeties),
        max(max(safety.yellow_s, default=0.0) for safety in safeties),
        min(safety.times.max_green_s for safety in safeties),
        contract.origin.change_s,
    )


def describe_other_changes(pairs: Iterable[tuple[pb.PolicyContract, Sequence[SignalSafety]]]) -> list[str]:
    """A line about the TLs whose policy observes change times that the network and [safety] do not give any more."""
    differing = []
    for contract, safeties in pairs:
        for signal, safety in zip(contract.signals, safeties, strict=True):
            if not signal.change_s:
                continue
            greens = greens_of(signal)
            now = [safety.change_between_s(a, b) for a in greens for b in greens]
            if any(abs(a - b) > 0.01 for a, b in zip(signal.change_s, now, strict=True)):
                differing.append(contract.tl)
    if not differing:
        return []
    return [
        f"{names.listed(differing, MAX_NAMED_TLS)}: change times differ from those at the export, and the policies "
        "observe the old ones; export them again (greenserve export)"
    ]


def describe_short_reds(pairs: Iterable[tuple[pb.PolicyContract, Sequence[SignalSafety]]]) -> list[str]:
    """A line about the TLs whose programs have less red before a foe's green than vehicles need to clear the junction;
    none where [safety] sets that red."""
    short = []
    for contract, safeties in pairs:
        reds_s = [
            (red_clearance_s(path_m, mps), own_s)
            for network, own in ((safety.network, safety.clearance_s) for safety in safeties if safety.times.by_program)
            for own_s, path_m, mps in zip(own, network.path_m, network.slowest_mps, strict=True)
        ]
        computed_s, own_s = max(reds_s, key=lambda red: (red[0] - red[1], red[1]), default=(0.0, 0.0))
        if computed_s - own_s > MIN_DIFFERENCE_S:
            short.append((computed_s - own_s, f"{contract.tl} ({own_s:.3g} s, not {computed_s:.3g} s)"))
    if not short:
        return []
    ordered = [text for _, text in sorted(short, key=lambda item: -item[0])]
    return [
        "programs have less red before a foe's green than vehicles need to clear the junction: "
        f'{names.listed(ordered, MAX_NAMED_PROGRAMS)}; all_red_s = "computed" under [safety] in city.toml adds it'
    ]


def describe_arms(pairs: Iterable[tuple[pb.PolicyContract, Sequence[SignalSafety]]]) -> str:
    """The change times of controlled signals beside those of their own programs, which SUMO's control keeps."""
    others = []
    for contract, safeties in pairs:
        differences = [text for safety in safeties if (text := _difference_from_program(safety))]
        if differences:
            others.append(f"{contract.tl} ({differences[0]})")
    if not others:
        return "every arm has those of each signal's own program"
    return (
        "fixed and actuated have those of the programs, and the other arms others at "
        f"{names.listed(others, MAX_NAMED_PROGRAMS)}"
    )


def _difference_from_program(safety: SignalSafety) -> str:
    """The largest differences of yellow and red from the program's, such as "yellow 4 s, not 3 s"; "" without one."""
    parts = []
    for colour, controlled_s, own_s in zip(
        ("yellow", "red"), (safety.yellow_s, safety.clearance_s), program_times(safety.network), strict=True
    ):
        pairs = [
            (controlled, own)
            for controlled, own, is_crossing in zip(controlled_s, own_s, safety.is_crossing, strict=True)
            if not is_crossing
        ]
        controlled, own = max(pairs, key=lambda pair: abs(pair[0] - pair[1]), default=(0.0, 0.0))
        if abs(controlled - own) > MIN_DIFFERENCE_S:
            parts.append(f"{colour} {controlled:.3g} s, not {own:.3g} s")
    return ", ".join(parts)


def with_street_changes(contract: pb.PolicyContract, change: ChangeTimes | None) -> pb.PolicyContract:
    """The contract with its min green scaled to the street's change times, at most max green."""
    if change is None or change.min_green_factor == 1.0:
        return contract
    adapted = pb.PolicyContract()
    adapted.CopyFrom(contract)
    adapted.timing.min_green_s = min(contract.timing.min_green_s * change.min_green_factor, change.max_green_s)
    return adapted


def describe_longer(changes: Iterable[ChangeTimes | None], slow_only: bool = False) -> list[str]:
    """Lines about the TLs whose changes take longer than in training, the cause and the remedy; empty if there are
    none.

    `slow_only`: only TLs whose changes take much longer.
    """
    longer = sorted((c for c in changes if c is not None and c.is_longer), key=lambda c: c.training_s - c.total_s)
    slow = [change for change in longer if change.is_slow]
    others = [change for change in longer if not change.is_slow and not slow_only]
    lines = [*_describe(slow, "much longer"), *_describe(others, "longer")]
    return [*lines, CAUSE_AND_REMEDY] if lines else []


def times_without_model(city: City, street: StreetNetwork, tls: Iterable[str]) -> list[ChangeTimes | None]:
    """The change times of TLs without a model, compared with the times of city.toml. Invalid TLs are left out."""
    times = []
    for tl in tls:
        # every program that uses the TL reports why it is invalid
        with contextlib.suppress(InputError):
            contract = contracts.build(city, city.tls[tl], street)
            times.append(change_times(contract, signal_safeties(contract, street, city.safety)))
    return times


def times_to_train_with(changes: Iterable[ChangeTimes | None]) -> list[str]:
    """Lines with the times to train with, as a table that can be appended to city.toml; empty if no TL needs them."""
    longer = [change for change in changes if change is not None and change.is_longer and not change.recorded_s]
    if not longer:
        return []
    yellow_time_s = max(change.street_yellow_s + change.street_all_red_s for change in longer)
    return [
        "To train outside greenserve, append the street's times to city.toml (greenserve train has them in any "
        f"case). sumo-rl has no all-red: train there with yellow_time={yellow_time_s} and a larger delta_time.",
        "[training.times]",
        *(
            f"{toml_key(each.tl)} = {{ yellow_s = {each.street_yellow_s}, all_red_s = {each.street_all_red_s} }}"
            for each in longer
        ),
    ]


def _describe(changes: Sequence[ChangeTimes], how: str) -> list[str]:
    if not changes:
        return []
    worst = changes[0]
    first = f"{worst.tl} ({worst.total_s:.3g} s, not {worst.training_s:.3g} s)"
    tls = names.listed([first, *(change.tl for change in changes[1:])], MAX_NAMED_TLS)
    lines = [f"changing greens takes {how} than in training: {tls}"]
    if worst.min_green_factor > 1:
        lines.append(
            f"{worst.tl}: greens last at least {worst.min_green_factor:.2g} times the min green of its training"
        )
    return lines
