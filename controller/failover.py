"""The ladder of a TL: served policy -> hold -> plan -> probing -> served.

A pure state machine: `step` takes a rung and an event and gives the next rung.

- SERVED: the policy decides.
- HOLD: its answer is missing; the TL keeps the green it has (a plan-based
  policy keeps its last plan), for hold_s at most.
- PLAN: the signals run their own fixed plan; the policy is asked all the same.
- PROBING: the plan still runs, and the policy has begun to answer again.
"""

from dataclasses import dataclass
from enum import Enum

from controller.simulation_time import ms


class Rung(Enum):
    # the numbers are exported as a metric: they never change meaning
    SERVED = 0
    HOLD = 1
    PLAN = 2
    PROBING = 3


@dataclass(frozen=True)
class Ladder:
    rung: Rung = Rung.SERVED
    since_s: float = 0.0
    good: int = 0
    """Good answers in a row while probing."""

    @property
    def plan_runs(self) -> bool:
        return self.rung in (Rung.PLAN, Rung.PROBING)


def step(ladder: Ladder, good: bool, now: float, hold_s: float, probes: int) -> Ladder:
    """The ladder after a good or a missing answer at second `now`."""
    if good:
        if ladder.rung is Rung.SERVED:
            return ladder
        if ladder.rung is Rung.HOLD:
            return Ladder(Rung.SERVED, now)
        if ladder.good + 1 >= probes:
            return Ladder(Rung.SERVED, now)
        since = ladder.since_s if ladder.rung is Rung.PROBING else now
        return Ladder(Rung.PROBING, since, ladder.good + 1)
    if ladder.rung is Rung.SERVED:
        return Ladder(Rung.PLAN if hold_s <= 0 else Rung.HOLD, now)
    if ladder.rung is Rung.HOLD:
        return Ladder(Rung.PLAN, now) if ms(now - ladder.since_s) >= hold_s else ladder
    return Ladder(Rung.PLAN, now if ladder.rung is Rung.PROBING else ladder.since_s)
