"""The way onto a signal's fixed plan: yellow, then red, then the plan from a green.

SUMO's `setProgram` alone switches abruptly, from any green to any other.
"""

from dataclasses import dataclass

from city.network import Program
from controller.safety import Override, PermittedHandover, PermittedState, SignalSafety


@dataclass(frozen=True)
class Plan:
    """A signal's own program, and how to come onto it."""

    program: Program
    timed: bool
    """Whether it keeps to the clock: a static program whose offset is known."""

    def entry(self, now: float, min_green_s: float) -> tuple[int, float | None]:
        """(green phase to begin with at second `now`, its remaining time in s or None).

        A program that keeps to the clock shows phase (now - offset) mod cycle, as
        SUMO's static programs do. It is entered in step, or its green waves were
        lost for good: in the green that runs, where enough of it is left, else in
        the next one, early and until its own end.
        """
        greens = self.program.greens
        durations = [phase.duration_s for phase in self.program.phases]
        if not greens:
            return 0, None
        if not self.timed or not all(duration > 0 for duration in durations):
            return greens[0], None
        end = -((now - self.program.offset_s) % sum(durations))
        for k in [*range(len(durations)), *range(len(durations))]:
            end += durations[k]
            if k in greens and end >= min_green_s:
                return k, end
        return greens[0], None


class PlanEntry:
    """Brings one signal onto its plan through a safe transition."""

    def __init__(self, safety: SignalSafety, plan: Plan) -> None:
        self._safety = safety
        self._plan = plan
        self.handed = False
        """The handover is on its way to SUMO."""
        self.done = False
        """SUMO has taken it: the program runs."""

    def next(self, now: float) -> tuple[PermittedState | PermittedHandover | None, list[Override]]:
        """What to set at second `now`; None once the handover is on its way."""
        if self.handed:
            return None, []
        if self._safety.cleared(now):
            self.handed = True
            phase, remaining_s = self._plan.entry(now, self._safety.times.min_green_s)
            return self._safety.hand_over(self._plan.program.id, phase, now, remaining_s), []
        state, overrides = self._safety.permit("r" * len(self._safety.shown), now, clearing=True)
        # its own wish goes straight to red on purpose: the yellow in between is no news
        return state, [override for override in overrides if override.reason.value not in ("yellow", "min_green")]

    def confirm(self, refused: bool) -> None:
        """SUMO's word on the handover: it is done, or must be tried again."""
        if self.handed and not self.done:
            self.handed = self.done = not refused
