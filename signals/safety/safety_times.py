"""Minimum and maximum durations of a signal's colours."""

import math
from dataclasses import dataclass

from city.config import Safety
from protos import policy_pb2 as pb

VEHICLE_LENGTH_M, START_UP_S = 6.1, 1.0
"""By the ITE guidelines: 20 ft, and the time in which the drivers of a foe react to their green."""


@dataclass(frozen=True)
class SafetyTimes:
    """Times in s that hold for a signal: the stricter of its contract's and those of [safety] in city.toml."""

    yellow_s: float
    min_green_s: float
    all_red_s: float = 0.0
    max_green_s: float = math.inf
    max_red_s: float = math.inf
    walking_speed_mps: float = 1.2
    yellow_by_speed: bool = True
    """True if a yellow is also at least that of the approach speed (`yellow_s_at`)."""
    red_by_path: bool = False
    """True if a red is also at least as long as the last vehicle needs to clear the junction (`red_clearance_s`)."""


def times_for(contract: pb.PolicyContract, limits: Safety, runs_plan: bool) -> SafetyTimes:
    """The stricter of the contract's times and city.toml's [safety]; the contract's alone with floors = "dialect".

    `runs_plan`: the policy modifies its program's plan. The plan's links may be green
    over several phases, and its durations have bounds of their own, so the contract's
    min and max green do not apply to links.
    """
    timing = contract.timing
    if limits.floors == "dialect":
        return SafetyTimes(
            yellow_s=timing.yellow_s,
            min_green_s=0.0 if runs_plan else timing.min_green_s,
            all_red_s=timing.all_red_s,
            max_green_s=math.inf if runs_plan else timing.max_green_s or math.inf,
            walking_speed_mps=math.inf,
            yellow_by_speed=False,
        )
    max_greens = [bound for bound in (0 if runs_plan else timing.max_green_s, limits.max_green_s) if bound]
    return SafetyTimes(
        yellow_s=max(timing.yellow_s, limits.min_yellow_s),
        min_green_s=max(0.0 if runs_plan else timing.min_green_s, limits.min_green_s),
        all_red_s=max(timing.all_red_s, limits.all_red_s or 0.0),
        max_green_s=min(max_greens, default=math.inf),
        max_red_s=limits.max_red_s or math.inf,
        walking_speed_mps=limits.walking_speed_mps,
        red_by_path=limits.all_red_s is None,
    )


def red_clearance_s(path_m: float, mps: float) -> float:
    """Red in s before a foe turns green, in which the last vehicle clears the junction: (W + L) / V - t.

    W is the path over the junction, L the length of a vehicle, V the speed limit of the
    approach and t the time in which the drivers of a foe react and start. Source:
    Institute of Transportation Engineers, Guidelines for Determining Traffic Signal
    Change and Clearance Intervals, RP-040B (2020).
    """
    if not (path_m > 0 and mps > 0):
        return 0.0
    return max(0.0, (path_m + VEHICLE_LENGTH_M) / mps - START_UP_S)


def yellow_s_at(approach_mps: float) -> float:
    """Yellow in s by approach speed: 3, 4, 5 s up to 50, 60, 70 km/h (RiLSA), 6 s above."""
    kmh = 3.6 * approach_mps
    # networks write 13.89 m/s for 50 km/h
    return next((yellow_s for bound, yellow_s in ((50, 3.0), (60, 4.0), (70, 5.0)) if kmh <= bound + 0.5), 6.0)
