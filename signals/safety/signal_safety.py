"""The safety rules: applied last, and to everything that controls a signal.

Only this module can make a `PermittedState`, and it is all that the SUMO side
accepts. One `SignalSafety` follows one signal: it keeps the shown state and since
when each link has been green, yellow or red, and turns a requested state into the
nearest permitted state:

- malformed requested states and those with a conflict are replaced by holding;
- a link that loses its green keeps it for min green, then shows yellow by approach
  speed, then red; a pedestrian crossing has no yellow, and turns red first: vehicles
  keep their green meanwhile if the vehicles that follow would only wait for its pedestrians;
- a yellow that has begun is finished;
- a link gets its green once every foe is clear: neither green nor yellow, and red for
  all_red_s and its time to clear the junction, a crossing for its walking time; for `g`
  this applies only to foes that it does not yield to: it yields to foes with priority by
  the junction's right of way that some phase shows green at the same time, and two links
  of which each yields to a part of the other may both show `g`;
- a link that exceeds max red, or with foes that exceed max green, is served by a green
  phase of the program.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from city.network import SignalNetwork
from protos import loop_state_pb2 as loop_state
from protos import record_pb2 as record
from signals.safety.conflicts import (
    GREEN,
    PERMISSIVE,
    PROTECTED,
    YELLOW,
    ConflictRules,
    OverrideReason,
    colour,
    colours,
    links_that_show,
)
from signals.safety.safety_times import SafetyTimes, red_clearance_s, yellow_s_at
from signals.safety.service_bounds import ServiceBounds
from signals.simulation_time import ceil_to_ms, round_to_ms

_OFF = str.maketrans("oOY", "yyy")
_NONE: frozenset[OverrideReason] = frozenset()
_NOTHING_REPORTED = ("", _NONE)
_SEAL = object()
RECHECK_INTERVAL_S = 1.0
"""Simulated seconds after which a requested state that is not shown yet is permitted again, if no later moment is
known."""
MAX_CACHED_TRANSITIONS = 64
"""Of a signal, some 0.5 kB each. If there are more, as under random requests, it begins again."""
_REASONS: Mapping[OverrideReason, Any] = {
    reason: record.TlStep.OverrideReason.Value(reason.name) for reason in OverrideReason
}


@final
class PermittedState:
    """A signal state that passed the safety rules; only this module creates one."""

    __slots__ = ("signal", "state")
    signal: str
    state: str

    def __init__(self, signal: str, state: str, *, seal: object) -> None:
        if seal is not _SEAL:
            raise TypeError("only signals.safety creates a PermittedState")
        object.__setattr__(self, "signal", signal)
        object.__setattr__(self, "state", state)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a PermittedState is immutable")

    def __deepcopy__(self, memo: object) -> "PermittedState":
        return self  # immutable

    def __repr__(self) -> str:
        return f"PermittedState({self.signal}, {self.state})"


@final
class PermittedRelease:
    """Permission to hand a signal to its program."""

    __slots__ = ("phase", "program", "remaining_s", "signal")
    signal: str
    program: str
    phase: int | None
    """The green phase that the program begins with; None if it has no green because the signal is off or blinks."""
    remaining_s: float | None
    """Remaining duration of the phase; without it, its duration in the program."""

    def __init__(
        self, signal: str, program: str, phase: int | None, remaining_s: float | None, *, seal: object
    ) -> None:
        if seal is not _SEAL:
            raise TypeError("only signals.safety creates a PermittedRelease")
        object.__setattr__(self, "signal", signal)
        object.__setattr__(self, "program", program)
        object.__setattr__(self, "phase", phase)
        object.__setattr__(self, "remaining_s", remaining_s)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a PermittedRelease is immutable")

    def __deepcopy__(self, memo: object) -> "PermittedRelease":
        return self  # immutable


SignalCommand = PermittedState | PermittedRelease


@dataclass(frozen=True)
class Override:
    """A requested state that the safety rules replaced."""

    signal: str
    reason: OverrideReason
    requested: str
    permitted: str


class _Transition(NamedTuple):
    """The next state on the way from one state to another."""

    following: PermittedState
    reasons: frozenset[OverrideReason]
    """Why it differs from the target."""
    turned: tuple[tuple[int, float], ...]
    """(link that changes colour, its new colour's age beyond which it has no further effect, in s)."""


class SignalSafety:
    """The safety rules of one signal: the state that it shows, and which state may follow."""

    def __init__(self, network: SignalNetwork, times: SafetyTimes, greens: Sequence[str] = ()) -> None:
        self.signal = network.id
        self.times = times
        self.rules = ConflictRules(network)
        self.network = network
        # a link that vehicles share with pedestrians needs its yellow
        self.is_crossing = [m > 0 and mps == 0 for m, mps in zip(network.crossing_m, network.approach_mps, strict=True)]
        self._crossings = [i for i, is_crossing in enumerate(self.is_crossing) if is_crossing]
        self.yellow_s = [
            max(times.yellow_s, yellow_s_at(mps) if times.yellow_by_speed else 0.0) for mps in network.approach_mps
        ]
        """Yellow by link, s."""
        red_s = [
            red_clearance_s(m, mps) if times.red_by_path else 0.0
            for m, mps in zip(network.path_m, network.slowest_mps, strict=True)
        ]
        self.clearance_s = [
            max(times.all_red_s, s, length_m / times.walking_speed_mps)
            for s, length_m in zip(red_s, network.crossing_m, strict=True)
        ]
        """By link: how long it must be red before a foe gets its green, s."""
        self._has_clearance = any(self.clearance_s)
        bounds_s = {"g": [times.min_green_s] * self.rules.links, "y": self.yellow_s, "r": self.clearance_s}
        self._bounds_s = {
            c: [(i, ceil_to_ms(bound_s)) for i, bound_s in enumerate(by_link)] for c, by_link in bounds_s.items()
        }
        """By colour and link, (link, age in s beyond which the colour has no further effect, in whole ms as SUMO's
        time)."""
        self._transitions: dict[tuple[str, str, int], _Transition] = {}
        """By (state, target, young links): all that a transition depends on, except for pedestrians."""
        self._state = "r" * self.rules.links
        self._since = [-math.inf] * self.rules.links
        self._waiting_since = [math.inf] * self.rules.links
        """Like `_since`, but includes waiting while the signal ran its own program."""
        self._ages_matter_until_s: float
        self._settle()
        self._permitted = PermittedState(self.signal, self._state, seal=_SEAL)
        self._target_state = self._state
        """What the newest call of `permit` led to, or to the first step of."""
        self._forced: tuple[OverrideReason, str] | None = None
        self.bound_exceeded_at_s = math.inf
        """When max green or max red is next exceeded; inf if neither applies."""
        self._bounds = ServiceBounds(self.rules, times, greens)
        self._reported = _NOTHING_REPORTED

    @property
    def shown(self) -> str:
        return self._state

    @property
    def permitted(self) -> PermittedState:
        """The shown state, as it was permitted."""
        return self._permitted

    def start_from(self, shown: str, now: float) -> None:
        """Take over the state that the signal shows; its ages are unknown and count from now.

        Only the waiting times of red links continue, so that a TL that alternates
        between modes still serves them. Links that are off (`o`, `O`) count as
        yellow: drivers follow the right of way there, and a yellow clears them.
        """
        self.follow_program(shown, now)
        shown = self._colours(shown)
        self._state = shown
        self._since = [now] * self.rules.links
        self._settle()
        self._permitted = PermittedState(self.signal, shown, seal=_SEAL)
        self._forced = None
        self.bound_exceeded_at_s = self._bounds.first_exceeded_s(self._state, self._waiting_since)

    def follow_program(self, shown: str, now: float) -> None:
        """Record the state that the signal's own program shows: links that it serves are no longer waiting."""
        shown = self._colours(shown)
        self._waiting_since = [
            min(waits, now) if colour(c) == "r" else now for c, waits in zip(shown, self._waiting_since, strict=True)
        ]

    def _colours(self, shown: str) -> str:
        """A shown state with a colour for every link: yellow for links that are off or missing from the state."""
        return shown.translate(_OFF)[: self.rules.links].ljust(self.rules.links, "y")

    def permit(self, requested: str, now: float, clearing: bool = False) -> tuple[PermittedState, list[Override]]:
        """The permitted state nearest to the requested one at second `now`.

        `clearing`: the junction is cleared for its own program, so max red is not
        served. An override is reported once, when a requested state first meets it.
        """
        if clearing:
            self._forced = None
            target, reasons = requested, _NONE
        else:
            target, reasons = self._target(requested, now)
        self._target_state = target
        if target != self._state:
            transition = self._transition(target, now)
            reasons |= transition.reasons
            self._show(transition, now)
        if not reasons:
            self._reported = _NOTHING_REPORTED
            return self._permitted, []
        reported = self._reported[1] if self._reported[0] == requested else _NONE
        self._reported = requested, reported | reasons
        return self._permitted, [
            Override(self.signal, reason, requested, self._state) for reason in sorted(reasons - reported)
        ]

    def next_change_s(self, now: float) -> float:
        """When to call `permit` again with what it was called with at second `now`: before that, its result is the
        same.

        That is when the next link has shown its colour for long enough, if no more can change before. With pedestrians,
        or a bound of waiting times that is exceeded, other moments count too, and the result is `now` +
        RECHECK_INTERVAL_S.
        """
        recheck_s = round_to_ms(now + RECHECK_INTERVAL_S)
        if self._crossings or self._forced is not None or now >= self.bound_exceeded_at_s:
            return recheck_s
        if self._target_state != self._state:
            transition = self._transition(self._target_state, now)
            if transition.following.state != self._state or not transition.reasons <= self._reported[1]:
                return recheck_s  # states change once per step
        ends_s = (*self._settled_s, self.bound_exceeded_at_s)
        return min((end_s for end_s in ends_s if now < end_s < math.inf), default=recheck_s)

    def shows(self, requested: str) -> bool:
        """Whether the requested state is shown, so that nothing changes before the next request."""
        return self._state == requested and self._forced is None

    @property
    def is_serving(self) -> bool:
        """Whether a green that serves a link beyond max red is due, or shown for less than min green."""
        return self._forced is not None

    @property
    def clearing_s(self) -> float:
        """The longest time until every link is red and clear, s."""
        return self.times.min_green_s + max(self.yellow_s, default=0.0) + max(self.clearance_s, default=0.0)

    @property
    def vehicle_change_s(self) -> float:
        """The longest time for which vehicles have neither green in a change between two green phases, s."""
        return max(
            (self.yellow_s[i] + self.clearance_s[i] for i in self._bounds.links if not self.is_crossing[i]), default=0.0
        )

    @property
    def change_s(self) -> float:
        """The longest change between two green phases, s: yellow and red of vehicles, or the walking time of a
        crossing."""
        walking_s = max((self.clearance_s[i] for i in self._bounds.links if self.is_crossing[i]), default=0.0)
        return max(self.vehicle_change_s, walking_s)

    def change_between_s(self, green: str, following: str) -> float:
        """The time from the end of one green phase to the begin of another if nothing else delays it, s.

        0 if no link loses its green. A link that loses it shows yellow, and is red for its clearance before a foe
        begins that does not yield to it. States change once per step: with pedestrians, a change may take one step
        more.
        """
        waited_for = 0
        for k, (a, b) in enumerate(zip(green, following, strict=True)):
            if (b in GREEN and a not in GREEN) or (b == "G" and a == "g"):
                waited_for |= self.rules.foes[k] & (-1 if b == "G" else ~self.rules.yields[k])
        change_s = 0.0
        for i, (a, b) in enumerate(zip(green, following, strict=True)):
            if a in GREEN and b not in GREEN:
                yellow_s = 0.0 if self.is_crossing[i] else self.yellow_s[i]
                change_s = max(change_s, yellow_s + (self.clearance_s[i] if waited_for >> i & 1 else 0.0))
        return change_s

    def is_cleared(self, now: float) -> bool:
        """Whether every link has been red for long enough that any green may follow."""
        return all(c in "rsu" and now >= settled_s for c, settled_s in zip(self._state, self._settled_s, strict=True))

    def permit_release(
        self, program: str, phase: int | None, now: float, remaining_s: float | None = None
    ) -> PermittedRelease:
        """Permit the release of the signal to its program, which starts with a green phase or has none (None).

        Raises ValueError while the signal is not cleared.
        """
        if not self.is_cleared(now):
            raise ValueError(
                f"signal {self.signal} shows {self._state}; it must be all red before its program continues"
            )
        return PermittedRelease(self.signal, program, phase, remaining_s, seal=_SEAL)

    def _target(self, requested: str, now: float) -> tuple[str, frozenset[OverrideReason]]:
        """(target state, reasons): the requested state, or the state that replaces it, and why."""
        violation = self.rules.violation(requested)
        if violation is None and self._forced is None and now < self.bound_exceeded_at_s:
            return requested, _NONE
        reasons = _NONE
        if violation is not None:
            reasons = frozenset((violation,))
            requested = self._state.replace("y", "r")
            if self.rules.violation(requested) is not None:
                requested = "r" * self.rules.links
        if self._forced is not None and self._has_served(self._forced[1], now):
            self._forced = None
        if self._forced is None and now >= self.bound_exceeded_at_s:
            self._forced = self._bounds.forced(self._state, self._waiting_since, requested, now)
        if self._forced is not None:
            reason, target = self._forced
            return target, reasons | {reason} if target != requested else reasons
        return requested, reasons

    def _has_served(self, forced: str, now: float) -> bool:
        return self._state == forced and all(
            round_to_ms(now - since) >= self.times.min_green_s
            for c, since in zip(forced, self._since, strict=True)
            if c in GREEN
        )

    def _transition(self, target: str, now: float) -> _Transition:
        """The next state on the way to a target that is free of conflicts.

        An age matters only below its bound, so a transition depends on the two states and on which links are younger,
        and is cached. How long pedestrians have been walking matters too.
        """
        young = self._young(now)
        if young and self._crossings:
            return self._compute_transition(target, young, now)
        transition = self._transitions.get((self._state, target, young))
        if transition is None:
            if len(self._transitions) > MAX_CACHED_TRANSITIONS:
                self._transitions.clear()
            transition = self._compute_transition(target, young, math.inf)  # no crossing is being cleared
            self._transitions[self._state, target, young] = transition
        return transition

    def _young(self, now: float) -> int:
        """The links that have not shown their colours for long enough, as a mask."""
        if now >= self._ages_matter_until_s:
            return 0
        return sum([1 << i for i, settled_s in enumerate(self._settled_s) if now < settled_s])

    def _compute_transition(self, target: str, young: int, now: float) -> _Transition:
        """Compute a transition. `now` counts for crossings that are being cleared alone; inf: none is."""
        state, reasons = self._state, set()
        following = list(state)
        turning_green: list[tuple[int, str]] = []
        walking_s = self._walking_s(target, now)
        for i, (c, wanted) in enumerate(zip(state, target, strict=True)):
            if c == wanted:
                continue
            if c in GREEN:
                if wanted == "g":
                    following[i] = "g"
                elif wanted == "G":
                    turning_green.append((i, wanted))
                elif young >> i & 1:
                    reasons.add(OverrideReason.MIN_GREEN)
                elif self.is_crossing[i]:
                    following[i] = "r"
                elif walking_s and self._would_only_wait(i, target, walking_s):
                    reasons.add(OverrideReason.CLEARANCE)
                else:
                    following[i] = "y"
                    if wanted != "y":
                        reasons.add(OverrideReason.YELLOW)
            elif c == "y":
                if young >> i & 1:
                    reasons.add(OverrideReason.YELLOW)
                    continue
                # if its green is requested again, the link shows it after red
                following[i] = "r" if wanted in GREEN else wanted
            elif wanted in GREEN:
                turning_green.append((i, wanted))
            else:
                following[i] = "r" if wanted == "y" else wanted
        if turning_green and not self._start_greens(turning_green, following, young):
            reasons.add(OverrideReason.CLEARANCE)
        permitted = PermittedState(self.signal, "".join(following), seal=_SEAL)
        changes = enumerate(zip(colours(state), colours(permitted.state), strict=True))
        turned = tuple([self._bounds_s[new][i] for i, (c, new) in changes if c != new])
        return _Transition(permitted, frozenset(reasons), turned)

    def _walking_s(self, target: str, now: float) -> dict[int, float]:
        """Time in s until pedestrians are clear, by crossing that the target does not serve and that is not clear
        yet."""
        walking_s = {}
        for j in self._crossings:
            if target[j] in GREEN:
                continue
            age = round_to_ms(now - self._since[j])
            until_red_s = max(self.times.min_green_s - age, 0.0) if self._state[j] in GREEN else -age
            if until_red_s + self.clearance_s[j] > 0:
                walking_s[j] = until_red_s + self.clearance_s[j]
        return walking_s

    def _would_only_wait(self, i: int, target: str, walking_s: Mapping[int, float]) -> bool:
        """Whether link i may keep its green for now: the vehicles that follow it wait for pedestrians until it is
        clear."""
        clearing_s = self.yellow_s[i] + self.clearance_s[i]
        waits_for = sum(1 << j for j, seconds in walking_s.items() if seconds > clearing_s)
        followers = [
            k
            for k, c in enumerate(target)
            if c in GREEN and self._state[k] not in GREEN and self.rules.foes[i] >> k & 1
        ]
        vehicles = [k for k in followers if not self.is_crossing[k]]
        if followers and not vehicles:
            return False  # pedestrians do not wait for other pedestrians
        return waits_for != 0 and all(self.rules.foes[k] & waits_for for k in vehicles)

    def _start_greens(self, turning_green: list[tuple[int, str]], following: list[str], young: int) -> bool:
        """Start the greens that no foe blocks; return whether all of them started."""
        rules, all_started = self.rules, True
        protected, permissive = links_that_show(PROTECTED, following), links_that_show(PERMISSIVE, following)
        uncleared = links_that_show(YELLOW, following) | self._uncleared(following, young)
        for i, wanted in turning_green:
            blocking = rules.foes[i] & (protected | uncleared | permissive & ~rules.yielded_by[i])
            if wanted == "g":
                blocking &= ~(rules.yields[i] | rules.permissive[i] & permissive)
            if blocking:
                all_started = False
                continue
            following[i] = wanted
            protected, permissive = (
                (protected | 1 << i, permissive) if wanted == "G" else (protected, permissive | 1 << i)
            )
        return all_started

    def _uncleared(self, following: Sequence[str], young: int) -> int:
        """Links that will be red but may still have vehicles or pedestrians on the junction, as a mask."""
        if not self._has_clearance:
            return 0
        shown, later = colours(self._state), colours("".join(following))
        return sum(
            [
                1 << j
                for j, clearance_s in enumerate(self.clearance_s)
                if clearance_s and later[j] == "r" and (shown[j] != "r" or young >> j & 1)
            ]
        )

    def _show(self, transition: _Transition, now: float) -> None:
        if transition.following.state != self._state:
            self._permitted, self._state = transition.following, transition.following.state
        if transition.turned:
            for i, bound_s in transition.turned:
                self._since[i] = self._waiting_since[i] = now
                self._settled_s[i] = settled_s = round_to_ms(now + bound_s)
                if settled_s > self._ages_matter_until_s:
                    self._ages_matter_until_s = settled_s
            self.bound_exceeded_at_s = self._bounds.first_exceeded_s(self._state, self._waiting_since)

    def _settle(self) -> None:
        """Find when the colours will have been shown for long enough, from since when they are.

        `_settled_s`: by link, when the age of its colour has no further effect; `_ages_matter_until_s`: when that holds
        for all.
        """
        since = zip(colours(self._state), self._since, strict=True)
        self._settled_s = [round_to_ms(since_s + self._bounds_s[c][i][1]) for i, (c, since_s) in enumerate(since)]
        self._ages_matter_until_s = max(self._settled_s, default=-math.inf)

    def save_state(self, state: loop_state.SignalState) -> None:
        """Write the state that later permissions depend on."""
        state.shown = self._state
        state.since_s.extend(self._since)
        state.waiting_since_s.extend(self._waiting_since)
        state.bound_exceeded_at_s = self.bound_exceeded_at_s
        if self._forced is not None:
            state.forced_reason, state.forced = _REASONS[self._forced[0]], self._forced[1]
        state.reported_request = self._reported[0]
        state.reported.extend(_REASONS[reason] for reason in sorted(self._reported[1]))

    def restore_state(self, state: loop_state.SignalState) -> None:
        """Go on from a saved state. Raises ValueError if it is not one of this signal."""
        if len(state.shown) != self.rules.links:
            raise ValueError(f"the state of signal {self.signal} has {len(state.shown)} links, not {self.rules.links}")
        self._state, self._permitted = state.shown, PermittedState(self.signal, state.shown, seal=_SEAL)
        self._since, self._waiting_since = list(state.since_s), list(state.waiting_since_s)
        self.bound_exceeded_at_s = state.bound_exceeded_at_s
        self._settle()
        reasons = {value: reason for reason, value in _REASONS.items()}
        self._forced = (reasons[state.forced_reason], state.forced) if state.HasField("forced") else None
        self._reported = state.reported_request, frozenset(reasons[value] for value in state.reported)
