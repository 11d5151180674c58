"""Max green and max red: links that exceed them, and the green phase that serves such a link."""

import math
from collections.abc import Sequence

from signals.safety.conflicts import GREEN, ConflictRules, OverrideReason, colour
from signals.safety.safety_times import SafetyTimes
from signals.simulation_time import round_to_ms


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

    def first_exceeded_s(self, state: str, since: Sequence[float]) -> float:
        """When a bound is first exceeded, in s; inf if no bound applies."""
        if not self._has_bounds:
            return math.inf
        ends_s = (round_to_ms(since[i] + self._bounds_s[colour(state[i])][i]) for i in self.links)
        return min(ends_s, default=math.inf)

    def forced(
        self, state: str, since: Sequence[float], requested: str, now: float
    ) -> tuple[OverrideReason, str] | None:
        """(reason, green phase to show) if a bound is exceeded; the requested state itself if it serves the waiting
        link."""
        ages_s = {i: round_to_ms(now - since[i]) for i in self.links}
        waiting = sorted((i for i in self.links if colour(state[i]) == "r"), key=lambda i: -ages_s[i])
        kept = [i for i in self.links if state[i] in GREEN and requested[i] in GREEN]
        expired = [i for i in kept if ages_s[i] >= self._times.max_green_s]
        services = (self._service(i, ages_s[i], expired, requested) for i in waiting)
        return next((service for service in services if service is not None), None)

    def _service(
        self, i: int, age_s: float, expired: Sequence[int], requested: str
    ) -> tuple[OverrideReason, str] | None:
        """(reason, green phase that serves a link which has waited for age_s), or None while it may wait."""
        blocked_by = [j for j in expired if self._rules.foes[i] >> j & 1]
        serving = [green for green in self._greens if green[i] in GREEN]
        relieving = [green for green in serving if all(green[j] not in GREEN for j in blocked_by)]
        if age_s >= self._max_red_s[i]:
            # the caller keeps this green until it is shown: otherwise each new request could restart the transition
            return OverrideReason.MAX_RED, requested if requested in serving else (relieving or serving)[0]
        if blocked_by and requested[i] not in GREEN and relieving:
            return OverrideReason.MAX_GREEN, relieving[0]
        return None
