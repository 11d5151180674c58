"""Greedy control: a baseline that serves the most vehicles near the stop lines.

A signal shows the green with the greatest score: the vehicles, halting or not, whose front is at most DETECTION_M
before the stop line, on the lanes that the green serves, each lane counted once. On an incoming lane shorter than that,
the vehicles on the lanes that lead to it count too.
Source: MAXWAVE, the baseline Greedy of Ault and Sharon, Reinforcement Learning Benchmarks for Traffic Signal Control,
NeurIPS Datasets and Benchmarks (2021); https://github.com/Pi-Star-Lab/RESCO (agents/maxwave.py, states.py). There a
phase counts a pair of movements, only incoming lanes are seen, the first of equal phases is chosen, and the decision
interval is the street's, 5 or 10 s. RESCO has no bound of the wait: the one here is max-pressure's.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from city.lanes import is_internal
from city.network import SignalNetwork
from signals.observation import Floats, Readings, Rows
from signals.safety.conflicts import GREEN

DETECTION_M = 50.0
"""Distance to the stop line within which vehicles count; at most MIN_APPROACH_M, up to which the lanes behind are
known."""


def approach_lanes(signal: SignalNetwork, lanes_behind: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The incoming lanes of a signal and the lanes behind them: lane -> distance from its end to the stop line in m."""
    distance_m = {lane: 0.0 for link in signal.links for lane, _ in link}
    for short in list(distance_m):
        for lane, ahead_m in lanes_behind.get(short, {}).items():
            distance_m[lane] = min(ahead_m, distance_m.get(lane, math.inf))
    return distance_m


class Greedy:
    """The vehicles near the stop lines that each green of a signal serves."""

    name = "greedy"

    def __init__(
        self,
        signal: SignalNetwork,
        greens: Sequence[str],
        lane_row: Mapping[str, int],
        length_m: Floats,
        lanes_behind: Mapping[str, Mapping[str, float]],
    ) -> None:
        # of crossings, persons alone are read
        distance_m = {
            lane: m
            for lane, m in approach_lanes(signal, lanes_behind).items()
            if lane in lane_row and not is_internal(lane)
        }
        self._rows: Rows = np.array([lane_row[lane] for lane in distance_m], np.intp)
        self._seen_from_m: Floats = length_m[self._rows] - DETECTION_M + np.array(list(distance_m.values()))
        """float64 [lanes], the position on the lane from which on a vehicle counts."""
        self._served = np.array([[c in GREEN for c in state] for state in greens], float)
        """[greens, links]"""
        self._lanes = np.zeros((len(signal.links), len(distance_m)))
        """[links, lanes], 1 for the incoming lanes of a link and those behind them."""
        for row, link in zip(self._lanes, signal.links, strict=True):
            incoming = {lane for lane, _ in link}
            own = {*incoming, *(lane for short in incoming for lane in lanes_behind.get(short, ()))}
            row[:] = [lane in own for lane in distance_m]

    def scores(self, readings: Readings, counts: NDArray[np.bool_]) -> Floats:
        """float64 [greens], the vehicles on the lanes of links that count."""
        vehicles = readings.by_vehicle
        is_near = (vehicles.row == self._rows[:, None]) & (vehicles.position_m >= self._seen_from_m[:, None])
        vehicles_near: Floats = ((self._served * counts) @ self._lanes > 0) @ is_near.sum(1)
        return vehicles_near
