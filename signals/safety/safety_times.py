"""Minimum and maximum durations of a signal's colours."""

import itertools
import math
from dataclasses import dataclass

from city.config import COMPUTED, Safety
from city.network import SignalNetwork, is_green
from protos import policy_pb2 as pb
from signals.safety.conflicts import GREEN

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
    by_program: bool = False
    """True if yellow and red are also at least those of the signal's own program (`program_times`)."""


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
        all_red_s=max(timing.all_red_s, limits.all_red_s if isinstance(limits.all_red_s, int | float) else 0.0),
        max_green_s=min(max_greens, default=math.inf),
        max_red_s=limits.max_red_s or math.inf,
        walking_speed_mps=limits.walking_speed_mps,
        red_by_path=limits.all_red_s == COMPUTED,
        by_program=limits.all_red_s is None,
    )


def program_times(network: SignalNetwork) -> tuple[list[float], list[float]]:
    """(yellow, red before a foe's green) of the program that a signal runs, by link, s.

    The longest of those that the program shows a link between a green phase and the next one; the red is known if that
    serves a foe. A link of which nothing is known has the longest of the signal.
    """
    links = range(len(network.links))
    phases = [(phase.state.ljust(len(links), "r"), phase.duration_s) for phase in network.plan.phases]
    yellow_s: dict[int, float] = {}
    red_s: dict[int, float] = {}
    # red-amber alone is no green
    is_shown = {state: is_green(state) and any(c in GREEN for c in state) for state, _ in phases}
    for k, (green, _) in enumerate(phases):
        between = list(itertools.takewhile(lambda phase: not is_shown[phase[0]], phases[k + 1 :] + phases[:k]))
        following = phases[(k + 1 + len(between)) % len(phases)][0]
        for i in links if is_shown[green] else ():
            if green[i] not in GREEN or following[i] in GREEN:
                continue
            states = [(state[i], duration_s) for state, duration_s in between]
            yellow_s[i] = max(yellow_s.get(i, 0.0), sum(duration_s for c, duration_s in states if c in "yY"))
            new = [j for j in links if following[j] in GREEN and green[j] not in GREEN]
            if any(network.foes[i, j] for j in new):
                red_s[i] = max(red_s.get(i, 0.0), sum(duration_s for c, duration_s in states if c not in "yYGg"))
    known = [(times_s, max(times_s.values(), default=0.0)) for times_s in (yellow_s, red_s)]
    own_yellow_s, own_red_s = ([times_s.get(i, longest_s) for i in links] for times_s, longest_s in known)
    return own_yellow_s, own_red_s


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
