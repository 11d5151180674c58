"""The monitor: checks the states that SUMO shows, and raises alarms.

It shares the times (those of the signal's programs included) and no rule with the safety rules, so that an error
there cannot hide itself here, and it never changes a signal. Its input is every state that a signal showed, with
its begin and end; it keeps the colour of each link and since when the link shows it.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from city.network import SignalNetwork
from city.right_of_way import Foes
from signals.movement_names import MovementNames
from signals.observation import SavedState
from signals.safety.safety_times import SafetyTimes, program_times

_ROUNDING_S = 1e-3
"""SUMO counts milliseconds: sums of seconds differ by less."""
MAX_CACHED_STATES = 10_000
"""Number of cached results, each of a state or a pair of states."""


class MonitorRule(StrEnum):
    """A rule that a signal broke; the values are labels of a metric."""

    CONFLICT = "conflict"
    """Two foes had green that the right of way does not permit together."""
    YELLOW = "yellow"
    """A vehicle link went from green to red, had a yellow that was too short, or went from yellow to green."""
    MIN_GREEN = "min_green"
    """A link lost its green before min green."""
    CLEARANCE = "clearance"
    """A link turned green while a foe was not clear yet."""
    MAX_RED_EXCEEDED = "max_red_exceeded"
    """A link was red, or without a protected green, for longer than max red and the time it takes to serve it."""
    INVALID_STATE = "invalid_state"
    """The state has invalid characters."""
    UNEXPECTED_STATE = "unexpected_state"
    """The signal shows another state than the one that was set: another client of SUMO sets it too."""


@dataclass(frozen=True)
class Alarm:
    """A rule that a signal broke, and when."""

    signal: str
    rule: MonitorRule
    at_s: float
    message: str


class _Change(NamedTuple):
    """The difference between two states, independent of how long they lasted. Links by index."""

    turned: tuple[int, ...]
    was_green: tuple[int, ...]
    was_yellow: tuple[int, ...]
    """Links of `turned` by their colour before."""
    awaits: tuple[tuple[int, int], ...]
    """(link that turns green, red foe that must be clear)."""
    faults: tuple[tuple[MonitorRule, str], ...]


@dataclass
class MonitorState(SavedState):
    """A signal as the monitor follows it."""

    since_s: list[float]
    """By link, since when it shows its colour; NaN if it has since before it was monitored."""
    waited_s: list[float]
    """By link, its red under control before the signal ran its own program, if it has stayed red since."""
    shown: str = ""
    monitored_from_s: float = math.inf
    max_waited_s: float = 0.0
    reported: set[int] = field(default_factory=set)
    """Links whose max red is reported."""
    is_controlled: bool = True
    unprotected_s: dict[int, float] = field(default_factory=dict)
    """By link with a bound on protected greens, the time under control since the last one."""


class SignalMonitor:
    """The monitor of one signal."""

    def __init__(
        self,
        network: SignalNetwork,
        limits: SafetyTimes,
        greens: Sequence[str] = (),
        names: MovementNames | None = None,
    ) -> None:
        """Prepare the monitor.

        Args:
            network, limits: of the signal.
            greens: the green phases; max red applies to links that some of them serve and some do not.
            names: of its movements, for the alarms.
        """
        self.signal = network.id
        self._name = [(names or MovementNames()).of_link(i) for i in range(len(network.links))]
        self._links = len(network.links)
        links = range(self._links)
        self._foes = [[j for j in links if network.foes[i, j]] for i in links]
        self._permissive = _those_with(network.permissive, self._foes)
        self._yields_to = _those_with(network.yields, self._foes)
        # a link that vehicles share with pedestrians needs its yellow
        self._is_crossing = [
            length_m > 0 and not mps > 0 for length_m, mps in zip(network.crossing_m, network.approach_mps, strict=True)
        ]
        self._yellow_s, self._clear_s = _required_s(network, limits)
        self._min_green_s = limits.min_green_s
        served = [{state[i] in "gG" for state in greens} for i in links]
        self._bounded = [i for i in links if served[i] == {True, False}]
        change_s = limits.min_green_s + max(self._yellow_s, default=0.0) + max(self._clear_s, default=0.0)
        # a link is served after those that have waited longer, each of them once
        serving_s = (1 + len(greens)) * change_s
        self._max_red_s = [max_red_s + serving_s for max_red_s in limits.max_reds_s(self._links)]
        self._max_unprotected_s = {
            i: bound_s + serving_s
            for i, bound_s in enumerate(limits.max_unprotected_s)
            if {state[i] == "G" for state in greens} == {True, False}
        }
        self._least_max_red_s = min(self._max_red_s, default=math.inf)
        self.state = MonitorState([math.nan] * self._links, [0.0] * self._links)
        self._between = functools.lru_cache(MAX_CACHED_STATES)(self._compare)
        self._faults_of = functools.lru_cache(MAX_CACHED_STATES)(self._find_faults)
        """Results that depend only on states."""

    def follow_program(self, shown: str, begin_s: float) -> list[Alarm]:
        """Record that the signal runs its own program from begin_s on, and that it shows `shown` then.

        Returns the alarms of the release; later states of the program are not checked.
        """
        alarms: list[Alarm] = []
        if len(shown) != self._links:
            shown = ""
        state = self.state
        if state.is_controlled and state.shown and shown:
            state.waited_s = [self._red_s(i, begin_s) for i in range(self._links)]
            alarms = self._change(shown, begin_s)
        state.is_controlled = False
        # a state of another length does not show which links are still red
        colours = [_colour(c) for c in shown or "o" * self._links]
        state.waited_s = [s if colour == "red" else 0.0 for s, colour in zip(state.waited_s, colours, strict=True)]
        state.reported = {i for i in state.reported if colours[i] == "red"}
        state.shown = shown
        state.since_s = [math.nan] * self._links
        self._check_protected(shown or "o" * self._links, begin_s, begin_s)
        return alarms

    def check_shown(self, shown: str, begin_s: float, end_s: float) -> list[Alarm]:
        """Check that the signal showed `shown` from begin_s to end_s. Returns the alarms."""
        alarms: list[Alarm] = []
        state = self.state
        if len(shown) != self._links:
            # only another client sets such a state; the next one is checked as at the start
            state.shown = ""
            return [
                self._alarm(
                    MonitorRule.INVALID_STATE, begin_s, f"{shown} is a state of {len(shown)} links, not {self._links}"
                )
            ]
        is_taken_over = not state.is_controlled
        if is_taken_over:
            state.is_controlled = True
            state.monitored_from_s = begin_s
            state.max_waited_s = max(state.waited_s, default=0.0)
        if shown != state.shown or is_taken_over:
            if state.shown:
                alarms += self._change(shown, begin_s)
            else:
                state.since_s = [math.nan] * self._links
                state.waited_s = [0.0] * self._links
                state.monitored_from_s = begin_s
                state.reported = set()
                state.unprotected_s = {}
            alarms += [self._alarm(rule, begin_s, message) for rule, message in self._faults_of(shown)]
            state.shown = shown
        if end_s - state.monitored_from_s + state.max_waited_s > self._least_max_red_s:
            alarms += self._check_max_red(end_s)
        return alarms + self._check_protected(shown, begin_s, end_s)

    def _change(self, shown: str, now: float) -> list[Alarm]:
        """Check the changes of colour, and how long the colours before them lasted."""
        change = self._between(self.state.shown, shown)
        since_s = self.state.since_s
        alarms = [self._alarm(rule, now, message) for rule, message in change.faults]
        # no comparison with NaN is true: a colour of unknown age was long enough
        for i in change.was_green:
            lasted_s = now - since_s[i]
            if lasted_s + _ROUNDING_S < self._min_green_s:
                alarms.append(
                    self._alarm(MonitorRule.MIN_GREEN, now, f"{self._name[i]} was green for {lasted_s:.3g} s")
                )
        for i in change.was_yellow:
            lasted_s = now - since_s[i]
            if lasted_s + _ROUNDING_S < self._yellow_s[i]:
                message = f"{self._name[i]} was yellow for {lasted_s:.3g} of {self._yellow_s[i]:g} s"
                alarms.append(self._alarm(MonitorRule.YELLOW, now, message))
        for i in change.turned:
            since_s[i] = now
        self.state.reported.difference_update(change.turned)
        for i, j in change.awaits:
            red_s = now - since_s[j]
            if red_s + _ROUNDING_S < self._clear_s[j]:
                message = (
                    f"{self._name[i]} turned green {red_s:.3g} s after its foe {self._name[j]} turned red, "
                    f"not {self._clear_s[j]:.3g} s"
                )
                alarms.append(self._alarm(MonitorRule.CLEARANCE, now, message))
        return alarms

    def _compare(self, before: str, after: str) -> _Change:
        old = [_colour(c) for c in before]
        new = [_colour(c) for c in after]
        turned = tuple(i for i in range(self._links) if old[i] != new[i])
        was_green = tuple(i for i in turned if old[i] == "green")
        was_yellow = tuple(i for i in turned if old[i] == "yellow")
        awaits, faults = [], []
        for i in turned:
            if old[i] == "green" and new[i] == "red" and not self._is_crossing[i]:
                faults.append((MonitorRule.YELLOW, f"{self._name[i]} went from green to red"))
            if old[i] == "yellow" and new[i] == "green":
                faults.append((MonitorRule.YELLOW, f"{self._name[i]} went from yellow to green"))
        for i, j in self._turning_green(before, after):
            if new[j] == "yellow":
                faults.append(
                    (MonitorRule.CLEARANCE, f"{self._name[i]} turned green while its foe {self._name[j]} was yellow")
                )
            elif new[j] == "red" and self._clear_s[j] > 0:
                awaits.append((i, j))
        return _Change(turned, was_green, was_yellow, tuple(awaits), tuple(faults))

    def _turning_green(self, before: str, after: str) -> Iterator[tuple[int, int]]:
        """(link that turns green, foe that must be clear because the link does not yield to it)."""
        for i, c in enumerate(after):
            # a change from g to G needs clear foes as well: G does not yield
            if c in "gG" and before[i] not in ("G", c):
                yields_to = self._yields_to[i] if c == "g" else ()
                yield from ((i, j) for j in self._foes[i] if j not in yields_to)

    def _find_faults(self, state: str) -> list[tuple[MonitorRule, str]]:
        faults = []
        if invalid := set(state) - set("rygGsu"):
            faults.append((MonitorRule.INVALID_STATE, f"{state} contains {' '.join(sorted(invalid))}"))
        for i, c in enumerate(state):
            for j in self._foes[i] if c in "gG" else ():
                # one of two green foes must show g and yield by its right of way; or both do, each to a part of the
                # other
                yields_i = c == "g" and j in self._yields_to[i]
                yields_j = state[j] == "g" and i in self._yields_to[j]
                both_permissive = c == state[j] == "g" and j in self._permissive[i]
                if i < j and state[j] in "gG" and not (yields_i or yields_j or both_permissive):
                    faults.append((MonitorRule.CONFLICT, f"{state}: {self._name[i]} and {self._name[j]} are foes"))
        return faults

    def _check_max_red(self, now: float) -> list[Alarm]:
        """Report each link beyond max red once, until it is served."""
        alarms = []
        for i in self._bounded:
            red_s = self._red_s(i, now)
            if i not in self.state.reported and red_s > self._max_red_s[i]:
                self.state.reported.add(i)
                message = f"{self._name[i]} has been red for {red_s:.0f} s"
                alarms.append(self._alarm(MonitorRule.MAX_RED_EXCEEDED, now, message))
        return alarms

    def _check_protected(self, shown: str, begin_s: float, end_s: float) -> list[Alarm]:
        """Count the time without a protected green; report each link beyond its bound once, until it has one."""
        alarms, unprotected_s = [], self.state.unprotected_s
        for i, max_s in self._max_unprotected_s.items():
            before_s = unprotected_s.get(i, 0.0)
            unprotected_s[i] = 0.0 if shown[i] in "GoO" else before_s + end_s - begin_s
            if before_s <= max_s < unprotected_s[i]:
                message = f"{self._name[i]} has had no protected green for {unprotected_s[i]:.0f} s"
                alarms.append(self._alarm(MonitorRule.MAX_RED_EXCEEDED, end_s, message))
        return alarms

    def _red_s(self, i: int, now: float) -> float:
        state = self.state
        if _colour(state.shown[i]) != "red":
            return 0.0
        begin_s = state.since_s[i]
        return state.waited_s[i] + now - state.monitored_from_s if math.isnan(begin_s) else now - begin_s

    def _alarm(self, rule: MonitorRule, now: float, message: str) -> Alarm:
        return Alarm(self.signal, rule, now, message)


def _colour(c: str) -> str:
    """The colour of a character; `off` is blinking or dark, where a link does not wait."""
    return {"g": "green", "G": "green", "y": "yellow", "Y": "yellow", "o": "off", "O": "off"}.get(c, "red")


def _required_red_s(path_m: float, mps: float) -> float:
    """Red in s in which a vehicle of 6.1 m clears its path, less 1 s until foes start (ITE RP-040B)."""
    return (path_m + 6.1) / mps - 1.0 if path_m > 0 < mps else 0.0


def _those_with(relation: Foes, foes: Sequence[Sequence[int]]) -> list[set[int]]:
    """By link, its foes with a relation [link, foe]."""
    return [{j for j in own if relation[i, j]} for i, own in enumerate(foes)]


def _required_s(network: SignalNetwork, limits: SafetyTimes) -> tuple[list[float], list[float]]:
    """By link, the shortest yellow, and the shortest red before a foe's green, in s."""
    own = program_times(network, limits.by_program)
    yellow_s = [
        max(limits.yellow_s, own[0][i], _required_yellow_s(3.6 * mps) if limits.yellow_by_speed else 0.0)
        for i, mps in enumerate(network.approach_mps)
    ]
    clear_s = [
        max(
            limits.all_red_s,
            own[1][i],
            network.crossing_m[i] / limits.walking_speed_mps,
            _required_red_s(network.path_m[i], network.slowest_mps[i]) if limits.red_by_path else 0.0,
        )
        for i in range(len(network.links))
    ]
    return yellow_s, clear_s


def _required_yellow_s(kmh: float) -> float:
    """Yellow in s by approach speed (RiLSA): 3 s up to 50 km/h, 4 s up to 60, 5 s up to 70, 6 s above."""
    if kmh < 50.5:
        return 3.0
    if kmh < 60.5:
        return 4.0
    return 5.0 if kmh < 70.5 else 6.0
