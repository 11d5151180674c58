"""The sequencer of a policy that chooses one of a signal's green phases: yellow, all-red and minimum green in between.

A change that is requested earlier than yellow + all-red + min_green after the last one is ignored; if the safety rules
delay the new green, the time counts from when it is shown. Source of the rule: `TrafficSignal` of
https://github.com/LucasAlegre/sumo-rl (sumo_rl/environment/traffic_signal.py).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from signals.observation import PhaseSequencer, PhaseState, SavedState
from signals.simulation_time import next_multiple_s, round_to_ms

MAX_CHANGE_S = 60.0
"""Simulated time after which a change no longer delays decisions, even if its green has not been shown."""


@dataclass
class GreenPhasesState(SavedState):
    """The green of a signal, and the change that leads to it."""

    begin_s: float = 0.0
    green: int = 0
    yellow: str | None = None
    """The yellow state of the change, until its green is requested."""
    yellow_end_s: float = -math.inf
    green_from_s: float = -math.inf
    awaits_green_until_s: float = -math.inf
    """When the change to a green that is not shown yet no longer delays decisions."""
    change_allowed_s: float = -math.inf
    """From when on the green may change: yellow, all-red and min green after the last change."""
    left_s: list[float] = field(default_factory=list)
    """Dialect street: by green, when it was last left."""
    shown_s: float = 0.0
    """Dialect street: when the current green is, or was first, shown."""


class GreenPhaseSequencer(PhaseSequencer):
    """Green phases of one signal, chosen by index, with yellow and all-red in between."""

    def __init__(
        self, greens: Sequence[str], delta_time_s: float, yellow_s: float, min_green_s: float, all_red_s: float = 0.0
    ) -> None:
        self._greens = tuple((green,) for green in greens)
        self._yellows = [[yellow_between(a, b) for b in greens] for a in greens]
        self._delta_time_s = delta_time_s
        self._yellow_s = yellow_s
        self._min_green_s = min_green_s
        self._all_red_s = all_red_s
        self.state = GreenPhasesState()

    def enter(self, now: float, shown: Sequence[str], start: bool = False) -> None:
        # sumo-rl forces the first green phase at the start; later, a green that is already shown is kept
        state, entered = self.state, tuple(shown)
        if start:
            state.begin_s = now
        state.green = self._greens.index(entered) if not start and entered in self._greens else 0
        state.yellow = None
        state.awaits_green_until_s = -math.inf
        state.change_allowed_s = round_to_ms(now + self._min_green_s + self._yellow_s + self._all_red_s)

    def apply_action(self, now: float, action: Sequence[float]) -> None:
        state, chosen = self.state, int(action[0])
        if chosen == state.green or not self._may_change(now):
            return
        state.yellow = self._yellows[state.green][chosen]
        state.green = chosen
        state.yellow_end_s = round_to_ms(now + self._yellow_s)
        state.green_from_s = round_to_ms(now + self._yellow_s + self._all_red_s)
        state.change_allowed_s = round_to_ms(now + self._min_green_s + self._yellow_s + self._all_red_s)
        state.awaits_green_until_s = now + MAX_CHANGE_S

    def _may_change(self, now: float) -> bool:
        return now >= self.state.change_allowed_s and now >= self.state.awaits_green_until_s

    def choices(self, now: float) -> list[tuple[str, bool]]:
        """(green, True if an action that chooses it at second `now` is not ignored)."""
        may_change = self._may_change(now)
        return [(green, may_change or k == self.state.green) for k, (green,) in enumerate(self._greens)]

    def note_shown(self, now: float, signal: int = 0) -> None:
        # the safety rules may delay the green: its min green counts from when it is shown
        state = self.state
        if now < state.awaits_green_until_s and now >= state.green_from_s:
            state.awaits_green_until_s = -math.inf
            state.change_allowed_s = max(state.change_allowed_s, round_to_ms(now + self._min_green_s))

    def shown_for_s(self, now: float) -> float:
        """The time for which the current green has been shown at least; 0 before it is."""
        if self.state.awaits_green_until_s > -math.inf:
            return 0.0
        return max(now - (self.state.change_allowed_s - self._min_green_s), 0.0)

    def requested_states(self, now: float) -> tuple[str, ...]:
        state = self.state
        if state.yellow is not None:
            if now < state.yellow_end_s:
                return (state.yellow,)
            if now < state.green_from_s:
                return (state.yellow.replace("y", "r"),)
        return self._greens[state.green]

    def phase_state(self, now: float) -> PhaseState:
        return PhaseState((self.state.green,), self._may_change(now))

    def next_change_s(self, now: float) -> float:
        state = self.state
        changes = (state.yellow_end_s, state.green_from_s) if state.yellow is not None else ()
        return next((moment for moment in changes if moment > now), math.inf)

    def next_decision_s(self, now: float) -> float:
        return next_multiple_s(now, self.state.begin_s, self._delta_time_s)


def yellow_between(green: str, following: str) -> str:
    """The yellow state of sumo-rl: each G/g that becomes r/s shows y, all other links stay as before."""
    return "".join("y" if a in "Gg" and b in "rs" else a for a, b in zip(green, following, strict=True))
