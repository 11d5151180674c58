"""Fixed-time plans that actions modify by offset and green split, second by second (dialect sappo).

Source: the training system of that dialect; tests compare with vectors that it computed.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from city.errors import InputError
from city.network import ProgramPhase, is_green
from signals.observation import PhaseSequencer, PhaseState, SavedState

MAX_VARIABLE_PHASES = 10
"""Each variable phase of a plan makes the list of candidate changes three times as long."""

GreenSplitChange = tuple[int, ...]
"""By variable phase, how many times add_time is added to its duration."""


@dataclass(frozen=True)
class CyclePlan:
    """A fixed-time plan; actions change its offset and green splits."""

    phases: tuple[ProgramPhase, ...]
    offset_s: int
    variable: tuple[int, ...]
    """Phases of variable duration, by index."""
    bounds_s: tuple[tuple[float, float], ...]
    """(min, max) duration of each variable phase."""

    @property
    def cycle_s(self) -> int:
        return sum(int(phase.duration_s) for phase in self.phases)


def cycle_plan(phases: Sequence[ProgramPhase], offset_s: int, min_green_s: float, max_green_s: float) -> CyclePlan:
    """The plan of a program.

    Phases with different minDur and maxDur are variable; without any, the greens are,
    within min_green_s and max_green_s.
    """
    variable = tuple(i for i, phase in enumerate(phases) if phase.min_s != phase.max_s)
    bounds = tuple((phases[i].min_s, phases[i].max_s) for i in variable)
    if not variable:
        variable = tuple(i for i, phase in enumerate(phases) if is_green(phase.state))
        bounds = tuple((min_green_s, max_green_s) for _ in variable)
    return CyclePlan(tuple(phases), offset_s, variable, bounds)


@lru_cache(maxsize=256)
def green_split_changes(p: int, m: int) -> tuple[GreenSplitChange, ...]:
    """The list of changes of p variable greens, m the longest.

    Candidates come in the order of `array(meshgrid(v, v, ...)).T.reshape(-1, p)`
    with v = 4 ... -4. Only candidates with -1..1 on all axes but m pass; a grid of those
    alone has the same order and takes little memory for large p.
    """
    if p == 1:
        return ((0,),)
    wide, narrow = np.arange(4, -5, -1), np.arange(1, -2, -1)
    grid = np.array(np.meshgrid(*(wide if i == m else narrow for i in range(p)))).T.reshape(-1, p)
    others, longest = np.delete(grid, m, axis=1), grid[:, m]
    lowest, highest = others.min(axis=1), others.max(axis=1)
    keep = (grid.sum(axis=1) == 0) & (longest != 0) & (others == 0).any(axis=1) & (others != 0).any(axis=1)
    keep &= (longest != lowest) & (longest != highest)
    if p == 6:
        keep &= (longest != lowest - 1) & (longest != highest + 1)
    changes: list[GreenSplitChange] = [tuple(int(x) for x in row) for row in grid[keep]]
    spread = tuple(-(p - 1) if i == m else 1 for i in range(p))
    changes += [spread, tuple(-x for x in spread), (0,) * p]
    changes.reverse()
    return tuple(changes + [tuple(2 * x for x in change) for change in changes if any(change)])


def permitted_changes(plan: CyclePlan, add_time_s: int) -> tuple[GreenSplitChange, ...]:
    """The changes that keep every variable green within its bounds, in order. Raises InputError if there are too
    many."""
    durations = [plan.phases[i].duration_s for i in plan.variable]
    if not durations:
        return ((),)
    if len(durations) > MAX_VARIABLE_PHASES:
        raise InputError(
            f"a plan with {len(durations)} variable phases has too many green-split changes; "
            f"gr and gro support {MAX_VARIABLE_PHASES}"
        )
    longest = durations.index(max(durations))

    def keeps_bounds(change: GreenSplitChange) -> bool:
        greens = zip(durations, change, plan.bounds_s, strict=True)
        return all(step == 0 or low <= duration + add_time_s * step <= high for duration, step, (low, high) in greens)

    return tuple(filter(keeps_bounds, green_split_changes(len(durations), longest)))


def gr_index(a: float, n: int) -> int:
    """Index of `a` into n changes: digitize(a, linspace(-1, 1, n)) - 1, in [0, n)."""
    return min(max(int(np.digitize(a, np.linspace(-1, 1, n))) - 1, 0), n - 1)


def offset_shift_s(a: float, cycle_s: int, offset_range: int) -> int:
    """Shift of the offset in s: int(round(a * cycle) / 2 / offset_range)."""
    return int(round(a * cycle_s) / 2 / offset_range)


def phase_by_second(plan: CyclePlan, change: GreenSplitChange, add_time_s: int, shift_s: int) -> tuple[int, ...]:
    """Phase index of every second of the cycle, [cycle], rolled by the offset."""
    durations = [int(phase.duration_s) for phase in plan.phases]
    for i, step in zip(plan.variable, change, strict=False):
        durations[i] += add_time_s * step
    return tuple(np.roll(np.repeat(np.arange(len(durations)), durations), plan.offset_s + shift_s).tolist())


@dataclass
class PlanState(SavedState):
    """The plan of a signal after the last decision."""

    phase_by_second: tuple[int, ...]


@dataclass
class PlansState(SavedState):
    """The plans of a TL, and when the next decision is due."""

    plans: list[PlanState]
    due_s: float = 0.0
    """A multiple of the decision interval."""


class PlanSequencer(PhaseSequencer):
    """`offset`, `gr`, `gro`: the signals run plans; decisions change their offsets and green splits."""

    def __init__(
        self, kind: str, plans: Sequence[CyclePlan], control_cycle: int, add_time_s: int, offset_range: int
    ) -> None:
        self._kind = kind
        self._plans = tuple(plans)
        self._period_s = float(plans[0].cycle_s * control_cycle)
        self._add_time_s, self._offset_range = add_time_s, offset_range
        self._changes = [permitted_changes(plan, add_time_s) for plan in plans] if kind in ("gr", "gro") else []
        self.state = PlansState([PlanState(phase_by_second(plan, (), add_time_s, 0)) for plan in plans])

    def enter(self, now: float, shown: Sequence[str], start: bool = False) -> None:
        self.state.due_s = math.ceil(now / self._period_s) * self._period_s
        for state, plan in zip(self.state.plans, self._plans, strict=True):
            state.phase_by_second = phase_by_second(plan, (), self._add_time_s, 0)

    def apply_action(self, now: float, action: Sequence[float]) -> None:
        values: Iterator[float] = iter(action)
        for k, plan in enumerate(self._plans):
            shift_s = 0
            change: GreenSplitChange = ()
            if self._kind in ("offset", "gro"):
                shift_s = offset_shift_s(next(values), plan.cycle_s, self._offset_range)
            if self._kind in ("gr", "gro"):
                change = self._changes[k][gr_index(next(values), len(self._changes[k]))]
            self.state.plans[k].phase_by_second = phase_by_second(plan, change, self._add_time_s, shift_s)

    def requested_states(self, now: float) -> tuple[str, ...]:
        return tuple(plan.phases[i].state for plan, i in zip(self._plans, self._phases(now), strict=True))

    def phase_state(self, now: float) -> PhaseState:
        return PhaseState(self._phases(now), True)

    def _phases(self, now: float) -> tuple[int, ...]:
        # as in training: at second t the phase is entry t - 1
        second = int(now) - 1
        return tuple(plan.phase_by_second[second % len(plan.phase_by_second)] for plan in self.state.plans)

    def next_change_s(self, now: float) -> float:
        second = math.floor(now)
        current = self._phases(second)
        for ahead in range(1, max(len(plan.phase_by_second) for plan in self.state.plans)):
            if self._phases(second + ahead) != current:
                return float(second + ahead)
        return math.inf

    def note_asked(self, now: float) -> None:
        self.state.due_s = self.next_decision_s(now)

    def next_decision_s(self, now: float) -> float:
        return (math.floor(now / self._period_s) + 1) * self._period_s

    def decides_at(self, now: float) -> bool:
        # in hold the policy is queried before that too, and SUMO's step may end after the exact multiple
        return now >= self.state.due_s
