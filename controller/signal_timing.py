"""The clockworks of the dialects: from decisions to wishes, second by second.

Moments are on the millisecond (`simulation_time`).

A timing belongs to one TL. `decide` takes a decision, `wishes` says which state
each signal should show now, `next_change_s` when that changes next. Wishes are
only wishes: the safety rules have the last word.
"""

import math
from collections.abc import Sequence
from typing import Protocol

from city.network import Phase, is_green
from controller import action as actions
from controller.action import Plan
from controller.simulation_time import ms
from protos import policy_pb2 as pb

Action = Sequence[float]

KC_YELLOW_S = 3.0


class SignalTiming(Protocol):
    def enter(self, now: float, shown: Sequence[str], start: bool = False) -> None:
        """Take over from the states that are shown; `start`: at the beginning of the run."""

    def decide(self, now: float, action: Action) -> None:
        """Take a decision: its index (sumo-rl) or A numbers in [-1, 1]."""

    def wishes(self, now: float) -> tuple[str, ...]: ...

    def phases(self, now: float) -> tuple[int, ...]:
        """Per signal what the observation calls the current phase."""

    def min_green_passed(self, now: float) -> bool: ...

    def next_change_s(self, now: float) -> float:
        """When wishes change next without a decision; inf: never."""

    def next_decision_s(self, now: float) -> float:
        """The first decision moment after now."""

    def decides_at(self, now: float) -> bool:
        """Whether a decision may be taken now; if not, an answer only shows that the policy is there."""


class SumoRlTiming:
    """Green phases of one signal, chosen by index; yellow in between."""

    def __init__(self, greens: Sequence[str], delta_s: float, yellow_s: float, min_green_s: float) -> None:
        self._greens = tuple((green,) for green in greens)
        self._yellows = [[(yellow_between(a, b),) for b in greens] for a in greens]
        self._delta_s, self._yellow_s, self._min_green_s = delta_s, yellow_s, min_green_s
        self._begin_s = 0.0
        self._green = 0
        self._yellow: tuple[str] | None = None
        self._yellow_end_s = self._free_s = -math.inf
        """When the yellow ends; from when on the green may change."""

    def enter(self, now: float, shown: Sequence[str], start: bool = False) -> None:
        # the dialect forces the first green phase at the start; later, a green that
        # is shown already is the better beginning
        if start:
            self._begin_s = now
        state = tuple(shown)
        self._green = self._greens.index(state) if not start and state in self._greens else 0
        self._yellow = None
        self._free_s = ms(now + self._min_green_s + self._yellow_s)

    def decide(self, now: float, action: Action) -> None:
        chosen = int(action[0])
        if chosen == self._green or now < self._free_s:
            return
        self._yellow = self._yellows[self._green][chosen]
        self._green = chosen
        self._yellow_end_s = ms(now + self._yellow_s)
        self._free_s = ms(now + self._min_green_s + self._yellow_s)

    def wishes(self, now: float) -> tuple[str, ...]:
        if self._yellow is not None:
            if now < self._yellow_end_s:
                return self._yellow
            self._yellow = None
        return self._greens[self._green]

    def phases(self, now: float) -> tuple[int, ...]:
        return (self._green,)

    def min_green_passed(self, now: float) -> bool:
        return now >= self._free_s

    def next_change_s(self, now: float) -> float:
        return self._yellow_end_s if self._yellow is not None and self._yellow_end_s > now else math.inf

    def next_decision_s(self, now: float) -> float:
        return _next_in_step_s(now, self._begin_s, self._delta_s)

    def decides_at(self, now: float) -> bool:
        return True


def _next_in_step_s(now: float, begin_s: float, interval_s: float) -> float:
    """The moment nearest to an interval from now that is a whole number of them from begin_s.

    A TL that had to decide in between falls into step with the others again.
    """
    return ms(begin_s + (round((now - begin_s) / interval_s) + 1) * interval_s)


def yellow_between(green: str, following: str) -> str:
    """sumo-rl's yellow: each G/g whose next state is r/s becomes y, all else as before."""
    return "".join("y" if a in "Gg" and b in "rs" else a for a, b in zip(green, following, strict=True))


class KeepChangeTiming:
    """`kc`: each signal keeps its green or steps through yellow to the following green."""

    def __init__(self, programs: Sequence[Sequence[Phase]], interval_s: float, actionp: float) -> None:
        self._programs = [tuple(phases) for phases in programs]
        self._interval_s, self._actionp = interval_s, actionp
        self._begin_s = 0.0
        self._phase = [0] * len(self._programs)
        self._green_from_s = [-math.inf] * len(self._programs)

    def enter(self, now: float, shown: Sequence[str], start: bool = False) -> None:
        if start:
            self._begin_s = now
        for k, (phases, state) in enumerate(zip(self._programs, shown, strict=True)):
            greens = [i for i, phase in enumerate(phases) if is_green(phase.state)]
            self._phase[k] = next((i for i in greens if phases[i].state == state), greens[0] if greens else 0)
            self._green_from_s[k] = -math.inf

    def decide(self, now: float, action: Action) -> None:
        for k, a in enumerate(action):
            if a >= self._actionp:
                phases = self._programs[k]
                self._phase[k] = (self._current(k, now) + 1) % len(phases)
                # where the program has no yellow in between, the step is to a green at once
                at_once = is_green(phases[self._phase[k]].state)
                self._green_from_s[k] = -math.inf if at_once else ms(now + KC_YELLOW_S)

    def _current(self, k: int, now: float) -> int:
        """Phase index now: past its yellow, the signal is in the following green."""
        phases = self._programs[k]
        index = self._phase[k]
        if now >= self._green_from_s[k]:
            for _ in phases:
                if is_green(phases[index].state):
                    break
                index = (index + 1) % len(phases)
        return index

    def wishes(self, now: float) -> tuple[str, ...]:
        return tuple(phases[self._current(k, now)].state for k, phases in enumerate(self._programs))

    def phases(self, now: float) -> tuple[int, ...]:
        return tuple(self._current(k, now) for k in range(len(self._programs)))

    def min_green_passed(self, now: float) -> bool:
        return True

    def next_change_s(self, now: float) -> float:
        return min((t for t in self._green_from_s if t > now), default=math.inf)

    def next_decision_s(self, now: float) -> float:
        return _next_in_step_s(now, self._begin_s, self._interval_s)

    def decides_at(self, now: float) -> bool:
        return True


class PlanTiming:
    """`offset`, `gr`, `gro`: the signals run plans that decisions shift and stretch."""

    def __init__(self, kind: str, plans: Sequence[Plan], control_cycle: int, add_time_s: int, offset_range: int) -> None:
        self._kind = kind
        self._plans = tuple(plans)
        self._period_s = float(plans[0].cycle_s * control_cycle)
        self._due_s = 0.0
        """The multiple of the period at which the next decision is due."""
        self._add_time_s, self._offset_range = add_time_s, offset_range
        splits = kind in ("gr", "gro")
        self._changes = [actions.permitted_changes(plan, add_time_s) for plan in plans] if splits else []
        self._seconds = [actions.phase_by_second(plan, (), add_time_s, 0) for plan in plans]

    def enter(self, now: float, shown: Sequence[str], start: bool = False) -> None:
        self._due_s = math.ceil(now / self._period_s) * self._period_s
        self._seconds = [actions.phase_by_second(plan, (), self._add_time_s, 0) for plan in self._plans]

    def decide(self, now: float, action: Action) -> None:
        numbers = iter(action)
        for k, plan in enumerate(self._plans):
            shift_s = 0
            change: actions.Change = ()
            if self._kind in ("offset", "gro"):
                shift_s = actions.offset_shift_s(next(numbers), plan.cycle_s, self._offset_range)
            if self._kind in ("gr", "gro"):
                change = self._changes[k][actions.gr_index(next(numbers), len(self._changes[k]))]
            self._seconds[k] = actions.phase_by_second(plan, change, self._add_time_s, shift_s)

    def wishes(self, now: float) -> tuple[str, ...]:
        return tuple(plan.phases[i].state for plan, i in zip(self._plans, self.phases(now), strict=True))

    def phases(self, now: float) -> tuple[int, ...]:
        # at second t the phase is entry t - 1: the seed system's clock
        return tuple(seconds[(int(now) - 1) % len(seconds)] for seconds in self._seconds)

    def min_green_passed(self, now: float) -> bool:
        return True

    def next_change_s(self, now: float) -> float:
        second = math.floor(now)
        here = self.phases(second)
        for ahead in range(1, max(len(seconds) for seconds in self._seconds)):
            if self.phases(second + ahead) != here:
                return float(second + ahead)
        return math.inf

    def next_decision_s(self, now: float) -> float:
        self._due_s = (math.floor(now / self._period_s) + 1) * self._period_s
        return self._due_s

    def decides_at(self, now: float) -> bool:
        # who holds is asked in between; and the step that reaches a multiple may end after it
        return now >= self._due_s


def timing_of(policy: pb.Policy, min_yellow_s: float, min_green_floor_s: float) -> SignalTiming:
    """The clockwork of a contract; its times never fall below the floors."""
    programs = [
        [Phase(phase.state, phase.duration_s, phase.min_s, phase.max_s) for phase in signal.phases] for signal in policy.signals
    ]
    times = policy.timing
    if policy.action.kind == "categorical":
        greens = [phase.state for phase in programs[0] if is_green(phase.state)]
        yellow_s, green_s = max(times.yellow_s, min_yellow_s), max(times.min_green_s, min_green_floor_s)
        return SumoRlTiming(greens, times.decision_interval_s, yellow_s, green_s)
    if policy.action.kind == "kc":
        return KeepChangeTiming(programs, times.decision_interval_s, policy.action.actionp)
    max_green_s = times.max_green_s or math.inf
    plans = [
        actions.plan_of(phases, signal.offset_s, times.min_green_s, max_green_s)
        for phases, signal in zip(programs, policy.signals, strict=True)
    ]
    numbers = policy.action
    return PlanTiming(numbers.kind, plans, times.control_cycle, numbers.add_time_s, numbers.offset_range)
