"""Control by a score: every few seconds a signal shows the green with the greatest one. It needs only the readings.

A link that has waited for MAX_WAIT_S is served next, whatever the scores: its lane may be too short to see the queue
behind it, or its detector may have failed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from city.network import SignalNetwork
from signals.green_phases import GreenPhaseSequencer, GreenPhasesState
from signals.observation import Floats, Readings
from signals.safety.conflicts import GREEN
from signals.safety.safety_times import SafetyTimes
from signals.saved_state import SavedState
from signals.simulation_time import round_to_ms

DECISION_INTERVAL_S = 5.0
"""Simulated seconds between two decisions: each change costs a yellow."""
MAX_WAIT_S = 120.0
"""Simulated seconds without green after which a link is served next."""


@dataclass
class ScoredSignalState(SavedState):
    """A signal of `ScoredGreens`."""

    sequencer: GreenPhasesState
    served_s: list[float]
    """When each link was last served. Links that no green serves never wait."""


@dataclass
class ScoredGreensState(SavedState):
    """The state on which the later choices of greens depend."""

    signals: list[ScoredSignalState]
    next_decision_s: float = -math.inf


class GreenScore(Protocol):
    """Scores the greens of one signal."""

    name: str
    """The kind of control, as in arms and log lines."""

    def __init__(
        self,
        signal: SignalNetwork,
        greens: Sequence[str],
        lane_row: Mapping[str, int],
        length_m: Floats,
        lanes_behind: Mapping[str, Mapping[str, float]],
    ) -> None:
        """Prepare the score of every green.

        Args:
            signal: the signal.
            greens: its green phases.
            lane_row: row of a lane in the readings and in `length_m`; lanes that are not read are left out.
            length_m: float64 [lanes], lane lengths.
            lanes_behind: by short incoming lane, lane that leads to it -> distance from its end to the stop line, m.
        """

    def scores(self, readings: Readings) -> Floats:
        """float64 [greens]."""


class ScoredGreens:
    """The greens of one TL's signals, chosen by a score."""

    def __init__(
        self,
        kind: type[GreenScore],
        signals: Sequence[SignalNetwork],
        greens: Sequence[Sequence[str]],
        lane_row: Mapping[str, int],
        length_m: Floats,
        times: SafetyTimes,
        lanes_behind: Mapping[str, Mapping[str, float]],
    ) -> None:
        """`signals`, `greens`: by signal, as those of `GreenScore`. `times`: yellow, all-red and min green."""
        self.name = kind.name
        pairs = list(zip(signals, greens, strict=True))
        self._scores = [kind(signal, states, lane_row, length_m, lanes_behind) for signal, states in pairs]
        self._sequencers = [
            GreenPhaseSequencer(states, DECISION_INTERVAL_S, times.yellow_s, times.min_green_s, times.all_red_s)
            for states in greens
        ]
        self._served = [np.array([[c in GREEN for c in state] for state in states]) for states in greens]
        """By signal, bool [greens, links]: whether a green serves a link."""
        signal_states = [
            ScoredSignalState(sequencer.state, [0.0] * served.shape[1])
            for sequencer, served in zip(self._sequencers, self._served, strict=True)
        ]
        self.state = ScoredGreensState(signal_states)

    def enter(self, now: float, shown: Sequence[str]) -> None:
        """Take over from the states that are shown; the first decision is due now."""
        self.state.next_decision_s = now
        for sequencer, shown_state in zip(self._sequencers, shown, strict=True):
            sequencer.enter(now, [shown_state])
        for signal in self.state.signals:
            signal.served_s = [now] * len(signal.served_s)

    def decide(self, now: float, readings: Readings) -> None:
        """Decide by the newest readings, if a decision is due."""
        if now < self.state.next_decision_s:
            return
        self.state.next_decision_s = round_to_ms(now + DECISION_INTERVAL_S)
        for k, sequencer in enumerate(self._sequencers):
            scores = self._scores[k].scores(readings)
            # of equal greens the current one stays: a change costs a yellow
            current = sequencer.phase_state(now).phases[0]
            best = current if scores[current] >= scores.max() - 1e-12 else int(scores.argmax())
            served, signal = self._served[k], self.state.signals[k]
            served_s = np.array(signal.served_s)
            served_s[served[current] | ~served.any(0)] = now
            signal.served_s = served_s.tolist()
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
