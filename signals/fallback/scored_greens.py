"""Control by a score: every few seconds a signal shows the green with the greatest one. It needs only the readings.

A link that has waited for MAX_WAIT_S is served next, whatever the scores: its lane may be too short to see the queue
behind it, or its detector may have failed.

A lane whose queue does not shrink under a green stands for a link that this green does not serve: until it moves, the
links that the green shows G do not count, unless no other link of the lane is left, as before a full exit.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from city.lanes import is_internal
from city.network import SignalNetwork
from signals.green_phases import GreenPhaseSequencer, GreenPhasesState
from signals.observation import Floats, Readings, Rows, SavedState
from signals.safety.conflicts import GREEN
from signals.safety.safety_times import SafetyTimes
from signals.simulation_time import round_to_ms

DECISION_INTERVAL_S = 5.0
"""Simulated seconds between two decisions: each change costs a yellow."""
MAX_WAIT_S = 120.0
"""Simulated seconds without green after which a link is served next."""
DETECTION_M = 50.0
"""Distance to the stop line within which `Greedy` counts vehicles; at most MIN_APPROACH_M, up to which the lanes behind
are known."""


@dataclass
class ScoredSignalState(SavedState):
    """A signal of `ScoredGreens`."""

    sequencer: GreenPhasesState
    served_s: list[float]
    """When each link was last served. Links that no green serves never wait."""
    tried: list[bool]
    """By link, true if its lane has stood while it was G, and not moved since."""
    halting: list[float]
    """Vehicles that halted on each link's lanes at the last decision; infinite before the first one."""


@dataclass
class ScoredGreensState(SavedState):
    """The state on which the later choices of greens depend."""

    signals: list[ScoredSignalState]
    next_decision_s: float = -math.inf


LanesBehind = Mapping[str, Mapping[str, float]]
"""By short incoming lane, lane that leads to it -> distance from its end to the stop line, m."""


class GreenScore(ABC):
    """Scores the greens of one signal."""

    name: str
    """The kind of control, as in arms and log lines."""

    def __init__(
        self,
        signal: SignalNetwork,
        greens: Sequence[str],
        lane_row: Mapping[str, int],
        length_m: Floats,
        lanes_behind: LanesBehind,
    ) -> None:
        """Prepare the score of every green.

        Args:
            signal: the signal.
            greens: its green phases.
            lane_row: row of a lane in the readings and in `length_m`; lanes that are not read are left out.
            length_m: float64 [lanes], lane lengths.
            lanes_behind: the lanes that lead to short incoming lanes.
        """
        lanes = [lane for lane in self.lanes_of(signal, lanes_behind) if lane in lane_row]
        self._rows: Rows = np.array([lane_row[lane] for lane in lanes], np.intp)
        self.served = np.array([[c in GREEN for c in state] for state in greens])
        """bool [greens, links], whether a green serves a link."""
        self._weights = np.zeros((len(signal.links), len(lanes)))
        """[links, lanes]"""
        self._prepare(signal, lanes, length_m[self._rows], lanes_behind)

    @classmethod
    @abstractmethod
    def lanes_of(cls, signal: SignalNetwork, lanes_behind: LanesBehind) -> list[str]:
        """The lanes of roads that the score of a signal reads; of crossings, persons alone are read."""

    @abstractmethod
    def _prepare(
        self, signal: SignalNetwork, lanes: Sequence[str], length_m: Floats, lanes_behind: LanesBehind
    ) -> None:
        """Set the weights. `lanes`, `length_m`: the lanes that are read, and their lengths."""

    @abstractmethod
    def scores(self, readings: Readings, counts: NDArray[np.bool_]) -> Floats:
        """float64 [greens]. `counts`: [links], whether a link counts."""


class MaxPressure(GreenScore):
    """The pressure of each green of a signal, in 1/m.

    It is the sum over the green links of vehicles / length of the incoming lane minus vehicles / length of the outgoing
    lane. Divided by the length, long lanes do not count for more. An incoming lane shorter than MIN_APPROACH_M counts
    together with the lanes that lead to it.
    Source: Varaiya, Max pressure control of a network of signalized intersections, Transportation Research Part C 36
    (2013).
    """

    name = "max-pressure"

    @classmethod
    def lanes_of(cls, signal: SignalNetwork, lanes_behind: LanesBehind) -> list[str]:
        incoming = [lane for link in signal.links for lane, _ in link]
        outgoing = [lane for link in signal.links for _, lane in link]
        behind = [lane for short in incoming for lane in lanes_behind.get(short, ())]
        return [lane for lane in dict.fromkeys([*incoming, *behind, *outgoing]) if not is_internal(lane)]

    def _prepare(
        self, signal: SignalNetwork, lanes: Sequence[str], length_m: Floats, lanes_behind: LanesBehind
    ) -> None:
        column = {lane: k for k, lane in enumerate(lanes)}
        pairs = {pair: k for k, link in enumerate(signal.links) for pair in link}
        for (incoming, outgoing), k in pairs.items():
            for group, sign in (((incoming, *lanes_behind.get(incoming, ())), 1.0), ((outgoing,), -1.0)):
                if columns := [column[lane] for lane in group if lane in column]:
                    self._weights[k, columns] += sign / length_m[columns].sum()

    def scores(self, readings: Readings, counts: NDArray[np.bool_]) -> Floats:
        pressures: Floats = self.served @ (counts * (self._weights @ readings.vehicles[self._rows]))
        return pressures


class Greedy(GreenScore):
    """The vehicles near the stop lines that each green of a signal serves: a baseline.

    These are the vehicles, halting or not, whose front is at most DETECTION_M before the stop line, on the lanes that
    the green serves, each lane counted once. On an incoming lane shorter than that, the vehicles on the lanes that lead
    to it count too.
    Source: MAXWAVE, the baseline Greedy of Ault and Sharon, Reinforcement Learning Benchmarks for Traffic Signal
    Control, NeurIPS Datasets and Benchmarks (2021); https://github.com/Pi-Star-Lab/RESCO (agents/maxwave.py,
    states.py). There a phase counts a pair of movements, only incoming lanes are seen, the first of equal phases is
    chosen, and the decision interval is the street's, 5 or 10 s. RESCO has no bound of the wait: the one here is
    max-pressure's.
    """

    name = "greedy"

    @classmethod
    def distances_m(cls, signal: SignalNetwork, lanes_behind: LanesBehind) -> dict[str, float]:
        """Incoming lanes of roads and the lanes behind them: lane -> distance from its end to the stop line in m."""
        incoming = {lane: 0.0 for link in signal.links for lane, _ in link}
        distance_m = dict(incoming)
        for short in incoming:
            for lane, ahead_m in lanes_behind.get(short, {}).items():
                distance_m[lane] = min(ahead_m, distance_m.get(lane, math.inf))
        return {lane: m for lane, m in distance_m.items() if not is_internal(lane)}

    @classmethod
    def lanes_of(cls, signal: SignalNetwork, lanes_behind: LanesBehind) -> list[str]:
        return list(cls.distances_m(signal, lanes_behind))

    def _prepare(
        self, signal: SignalNetwork, lanes: Sequence[str], length_m: Floats, lanes_behind: LanesBehind
    ) -> None:
        distance_m = self.distances_m(signal, lanes_behind)
        self._seen_from_m: Floats = length_m - DETECTION_M + np.array([distance_m[lane] for lane in lanes])
        """float64 [lanes], the position on the lane from which on a vehicle counts."""
        for row, link in zip(self._weights, signal.links, strict=True):
            incoming = {lane for lane, _ in link}
            own = {*incoming, *(lane for short in incoming for lane in lanes_behind.get(short, ()))}
            row[:] = [lane in own for lane in lanes]

    def scores(self, readings: Readings, counts: NDArray[np.bool_]) -> Floats:
        vehicles = readings.by_vehicle
        is_near = (vehicles.row == self._rows[:, None]) & (vehicles.position_m >= self._seen_from_m[:, None])
        vehicles_near: Floats = ((self.served * counts) @ self._weights > 0) @ is_near.sum(1)
        return vehicles_near


class _StandingLanes:
    """The links of a signal that the first vehicles of their lanes cannot wait for."""

    def __init__(self, signal: SignalNetwork, greens: Sequence[str], lane_row: Mapping[str, int]) -> None:
        lanes = [{lane for lane, _ in link if lane in lane_row} for link in signal.links]
        read = sorted(set().union(*lanes))
        self._rows: Rows = np.array([lane_row[lane] for lane in read], np.intp)
        self._lanes = np.array([[lane in own for lane in read] for own in lanes], float).reshape(-1, len(read))
        """[links, lanes of the signal]"""
        self._shares_lane = np.array([[not own.isdisjoint(other) for other in lanes] for own in lanes])
        self._protected = np.array([[c == "G" for c in state] for state in greens])
        self._is_served = np.array([[c in GREEN for c in state] for state in greens]).any(0)

    def update(self, signal: ScoredSignalState, green: int, was_green: bool, readings: Readings) -> None:
        """Learn from the queues since the last decision. `was_green`: the green was shown all this time."""
        halting, before = self._lanes @ readings.halting[self._rows], np.array(signal.halting)
        stands = (halting > 0) & (halting >= before)
        tried = np.array(signal.tried, bool) & stands
        if was_green:
            tried |= self._protected[green] & stands
        # without a link that is left, the others are tried once more, and then this green's
        tried &= self._is_left(tried) | self._protected[green]
        tried &= self._is_left(tried)
        signal.tried, signal.halting = tried.tolist(), halting.tolist()

    def _is_left(self, tried: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """[links], whether a link of the same lane is left that some green serves."""
        return np.asarray((self._shares_lane & self._is_served & ~tried).any(1))


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
        lanes_behind: LanesBehind,
    ) -> None:
        """`signals`, `greens`: by signal, as those of `GreenScore`. `times`: yellow, all-red and min green."""
        self.name = kind.name
        pairs = list(zip(signals, greens, strict=True))
        self._scores = [kind(signal, states, lane_row, length_m, lanes_behind) for signal, states in pairs]
        self._sequencers = [
            GreenPhaseSequencer(states, DECISION_INTERVAL_S, times.yellow_s, times.min_green_s, times.all_red_s)
            for states in greens
        ]
        self._standing = [_StandingLanes(signal, states, lane_row) for signal, states in pairs]
        self.state = ScoredGreensState([])
        for sequencer, score in zip(self._sequencers, self._scores, strict=True):
            links = score.served.shape[1]
            self.state.signals.append(ScoredSignalState(sequencer.state, [0.0] * links, [False] * links, [0.0] * links))

    def enter(self, now: float, shown: Sequence[str]) -> None:
        """Take over from the states that are shown; the first decision is due now."""
        self.state.next_decision_s = now
        for sequencer, shown_state in zip(self._sequencers, shown, strict=True):
            sequencer.enter(now, [shown_state])
        for signal in self.state.signals:
            links = len(signal.served_s)
            signal.served_s, signal.tried, signal.halting = [now] * links, [False] * links, [math.inf] * links

    def decide(self, now: float, readings: Readings) -> None:
        """Decide by the newest readings, if a decision is due."""
        if now < self.state.next_decision_s:
            return
        self.state.next_decision_s = round_to_ms(now + DECISION_INTERVAL_S)
        for k, sequencer in enumerate(self._sequencers):
            signal = self.state.signals[k]
            was_green = sequencer.shown_for_s(now) >= DECISION_INTERVAL_S
            self._standing[k].update(signal, sequencer.state.green, was_green, readings)
            scores = self._scores[k].scores(readings, ~np.array(signal.tried, bool))
            # of equal greens the current one stays: a change costs a yellow
            current = sequencer.phase_state(now).phases[0]
            best = current if scores[current] >= scores.max() - 1e-12 else int(scores.argmax())
            served = self._scores[k].served
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
