"""Counts of a run since its start."""

from collections import Counter, deque
from dataclasses import dataclass, field

from controller.events import StepTimes
from signals.safety.conflicts import OverrideReason

MAX_KEPT_TIMES = 20_000
"""Wall times kept for percentiles; bounded, so that memory does not grow with the run."""


@dataclass
class RunCounters:
    """Counts of a run since its start."""

    decisions: int = 0
    """Valid answers, one per TL and decision moment; in fallback they are counted, but not followed."""
    decision_steps: int = 0
    """Moments at which at least one TL was due."""
    missing_answers: Counter[str] = field(default_factory=Counter)
    """Requests without a valid action, by TL."""
    overrides: Counter[str] = field(default_factory=Counter)
    """Requested states that the safety rules replaced, by reason."""
    decisions_by_tl: Counter[str] = field(default_factory=Counter)
    overruled_by_tl: Counter[str] = field(default_factory=Counter)
    """By TL, decisions that were followed by an override before the next decision."""
    overruled_reason: dict[str, OverrideReason] = field(default_factory=dict)
    """By TL, the reason of the newest of these overrides."""
    rejections: int = 0
    """Commands that SUMO rejected."""
    alarms: Counter[str] = field(default_factory=Counter)
    """Alarms of the monitors, by rule."""
    unexpected_states: Counter[str] = field(default_factory=Counter)
    """By signal, readings at which it showed another state than the one that was set."""
    fallbacks: int = 0
    """Times a TL entered its fallback."""
    times: deque[StepTimes] = field(default_factory=lambda: deque(maxlen=MAX_KEPT_TIMES))
    """Wall times of the newest decision steps."""
