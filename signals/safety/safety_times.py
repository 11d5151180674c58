"""Minimum and maximum durations of a signal's colours."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from city.config import COMPUTED, Safety
from city.network import Program, SignalNetwork, is_green
from protos import policy_pb2 as pb
from signals.movement_names import is_protected, links_by_key
from signals.safety.conflicts import GREEN

MAX_PROGRAM_RED_S = 10.0
"""A longer all-red of a program is no clearance: it is a pause, or an outlier of a log."""
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
    """The bound of every link."""
    walking_speed_mps: float = 1.2
    yellow_by_speed: bool = True
    """True if a yellow is also at least that of the approach speed (`yellow_s_at`)."""
    red_by_path: bool = False
    """True if a red is also at least as long as the last vehicle needs to clear the junction (`red_clearance_s`)."""
    by_program: bool = False
    """True if yellow and red are also at least those of the signal's own program (`program_times`)."""
    movement_max_red_s: Sequence[float] = ()
    """By link, the bound of its movement; empty: no movement has one of its own."""
    max_unprotected_s: Sequence[float] = ()
    """By link, the bound of its movement on the time without a protected green; empty: no movement has one."""

    def max_reds_s(self, links: int) -> list[float]:
        """Max red by link of a signal with so many links, s: the smaller one of both bounds."""
        return [min(self.max_red_s, own_s) for own_s in self.movement_max_red_s or [math.inf] * links]


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


def movement_max_reds_s(network: SignalNetwork, limits: Safety) -> tuple[list[float], list[float]]:
    """By link of a signal, the longest red of its movement by city.toml, and its longest time without a protected
    green, s; each empty if no movement has one."""
    stated = limits.max_red_s_of_signal.get(network.id, {}) if limits.floors != "dialect" else {}
    reds_s, unprotected_s = ([math.inf] * len(network.links) for _ in range(2))
    for key, links in links_by_key(network).items() if stated else ():
        bounds_s = unprotected_s if is_protected(key) else reds_s
        for link in links:
            bounds_s[link] = min(bounds_s[link], stated.get(key, math.inf))
    own_s, protected_s = (each if min(each, default=math.inf) < math.inf else [] for each in (reds_s, unprotected_s))
    return own_s, protected_s


def describe_max_reds(stated: Mapping[str, float]) -> str:
    """The longest reds that city.toml states of movements, such as `left 90 s, protected left 120 s`."""
    return ", ".join(f"{key} {bound_s:g} s" for key, bound_s in stated.items())


def program_times(network: SignalNetwork, by_program: bool = True) -> tuple[list[float], list[float]]:
    """(yellow, red before a foe's green) of the programs that a signal runs, by link, s; 0 for pedestrian crossings.

    The longest of those that a program shows a link between a green phase and the next one; the red is known if that
    serves a foe, and counts up to MAX_PROGRAM_RED_S. A link of which nothing is known has the longest of the signal.
    All are 0 without `by_program`.
    """
    crossings = zip(network.crossing_m, network.approach_mps, strict=True)
    links = [i for i, (length_m, mps) in enumerate(crossings) if not (length_m > 0 and mps == 0)]
    yellow_s: dict[int, float] = {}
    red_s: dict[int, float] = {}
    ids = {network.active_program, *(switch.program for switch in network.switches)} if by_program else set()
    for program in (program for program in network.programs if program.id in ids):
        for i, change in _changes(network, program, links):
            yellow_s[i] = max(yellow_s.get(i, 0.0), change.yellow_s)
            if change.serves_foe:
                red_s[i] = max(red_s.get(i, 0.0), min(change.red_s, MAX_PROGRAM_RED_S))
    own = []
    for times_s in (yellow_s, red_s):
        own.append([0.0] * len(network.links))
        for i in links:
            own[-1][i] = times_s.get(i, max(times_s.values(), default=0.0))
    return own[0], own[1]


class _Change(NamedTuple):
    """A link's way from a green phase to the next one, in which it is red."""

    yellow_s: float
    red_s: float
    serves_foe: bool
    """True if a foe of the link gets its green then."""


def _changes(network: SignalNetwork, program: Program, links: Sequence[int]) -> Iterator[tuple[int, _Change]]:
    """(link, change) of each end of a link's green in a program."""
    count = len(network.links)
    phases = [(phase.state.ljust(count, "r"), phase.duration_s) for phase in program.phases]
    # red-amber alone is no green
    is_shown = {state: is_green(state) and any(c in GREEN for c in state) for state, _ in phases}
    for k, (green, _) in enumerate(phases):
        between = list(itertools.takewhile(lambda phase: not is_shown[phase[0]], phases[k + 1 :] + phases[:k]))
        following = phases[(k + 1 + len(between)) % len(phases)][0]
        new = [j for j in range(count) if following[j] in GREEN and green[j] not in GREEN]
        for i in links if is_shown[green] else ():
            if green[i] not in GREEN or following[i] in GREEN:
                continue
            states = [(state[i], duration_s) for state, duration_s in between]
            yellow_s = sum(duration_s for c, duration_s in states if c in "yY")
            red_s = sum(duration_s for c, duration_s in states if c not in "yYGg")
            yield i, _Change(yellow_s, red_s, any(network.foes[i, j] for j in new))


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
