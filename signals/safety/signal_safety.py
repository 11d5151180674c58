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
  all_red_s, the red of its program or its time to clear the junction, a crossing for its walking time; for `g`
  this applies only to foes that it does not yield to: it yields to foes with priority by
  the junction's right of way that some phase shows green at the same time, and two links
  of which each yields to a part of the other may both show `g`;
- a link that exceeds max red, or with foes that exceed max green, is served by a green
  phase of the program, and by a protected green if it exceeds its time without one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import NamedTuple, final

from city.network import SignalNetwork
from signals.observation import SavedState
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
from signals.safety.safety_times import SafetyTimes, program_times, red_clearance_s, yellow_s_at
from signals.safety.service_bounds import ServiceBounds
from signals.simulation_time import ceil_to_ms, round_to_ms

_OFF = str.maketrans("oOY", "yyy")
_NONE: frozenset[OverrideReason] = frozenset()
_SEAL = object()
RECHECK_INTERVAL_S = 1.0
"""Simulated seconds after which a requested state that is not shown yet is permitted again."""
MAX_CACHED_TRANSITIONS = 64
"""Transitions of a signal, some 0.5 kB each; beyond, as under random requests, the cache begins anew."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class PermittedState:
    """A signal state that passed the safety rules; only this module creates one."""

    signal: str
    state: str
    _: KW_ONLY
    seal: InitVar[object]

    def __post_init__(self, seal: object) -> None:
        if seal is not _SEAL:
            raise TypeError("only signals.safety creates a PermittedState")


@final
@dataclass(frozen=True, slots=True, eq=False)
class PermittedRelease:
    """Permission to hand a signal to its program."""

    signal: str
    program: str
    phase: int | None
    """The green phase that the program begins with; None if it has no green because the signal is off or blinks."""
    remaining_s: float | None
    """Remaining duration of the phase; without it, its duration in the program."""
    _: KW_ONLY
    seal: InitVar[object]

    def __post_init__(self, seal: object) -> None:
        if seal is not _SEAL:
            raise TypeError("only signals.safety creates a PermittedRelease")


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


@dataclass
class SignalState(SavedState):
    """A signal as the safety rules follow it."""

    shown: str
    since_s: list[float]
    """By link, since when it shows its colour."""
    waiting_since_s: list[float]
    """Like `since_s`, but includes waiting while the signal ran its own program."""
    unprotected_since_s: dict[int, float] = field(default_factory=dict)
    """By link with a bound on protected greens and without one, since when."""
    bound_exceeded_at_s: float = math.inf
    """When max green or max red is next exceeded; inf if neither applies."""
    forced: str | None = None
    """The green that serves a link beyond a bound."""
    forced_reason: OverrideReason = OverrideReason.MAX_RED
    reported_request: str = ""
    """The requested state whose overrides are reported."""
    reported: frozenset[OverrideReason] = _NONE
    is_sent: bool = False
    """True if the shown state is the one that was sent to SUMO last."""
    is_release_sent: bool = False
    is_release_confirmed: bool = False
    """True if SUMO has accepted the release, so that the signal runs its own program."""


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
        own = program_times(network, times.by_program)
        self.yellow_s = [
            max(times.yellow_s, own_s, yellow_s_at(mps) if times.yellow_by_speed else 0.0)
            for own_s, mps in zip(own[0], network.approach_mps, strict=True)
        ]
        self.clearance_s = [
            max(
                times.all_red_s,
                own_s,
                red_clearance_s(path_m, mps) if times.red_by_path else 0.0,
                length_m / times.walking_speed_mps,
            )
            for own_s, path_m, mps, length_m in zip(
                own[1], network.path_m, network.slowest_mps, network.crossing_m, strict=True
            )
        ]
        """By link: how long it must be red before a foe gets its green, s."""
        self._has_clearance = any(self.clearance_s)
        bounds_s = {"g": [times.min_green_s] * self.rules.links, "y": self.yellow_s, "r": self.clearance_s}
        self._bounds_s = {
            c: [(i, ceil_to_ms(bound_s)) for i, bound_s in enumerate(by_link)] for c, by_link in bounds_s.items()
        }
        """By colour and link, (link, age in s beyond which the colour has no further effect, in whole ms)."""
        self._transitions: dict[tuple[str, str, int], _Transition] = {}
        """By (shown state, target, young links): all that a transition depends on, except for pedestrians."""
        links = self.rules.links
        self.state = SignalState("r" * links, [-math.inf] * links, [math.inf] * links)
        self.permitted: PermittedState
        """The shown state, as it was permitted."""
        self._settled_s: list[float]
        """By link, when the age of its colour has no further effect."""
        self._ages_matter_until_s: float
        """When no age has a further effect."""
        self.resume()
        self._target_state = self.state.shown
        """The state to which the newest call of `permit` led, or took the first step."""
        self._bounds = ServiceBounds(self.rules, times, greens)

    @property
    def shown(self) -> str:
        return self.state.shown

    def start_from(self, shown: str, now: float) -> None:
        """Take over the state that the signal shows; its ages are unknown and count from now.

        Only the waiting times of red links continue, so that a TL that alternates
        between modes still serves them. Links that are off (`o`, `O`) count as
        yellow: drivers follow the right of way there, and a yellow clears them.
        """
        self.follow_program(shown, now)
        state = self.state
        state.shown = self._colours(shown)
        state.since_s = [now] * self.rules.links
        state.forced = None
        state.bound_exceeded_at_s = self._first_exceeded_s()
        self.resume()

    def follow_program(self, shown: str, now: float) -> None:
        """Record the state that the signal's own program shows: links that it serves are no longer waiting."""
        state, shown = self.state, self._colours(shown)
        waiting_since = zip(shown, state.waiting_since_s, strict=True)
        state.waiting_since_s = [min(since_s, now) if colour(c) == "r" else now for c, since_s in waiting_since]
        state.unprotected_since_s = self._bounds.unprotected_since_s(shown, state.unprotected_since_s, now)

    def _colours(self, shown: str) -> str:
        """A shown state with a colour for every link: yellow for links that are off or missing from the state."""
        return shown.translate(_OFF)[: self.rules.links].ljust(self.rules.links, "y")

    def permit(self, requested: str, now: float, clearing: bool = False) -> tuple[PermittedState, list[Override]]:
        """The permitted state nearest to the requested one at second `now`.

        `clearing`: the junction is cleared for its own program, so max red is not
        served. An override is reported once, when a requested state first meets it.
        """
        state = self.state
        if clearing:
            state.forced = None
            target, reasons = requested, _NONE
        else:
            target, reasons = self._target(requested, now)
        self._target_state = target
        if target != state.shown:
            transition = self._transition(target, now)
            reasons |= transition.reasons
            self._show(transition, now)
        if not reasons:
            state.reported_request, state.reported = "", _NONE
            return self.permitted, []
        reported = state.reported if state.reported_request == requested else _NONE
        state.reported_request, state.reported = requested, reported | reasons
        return self.permitted, [
            Override(self.signal, reason, requested, state.shown) for reason in sorted(reasons - reported)
        ]

    def next_change_s(self, now: float) -> float:
        """When to call `permit` again with what it was called with at second `now`: before that, its result is the
        same.

        That is when the next link has shown its colour for long enough, if no more can change before. With pedestrians,
        or a bound of waiting times that is exceeded, other moments count too, and the result is `now` +
        RECHECK_INTERVAL_S.
        """
        state = self.state
        recheck_s = round_to_ms(now + RECHECK_INTERVAL_S)
        if self._crossings or state.forced is not None or now >= state.bound_exceeded_at_s:
            return recheck_s
        if self._target_state != state.shown:
            transition = self._transition(self._target_state, now)
            if transition.following.state != state.shown or not transition.reasons <= state.reported:
                return recheck_s  # states change once per step
        ends_s = (*self._settled_s, state.bound_exceeded_at_s)
        return min((end_s for end_s in ends_s if now < end_s < math.inf), default=recheck_s)

    def shows(self, requested: str) -> bool:
        """True if the requested state is shown, so that nothing changes before the next request."""
        state = self.state
        return state.shown == requested and state.forced is None

    @property
    def is_serving(self) -> bool:
        """True if a green that serves a link beyond max red is due, or shown for less than min green."""
        return self.state.forced is not None

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
        """True if every link has been red for long enough that any green may follow."""
        return all(c in "rsu" and now >= settled_s for c, settled_s in zip(self.shown, self._settled_s, strict=True))

    def permit_release(
        self, program: str, phase: int | None, now: float, remaining_s: float | None = None
    ) -> PermittedRelease:
        """Permit the release of the signal to its program, which starts with a green phase or has none (None).

        Raises ValueError while the signal is not cleared.
        """
        if not self.is_cleared(now):
            raise ValueError(
                f"signal {self.signal} shows {self.shown}; it must be all red before its program continues"
            )
        return PermittedRelease(self.signal, program, phase, remaining_s, seal=_SEAL)

    def _target(self, requested: str, now: float) -> tuple[str, frozenset[OverrideReason]]:
        """(target state, reasons): the requested state, or the state that replaces it, and why."""
        state = self.state
        violation = self.rules.violation(requested)
        if violation is None and state.forced is None and now < state.bound_exceeded_at_s:
            return requested, _NONE
        reasons = _NONE
        if violation is not None:
            reasons = frozenset((violation,))
            requested = state.shown.replace("y", "r")
            if self.rules.violation(requested) is not None:
                requested = "r" * self.rules.links
        service = self._service(requested, now)
        if service is None:
            state.forced = None
            return requested, reasons
        state.forced_reason, state.forced = service
        if state.forced == requested:
            return requested, reasons
        return state.forced, reasons | {state.forced_reason}

    def _service(self, requested: str, now: float) -> tuple[OverrideReason, str] | None:
        """(reason, green that serves a link beyond a bound) if one must be served at second `now`."""
        state = self.state
        if state.forced is not None and not self._has_served(state.forced, now):
            return state.forced_reason, state.forced
        if now < state.bound_exceeded_at_s:
            return None
        return self._bounds.forced(state.shown, state.waiting_since_s, state.unprotected_since_s, requested, now)

    def _first_exceeded_s(self) -> float:
        state = self.state
        return self._bounds.first_exceeded_s(state.shown, state.waiting_since_s, state.unprotected_since_s)

    def allows(self, green: str, now: float) -> bool:
        """True if the rules let a change to a green begin at second `now`, or keep it.

        False if it has a conflict, a link beyond a bound is served by another one, or a link that loses its green has
        not shown it for min green.
        """
        if self.rules.violation(green) is not None:
            return False
        service = self._service(green, now)
        if service is not None and service[1] != green:
            return False
        links = zip(self.shown, green, self._settled_s, strict=True)
        return now >= self._ages_matter_until_s or not any(
            c in GREEN and following not in GREEN and now < settled_s for c, following, settled_s in links
        )

    def _has_served(self, forced: str, now: float) -> bool:
        return self.shown == forced and all(
            round_to_ms(now - since_s) >= self.times.min_green_s
            for c, since_s in zip(forced, self.state.since_s, strict=True)
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
        shown = self.state.shown
        transition = self._transitions.get((shown, target, young))
        if transition is None:
            if len(self._transitions) > MAX_CACHED_TRANSITIONS:
                self._transitions.clear()
            transition = self._compute_transition(target, young, math.inf)  # no crossing is being cleared
            self._transitions[shown, target, young] = transition
        return transition

    def _young(self, now: float) -> int:
        """The links that have not shown their colours for long enough, as a mask."""
        if now >= self._ages_matter_until_s:
            return 0
        return sum([1 << i for i, settled_s in enumerate(self._settled_s) if now < settled_s])

    def _compute_transition(self, target: str, young: int, now: float) -> _Transition:
        """Compute a transition. `now` counts for crossings that are being cleared alone; inf: none is."""
        shown, reasons = self.state.shown, set()
        following = list(shown)
        turning_green: list[tuple[int, str]] = []
        walking_s = self._walking_s(target, now)
        for i, (c, wanted) in enumerate(zip(shown, target, strict=True)):
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
        changes = enumerate(zip(colours(shown), colours(permitted.state), strict=True))
        turned = tuple([self._bounds_s[new][i] for i, (c, new) in changes if c != new])
        return _Transition(permitted, frozenset(reasons), turned)

    def _walking_s(self, target: str, now: float) -> dict[int, float]:
        """Time in s until pedestrians are clear, by crossing that the target does not serve."""
        walking_s = {}
        for j in self._crossings:
            if target[j] in GREEN:
                continue
            age = round_to_ms(now - self.state.since_s[j])
            until_red_s = max(self.times.min_green_s - age, 0.0) if self.shown[j] in GREEN else -age
            if until_red_s + self.clearance_s[j] > 0:
                walking_s[j] = until_red_s + self.clearance_s[j]
        return walking_s

    def _would_only_wait(self, i: int, target: str, walking_s: Mapping[int, float]) -> bool:
        """True if link i may keep its green for now: the vehicles that follow it wait for pedestrians until it is
        clear."""
        clearing_s = self.yellow_s[i] + self.clearance_s[i]
        waits_for = sum(1 << j for j, seconds in walking_s.items() if seconds > clearing_s)
        starting = [k for k, c in enumerate(target) if c in GREEN and self.shown[k] not in GREEN]
        followers = [k for k in starting if self.rules.foes[i] >> k & 1]
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
            if wanted == "G":
                protected |= 1 << i
            else:
                permissive |= 1 << i
        return all_started

    def _uncleared(self, following: Sequence[str], young: int) -> int:
        """Links that will be red but may still have vehicles or pedestrians on the junction, as a mask."""
        if not self._has_clearance:
            return 0
        shown, later = colours(self.shown), colours("".join(following))
        return sum(
            [
                1 << j
                for j, clearance_s in enumerate(self.clearance_s)
                if clearance_s and later[j] == "r" and (shown[j] != "r" or young >> j & 1)
            ]
        )

    def _show(self, transition: _Transition, now: float) -> None:
        state = self.state
        if transition.following.state == state.shown:
            return
        self.permitted, state.shown = transition.following, transition.following.state
        for i, bound_s in transition.turned:
            state.since_s[i] = state.waiting_since_s[i] = now
            self._settled_s[i] = settled_s = round_to_ms(now + bound_s)
            if settled_s > self._ages_matter_until_s:
                self._ages_matter_until_s = settled_s
        state.unprotected_since_s = self._bounds.unprotected_since_s(state.shown, state.unprotected_since_s, now)
        state.bound_exceeded_at_s = self._first_exceeded_s()

    def resume(self) -> None:
        """Go on from the values of `state`. Raises ValueError if they are not those of a signal with as many links."""
        since = zip(colours(self.shown), self.state.since_s, strict=True)
        self._settled_s = [round_to_ms(since_s + self._bounds_s[c][i][1]) for i, (c, since_s) in enumerate(since)]
        self._ages_matter_until_s = max(self._settled_s, default=-math.inf)
        self.permitted = PermittedState(self.signal, self.shown, seal=_SEAL)
