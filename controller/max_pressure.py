"""Max-pressure control: the fallback that needs no policy, only the readings.

Of the greens of a signal it chooses the one with the greatest pressure: over the
links that have green, vehicles on the incoming lane minus vehicles on the
outgoing one, each by the lane's length, so that long lanes do not count for more
than they hold. Varaiya, Max pressure control of a network of signalized
intersections, Transportation Research Part C 36 (2013).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from city.network import SignalNetwork
from controller.observation import Floats, Readings, Rows
from controller.signal_timing import SumoRlTiming
from controller.simulation_time import ms

INTERVAL_S = 5.0
"""Between two choices: each may cost a yellow."""


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
    ) -> None:
        """`greens`: by signal its green phases. `lane_row`: where a lane stands in the readings, as in `length_m`."""
        self._timings = [SumoRlTiming(states, INTERVAL_S, yellow_s, min_green_s) for states in greens]
        self._lanes = [_Lanes(signal, states, lane_row, length_m) for signal, states in zip(signals, greens, strict=True)]
        self.next_decision_s = -math.inf

    def enter(self, now: float, shown: Sequence[str]) -> None:
        """Take over from the states that are shown; the first choice is due now."""
        self.next_decision_s = now
        for timing, state in zip(self._timings, shown, strict=True):
            timing.enter(now, [state])

    def decide(self, now: float, readings: Readings) -> None:
        """Choose by the newest readings, where a choice is due."""
        if now < self.next_decision_s:
            return
        self.next_decision_s = ms(now + INTERVAL_S)
        for timing, lanes in zip(self._timings, self._lanes, strict=True):
            pressure = lanes.weights @ readings.vehicles[lanes.rows]
            # where several are alike, what is green stays so: a change costs a yellow
            current = timing.phases(now)[0]
            best = current if pressure[current] >= pressure.max() - 1e-12 else int(pressure.argmax())
            timing.decide(now, (best,))

    def wishes(self, now: float) -> tuple[str, ...]:
        return tuple(timing.wishes(now)[0] for timing in self._timings)

    def next_change_s(self, now: float) -> float:
        return min(timing.next_change_s(now) for timing in self._timings)


def lanes_of(signal: SignalNetwork) -> list[str]:
    """Every lane that the pressure of a signal reads: incoming ones, then outgoing ones."""
    pairs = [pair for link in signal.links for pair in link]
    return list(dict.fromkeys([*(a for a, _ in pairs), *(b for _, b in pairs)]))


class _Lanes:
    """Where a signal's lanes stand in the readings, and what a vehicle on each adds to the pressure of each green."""

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
