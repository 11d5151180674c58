"""Max-pressure control: a fallback that needs only the readings.

A signal shows the green with the greatest pressure: the sum over its green links of
vehicles / length of the incoming lane minus vehicles / length of the outgoing lane.
Divided by the length, long lanes do not count for more. An incoming lane shorter than
MIN_APPROACH_M counts together with the lanes that lead to it.
Source: Varaiya, Max pressure control of a network of signalized intersections,
Transportation Research Part C 36 (2013).
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from city.lanes import is_internal
from city.network import SignalNetwork
from signals.observation import Floats, Readings, Rows
from signals.safety.conflicts import GREEN


def lanes_of(signal: SignalNetwork, lanes_behind: Mapping[str, Iterable[str]]) -> list[str]:
    """The lanes of a signal's pressure: incoming lanes, lanes behind them, then outgoing lanes."""
    incoming = [lane for link in signal.links for lane, _ in link]
    outgoing = [lane for link in signal.links for _, lane in link]
    behind = [lane for short in incoming for lane in lanes_behind.get(short, ())]
    return list(dict.fromkeys([*incoming, *behind, *outgoing]))


class MaxPressure:
    """The pressure of each green of a signal."""

    name = "max-pressure"

    def __init__(
        self,
        signal: SignalNetwork,
        greens: Sequence[str],
        lane_row: Mapping[str, int],
        length_m: Floats,
        lanes_behind: Mapping[str, Iterable[str]],
    ) -> None:
        # of crossings, persons alone are read
        lanes = [lane for lane in lanes_of(signal, lanes_behind) if lane in lane_row and not is_internal(lane)]
        column = {lane: k for k, lane in enumerate(lanes)}
        self._rows: Rows = np.array([lane_row[lane] for lane in lanes], np.intp)
        self._served = np.array([[c in GREEN for c in state] for state in greens], float)
        """[greens, links]"""
        self._weights = np.zeros((len(signal.links), len(lanes)))
        """[links, lanes], in 1/m."""
        pairs = {pair: k for k, link in enumerate(signal.links) for pair in link}
        for (incoming, outgoing), k in pairs.items():
            approach = [lane for lane in (incoming, *lanes_behind.get(incoming, ())) if lane in column]
            exit_lanes = [outgoing] if outgoing in column else []
            for group, sign in ((approach, 1.0), (exit_lanes, -1.0)):
                total_m = sum(length_m[lane_row[lane]] for lane in group)
                for lane in group:
                    self._weights[k, column[lane]] += sign / total_m

    def scores(self, readings: Readings, counts: NDArray[np.bool_]) -> Floats:
        """float64 [greens], the pressures in 1/m of the links that count."""
        pressures: Floats = self._served @ (counts * (self._weights @ readings.vehicles[self._rows]))
        return pressures
