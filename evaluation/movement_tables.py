"""Tables of the report by movement and lane group, before and after."""

import math
from collections.abc import Iterable, Mapping, Sequence

from evaluation.lane_groups import LaneGroupTraffic
from evaluation.movement_service import MovementService
from evaluation.statistics import BySignal

MAX_CHANGES = 10
"""Lines of the table of changes."""
MIN_SKIPPED, MIN_RED_S = 0.005, 1.0
"""Smaller changes, of the share of skipped cycles and of the longest red, are not listed."""


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
