"""Max-pressure control: a fallback that needs only the readings.

A signal shows the green with the greatest pressure: the sum over its green links of
vehicles / length of the incoming lane minus vehicles / length of the outgoing lane.
Divided by the length, long lanes do not count for more. An incoming lane shorter than
MIN_APPROACH_M counts together with the lanes that lead to it.
A link that has waited for MAX_WAIT_S is served next, whatever its pressure: its lane may
be too short to see the queue behind it, or its detector may have failed.
Source: Varaiya, Max pressure control of a network of signalized intersections,
Transportation Research Part C 36 (2013).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from city.network import SignalNetwork
from signals.green_phases import GreenPhaseSequencer
from signals.observation import Floats, Readings, Rows
from signals.safety.conflicts import GREEN
from signals.simulation_time import round_to_ms

DECISION_INTERVAL_S = 5.0
"""Simulated seconds between two decisions: each change costs a yellow."""
MAX_WAIT_S = 120.0
"""Simulated seconds without green after which a link is served next."""


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
        lanes_behind: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Prepare the pressure of every green.

        Args:
            signals: the TL's signals.
            greens: green phases by signal.
            lane_row: row of a lane in the readings and in `length_m`.
            length_m: float64 [lanes], lane lengths.
            yellow_s: yellow between two greens, s.
            min_green_s: minimum duration of a green, s.
            all_red_s: red between the yellow and the next green, s.
            lanes_behind: lanes that lead to a short incoming lane and count together with it.
        """
        self._sequencers = [
            GreenPhaseSequencer(states, DECISION_INTERVAL_S, yellow_s, min_green_s, all_red_s) for states in greens
        ]
        self._lanes = [
            _PressureLanes(signal, states, lane_row, length_m, lanes_behind or {})
            for signal, states in zip(signals, greens, strict=True)
        ]
        self._served = [np.array([[c in GREEN for c in state] for state in states]) for states in greens]
        """By signal, bool [greens, links]: whether a green serves a link."""
        self._served_s = [np.zeros(served.shape[1]) for served in self._served]
        """By signal, when each link was last served. Links that no green serves never wait."""
        self.next_decision_s = -math.inf

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
        for k, (sequencer, lanes) in enumerate(zip(self._sequencers, self._lanes, strict=True)):
            pressure = lanes.weights @ readings.vehicles[lanes.rows]
            # of equal greens the current one stays: a change costs a yellow
            current = sequencer.phase_state(now).phases[0]
            best = current if pressure[current] >= pressure.max() - 1e-12 else int(pressure.argmax())
            served, served_s = self._served[k], self._served_s[k]
            served_s[served[current] | ~served.any(0)] = now
            waiting = int(served_s.argmin())
            if now - served_s[waiting] >= MAX_WAIT_S:
                best = int(np.where(served[:, waiting], pressure, -math.inf).argmax())
            sequencer.apply_action(now, (best,))

    def note_shown(self, now: float, signal: int) -> None:
        """Record that a signal shows its requested state at second `now`."""
        self._sequencers[signal].note_shown(now)

    def requested_states(self, now: float) -> tuple[str, ...]:
        return tuple(sequencer.requested_states(now)[0] for sequencer in self._sequencers)

    def next_change_s(self, now: float) -> float:
        return min(sequencer.next_change_s(now) for sequencer in self._sequencers)


def lanes_of(signal: SignalNetwork, lanes_behind: Mapping[str, Sequence[str]]) -> list[str]:
    """The lanes of a signal's pressure: incoming lanes, lanes behind them, then outgoing lanes."""
    incoming = [lane for link in signal.links for lane, _ in link]
    outgoing = [lane for link in signal.links for _, lane in link]
    behind = [lane for short in incoming for lane in lanes_behind.get(short, ())]
    return list(dict.fromkeys([*incoming, *behind, *outgoing]))


class _PressureLanes:
    """The rows of a signal's lanes in the readings, and the weight of their vehicles in the pressure of each green."""

    def __init__(
        self,
        signal: SignalNetwork,
        greens: Sequence[str],
        lane_row: Mapping[str, int],
        length_m: Floats,
        lanes_behind: Mapping[str, Sequence[str]],
    ) -> None:
        # crossings and walking areas carry no vehicles and are not read
        lanes = [lane for lane in lanes_of(signal, lanes_behind) if lane in lane_row]
        column = {lane: k for k, lane in enumerate(lanes)}
        self.rows: Rows = np.array([lane_row[lane] for lane in lanes], np.intp)
        self.weights = np.zeros((len(greens), len(lanes)))
        """[greens, lanes], in 1/m."""
        for row, state in zip(self.weights, greens, strict=True):
            served = {pair for c, link in zip(state, signal.links, strict=False) if c in "Gg" for pair in link}
            for incoming, outgoing in served:
                approach = [lane for lane in (incoming, *lanes_behind.get(incoming, ())) if lane in column]
                exit_lanes = [outgoing] if outgoing in column else []
                for group, sign in ((approach, 1.0), (exit_lanes, -1.0)):
                    total_m = sum(length_m[lane_row[lane]] for lane in group)
                    for lane in group:
                        row[column[lane]] += sign / total_m
