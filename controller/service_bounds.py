"""Max green and max red: who has waited for too long, and the green phase that serves them."""

import math
from collections.abc import Sequence

from controller.conflicts import GREEN, ConflictRules, Reason, colour
from controller.safety_times import SafetyTimes
from controller.simulation_time import ms


class ServiceBounds:
    """The bounds of one signal's links. States and since when links show their colours are passed in."""

    def __init__(self, rules: ConflictRules, times: SafetyTimes, greens: Sequence[str]) -> None:
        self._rules, self._times = rules, times
        self._greens = [state for state in greens if rules.objection(state) is None]
        everywhere = [all(state[i] in GREEN for state in self._greens) for i in range(rules.links)]
        somewhere = [any(state[i] in GREEN for state in self._greens) for i in range(rules.links)]
        # bounds make sense for links that some green phase serves and another does not
        self._bounded = [i for i in range(rules.links) if somewhere[i] and not everywhere[i]]
        self._any = min(times.max_green_s, times.max_red_s) < math.inf

    def first_broken_s(self, state: str, since: Sequence[float]) -> float:
        """When a bound would first be broken; inf: never."""
        if not self._any:
            return math.inf
        bound_s = {"g": self._times.max_green_s, "r": self._times.max_red_s, "y": math.inf}
        return min((ms(since[i] + bound_s[colour(state[i])]) for i in self._bounded), default=math.inf)

    def forced(self, state: str, since: Sequence[float], wish: str, now: float) -> tuple[Reason, str] | None:
        """A green phase to keep to, where a bound is broken: the wish itself where that serves whoever has waited too long."""
        ages = {i: ms(now - since[i]) for i in self._bounded}
        waiting = sorted((i for i in ages if colour(state[i]) == "r"), key=lambda i: -ages[i])
        worn = {i for i in ages if state[i] in GREEN and wish[i] in GREEN and ages[i] >= self._times.max_green_s}
        for i in waiting:
            blocked_by = {j for j in worn if self._rules.foes[i] >> j & 1}
            serving = [green for green in self._greens if green[i] in GREEN]
            relieving = [green for green in serving if not any(green[j] in GREEN for j in blocked_by)]
            if ages[i] >= self._times.max_red_s:
                # a wish that is not kept to until it is shown may be left on its way, again and again
                return Reason.MAX_RED, wish if wish in serving else (relieving or serving)[0]
            if blocked_by and wish[i] not in GREEN and relieving:
                return Reason.MAX_GREEN, relieving[0]
        return None
