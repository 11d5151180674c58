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
from typing import NamedTuple

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


class _Change(NamedTuple):
    """What lies between two states, whatever the ages of their colours. Links by index."""

    turned: tuple[int, ...]
    """To another colour."""
    was_green: tuple[int, ...]
    was_yellow: tuple[int, ...]
    """Of these."""
    awaits: tuple[tuple[int, int], ...]
    """(a link that gets its green, a foe that is red and must be clear)."""
    faults: tuple[tuple[Rule, str], ...]


class SignalMonitor:
    """One signal."""

    def __init__(self, network: SignalNetwork, limits: Limits, greens: Sequence[str] = ()) -> None:
        """`greens`: the phases that may serve a link; a link that none or all of them serve cannot starve."""
        self.signal = network.id
        links = range(len(network.links))
        self._foes = [[j for j in links if network.foes[i, j]] for i in links]
        self._gives_way = [{j for j in self._foes[i] if network.yields[i, j]} for i in links]
        # where vehicles share the link with pedestrians they need their yellow
        self._is_crossing = [
            length_m > 0 and not mps > 0 for length_m, mps in zip(network.crossing_m, network.approach_mps, strict=True)
        ]
        self._yellow_s = [max(limits.yellow_s, _yellow_of(3.6 * mps)) for mps in network.approach_mps]
        self._clear_s = [max(limits.all_red_s, length_m / limits.walking_mps) for length_m in network.crossing_m]
        self._min_green_s = limits.min_green_s
        served = [{state[i] in "gG" for state in greens} for i in links]
        self._may_starve = [i for i in links if served[i] == {True, False}]
        change_s = limits.min_green_s + max(self._yellow_s, default=0.0) + max(self._clear_s, default=0.0)
        self._starved_s = limits.max_red_s + (1 + len(greens)) * change_s
        self._state = ""
        self._since: list[float | None] = []
        """By link, since when it shows its colour; None: since before it was watched."""
        self._watched_s = math.inf
        self._waited_s = [0.0] * len(network.links)
        """By link, how long it was red under this controller before the signal ran its own program, and red there as well."""
        self._most_waited_s = 0.0
        self._told: set[int] = set()
        self._is_ours = True
        self._changes: dict[tuple[str, str], _Change] = {}
        self._faults: dict[str, list[tuple[Rule, str]]] = {}
        """What depends on states alone, by these; forgotten where there are too many."""

    def see_plan(self, state: str, begin_s: float) -> list[Alarm]:
        """The signal ran its own program from begin_s on, and showed `state` at last: how it was handed over.

        What the program does after that is its own, and seen now and then only.
        """
        alarms: list[Alarm] = []
        if self._is_ours and self._state and len(state) == len(self._state):
            self._waited_s = [self._red_s(i, begin_s) for i in range(len(state))]
            self._change(state, begin_s, alarms)
        self._is_ours = False
        self._waited_s = [s if _colour(c) == "red" else 0.0 for s, c in zip(self._waited_s, state, strict=False)]
        self._told = {i for i in self._told if i < len(state) and _colour(state[i]) == "red"}
        self._state, self._since, self._watched_s = state, [None] * len(state), math.inf
        return alarms

    def see(self, state: str, begin_s: float, end_s: float) -> list[Alarm]:
        """The signal showed `state` from begin_s to end_s: what was wrong with that."""
        alarms: list[Alarm] = []
        is_new = not self._is_ours
        if is_new:
            self._is_ours, self._watched_s, self._most_waited_s = True, begin_s, max(self._waited_s, default=0.0)
        if state != self._state or is_new:
            if len(state) != len(self._state):
                self._since, self._watched_s, self._told = [None] * len(state), begin_s, set()
                self._waited_s = [0.0] * len(state)
            else:
                self._change(state, begin_s, alarms)
            self._judge(state, begin_s, alarms)
            self._state = state
        if end_s - self._watched_s + self._most_waited_s > self._starved_s:
            self._look_for_the_starved(end_s, alarms)
        return alarms

    def _change(self, state: str, now: float, alarms: list[Alarm]) -> None:
        """What links turned to, and after how long."""
        change, since = self._between(self._state, state), self._since
        for rule, words in change.faults:
            alarms.append(self._alarm(rule, now, words))
        for i in change.was_green:
            begin_s = since[i]
            if begin_s is not None and now - begin_s + _MS < self._min_green_s:
                alarms.append(self._alarm(Rule.MIN_GREEN, now, f"link {i} was green for {now - begin_s:.3g} s"))
        for i in change.was_yellow:
            begin_s = since[i]
            if begin_s is not None and now - begin_s + _MS < self._yellow_s[i]:
                words = f"link {i} was yellow for {now - begin_s:.3g} of {self._yellow_s[i]:g} s"
                alarms.append(self._alarm(Rule.YELLOW, now, words))
        for i in change.turned:
            since[i] = now
        self._told.difference_update(change.turned)
        for i, j in change.awaits:
            red_since = since[j]
            if red_since is not None and now - red_since + _MS < self._clear_s[j]:
                words = f"link {i} got its green {now - red_since:.3g} s after its foe {j}, not {self._clear_s[j]:.3g} s"
                alarms.append(self._alarm(Rule.CLEARANCE, now, words))

    def _between(self, before: str, state: str) -> _Change:
        found = self._changes.get((before, state))
        if found is None:
            if len(self._changes) > 10_000:
                self._changes.clear()
            found = self._changes[before, state] = self._compared(before, state)
        return found

    def _compared(self, before: str, state: str) -> _Change:
        old, new = [_colour(c) for c in before], [_colour(c) for c in state]
        turned = tuple(i for i in range(len(new)) if old[i] != new[i])
        awaits, faults = [], []
        for i in turned:
            if old[i] == "green" and new[i] == "red" and not self._is_crossing[i]:
                faults.append((Rule.YELLOW, f"link {i} went from green to red"))
            if old[i] == "yellow" and new[i] == "green":
                faults.append((Rule.YELLOW, f"link {i} went from yellow to green"))
        for i, c in enumerate(state):
            # from g to G is a way that was yielded on and is not any more
            if new[i] != "green" or (old[i] == "green" and not (before[i] == "g" and c == "G")):
                continue
            for j in self._foes[i]:
                if c == "g" and j in self._gives_way[i]:
                    continue
                if new[j] == "yellow":
                    faults.append((Rule.CLEARANCE, f"link {i} got its green while its foe {j} was yellow"))
                elif new[j] == "red" and self._clear_s[j] > 0:
                    awaits.append((i, j))
        was_green, was_yellow = (tuple(i for i in turned if old[i] == c) for c in ("green", "yellow"))
        return _Change(turned, was_green, was_yellow, tuple(awaits), tuple(faults))

    def _judge(self, state: str, now: float, alarms: list[Alarm]) -> None:
        """The state by itself."""
        if state not in self._faults:
            if len(self._faults) > 10_000:
                self._faults.clear()
            self._faults[state] = self._faults_of(state)
        for rule, words in self._faults[state]:
            alarms.append(self._alarm(rule, now, words))

    def _faults_of(self, state: str) -> list[tuple[Rule, str]]:
        faults = []
        if strange := set(state) - set("rygGsu"):
            faults.append((Rule.FOREIGN, f"{state} holds {' '.join(sorted(strange))}"))
        for i, c in enumerate(state):
            for j in self._foes[i] if c in "gG" else ():
                # of two foes one at least must give way by its own letter and by its right of way
                yields_i = c == "g" and j in self._gives_way[i]
                yields_j = state[j] == "g" and i in self._gives_way[j]
                if i < j and state[j] in "gG" and not yields_i and not yields_j:
                    faults.append((Rule.CONFLICT, f"{state}: links {i} and {j} are foes"))
        return faults

    def _look_for_the_starved(self, now: float, alarms: list[Alarm]) -> None:
        for i in self._may_starve:
            red_s = self._red_s(i, now)
            if i not in self._told and red_s > self._starved_s:
                self._told.add(i)
                alarms.append(self._alarm(Rule.STARVED, now, f"link {i} has been red for {red_s:.0f} s"))

    def _red_s(self, i: int, now: float) -> float:
        """How long a link has been red under this controller."""
        if _colour(self._state[i]) != "red":
            return 0.0
        begin_s = self._since[i]
        return now - begin_s if begin_s is not None else self._waited_s[i] + now - self._watched_s

    def _alarm(self, rule: Rule, now: float, words: str) -> Alarm:
        return Alarm(self.signal, rule, now, words)


def _colour(c: str) -> str:
    """`off` (blinking, or dark) keeps nobody waiting."""
    return {"g": "green", "G": "green", "y": "yellow", "Y": "yellow", "o": "off", "O": "off"}.get(c, "red")


def _yellow_of(kmh: float) -> float:
    """RiLSA: 3 s up to 50 km/h, 4 s up to 60, 5 s up to 70; a second more beyond."""
    if kmh < 50.5:
        return 3.0
    if kmh < 60.5:
        return 4.0
    return 5.0 if kmh < 70.5 else 6.0
