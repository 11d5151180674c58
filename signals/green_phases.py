"""The sequencer of a policy that chooses one of a signal's green phases: yellow, all-red and minimum green in between.

A change that is requested earlier than yellow + all-red + min_green after the last one is ignored; if the safety rules
delay the new green, the time counts from when it is shown. Source of the rule: `TrafficSignal` of
https://github.com/LucasAlegre/sumo-rl (sumo_rl/environment/traffic_signal.py).
"""

import math
from collections.abc import Sequence

from protos import loop_state_pb2 as loop_state
from signals.observation import PhaseState
from signals.simulation_time import next_multiple_s, round_to_ms

MAX_CHANGE_S = 60.0
"""Simulated time after which a change no longer delays decisions, even if its green has not been shown."""


class GreenPhaseSequencer:
    """Green phases of one signal, chosen by index, with yellow and all-red in between."""

    def __init__(
        self, greens: Sequence[str], delta_time_s: float, yellow_s: float, min_green_s: float, all_red_s: float = 0.0
    ) -> None:
        self._greens = tuple((green,) for green in greens)
        self._yellows = [[(yellow_between(a, b),) for b in greens] for a in greens]
        self._delta_time_s, self._yellow_s, self._min_green_s, self._all_red_s = (
            delta_time_s,
            yellow_s,
            min_green_s,
            all_red_s,
        )
        self._begin_s = 0.0
        self._green = 0
        self._yellow: tuple[str] | None = None
        self._yellow_end_s = self._green_from_s = -math.inf
        self._awaits_green_until_s = -math.inf
        """When the change to a green that is not shown yet no longer delays decisions."""
        self._change_allowed_s = -math.inf
        """From when on the green may change: yellow, all-red and min green after the last change."""

    def enter(self, now: float, shown: Sequence[str], start: bool = False) -> None:
        # sumo-rl forces the first green phase at the start; later, a green that is already shown is kept
        if start:
            self._begin_s = now
        state = tuple(shown)
        self._green = self._greens.index(state) if not start and state in self._greens else 0
        self._yellow = None
        self._awaits_green_until_s = -math.inf
        self._change_allowed_s = round_to_ms(now + self._min_green_s + self._yellow_s + self._all_red_s)

    def apply_action(self, now: float, action: Sequence[float]) -> None:
        chosen = int(action[0])
        if chosen == self._green or not self._may_change(now):
            return
        self._yellow = self._yellows[self._green][chosen]
        self._green = chosen
        self._yellow_end_s = round_to_ms(now + self._yellow_s)
        self._green_from_s = round_to_ms(now + self._yellow_s + self._all_red_s)
        self._change_allowed_s = round_to_ms(now + self._min_green_s + self._yellow_s + self._all_red_s)
        self._awaits_green_until_s = now + MAX_CHANGE_S

    def _may_change(self, now: float) -> bool:
        return now >= self._change_allowed_s and now >= self._awaits_green_until_s

    def note_shown(self, now: float, signal: int = 0) -> None:
        # the safety rules may delay the green: its min green counts from when it is shown
        if now < self._awaits_green_until_s and now >= self._green_from_s:
            self._awaits_green_until_s = -math.inf
            self._change_allowed_s = max(self._change_allowed_s, round_to_ms(now + self._min_green_s))

    def requested_states(self, now: float) -> tuple[str, ...]:
        if self._yellow is not None:
            if now < self._yellow_end_s:
                return self._yellow
            if now < self._green_from_s:
                return (self._yellow[0].replace("y", "r"),)
            self._yellow = None
        return self._greens[self._green]

    def phase_state(self, now: float) -> PhaseState:
        return PhaseState((self._green,), self._may_change(now))

    def next_change_s(self, now: float) -> float:
        changes = (self._yellow_end_s, self._green_from_s) if self._yellow is not None else ()
        return next((moment for moment in changes if moment > now), math.inf)

    def next_decision_s(self, now: float) -> float:
        return next_multiple_s(now, self._begin_s, self._delta_time_s)

    def decides_at(self, now: float) -> bool:
        return True

    def save_state(self, state: loop_state.SequencerState) -> None:
        """Write the state that later requests depend on."""
        saved = state.green_phases
        saved.begin_s, saved.green = self._begin_s, self._green
        if self._yellow is not None:
            saved.yellow = self._yellow[0]
        saved.yellow_end_s, saved.green_from_s = self._yellow_end_s, self._green_from_s
        saved.awaits_green_until_s, saved.change_allowed_s = self._awaits_green_until_s, self._change_allowed_s

    def restore_state(self, state: loop_state.SequencerState) -> None:
        """Go on from a saved state. Raises ValueError if it is not one of these greens."""
        saved = state.green_phases
        if saved.green >= len(self._greens):
            raise ValueError(f"its state has green {saved.green} of {len(self._greens)}")
        self._begin_s, self._green = saved.begin_s, saved.green
        self._yellow = (saved.yellow,) if saved.HasField("yellow") else None
        self._yellow_end_s, self._green_from_s = saved.yellow_end_s, saved.green_from_s
        self._awaits_green_until_s, self._change_allowed_s = saved.awaits_green_until_s, saved.change_allowed_s


def yellow_between(green: str, following: str) -> str:
    """The yellow state of sumo-rl: each G/g that becomes r/s shows y, all other links stay as before."""
    return "".join("y" if a in "Gg" and b in "rs" else a for a, b in zip(green, following, strict=True))
