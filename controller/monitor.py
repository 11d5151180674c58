"""The monitor: watches what SUMO really shows and raises an alarm where a rule is broken.

Written from the rules of the road and not from `safety`: it shares no code with
it, so that a mistake there does not hide here. It only watches. It is told the
state that a signal showed from one moment to another, and knows of each link
what it showed before and since when.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from city.network import SignalNetwork


class Rule(StrEnum):
    """What was broken; the names are a metric's label."""

    CONFLICT = "conflict"
    """Two foes had green, and neither yields to the other."""
    YELLOW = "yellow"
    """A vehicle link lost its green without yellow, had it for too short, or went on from it to green."""
    MIN_GREEN = "min_green"
    CLEARANCE = "clearance"
    """A link turned green while a foe was not clear yet."""
    STARVED = "starved"
    """A link was red for longer than max red and the time it takes to serve it."""
    FOREIGN = "foreign"
    """Characters that are none of a signal's."""


@dataclass(frozen=True)
class Alarm:
    signal: str
    rule: Rule
    at_s: float
    words: str


@dataclass(frozen=True)
class Limits:
    """The least that every signal owes, in s (m/s for walking)."""

    yellow_s: float
    min_green_s: float
    all_red_s: float
    max_red_s: float = math.inf
    walking_mps: float = 1.2


_MS = 1e-3
"""SUMO counts milliseconds: sums of seconds may miss them by less."""


class SignalMonitor:
    """One signal."""

    def __init__(self, network: SignalNetwork, limits: Limits, greens: Sequence[str] = ()) -> None:
        """`greens`: the phases that may serve a link; a link that none or all of them serve cannot starve."""
        self.signal = network.id
        links = range(len(network.links))
        self._foes = [[j for j in links if network.foes[i, j]] for i in links]
        self._gives_way = [{j for j in self._foes[i] if network.yields[i, j]} for i in links]
        self._is_crossing = [length_m > 0 for length_m in network.crossing_m]
        self._yellow_s = [max(limits.yellow_s, _yellow_of(3.6 * mps)) for mps in network.approach_mps]
        self._clear_s = [max(limits.all_red_s, length_m / limits.walking_mps) for length_m in network.crossing_m]
        self._min_green_s = limits.min_green_s
        served = [{state[i] in "gG" for state in greens} for i in links]
        self._may_starve = [i for i in links if served[i] == {True, False}]
        change_s = limits.min_green_s + max(self._yellow_s, default=0.0) + max(self._clear_s, default=0.0)
        self._starved_s = limits.max_red_s + (1 + len(greens)) * change_s
        self.look_away()

    def look_away(self) -> None:
        """Forget what was seen: the signal runs its own program."""
        self._state = ""
        self._since: list[float | None] = []
        """By link, since when it shows its colour; None: since before it was watched."""
        self._watched_s = math.inf
        self._told: set[int] = set()

    def see(self, state: str, begin_s: float, end_s: float) -> list[Alarm]:
        """The signal showed `state` from begin_s to end_s: what was wrong with that."""
        alarms: list[Alarm] = []
        if state != self._state:
            if not self._state or len(state) != len(self._state):
                self._since, self._watched_s, self._told = [None] * len(state), begin_s, set()
            else:
                self._change(state, begin_s, alarms)
            self._judge(state, begin_s, alarms)
            self._state = state
        if end_s - self._watched_s > self._starved_s:
            self._look_for_the_starved(end_s, alarms)
        return alarms

    def _change(self, state: str, now: float, alarms: list[Alarm]) -> None:
        before, since = self._state, list(self._since)
        turned = [i for i in range(len(state)) if _colour(before[i]) != _colour(state[i])]
        for i in turned:
            begin_s = since[i]
            lasted = math.inf if begin_s is None else now - begin_s + _MS
            old, new = _colour(before[i]), _colour(state[i])
            if old == "green" and new == "red" and not self._is_crossing[i]:
                alarms.append(self._alarm(Rule.YELLOW, now, f"link {i} went from green to red"))
            if old == "green" and lasted < self._min_green_s:
                alarms.append(self._alarm(Rule.MIN_GREEN, now, f"link {i} was green for {lasted:.3g} s"))
            if old == "yellow" and new == "green":
                alarms.append(self._alarm(Rule.YELLOW, now, f"link {i} went from yellow to green"))
            if old == "yellow" and lasted < self._yellow_s[i]:
                alarms.append(self._alarm(Rule.YELLOW, now, f"link {i} was yellow for {lasted:.3g} of {self._yellow_s[i]:g} s"))
            self._since[i] = now
        self._told.difference_update(turned)
        for i in turned:
            if _colour(state[i]) == "green":
                self._cleared_for(i, state, now, alarms)

    def _cleared_for(self, i: int, state: str, now: float, alarms: list[Alarm]) -> None:
        """Whether the foes of a link that turns green are out of its way."""
        for j in self._foes[i]:
            if state[i] == "g" and j in self._gives_way[i]:
                continue
            if _colour(state[j]) == "yellow":
                alarms.append(self._alarm(Rule.CLEARANCE, now, f"link {i} turned green while its foe {j} was yellow"))
            red_since = self._since[j]
            if _colour(state[j]) == "red" and red_since is not None and now - red_since + _MS < self._clear_s[j]:
                words = f"link {i} turned green {now - red_since:.3g} s after its foe {j}, not {self._clear_s[j]:.3g} s"
                alarms.append(self._alarm(Rule.CLEARANCE, now, words))

    def _judge(self, state: str, now: float, alarms: list[Alarm]) -> None:
        """The state by itself."""
        if strange := set(state) - set("rygGsu"):
            alarms.append(self._alarm(Rule.FOREIGN, now, f"{state} holds {' '.join(sorted(strange))}"))
        for i, c in enumerate(state):
            for j in self._foes[i] if c in "gG" else ():
                # of two foes one at least must give way by its own letter and by its right of way
                yields_i = c == "g" and j in self._gives_way[i]
                yields_j = state[j] == "g" and i in self._gives_way[j]
                if i < j and state[j] in "gG" and not yields_i and not yields_j and (c == "G" or state[j] == "G"):
                    alarms.append(self._alarm(Rule.CONFLICT, now, f"{state}: links {i} and {j} are foes"))

    def _look_for_the_starved(self, now: float, alarms: list[Alarm]) -> None:
        for i in self._may_starve:
            begin_s = self._since[i]
            red_s = now - (self._watched_s if begin_s is None else begin_s)
            if _colour(self._state[i]) == "red" and i not in self._told and red_s > self._starved_s:
                self._told.add(i)
                alarms.append(self._alarm(Rule.STARVED, now, f"link {i} has been red for {red_s:.0f} s"))

    def _alarm(self, rule: Rule, now: float, words: str) -> Alarm:
        return Alarm(self.signal, rule, now, words)


def _colour(c: str) -> str:
    return {"g": "green", "G": "green", "y": "yellow", "Y": "yellow"}.get(c, "red")


def _yellow_of(kmh: float) -> float:
    """RiLSA: 3 s up to 50 km/h, 4 s up to 60, 5 s up to 70; a second more beyond."""
    if kmh < 50.5:
        return 3.0
    if kmh < 60.5:
        return 4.0
    return 5.0 if kmh < 70.5 else 6.0
