"""Max-pressure control: the fallback that needs no policy, only the readings.

Of a signal's greens it chooses the one with the greatest pressure: the sum over the
links that have green of vehicles on the incoming lane minus vehicles on the outgoing
lane, each divided by the lane's length, so that long lanes do not count for more.
Source: Varaiya, Max pressure control of a network of signalized intersections,
Transportation Research Part C 36 (2013).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from city.network import SignalNetwork
from controller.dialects.sumo_rl import GreenPhaseSequencer
from controller.observation import Floats, Readings, Rows
from controller.simulation_time import round_to_ms

DECISION_INTERVAL_S = 5.0
"""Simulated seconds between two decisions: each change costs a yellow."""


class MaxPressure:
    """The greens of one TL's signals, chosen by pressure."""

    def __init__(
        self,
        signals: Sequence[SignalNetwork],
        greens: Sequence[Sequence[str]],
        lane_row: Mapping[str, int],
        length_m: Floats,
        yellow_s: float,
        min_green_s: float,
        all_red_s: float = 0.0,
    ) -> None:
        """Prepare the pressure of every green.

        Args:
            signals: the TL's signals.
            greens: by signal its green phases.
            lane_row: a lane's row in the readings and in `length_m`.
            length_m: float64 [lanes].
            yellow_s: yellow between two greens, s.
            min_green_s: least duration of a green, s.
            all_red_s: red between the yellow and the next green, s.
        """
        self._sequencers = [
            GreenPhaseSequencer(states, DECISION_INTERVAL_S, yellow_s, min_green_s, all_red_s) for states in greens
        ]
        self._lanes = [_PressureLanes(signal, states, lane_row, length_m) for signal, states in zip(signals, greens, strict=True)]
        self.next_decision_s = -math.inf

    def enter(self, now: float, shown: Sequence[str]) -> None:
        """Take over from the states that are shown; the first decision is due now."""
        self.next_decision_s = now
        for sequencer, state in zip(self._sequencers, shown, strict=True):
            sequencer.enter(now, [state])

    def decide(self, now: float, readings: Readings) -> None:
        """Decide by the newest readings, if a decision is due."""
        if now < self.next_decision_s:
            return
        self.next_decision_s = round_to_ms(now + DECISION_INTERVAL_S)
        for sequencer, lanes in zip(self._sequencers, self._lanes, strict=True):
            pressure = lanes.weights @ readings.vehicles[lanes.rows]
            # of equal greens the current one stays: a change costs a yellow
            current = sequencer.phase_state(now).phases[0]
            best = current if pressure[current] >= pressure.max() - 1e-12 else int(pressure.argmax())
            sequencer.apply_action(now, (best,))

    def note_shown(self, now: float, signal: int) -> None:
        """Report that a signal shows its requested state at second `now`."""
        self._sequencers[signal].note_shown(now)

    def requested_states(self, now: float) -> tuple[str, ...]:
        return tuple(sequencer.requested_states(now)[0] for sequencer in self._sequencers)

    def next_change_s(self, now: float) -> float:
        return min(sequencer.next_change_s(now) for sequencer in self._sequencers)


def lanes_of(signal: SignalNetwork) -> list[str]:
    """Every lane that the pressure of a signal reads: incoming ones, then outgoing ones."""
    pairs = [pair for link in signal.links for pair in link]
    return list(dict.fromkeys([*(a for a, _ in pairs), *(b for _, b in pairs)]))


class _PressureLanes:
    """The rows of a signal's lanes in the readings, and what a vehicle on each adds to the pressure of each green."""

    def __init__(self, signal: SignalNetwork, greens: Sequence[str], lane_row: Mapping[str, int], length_m: Floats) -> None:
        # crossings and walking areas carry no vehicles and are not read
        lanes = [lane for lane in lanes_of(signal) if lane in lane_row]
        column = {lane: k for k, lane in enumerate(lanes)}
        self.rows: Rows = np.array([lane_row[lane] for lane in lanes], np.intp)
        self.weights = np.zeros((len(greens), len(lanes)))
        """[greens, lanes], in 1/m."""
        for row, state in zip(self.weights, greens, strict=True):
            served = {pair for c, link in zip(state, signal.links, strict=False) if c in "Gg" for pair in link}
            for incoming, outgoing in served:
                for lane, sign in ((incoming, 1.0), (outgoing, -1.0)):
                    if lane in column:
                        row[column[lane]] += sign / length_m[lane_row[lane]]
