"""Verdicts on a new model from figures: better, worse, or not enough evidence. Pure.

In shadow and canary, `better` means: no figure is worse than its limit, and there is at least the stated evidence. A
figure is worse only beside that of the old model, so a bad old model does not block its successor. Too few vehicles, a
night, a record that ends or a server that was down for everybody are no evidence, for or against.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from city.ledger import BETTER, SHADOW, UNDECIDED, WORSE
from controller.alarms import MAX_OVERRIDDEN_SHARE
from evaluation.statistics import CONFIDENCE, Interval, holm, interval, p_value, paired
from records.shadow import TlShadow, percentiles_ms

FAMILY_LEVEL = (1 - CONFIDENCE) / 2
"""One-sided level of all TLs of an evaluation together; for one TL it is a 95 % interval above 0."""


@dataclass(frozen=True)
class Limits:
    """The thresholds of shadow and canary."""

    min_decisions: int = 100
    """Of each TL."""
    min_vehicles: float = 50.0
    """Of each TL, in canary."""
    min_bins: int = 4
    """Times of day of BIN_S that canary and earlier record must have in common."""
    max_missing_share: float = 0.02
    """Decisions without a valid answer, more than with the old model."""
    max_override_share: float = 0.1
    """Overridden decisions, more than with the old model, if they are also more than MAX_OVERRIDDEN_SHARE: a model that
    changes its green more often than a bad one has more yellows that the safety rules lengthen."""
    min_events: int = 3
    """Missing answers or overrides below this number are no evidence."""
    max_latency_share: float = 0.5
    """95th percentile of the answers' time in shadow, as a share of the deadline."""
    max_latency_ratio: float = 2.0
    """The same as a multiple of the recorded one of the old models: a slow machine is slow for all."""
    tolerance: float = 0.1
    """Queue and stopped delay may be larger by this share."""
    min_stopped_s: float = 1.0
    """A smaller difference in stopped delay per vehicle never counts, s."""
    min_queue: float = 0.5
    """A smaller difference in the queue never counts, vehicles."""

    def text(self, stage: str) -> str:
        """The thresholds of a stage in one sentence."""
        shares = (
            f"at least {self.min_decisions} decisions; worse: {self.max_missing_share:.0%} more missing answers or "
            f"{self.max_override_share:.0%} more overridden decisions than with the old model, the latter above "
            f"{MAX_OVERRIDDEN_SHARE:.0%}"
        )
        if stage == SHADOW:
            return (
                f"{shares}, or a 95th percentile of latency above {self.max_latency_share:.0%} of the deadline and "
                f"{self.max_latency_ratio:g} x the recorded one"
            )
        return (
            f"{shares}, an alarm of the TL, or {self.tolerance:.0%} more queue or stopped delay per vehicle in "
            f"{self.min_bins} or more comparable times of day with at least {self.min_vehicles:g} vehicles"
        )


class Verdict(NamedTuple):
    """A verdict and its reason in one sentence."""

    value: str
    """BETTER, WORSE or UNDECIDED."""
    sentence: str


@dataclass
class Figures:
    """Sums over decisions of a TL."""

    seconds: float = 0.0
    """Simulated time."""
    decisions: int = 0
    missing: int = 0
    """Decisions without a valid answer."""
    overridden: int = 0
    vehicles: float = 0.0
    """Vehicles that passed, estimated: moving vehicle seconds / free travel time of the lane."""
    halting_s: float = 0.0
    """Vehicle seconds of halting vehicles."""

    def add(self, other: "Figures") -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    @property
    def queue(self) -> float:
        """Mean number of halting vehicles."""
        return self.halting_s / self.seconds if self.seconds else 0.0

    @property
    def stopped_s(self) -> float:
        """Stopped delay per vehicle, s."""
        return self.halting_s / max(self.vehicles, 1.0)


BIN_S = 300.0
"""Length of the times of day that are compared."""
MIN_BIN_SHARE = 0.8
"""Share of its time that a compared bin must cover."""
DEMAND_SHARE = 0.3
"""A time of day with more vehicles by this share while more wait is not comparable, nor with fewer while fewer wait."""
BinFigures = Mapping[int, Figures]
"""Number of a time of day -> the figures in it."""


def total(bins: BinFigures) -> Figures:
    """The figures of all bins together."""
    result = Figures()
    for each in bins.values():
        result.add(each)
    return result


def of_evaluation(
    new_s: Sequence[float], old_s: Sequence[float], by_tl: Mapping[str, tuple[Sequence[float], Sequence[float]]]
) -> Verdict:
    """The verdict on paired simulations.

    Args:
        new_s, old_s: mean delay of each simulation.
        by_tl: (new, old) delays on the way to each judged TL; corrected for their number (Holm).
    """
    difference = paired(new_s, old_s)
    p_values = [p_value(old, new) for new, old in by_tl.values()]
    worse = [tl for tl, is_worse in zip(by_tl, holm(p_values, FAMILY_LEVEL), strict=True) if is_worse]
    text = f"mean delay {difference.mean:+.2f} s (95 % interval {difference.low:+.2f} to {difference.high:+.2f})"
    if difference.low > 0:
        return Verdict(WORSE, f"{text} in {len(new_s)} paired simulations")
    if worse:
        return Verdict(WORSE, f"{text}, but vehicles lose more time before {', '.join(worse)}")
    if difference.high < 0:
        return Verdict(BETTER, f"{text} in {len(new_s)} paired simulations")
    return Verdict(UNDECIDED, f"{text}: the interval contains 0; pass more --seeds")


def of_shadow(shadow: TlShadow, recorded_p95_ms: float, deadline_ms: float, limits: Limits) -> Verdict:
    """The verdict on a TL's would-be decisions. Disagreement with the old model is reported and no reason.

    `recorded_p95_ms`: of the running controller's requests in the same steps.
    """
    count, p95_ms = shadow.decisions, percentiles_ms(shadow.latency_s)["p95"] or 0.0
    text = (
        f"{shadow.asked} requests, {shadow.otherwise / max(count, 1):.0%} of {count} decisions otherwise, "
        f"{shadow.overrides} would-be overrides ({shadow.recorded_overrides} recorded), p95 {p95_ms:.1f} ms "
        f"({recorded_p95_ms:.1f} recorded)"
    )
    if _is_more(shadow.missing, shadow.asked, 0, 0, limits.max_missing_share, limits):
        return Verdict(WORSE, f"{shadow.missing} of {shadow.asked} answers missing, such as {shadow.first_failure}")
    if shadow.asked < limits.min_decisions:
        return Verdict(UNDECIDED, f"{text}; {limits.min_decisions} requests are needed")
    is_more = _is_more(shadow.overrides, count, shadow.recorded_overrides, count, limits.max_override_share, limits)
    if is_more and shadow.overrides > MAX_OVERRIDDEN_SHARE * count:
        return Verdict(WORSE, f"{text}: too many overrides")
    if p95_ms > limits.max_latency_share * deadline_ms:
        if p95_ms > limits.max_latency_ratio * recorded_p95_ms:
            return Verdict(WORSE, f"{text}: too slow for a deadline of {deadline_ms:g} ms")
        return Verdict(UNDECIDED, f"{text}: all models are slow")
    return Verdict(BETTER, text)


def of_canary(canary: BinFigures, before: BinFigures, alarms: Sequence[str], limits: Limits) -> Verdict:
    """The verdict on a TL in canary.

    Args:
        canary, before: its figures with the new model, and those of its earlier record, by time of day.
        alarms: its alarms that began in canary.
        limits: the thresholds.
    """
    now, old = total(canary), total(before)
    if alarms:
        return Verdict(WORSE, f"alarm {', '.join(alarms)}")
    for name, count, old_count, limit, floor in (
        ("missing answers", now.missing, old.missing, limits.max_missing_share, 0.0),
        ("overridden decisions", now.overridden, old.overridden, limits.max_override_share, MAX_OVERRIDDEN_SHARE),
    ):
        if count > floor * now.decisions and _is_more(count, now.decisions, old_count, old.decisions, limit, limits):
            was = f"{old_count} of {old.decisions} before"
            return Verdict(WORSE, f"{count} of {now.decisions} decisions are {name}, {was}")
    common = [
        (canary[k], before[k]) for k in sorted(canary.keys() & before.keys()) if _are_comparable(canary[k], before[k])
    ]
    vehicles = sum(new.vehicles for new, _ in common)
    evidence = f"{now.decisions} decisions, {len(common)} comparable times of day with {vehicles:.0f} vehicles"
    if now.decisions < limits.min_decisions or len(common) < limits.min_bins or vehicles < limits.min_vehicles:
        needed = f"{limits.min_decisions}, {limits.min_bins} and {limits.min_vehicles:g}"
        return Verdict(UNDECIDED, f"{evidence}; {needed} are needed")
    compared = _compared(common, limits)
    text = "; ".join(_described(*each[:3]) for each in compared)
    if worse := [_NAMES[name][0] for name, found, _, allowed in compared if found.low > 0 and found.mean > allowed]:
        return Verdict(WORSE, f"{' and '.join(worse)} worse: {text}; {evidence}")
    if all(found.high < allowed for _, found, _, allowed in compared):
        return Verdict(BETTER, f"{text}; {evidence}")
    return Verdict(UNDECIDED, f"{text}: the intervals are too wide; {evidence}")


def _compared(common: Sequence[tuple[Figures, Figures]], limits: Limits) -> list[tuple[str, Interval, float, float]]:
    """(figure, its difference, its mean before, the largest difference that is allowed) over (now, before)."""
    compared = []
    for name, floor in (("stopped_s", limits.min_stopped_s), ("queue", limits.min_queue)):
        differences = [getattr(new, name) - getattr(was, name) for new, was in common]
        base = sum(getattr(was, name) for _, was in common) / len(common)
        compared.append((name, interval(differences), base, max(floor, limits.tolerance * base)))
    return compared


_NAMES = {"stopped_s": ("stopped delay", "s per vehicle"), "queue": ("queue", "vehicles")}


def _described(name: str, found: Interval, base: float) -> str:
    noun, unit = _NAMES[name]
    return f"{noun} {found.mean:+.1f} {unit} ({found.low:+.1f} to {found.high:+.1f}), {base:.1f} before"


def _is_more(count: int, of: int, old_count: int, old_of: int, limit: float, limits: Limits) -> bool:
    """True if a share is larger than the old one by more than a limit, and no single event."""
    return count >= limits.min_events and count / max(of, 1) > old_count / max(old_of, 1) + limit


def _are_comparable(new: Figures, old: Figures) -> bool:
    if min(new.seconds, old.seconds) < MIN_BIN_SHARE * BIN_S:
        return False
    per_bin, was_per_bin = new.vehicles / new.seconds, old.vehicles / old.seconds
    # more that pass while fewer wait is what a better policy does, and the contrary what a worse one does
    is_busier = per_bin > (1 + DEMAND_SHARE) * was_per_bin and new.queue > old.queue
    is_quieter = per_bin < (1 - DEMAND_SHARE) * was_per_bin and new.queue <= old.queue
    return not (is_busier or is_quieter)
