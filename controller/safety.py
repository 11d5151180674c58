"""The safety rules: applied last, and to everything that controls a signal.

Only this module can make a `PermittedState`, and it is all that the SUMO side
accepts. One `SignalSafety` watches one signal: it knows which state is shown
and since when each link has been green, yellow or red, and turns a wish into
the nearest permitted state:

- malformed wishes and wishes with a conflict are replaced by holding;
- a link that loses its green keeps it for min green, then shows yellow, then red;
- a yellow that has begun is finished;
- a link gets its green once every foe is clear: neither green nor yellow, and
  red for all_red_s; `g` needs that only of foes it does not yield to;
- a link that has been red (or whose foes have been green) for too long is
  served by the program's green phase that has it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from city.network import SignalNetwork
from controller.conflicts import GREEN, ConflictRules, Reason
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


_NOTHING: tuple[str, frozenset[Reason]] = ("", frozenset())


class SignalSafety:
    """The state shown by one signal and what may follow it."""

    def __init__(self, network: SignalNetwork, times: SafetyTimes, greens: Sequence[str] = ()) -> None:
        self.signal = network.id
        self.times = times
        self.rules = ConflictRules(network)
        self._greens = [state for state in greens if self.rules.objection(state) is None]
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
        return all(c in "rsu" and ms(now - t) >= self.times.all_red_s for c, t in zip(self._state, self._since, strict=True))

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
            blocked_by = worn.intersection(self.rules.foes_of[i])
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
        rising: list[int] = []
        for i, (c, wanted) in enumerate(zip(state, target, strict=True)):
            if c == wanted:
                continue
            age = ms(now - self._since[i])
            if c in GREEN:
                if wanted == "g":
                    following[i] = "g"
                elif wanted == "G":
                    rising.append(i)
                elif age < times.min_green_s:
                    reasons.add(Reason.MIN_GREEN)
                else:
                    following[i] = "y"
                    if wanted != "y":
                        reasons.add(Reason.YELLOW)
            elif c == "y":
                if age < times.yellow_s:
                    reasons.add(Reason.YELLOW)
                    continue
                # a link that is wanted green again gets it after it has been red
                following[i] = "r" if wanted in GREEN else wanted
            elif wanted in GREEN:
                rising.append(i)
            else:
                following[i] = "r" if wanted == "y" else wanted
        for i in rising:
            wanted = target[i]
            if all(self._beside(i, wanted, j, following[j], now) for j in self.rules.foes_of[i]):
                following[i] = wanted
            else:
                reasons.add(Reason.CLEARANCE)
        return "".join(following)

    def _beside(self, i: int, c: str, j: int, other: str, now: float) -> bool:
        """Whether link i may turn to c (G or g) while its foe j shows `other`."""
        if c == "g" and self.rules.yields[i] >> j & 1:
            return True
        if other == "g":
            return c == "g" or bool(self.rules.yields[j] >> i & 1)
        if other in "Gy":
            return False
        if _kind(self._state[j]) != "r":
            return self.times.all_red_s == 0
        # just cleared: the junction must be empty of the foe's last vehicles
        return ms(now - self._since[j]) >= self.times.all_red_s

    def _show(self, following: str, now: float) -> None:
        for i, (old, new) in enumerate(zip(self._state, following, strict=True)):
            if old != new and _kind(old) != _kind(new):
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
