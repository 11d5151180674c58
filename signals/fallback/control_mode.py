"""The control mode of a TL: POLICY -> HOLD -> FALLBACK -> RECOVERING -> POLICY.

A pure state machine: `next_mode` takes a state and an event and returns the next state.

- POLICY: the policy decides.
- HOLD: an answer is missing; the TL keeps its green (a plan-based policy keeps its
  last plan) until an answer is missing hold_s or more after the first missing one.
- FALLBACK: the fallback plan runs; the policy is still queried.
- RECOVERING: the fallback plan still runs, and the policy has begun to answer again.
- FIXED: an operator has handed the TL to its own programs; answers do not bring it back. An operator's HOLD does not
  end by answers either.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum

from signals.simulation_time import round_to_ms


class ControlMode(Enum):
    # the values are exported as a metric: they never change meaning
    POLICY = 0
    HOLD = 1
    FALLBACK = 2
    RECOVERING = 3
    FIXED = 4


class OperatorMode(StrEnum):
    """A mode that an operator can set."""

    POLICY = "policy"
    HOLD = "hold"
    FIXED = "fixed"


@dataclass(frozen=True)
class ModeState:
    """A TL's control mode, and how it came to it."""

    mode: ControlMode = ControlMode.POLICY
    mode_since_s: float = 0.0
    good_answers: int = 0
    """Valid answers in a row while recovering."""
    by_operator: bool = False
    """True if an operator set the mode, so that answers do not change it."""

    @property
    def is_fallback(self) -> bool:
        """True if the fallback plan runs."""
        return self.mode in (ControlMode.FALLBACK, ControlMode.RECOVERING, ControlMode.FIXED)


def next_mode(state: ModeState, answered: bool, now: float, hold_s: float, recovery_answers: int) -> ModeState:
    """The state after a valid (`answered`) or a missing answer at second `now`."""
    if state.by_operator:
        return state
    if answered:
        if state.mode is ControlMode.POLICY:
            return state
        if state.mode is ControlMode.HOLD or state.good_answers + 1 >= recovery_answers:
            return ModeState(ControlMode.POLICY, now)
        since_s = state.mode_since_s if state.mode is ControlMode.RECOVERING else now
        return ModeState(ControlMode.RECOVERING, since_s, state.good_answers + 1)
    if state.mode is ControlMode.POLICY:
        return ModeState(ControlMode.FALLBACK if hold_s <= 0 else ControlMode.HOLD, now)
    if state.mode is ControlMode.HOLD:
        return ModeState(ControlMode.FALLBACK, now) if round_to_ms(now - state.mode_since_s) >= hold_s else state
    return ModeState(ControlMode.FALLBACK, now if state.mode is ControlMode.RECOVERING else state.mode_since_s)


def operator_mode(state: ModeState, wanted: OperatorMode, now: float) -> ModeState:
    """The state after an operator's command at second `now`; a command that changes nothing returns the same state.

    From FIXED back to the policy, the TL is RECOVERING: its plan runs until the policy answers.
    """
    if wanted is OperatorMode.POLICY:
        if not state.by_operator:
            return state
        return ModeState(ControlMode.RECOVERING if state.is_fallback else ControlMode.POLICY, now)
    mode = ControlMode[wanted.name]
    return state if state.by_operator and state.mode is mode else ModeState(mode, now, by_operator=True)
