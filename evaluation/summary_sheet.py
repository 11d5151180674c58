"""The first sheet of a report, for readers who decide: what changes, where, and what the simulation leaves out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluation.arms import Arm
from evaluation.lane_groups import LaneGroupTraffic
from evaluation.simulation import Outcome, delays_s
from evaluation.statistics import BySignal, paired

MAX_WORST = 5
"""Lane groups with the worst level of service that the sheet lists."""
BETTER, WORSE, UNDECIDED = "better", "worse", "undecided"


@dataclass(frozen=True)
class Verdict:
    """A sentence about the candidate and another arm."""

    judgement: str
    """better, worse or undecided, by the 95 % interval."""
    text: str


def verdict(candidate: str, other: str | None, results: Mapping[str, Sequence[Outcome]], is_varied: bool) -> Verdict:
    """A sentence on the candidate's mean delay against another arm's. `is_varied`: the demand is varied."""
    delays = delays_s(results[candidate])
    mean_s, control = float(np.mean(delays)), f"{candidate[0].upper()}{candidate[1:]} control"
    if other is None:
        return Verdict(UNDECIDED, f"{control} was simulated alone: its mean delay is {mean_s:.1f} s a trip.")
    others = delays_s(results[other])
    d, base_s = paired(delays, others), float(np.mean(others))
    share = f"{abs(d.mean) / base_s:.0%}".replace("%", " %") if base_s > 0 else ""
    means = f"from {base_s:.1f} to {mean_s:.1f} s a trip"
    simulations = f"{len(delays)} simulations with other {'vehicles and ' if is_varied else ''}drivers"
    if d.high < 0:
        interval = f"95 % interval of the reduction {-d.high:.1f} to {-d.low:.1f} s; {simulations}"
        return Verdict(BETTER, f"{control} cuts the mean delay of {other} control by {share}, {means} ({interval}).")
    if d.low > 0:
        interval = f"95 % interval of the increase {d.low:.1f} to {d.high:.1f} s; {simulations}"
        added = f"{d.mean:.1f} s" + (f" ({share})" if share else "")
        return Verdict(WORSE, f"{control} adds {added} to the mean delay of {other} control, {means} ({interval}).")
    text = f"{control} does not change the mean delay of {other} control clearly: it is {mean_s:.1f} instead of "
    text += f"{base_s:.1f} s a trip "
    if not math.isfinite(d.low):
        return Verdict(UNDECIDED, f"{text}in one simulation, which has no interval; simulate more seeds.")
    return Verdict(
        UNDECIDED, f"{text}(95 % interval of the difference {d.low:+.1f} to {d.high:+.1f} s; {simulations})."
    )


@dataclass(frozen=True)
class WorstGroup:
    """A lane group with a bad level of service under the candidate."""

    name: str
    before: LaneGroupTraffic | None
    """None without an arm to compare with."""
    after: LaneGroupTraffic


def worst_groups(after: BySignal[LaneGroupTraffic], before: BySignal[LaneGroupTraffic]) -> list[WorstGroup]:
    """The lane groups with the worst level of service after the change, those with most time lost first.

    `before`: {} without an arm to compare with.
    """
    groups = [
        WorstGroup(f"{signal} {name}", before.get(signal, {}).get(name), traffic)
        for signal, by_name in after.items()
        for name, traffic in by_name.items()
        if traffic.level
    ]
    return sorted(groups, key=_badness, reverse=True)[:MAX_WORST]


def _badness(group: WorstGroup) -> tuple[str, float]:
    return group.after.level, (group.after.delay_s or 0.0) * group.after.volume_veh_h


def left_out(arms: Sequence[Arm], count: int, conditions: Mapping[str, Any]) -> list[str]:
    """Lines on the limits of the simulations. `count`: simulations of each arm."""
    if conditions.get("varied_demand"):
        demand = f"Demand: {count} samples of one given demand"
    else:
        alone = f"; the {count} simulations differ in their drivers alone" if count > 1 else ""
        demand = f"Demand: one given demand{alone}"
    faults = ", except in the arms with faults" if any(arm.has_faults for arm in arms) else ""
    return [
        f"{demand}. Other seasons, and trips that another control would attract or deter, are left out.",
        "Drivers and people who walk: as SUMO models them. No incidents, breakdowns, road works or weather.",
        f"Detectors, communication and signals: without a fault{faults}.",
    ]
