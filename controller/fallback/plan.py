"""The transition to a signal's own program: yellow, then red, then the program from a green.

SUMO's `setProgram` alone switches abruptly, from any green to any other.
"""

from dataclasses import dataclass

from city.network import Program
from controller.safety.signal_safety import Override, PermittedRelease, PermittedState, SignalSafety


@dataclass(frozen=True)
class FallbackPlan:
    """A signal's own program, and how it is entered."""

    program: Program
    is_synchronised: bool
    """Whether the program keeps to the clock: a static program whose offset is known."""

    def entry_phase(self, now: float, min_green_s: float) -> tuple[int, float | None]:
        """(green phase to begin with at second `now`, its remaining time in s or None: its full duration).

        A synchronised program shows phase (now - offset) mod cycle, as SUMO's static
        programs do. It is entered in step, to keep its green waves: in the green that
        runs if at least min green of it remains, else early in the next green, until its end.
        """
        greens = self.program.greens
        durations = [phase.duration_s for phase in self.program.phases]
        if not greens:
            return 0, None
        if not self.is_synchronised or not all(duration > 0 for duration in durations):
            return greens[0], None
        end_s = -((now - self.program.offset_s) % sum(durations))
        for k in [*range(len(durations)), *range(len(durations))]:
            end_s += durations[k]
            if k in greens and end_s >= min_green_s:
                return k, end_s
        return greens[0], None


class PlanTransition:
    """Brings one signal onto its fallback plan through a safe transition."""

    def __init__(self, safety: SignalSafety, plan: FallbackPlan) -> None:
        self._safety = safety
        self._plan = plan
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
            phase, remaining_s = self._plan.entry_phase(now, self._safety.times.min_green_s)
            return self._safety.permit_release(self._plan.program.id, phase, now, remaining_s), []
        state, overrides = self._safety.permit("r" * len(self._safety.shown), now, clearing=True)
        # all red is requested on purpose: the yellow and min green before it are not overrides of a policy
        return state, [override for override in overrides if override.reason.value not in ("yellow", "min_green")]

    def set_result(self, accepted: bool) -> None:
        """Report whether SUMO accepted the release; if not, it is sent again."""
        if self.is_sent and not self.is_confirmed:
            self.is_sent = self.is_confirmed = accepted
