"""The transition to a signal's own program: yellow, then red, then the program from a green.

SUMO's `setProgram` alone switches abruptly, from any green to any other.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from city.network import Program, ProgramSwitch, newest_program
from signals.safety.signal_safety import Override, PermittedRelease, PermittedState, SignalSafety


@dataclass(frozen=True)
class FallbackPlan:
    """A signal's own program, and how it is entered."""

    program: Program
    is_synchronised: bool
    """Whether the program keeps to the clock: a static program whose offset is known."""

    def entry_phase(self, now: float, min_green_s: float) -> tuple[int | None, float | None]:
        """(green phase to begin with at second `now`, its remaining time in s or None: its full duration).

        A program without green phases (off, blinking) is entered as SUMO does: phase None.
        A synchronised program shows phase (now - offset) mod cycle, as SUMO's static
        programs do. It is entered in step, to keep its green waves: in the green that
        runs if at least min green of it remains, else early in the next green, until its end.
        """
        greens = self.program.greens
        durations = [phase.duration_s for phase in self.program.phases]
        if not greens or self.program.is_blinking:
            return None, None
        if not self.is_synchronised or not all(duration > 0 for duration in durations):
            return greens[0], None
        end_s = -((now - self.program.offset_s) % sum(durations))
        for k in [*range(len(durations)), *range(len(durations))]:
            end_s += durations[k]
            if k in greens and end_s >= min_green_s:
                return k, end_s
        return greens[0], None


@dataclass(frozen=True)
class FallbackSchedule:
    """The fallback plans of a signal: SUMO would switch its programs by the network's own schedule, but not under control."""

    first: FallbackPlan
    since_s: float = -math.inf
    """When the first one ran; switches before have no effect any more, one at this second has."""
    switches: tuple[ProgramSwitch, ...] = ()
    later: Mapping[str, FallbackPlan] = field(default_factory=dict)
    """By program id, the plans that it switches to."""

    def at(self, now: float) -> FallbackPlan:
        """The plan that the signal would run at second `now`."""
        newest = newest_program(self.switches, now, self.since_s)
        return self.first if newest is None else self.later[newest]


class PlanTransition:
    """Brings one signal onto its fallback plan through a safe transition."""

    def __init__(self, safety: SignalSafety, plans: FallbackSchedule) -> None:
        self._safety = safety
        self._plans = plans
        self.is_sent = False
        """Whether the release has been sent to SUMO."""
        self.is_confirmed = False
        """Whether SUMO has accepted it: the program runs."""

    def next(self, now: float) -> tuple[PermittedState | PermittedRelease | None, list[Override]]:
        """What to send at second `now`; None once the release has been sent."""
        if self.is_sent:
            return None, []
        if self._safety.is_cleared(now):
            self.is_sent = True
            plan = self._plans.at(now)
            phase, remaining_s = plan.entry_phase(now, self._safety.times.min_green_s)
            return self._safety.permit_release(plan.program.id, phase, now, remaining_s), []
        state, overrides = self._safety.permit("r" * len(self._safety.shown), now, clearing=True)
        # all red is requested on purpose: the yellow and min green before it are not overrides of a policy
        return state, [override for override in overrides if override.reason.value not in ("yellow", "min_green")]

    def restart(self) -> None:
        """Begin again: the signal does not run its program any more."""
        self.is_sent = self.is_confirmed = False

    def set_result(self, accepted: bool) -> None:
        """Report whether SUMO accepted the release; if not, it is sent again."""
        if self.is_sent and not self.is_confirmed:
            self.is_sent = self.is_confirmed = accepted
