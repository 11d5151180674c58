"""The control mode of a TL: POLICY -> HOLD -> FALLBACK -> RECOVERING -> POLICY.

A pure state machine: `next_mode` takes a state and an event and returns the next state.

- POLICY: the policy decides.
- HOLD: an answer is missing; the TL keeps its green (a plan-based policy keeps its
  last plan) until an answer is missing hold_s or more after the first missing one.
- FALLBACK: the fallback plan runs; the policy is still queried.
- RECOVERING: the fallback plan still runs, and the policy has begun to answer again.
"""

from dataclasses import dataclass
from enum import Enum

from signals.simulation_time import round_to_ms


class ControlMode(Enum):
    # the values are exported as a metric: they never change meaning
    POLICY = 0
    HOLD = 1
    FALLBACK = 2
    RECOVERING = 3


@dataclass(frozen=True)
class ModeState:
    mode: ControlMode = ControlMode.POLICY
    since_s: float = 0.0
    good_answers: int = 0
    """Valid answers in a row while recovering."""

    @property
    def is_fallback(self) -> bool:
        """Whether the fallback plan runs."""
        return self.mode in (ControlMode.FALLBACK, ControlMode.RECOVERING)


def next_mode(state: ModeState, answered: bool, now: float, hold_s: float, recovery_answers: int) -> ModeState:
    """The state after a valid (`answered`) or a missing answer at second `now`."""
    if answered:
        if state.mode is ControlMode.POLICY:
            return state
        if state.mode is ControlMode.HOLD or state.good_answers + 1 >= recovery_answers:
            return ModeState(ControlMode.POLICY, now)
        since_s = state.since_s if state.mode is ControlMode.RECOVERING else now
        return ModeState(ControlMode.RECOVERING, since_s, state.good_answers + 1)
    if state.mode is ControlMode.POLICY:
        return ModeState(ControlMode.FALLBACK if hold_s <= 0 else ControlMode.HOLD, now)
    if state.mode is ControlMode.HOLD:
        return ModeState(ControlMode.FALLBACK, now) if round_to_ms(now - state.since_s) >= hold_s else state
    return ModeState(ControlMode.FALLBACK, now if state.mode is ControlMode.RECOVERING else state.since_s)
