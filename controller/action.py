"""What a policy's numbers mean: actions of the sappo dialect turned into plans.

Numbers are in [-1, 1], one per signal (`gro`: two). The formulas are the seed
system's; tests compare them with vectors that it computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from city.errors import InputError
from city.network import Phase, is_green

Change = tuple[int, ...]

MOST_VARIABLE = 10
"""Variable phases of a plan: how many changes there are to look through grows threefold with each."""


@dataclass(frozen=True)
class Plan:
    """A fixed-time plan as the sappo dialect shifts it."""

    phases: tuple[Phase, ...]
    offset_s: int
    variable: tuple[int, ...]
    """Phases whose duration may change."""
    bounds_s: tuple[tuple[float, float], ...]
    """(min, max) duration of each variable phase."""

    @property
    def cycle_s(self) -> int:
        return sum(int(phase.duration_s) for phase in self.phases)


def plan_of(phases: Sequence[Phase], offset_s: int, min_green_s: float, max_green_s: float) -> Plan:
    """The plan of a program: variable are the phases whose minDur and maxDur
    differ; where there are none, the greens, within min_green_s and max_green_s.
    """
    variable = tuple(i for i, phase in enumerate(phases) if phase.min_s != phase.max_s)
    bounds = tuple((phases[i].min_s, phases[i].max_s) for i in variable)
    if not variable:
        variable = tuple(i for i, phase in enumerate(phases) if is_green(phase.state))
        bounds = tuple((min_green_s, max_green_s) for _ in variable)
    return Plan(tuple(phases), offset_s, variable, bounds)


@lru_cache(maxsize=256)
def green_split_changes(p: int, m: int) -> tuple[Change, ...]:
    """The list of changes of p variable greens, m the longest (DESIGN, dialect sappo).

    Candidates come in the order of `array(meshgrid(v, v, ...)).T.reshape(-1, p)`
    with v = 4 ... -4; axes other than m only ever pass within -1..1, and leaving
    the rest out beforehand keeps the order while p may be large.
    """
    if p == 1:
        return ((0,),)
    wide, narrow = np.arange(4, -5, -1), np.arange(1, -2, -1)
    grid = np.array(np.meshgrid(*(wide if i == m else narrow for i in range(p)))).T.reshape(-1, p)
    others, own = np.delete(grid, m, axis=1), grid[:, m]
    least, greatest = others.min(axis=1), others.max(axis=1)
    keep = (grid.sum(axis=1) == 0) & (own != 0) & (others == 0).any(axis=1) & (others != 0).any(axis=1)
    keep &= (own != least) & (own != greatest)
    if p == 6:
        keep &= (own != least - 1) & (own != greatest + 1)
    changes: list[Change] = [tuple(int(x) for x in row) for row in grid[keep]]
    spread = tuple(-(p - 1) if i == m else 1 for i in range(p))
    changes += [spread, tuple(-x for x in spread), (0,) * p]
    changes.reverse()
    return tuple(changes + [tuple(2 * x for x in change) for change in changes if any(change)])


def permitted_changes(plan: Plan, add_time_s: int) -> tuple[Change, ...]:
    """The changes that keep every variable green within its bounds, in order. Raises InputError where there are too many."""
    durations = [plan.phases[i].duration_s for i in plan.variable]
    if not durations:
        return ((),)
    if len(durations) > MOST_VARIABLE:
        raise InputError(
            f"a plan with {len(durations)} variable phases has too many changes to choose from; gr and gro take {MOST_VARIABLE}"
        )
    longest = durations.index(max(durations))
    fits = tuple(
        change
        for change in green_split_changes(len(durations), longest)
        if all(
            low <= duration + add_time_s * step <= high or step == 0
            for duration, step, (low, high) in zip(durations, change, plan.bounds_s, strict=True)
        )
    )
    return fits


def gr_index(a: float, n: int) -> int:
    """Index of `a` into n changes: digitize(a, linspace(-1, 1, n)) - 1, in [0, n)."""
    return min(max(int(np.digitize(a, np.linspace(-1, 1, n))) - 1, 0), n - 1)


def offset_shift_s(a: float, cycle_s: int, offset_range: int) -> int:
    """Shift of the offset in s: int(round(a * cycle) / 2 / offset_range)."""
    return int(round(a * cycle_s) / 2 / offset_range)


def phase_by_second(plan: Plan, change: Change, add_time_s: int, shift_s: int) -> tuple[int, ...]:
    """Phase index of every second of the cycle, [cycle], rolled by the offset."""
    durations = [int(phase.duration_s) for phase in plan.phases]
    for i, step in zip(plan.variable, change, strict=False):
        durations[i] += add_time_s * step
    seconds = np.repeat(np.arange(len(durations)), durations)
    return tuple(int(i) for i in np.roll(seconds, plan.offset_s + shift_s))
