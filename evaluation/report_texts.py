"""Texts and tables of a report: what changes, where, and what the simulation leaves out."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from evaluation.arms import Arm
from evaluation.lane_groups import LaneGroupTraffic
from evaluation.movement_service import MovementService
from evaluation.simulation import Outcome, delays_s
from evaluation.statistics import BySignal, paired

MAX_WORST = 5
"""Lane groups with the worst level of service that the first sheet lists."""
MAX_CHANGES = 10
"""Lines of the table of changes."""
MIN_SKIPPED, MIN_RED_S = 0.005, 1.0
"""Smaller changes, of the share of skipped cycles and of the longest red, are not listed."""
BETTER, WORSE, UNDECIDED = "better", "worse", "undecided"


class Verdict(NamedTuple):
    """A sentence about the candidate and another arm."""

    judgement: str
    """better, worse or undecided, by the 95 % interval."""
    text: str


def verdict(candidate: str, other: str | None, results: Mapping[str, Sequence[Outcome]], is_varied: bool) -> Verdict:
    """A sentence on the candidate's mean delay against another arm's. `is_varied`: the demand is varied."""
    delays = delays_s(results[candidate])
    mean_s, control = float(np.mean(delays)), f"In simulation, {candidate} control"
    if other is None:
        return Verdict(UNDECIDED, f"{control}, compared with no other, has a mean delay of {mean_s:.1f} s a trip.")
    others = delays_s(results[other])
    d, base_s = paired(delays, others), float(np.mean(others))
    share = f"{abs(d.mean) / base_s:.0%}".replace("%", " %") if base_s > 0 else ""
    means = f"from {base_s:.1f} to {mean_s:.1f} s a trip"
    same = "vehicles and drivers, and in each the same" if is_varied else "drivers, and in each the same vehicles"
    simulations = f"{len(delays)} simulations, each with other {same} for both"
    if d.high < 0:
        percent = f", {-100 * d.high / base_s:.0f} to {-100 * d.low / base_s:.0f} %"
        interval = f"95 % interval of the reduction {-d.high:.1f} to {-d.low:.1f} s{percent}; {simulations}"
        return Verdict(BETTER, f"{control} cuts the mean delay of {other} control by {share}, {means} ({interval}).")
    if d.low > 0:
        percent = f", {100 * d.low / base_s:.0f} to {100 * d.high / base_s:.0f} %" if share else ""
        interval = f"95 % interval of the increase {d.low:.1f} to {d.high:.1f} s{percent}; {simulations}"
        added = f"{d.mean:.1f} s" + (f" ({share})" if share else "")
        return Verdict(WORSE, f"{control} adds {added} to the mean delay of {other} control, {means} ({interval}).")
    text = f"{control} does not change the mean delay of {other} control clearly: it is {mean_s:.1f} instead of "
    text += f"{base_s:.1f} s a trip "
    if not math.isfinite(d.low):
        return Verdict(UNDECIDED, f"{text}in one simulation, which has no interval; simulate more seeds.")
    return Verdict(
        UNDECIDED, f"{text}(95 % interval of the difference {d.low:+.1f} to {d.high:+.1f} s; {simulations})."
    )


class ComparedGroup(NamedTuple):
    """A lane group under the candidate, and before."""

    name: str
    before: LaneGroupTraffic | None
    """None without an arm to compare with."""
    after: LaneGroupTraffic


def worst_groups(after: BySignal[LaneGroupTraffic], before: BySignal[LaneGroupTraffic]) -> list[ComparedGroup]:
    """The lane groups with the worst level of service after the change, then the most delay per vehicle, worst first.

    `before`: {} without an arm to compare with.
    """
    groups = [group for group in _groups(after, before) if group.after.level]
    return sorted(groups, key=lambda group: (group.after.level, _delay_s(group.after)), reverse=True)[:MAX_WORST]


def worsened(after: BySignal[LaneGroupTraffic], before: BySignal[LaneGroupTraffic]) -> str:
    """A sentence on the lane groups whose delay rose, as far as the first sheet shows it, and on the largest rise."""
    known = [(each, each.before) for each in _groups(after, before) if each.before and each.before.level]
    compared = [(each, old) for each, old in known if each.after.level]
    worse = [(each, old) for each, old in compared if round(_delay_s(each.after), 1) > round(_delay_s(old), 1)]
    if not worse:
        return "No movement got worse."
    worst, old = max(worse, key=lambda pair: _delay_s(pair[0].after) - _delay_s(pair[1]))
    rise = f"{worst.name}, from {delay_text(old)} to {delay_text(worst.after)}"
    return f"Worse than before: {len(worse)} of {len(compared)} movements; the largest rise is that of {rise}."


def _groups(after: BySignal[LaneGroupTraffic], before: BySignal[LaneGroupTraffic]) -> list[ComparedGroup]:
    return [
        ComparedGroup(f"{signal} {name}", before.get(signal, {}).get(name), traffic)
        for signal, by_name in after.items()
        for name, traffic in by_name.items()
    ]


def _delay_s(traffic: LaneGroupTraffic) -> float:
    """Delay per vehicle; infinite if none of the vehicles passed."""
    return math.inf if traffic.delay_s is None else traffic.delay_s


def less_served(after: BySignal[MovementService], before: BySignal[MovementService]) -> list[tuple[str, str]]:
    """(movements of a signal, how their greens changed), the largest changes first.

    These are skipped more often, or have a longer red, than before: `B1 northbound left (protected)`, `5 greens an hour
    instead of 157; longest red 312 s instead of 90 s; skipped in 80 % of the plan's cycles instead of 0 %`.
    """
    found: dict[tuple[float, float, str, str], list[str]] = {}
    for signal, by_name in after.items():
        for name, own in by_name.items():
            old = before[signal][name]
            skipped = (own.skipped_share or 0.0) - (old.skipped_share or 0.0)
            red_s = own.longest_red_s - old.longest_red_s
            if skipped > MIN_SKIPPED or (red_s > MIN_RED_S and skipped >= -MIN_SKIPPED):
                found.setdefault((skipped, red_s, signal, _described(own, old)), []).append(name)
    largest = sorted(found, key=lambda key: key[:2], reverse=True)[:MAX_CHANGES]
    return [(f"{key[2]} {', '.join(found[key])}", key[3]) for key in largest]


def _described(own: MovementService, old: MovementService) -> str:
    parts = [
        f"{own.greens_per_h:.0f} greens an hour instead of {old.greens_per_h:.0f}",
        f"longest red {own.longest_red_s:.0f} s instead of {old.longest_red_s:.0f} s",
    ]
    skipped, skipped_before = _percent(own.skipped_share), _percent(old.skipped_share)
    if skipped != skipped_before:
        parts.append(f"skipped in {skipped} of the plan's cycles instead of {skipped_before}")
    return "; ".join(parts)


def service_rows(services: Sequence[Mapping[str, MovementService]]) -> list[list[str]]:
    """A row for each movement of a signal: name, greens an hour, share of green, longest red, skipped cycles.

    `services`: by arm, before and after.
    """
    return [
        [
            name,
            _arrow(f"{each[name].greens_per_h:.0f}" for each in services),
            _arrow(_percent(each[name].green_share) for each in services),
            _arrow(f"{each[name].longest_red_s:.0f} s" for each in services),
            _arrow(_percent(each[name].skipped_share) for each in services),
        ]
        for name in services[0]
    ]


def lane_group_rows(traffic: Sequence[Mapping[str, LaneGroupTraffic]]) -> list[list[str]]:
    """A row for each lane group of a signal: name, volume, v/c, delay with level of service, queue.

    `traffic`: by arm, before and after.
    """
    return [
        [
            name,
            _arrow(f"{each[name].volume_veh_h:.0f}" for each in traffic),
            _arrow(_saturation_text(each[name]) for each in traffic),
            _arrow(delay_text(each[name]) for each in traffic),
            _arrow(f"{each[name].queue_m:.0f} m" for each in traffic) + f" of {traffic[0][name].storage_m:.0f} m",
        ]
        for name in traffic[0]
    ]


def _saturation_text(traffic: LaneGroupTraffic) -> str:
    """Degree of saturation; the true one of a permissive movement is higher."""
    if not math.isfinite(traffic.saturation):
        return "no green"
    return ("at least " if traffic.is_permissive else "") + f"{traffic.saturation:.2f}"


def delay_text(traffic: LaneGroupTraffic) -> str:
    """Delay per vehicle and level of service."""
    if not traffic.level:
        return "no vehicle"
    return f"{traffic.delay_s:.1f} s {traffic.level}" if traffic.delay_s is not None else f"none passed {traffic.level}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100.0 * share:.0f} %"


def _arrow(texts: Iterable[str]) -> str:
    """Before and after in one cell."""
    return " → ".join(dict.fromkeys(texts))


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
