"""Control by a score: every few seconds a signal shows the green with the greatest one. It needs only the readings.

A link that has waited for MAX_WAIT_S is served next, whatever the scores: its lane may be too short to see the queue
behind it, or its detector may have failed.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from protos import loop_state_pb2 as loop_state
from signals.green_phases import GreenPhaseSequencer
from signals.observation import Floats, Readings
from signals.safety.conflicts import GREEN
from signals.simulation_time import round_to_ms

DECISION_INTERVAL_S = 5.0
"""Simulated seconds between two decisions: each change costs a yellow."""
MAX_WAIT_S = 120.0
"""Simulated seconds without green after which a link is served next."""


class ScoredGreens(ABC):
    """The greens of one TL's signals, chosen by a score."""

    name: str
    """As in arms and log lines."""

    def __init__(self, greens: Sequence[Sequence[str]], yellow_s: float, min_green_s: float, all_red_s: float) -> None:
        """Take the green phases by signal, and the times in s of their sequencers."""
        self._sequencers = [
            GreenPhaseSequencer(states, DECISION_INTERVAL_S, yellow_s, min_green_s, all_red_s) for states in greens
        ]
        self._served = [np.array([[c in GREEN for c in state] for state in states]) for states in greens]
        """By signal, bool [greens, links]: whether a green serves a link."""
        self._served_s = [np.zeros(served.shape[1]) for served in self._served]
        """By signal, when each link was last served. Links that no green serves never wait."""
        self.next_decision_s = -math.inf

    @abstractmethod
    def scores(self, signal: int, readings: Readings) -> Floats:
        """float64 [greens] of a signal, which is given by its index."""

    def enter(self, now: float, shown: Sequence[str]) -> None:
        """Take over from the states that are shown; the first decision is due now."""
        self.next_decision_s = now
        for sequencer, state in zip(self._sequencers, shown, strict=True):
            sequencer.enter(now, [state])
        for served_s in self._served_s:
            served_s[:] = now

    def decide(self, now: float, readings: Readings) -> None:
        """Decide by the newest readings, if a decision is due."""
        if now < self.next_decision_s:
            return
        self.next_decision_s = round_to_ms(now + DECISION_INTERVAL_S)
        for k, sequencer in enumerate(self._sequencers):
            scores = self.scores(k, readings)
            # of equal greens the current one stays: a change costs a yellow
            current = sequencer.phase_state(now).phases[0]
            best = current if scores[current] >= scores.max() - 1e-12 else int(scores.argmax())
            served, served_s = self._served[k], self._served_s[k]
            served_s[served[current] | ~served.any(0)] = now
            waiting = int(served_s.argmin())
            if now - served_s[waiting] >= MAX_WAIT_S:
                best = int(np.where(served[:, waiting], scores, -math.inf).argmax())
            sequencer.apply_action(now, (best,))

    def note_shown(self, now: float, signal: int) -> None:
        """Record that a signal shows its requested state at second `now`."""
        self._sequencers[signal].note_shown(now)

    def requested_states(self, now: float) -> tuple[str, ...]:
        return tuple(sequencer.requested_states(now)[0] for sequencer in self._sequencers)

    def next_change_s(self, now: float) -> float:
        return min(sequencer.next_change_s(now) for sequencer in self._sequencers)

    def save_state(self, state: loop_state.ScoredGreensState) -> None:
        """Write the state that later decisions depend on."""
        state.next_decision_s = self.next_decision_s
        for sequencer, served_s in zip(self._sequencers, self._served_s, strict=True):
            signal = state.signals.add()
            sequencer.save_state(signal.sequencer)
            signal.served_s.extend(served_s.tolist())

    def restore_state(self, state: loop_state.ScoredGreensState) -> None:
        """Go on from a saved state. Raises ValueError if it is not one of these signals."""
        self.next_decision_s = state.next_decision_s
        for sequencer, served_s, signal in zip(self._sequencers, self._served_s, state.signals, strict=True):
            sequencer.restore_state(signal.sequencer)
            if len(signal.served_s) != len(served_s):
                raise ValueError(f"its state has {len(signal.served_s)} links, not {len(served_s)}")
            served_s[:] = signal.served_s
