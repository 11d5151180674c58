"""Max green and max red: links that exceed them, and the green phase that serves such a link.

A movement may also have a bound on the time without a protected green (`G`): a permissive one (`g`) does not serve it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from signals.safety.conflicts import GREEN, PROTECTED_GREEN, ConflictRules, OverrideReason, colour
from signals.safety.safety_times import SafetyTimes
from signals.simulation_time import round_to_ms


class _Wait(NamedTuple):
    age_s: float
    link: int
    bound_s: float
    served_by: str
    """The characters that end the waiting."""


class ServiceBounds:
    """The bounds of one signal's links. Pure: states and the begin of each link's colour are passed in."""

    def __init__(self, rules: ConflictRules, times: SafetyTimes, greens: Sequence[str]) -> None:
        self._rules, self._times = rules, times
        self._greens = [state for state in greens if rules.violation(state) is None]
        served = [{state[i] in GREEN for state in self._greens} for i in range(rules.links)]
        self.links = [i for i in range(rules.links) if served[i] == {True, False}]
        """Links that some green phase serves and another does not: the bounds apply to them."""
        self._max_red_s = times.max_reds_s(rules.links)
        self._bounds_s = {
            "g": [times.max_green_s] * rules.links, "r": self._max_red_s, "y": [math.inf] * rules.links
        }  # fmt: skip
        self._has_bounds = min((times.max_green_s, *self._max_red_s)) < math.inf
        self._max_unprotected_s = {
            i: bound_s
            for i, bound_s in enumerate(times.max_unprotected_s)
            if bound_s < math.inf and {state[i] in PROTECTED_GREEN for state in self._greens} == {True, False}
        }

    def unprotected_since_s(self, state: str, before: Mapping[int, float], now: float) -> dict[int, float]:
        """By link with a bound on protected greens and without one, since when, in s. `before`: in the state before."""
        return {i: before.get(i, now) for i in self._max_unprotected_s if state[i] not in PROTECTED_GREEN}

    def first_exceeded_s(self, state: str, since: Sequence[float], unprotected_since: Mapping[int, float]) -> float:
        """When a bound is first exceeded, in s; inf if no bound applies."""
        links = self.links if self._has_bounds else ()
        ends_s = [since[i] + self._bounds_s[colour(state[i])][i] for i in links]
        ends_s += [since_s + self._max_unprotected_s[i] for i, since_s in unprotected_since.items()]
        return min(map(round_to_ms, ends_s), default=math.inf)

    def forced(
        self, state: str, since: Sequence[float], unprotected_since: Mapping[int, float], requested: str, now: float
    ) -> tuple[OverrideReason, str] | None:
        """(reason, green phase to show) if a bound is exceeded; the requested state itself if it serves the waiting
        link."""
        ages_s = {i: round_to_ms(now - since[i]) for i in self.links}
        waits = [_Wait(ages_s[i], i, self._max_red_s[i], GREEN) for i in self.links if colour(state[i]) == "r"]
        waits += [
            _Wait(round_to_ms(now - since_s), i, self._max_unprotected_s[i], PROTECTED_GREEN)
            for i, since_s in unprotected_since.items()
        ]
        kept = [i for i in self.links if state[i] in GREEN and requested[i] in GREEN]
        expired = [i for i in kept if ages_s[i] >= self._times.max_green_s]
        services = (self._service(wait, expired, requested) for wait in sorted(waits, key=lambda wait: -wait.age_s))
        return next((service for service in services if service is not None), None)

    def _service(self, wait: _Wait, expired: Sequence[int], requested: str) -> tuple[OverrideReason, str] | None:
        """(reason, green phase that serves a link which has waited), or None while it may wait."""
        i = wait.link
        blocked_by = [j for j in expired if self._rules.foes[i] >> j & 1]
        serving = [green for green in self._greens if green[i] in wait.served_by]
        relieving = [green for green in serving if all(green[j] not in GREEN for j in blocked_by)]
        if wait.age_s >= wait.bound_s:
            # the caller keeps this green until it is shown: otherwise each new request could restart the transition
            return OverrideReason.MAX_RED, requested if requested in serving else (relieving or serving)[0]
        if wait.served_by == GREEN and blocked_by and requested[i] not in GREEN and relieving:
            return OverrideReason.MAX_GREEN, relieving[0]
        return None
