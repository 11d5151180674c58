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
  that only of foes it does not yield to: those that the junction's right of way
  puts first, and that some phase of the programs shows green beside it;
- a link that has been red (or whose foes have been green) for too long is
  served by the program's green phase that has it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from city.network import SignalNetwork
from controller.conflicts import GREEN, PERMISSIVE, PROTECTED, YELLOW, ConflictRules, Reason, colour, links_that_show
from controller.safety_times import SafetyTimes, yellow_s_at
from controller.service_bounds import ServiceBounds
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


_OFF = str.maketrans("oOY", "yyy")
_NONE: frozenset[Reason] = frozenset()
_NOTHING = ("", _NONE)


class _Move(NamedTuple):
    """What follows a state on the way to another."""

    following: PermittedState
    reasons: frozenset[Reason]
    """Why that is not the other state itself."""
    turned: tuple[int, ...]
    """Links that get another colour."""
    settles_s: float
    """How long they keep that at least, or are not clear."""


class SignalSafety:
    """The state shown by one signal and what may follow it."""

    def __init__(self, network: SignalNetwork, times: SafetyTimes, greens: Sequence[str] = ()) -> None:
        self.signal = network.id
        self.times = times
        self.rules = ConflictRules(network)
        self.approach_mps, self.crossing_m = network.approach_mps, network.crossing_m
        # where vehicles share the link with pedestrians they need their yellow
        self._crossing = [m > 0 and mps == 0 for m, mps in zip(network.crossing_m, network.approach_mps, strict=True)]
        self.yellow_s = [max(times.yellow_s, yellow_s_at(mps)) for mps in network.approach_mps]
        """By link."""
        self.clearance_s = [max(times.all_red_s, length_m / times.walking_mps) for length_m in network.crossing_m]
        """By link: how long it must have been red before a foe gets its green."""
        self._clears = any(self.clearance_s)
        self._moves: dict[tuple[str, str], _Move] = {}
        """By (state, target): what follows where every link has shown its colour for long enough."""
        self._state = "r" * self.rules.links
        self._since = [-math.inf] * self.rules.links
        self._waits = [math.inf] * self.rules.links
        """As `_since`, but what a link has waited while the signal ran its own program counts."""
        self._settled_s = -math.inf
        """From when on every link has shown its colour for long enough."""
        self._permitted = PermittedState(self.signal, self._state, seal=_SEAL)
        self._forced: tuple[Reason, str] | None = None
        self.overdue_s = math.inf
        """When max green or max red would next be broken; inf: never."""
        self._bounds = ServiceBounds(self.rules, times, greens)
        self._explained = _NOTHING

    @property
    def shown(self) -> str:
        return self._state

    def adopt(self, shown: str, now: float) -> None:
        """Take over the state that the signal shows; its ages are unknown and count from now.

        Only what red links have waited goes on: a TL that comes and goes must not starve them.

        Where it is off (`o`, `O`) drivers go by the right of way: a yellow clears it.
        """
        self.see(shown, now)
        shown = shown.translate(_OFF)
        self._state = shown
        self._since = [now] * self.rules.links
        self._settled_s = ms(now + self.clearing_s)
        self._permitted = PermittedState(self.signal, shown, seal=_SEAL)
        self._forced = None
        self.overdue_s = self._bounds.first_broken_s(self._state, self._waits)

    def see(self, shown: str, now: float) -> None:
        """What the signal's own program shows: whom it serves has not waited any longer."""
        shown = shown.translate(_OFF)
        self._waits = [min(waits, now) if colour(c) == "r" else now for c, waits in zip(shown, self._waits, strict=True)]

    def permit(self, wish: str, now: float, clearing: bool = False) -> tuple[PermittedState, list[Override]]:
        """The permitted state nearest to the wish at second `now`.

        `clearing`: the junction is to be cleared for its own program, so nobody is
        served for having waited. Overrides are told once, when a wish first meets them.
        """
        if clearing:
            self._forced = None
            target, reasons = wish, _NONE
        else:
            target, reasons = self._target(wish, now)
        if target != self._state:
            move = self._move(target, now)
            reasons |= move.reasons
            self._show(move, now)
        if not reasons:
            self._explained = _NOTHING
            return self._permitted, []
        if (wish, reasons) == self._explained:
            return self._permitted, []
        self._explained = wish, reasons
        return self._permitted, [Override(self.signal, reason, wish, self._state) for reason in sorted(reasons)]

    def settled(self, wish: str) -> bool:
        """Whether the wish is shown, so that nothing changes before the next one."""
        return self._state == wish and self._forced is None

    @property
    def serves(self) -> bool:
        """Whether a green is on its way, or shown for min green, because somebody has waited too long."""
        return self._forced is not None

    @property
    def clearing_s(self) -> float:
        """The longest that it takes until every link is red, and clear."""
        return self.times.min_green_s + max(self.yellow_s, default=0.0) + max(self.clearance_s, default=0.0)

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

    def _target(self, wish: str, now: float) -> tuple[str, frozenset[Reason]]:
        """The state to move towards: the wish, or what replaces it as a whole, and why."""
        objection = self.rules.objection(wish)
        if objection is None and self._forced is None and now < self.overdue_s:
            return wish, _NONE
        reasons = _NONE
        if objection is not None:
            reasons = frozenset((objection,))
            wish = self._state.replace("y", "r")
            if self.rules.objection(wish) is not None:
                wish = "r" * self.rules.links
        if self._forced is not None and self._served(self._forced[1], now):
            self._forced = None
        if self._forced is None and now >= self.overdue_s:
            self._forced = self._bounds.forced(self._state, self._waits, wish, now)
        if self._forced is not None:
            reason, target = self._forced
            return target, reasons | {reason} if target != wish else reasons
        return wish, reasons

    def _served(self, forced: str, now: float) -> bool:
        return self._state == forced and all(
            ms(now - since) >= self.times.min_green_s for c, since in zip(forced, self._since, strict=True) if c in GREEN
        )

    def _move(self, target: str, now: float) -> _Move:
        """What follows now on the way to a target that is free of conflicts.

        Ages matter where they are below a bound only. Where none is, which is nearly
        always, the move depends on the two states alone and is looked up.
        """
        if now < self._settled_s:
            return self._reckoned(target, now)
        found = self._moves.get((self._state, target))
        if found is None:
            if len(self._moves) > 10_000:
                self._moves.clear()  # a policy that invents states must not fill the memory
            found = self._moves[self._state, target] = self._reckoned(target, math.inf)
        return found

    def _reckoned(self, target: str, now: float) -> _Move:
        """`now`: inf where every link has shown its colour for long enough."""
        times, state, reasons = self.times, self._state, set()
        following = list(state)
        rising: list[tuple[int, str]] = []
        for i, (c, wanted) in enumerate(zip(state, target, strict=True)):
            if c == wanted:
                continue
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
        turned = tuple(i for i, (c, new) in enumerate(zip(state, following, strict=True)) if colour(c) != colour(new))
        permitted = PermittedState(self.signal, "".join(following), seal=_SEAL)
        return _Move(permitted, frozenset(reasons), turned, max((self._bound_s(i, following[i]) for i in turned), default=0.0))

    def _bound_s(self, i: int, c: str) -> float:
        """How long a link must have shown a colour before its age makes no difference any more."""
        return self.times.min_green_s if c in GREEN else self.yellow_s[i] if c == "y" else self.clearance_s[i]

    def _rise(self, rising: list[tuple[int, str]], following: list[str], now: float) -> bool:
        """Turn links to G or g beside what the others will show; whether all of them may."""
        rules, everyone = self.rules, True
        protected, permissive = links_that_show(PROTECTED, following), links_that_show(PERMISSIVE, following)
        uncleared = links_that_show(YELLOW, following) | self._uncleared(following, now)
        for i, wanted in rising:
            blocking = rules.foes[i] & (protected | uncleared | permissive & ~rules.yielded_by[i])
            if wanted == "g":
                blocking &= ~rules.yields[i]
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
            and colour(following[j]) == "r"
            and (colour(self._state[j]) != "r" or ms(now - self._since[j]) < clearance_s)
        )

    def _show(self, move: _Move, now: float) -> None:
        if move.following.state != self._state:
            self._permitted, self._state = move.following, move.following.state
        if move.turned:
            for i in move.turned:
                self._since[i] = self._waits[i] = now
            self._settled_s = max(self._settled_s, ms(now + move.settles_s))
            self.overdue_s = self._bounds.first_broken_s(self._state, self._waits)
