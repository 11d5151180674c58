"""The safety rules: applied last, and to everything that controls a signal.

Only this module can make a `PermittedState`, and it is all that the SUMO side
accepts. One `SignalSafety` watches one signal: it knows which state is shown
and since when each link has been green, yellow or red, and turns a wish into
the nearest permitted state:

- malformed wishes and wishes with a conflict are replaced by holding;
- a link that loses its green keeps it for min green, then shows yellow, as long
  as its approach is fast, then red; a pedestrian crossing has no yellow;
- a yellow that has begun is finished;
- a link gets its green once every foe is clear: neither green nor yellow, and
  red for all_red_s, a crossing for as long as it takes to walk it; `g` needs
  that only of foes it does not yield to;
- a link that has been red (or whose foes have been green) for too long is
  served by the program's green phase that has it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from city.network import SignalNetwork
from controller.conflicts import GREEN, PERMISSIVE, PROTECTED, YELLOW, ConflictRules, Reason, links_that_show
from controller.simulation_time import ms

_SEAL = object()


@final
class PermittedState:
    """A signal state that passed the safety rules; only this module makes one."""

    __slots__ = ("signal", "state")
    signal: str
    state: str

    def __init__(self, signal: str, state: str, *, seal: object) -> None:
        if seal is not _SEAL:
            raise TypeError("only controller.safety makes a PermittedState")
        object.__setattr__(self, "signal", signal)
        object.__setattr__(self, "state", state)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a PermittedState does not change")

    def __repr__(self) -> str:
        return f"PermittedState({self.signal}, {self.state})"


@final
class PermittedHandover:
    """Leave to hand a signal to its program, which begins with the green phase given."""

    __slots__ = ("phase", "program", "remaining_s", "signal")
    signal: str
    program: str
    phase: int
    remaining_s: float | None
    """How long the phase lasts from now; None: as long as the program says."""

    def __init__(self, signal: str, program: str, phase: int, remaining_s: float | None, *, seal: object) -> None:
        if seal is not _SEAL:
            raise TypeError("only controller.safety makes a PermittedHandover")
        object.__setattr__(self, "signal", signal)
        object.__setattr__(self, "program", program)
        object.__setattr__(self, "phase", phase)
        object.__setattr__(self, "remaining_s", remaining_s)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a PermittedHandover does not change")


@dataclass(frozen=True)
class Override:
    signal: str
    reason: Reason
    wish: str
    permitted: str


@dataclass(frozen=True)
class SafetyTimes:
    """Times in s that hold for a signal: the contract's, never below the floors."""

    yellow_s: float
    min_green_s: float
    all_red_s: float = 0.0
    max_green_s: float = math.inf
    max_red_s: float = math.inf
    walking_mps: float = 1.2


def yellow_s_at(approach_mps: float) -> float:
    """Yellow in s that an approach needs: 3, 4, 5 s at up to 50, 60, 70 km/h (RiLSA), 6 s where it is faster."""
    kmh = 3.6 * approach_mps
    # networks write 13.89 m/s for 50 km/h
    return next((yellow_s for bound, yellow_s in ((50, 3.0), (60, 4.0), (70, 5.0)) if kmh <= bound + 0.5), 6.0)


_NOTHING: tuple[str, frozenset[Reason]] = ("", frozenset())


class SignalSafety:
    """The state shown by one signal and what may follow it."""

    def __init__(self, network: SignalNetwork, times: SafetyTimes, greens: Sequence[str] = ()) -> None:
        self.signal = network.id
        self.times = times
        self.rules = ConflictRules(network)
        self._greens = [state for state in greens if self.rules.objection(state) is None]
        self.approach_mps, self.crossing_m = network.approach_mps, network.crossing_m
        self._crossing = [length_m > 0 for length_m in network.crossing_m]
        self.yellow_s = [max(times.yellow_s, yellow_s_at(mps)) for mps in network.approach_mps]
        """By link."""
        self.clearance_s = [max(times.all_red_s, length_m / times.walking_mps) for length_m in network.crossing_m]
        """By link: how long it must have been red before a foe gets its green."""
        self._clears = any(self.clearance_s)
        self._changes: dict[tuple[str, str], list[tuple[int, str, str]]] = {}
        self._state = "r" * self.rules.links
        self._since = [-math.inf] * self.rules.links
        self._permitted = PermittedState(self.signal, self._state, seal=_SEAL)
        self._forced: tuple[Reason, str] | None = None
        self._overdue_s = math.inf
        everywhere = [all(state[i] in GREEN for state in self._greens) for i in range(self.rules.links)]
        somewhere = [any(state[i] in GREEN for state in self._greens) for i in range(self.rules.links)]
        # bounds make sense for links that some green phase serves and another does not
        self._bounded = [i for i in range(self.rules.links) if somewhere[i] and not everywhere[i]]
        self._bounds = min(times.max_green_s, times.max_red_s) < math.inf
        self._explained: tuple[str, frozenset[Reason]] = _NOTHING

    @property
    def shown(self) -> str:
        return self._state

    def adopt(self, shown: str, now: float) -> None:
        """Take over the state that the signal shows; its ages are unknown and count from now."""
        self._state = shown
        self._since = [now] * self.rules.links
        self._permitted = PermittedState(self.signal, shown, seal=_SEAL)
        self._forced = None
        self._overdue_s = self._first_overdue_s()

    def permit(self, wish: str, now: float, clearing: bool = False) -> tuple[PermittedState, list[Override]]:
        """The permitted state nearest to the wish at second `now`.

        `clearing`: the junction is to be cleared for its own program, so nobody is
        served for having waited. Overrides are told once, when a wish first meets them.
        """
        reasons: set[Reason] = set()
        if clearing:
            self._forced = None
        target = wish if clearing else self._target(wish, now, reasons)
        if target != self._state:
            following = self._step(target, now, reasons)
            if following != self._state:
                self._show(following, now)
        news: list[Override] = []
        if not reasons:
            self._explained = _NOTHING
        elif (explained := (wish, frozenset(reasons))) != self._explained:
            news = [Override(self.signal, reason, wish, self._state) for reason in sorted(reasons)]
            self._explained = explained
        return self._permitted, news

    def settled(self, wish: str) -> bool:
        """Whether the wish is shown, so that nothing changes before the next one."""
        return self._state == wish and self._forced is None

    def next_overdue_s(self) -> float:
        """When max green or max red would next be broken; inf: never."""
        return self._overdue_s

    def cleared(self, now: float) -> bool:
        """Whether every link is red, long enough for any green to follow."""
        return all(
            c in "rsu" and ms(now - since) >= clearance_s
            for c, since, clearance_s in zip(self._state, self._since, self.clearance_s, strict=True)
        )

    def hand_over(self, program: str, phase: int, now: float, remaining_s: float | None = None) -> PermittedHandover:
        """Leave to hand the signal to its program, which then starts with a green.

        Raises ValueError while the signal is not cleared.
        """
        if not self.cleared(now):
            raise ValueError(f"signal {self.signal} shows {self._state}; it must be all red before its program goes on")
        return PermittedHandover(self.signal, program, phase, remaining_s, seal=_SEAL)

    def _target(self, wish: str, now: float, reasons: set[Reason]) -> str:
        """The state to move towards: the wish, or what replaces it as a whole."""
        objection = self.rules.objection(wish)
        if objection is not None:
            reasons.add(objection)
            wish = self._state.replace("y", "r")
            if self.rules.objection(wish) is not None:
                wish = "r" * self.rules.links
        if self._forced is not None and self._served(self._forced[1], now):
            self._forced = None
        if self._forced is None and now >= self._overdue_s:
            self._forced = self._overdue(wish, now)
        if self._forced is not None:
            reasons.add(self._forced[0])
            return self._forced[1]
        return wish

    def _served(self, forced: str, now: float) -> bool:
        return self._state == forced and all(
            ms(now - since) >= self.times.min_green_s for c, since in zip(forced, self._since, strict=True) if c in GREEN
        )

    def _overdue(self, wish: str, now: float) -> tuple[Reason, str] | None:
        """A green phase to force, where a bound is broken and the wish does not mend it."""
        ages = {i: ms(now - self._since[i]) for i in self._bounded}
        waiting = sorted((i for i in ages if _kind(self._state[i]) == "r" and wish[i] not in GREEN), key=lambda i: -ages[i])
        worn = {i for i in ages if self._state[i] in GREEN and wish[i] in GREEN and ages[i] >= self.times.max_green_s}
        for i in waiting:
            starved = ages[i] >= self.times.max_red_s
            blocked_by = {j for j in worn if self.rules.foes[i] >> j & 1}
            if not starved and not blocked_by:
                continue
            for state in self._greens:
                if state[i] in GREEN and not any(state[j] in GREEN for j in blocked_by):
                    return (Reason.MAX_RED if starved else Reason.MAX_GREEN), state
        return None

    def _step(self, target: str, now: float, reasons: set[Reason]) -> str:
        """The state to show now on the way to a target that is free of conflicts."""
        times, state = self.times, self._state
        following = list(state)
        rising: list[tuple[int, str]] = []
        for i, c, wanted in self._differences(state, target):
            age = ms(now - self._since[i])
            if c in GREEN:
                if wanted == "g":
                    following[i] = "g"
                elif wanted == "G":
                    rising.append((i, wanted))
                elif age < times.min_green_s:
                    reasons.add(Reason.MIN_GREEN)
                elif self._crossing[i]:
                    following[i] = "r"
                else:
                    following[i] = "y"
                    if wanted != "y":
                        reasons.add(Reason.YELLOW)
            elif c == "y":
                if age < self.yellow_s[i]:
                    reasons.add(Reason.YELLOW)
                    continue
                # a link that is wanted green again gets it after it has been red
                following[i] = "r" if wanted in GREEN else wanted
            elif wanted in GREEN:
                rising.append((i, wanted))
            else:
                following[i] = "r" if wanted == "y" else wanted
        if rising and not self._rise(rising, following, now):
            reasons.add(Reason.CLEARANCE)
        return "".join(following)

    def _rise(self, rising: list[tuple[int, str]], following: list[str], now: float) -> bool:
        """Turn links to G or g beside what the others will show; whether all of them may."""
        rules, everyone = self.rules, True
        protected, permissive = links_that_show(PROTECTED, following), links_that_show(PERMISSIVE, following)
        uncleared = links_that_show(YELLOW, following) | self._uncleared(following, now)
        for i, wanted in rising:
            foes = rules.foes[i]
            if wanted == "g":
                blocking = foes & ~rules.yields[i] & (protected | uncleared)
            else:
                blocking = foes & (protected | uncleared | permissive & ~rules.yielded_by[i])
            if blocking:
                everyone = False
                continue
            following[i] = wanted
            protected, permissive = (protected | 1 << i, permissive) if wanted == "G" else (protected, permissive | 1 << i)
        return everyone

    def _uncleared(self, following: Sequence[str], now: float) -> int:
        """Links whose last vehicles or pedestrians may still be on the junction though they will be red, as a mask."""
        if not self._clears:
            return 0
        return sum(
            1 << j
            for j, clearance_s in enumerate(self.clearance_s)
            if clearance_s
            and _kind(following[j]) == "r"
            and (_kind(self._state[j]) != "r" or ms(now - self._since[j]) < clearance_s)
        )

    def _differences(self, state: str, target: str) -> list[tuple[int, str, str]]:
        """(link, character shown, character wanted) where the two differ."""
        found = self._changes.get((state, target))
        if found is None:
            if len(self._changes) > 10_000:
                self._changes.clear()  # a policy that invents states must not fill the memory
            found = [(i, c, wanted) for i, (c, wanted) in enumerate(zip(state, target, strict=True)) if c != wanted]
            self._changes[state, target] = found
        return found

    def _show(self, following: str, now: float) -> None:
        for i, old, new in self._differences(self._state, following):
            if _kind(old) != _kind(new):
                self._since[i] = now
        self._state = following
        self._permitted = PermittedState(self.signal, following, seal=_SEAL)
        self._overdue_s = self._first_overdue_s()

    def _first_overdue_s(self) -> float:
        if not self._bounds:
            return math.inf
        bound_s = {"g": self.times.max_green_s, "r": self.times.max_red_s, "y": math.inf}
        return min((ms(self._since[i] + bound_s[_kind(self._state[i])]) for i in self._bounded), default=math.inf)


def _kind(c: str) -> str:
    return "g" if c in GREEN else "y" if c == "y" else "r"
