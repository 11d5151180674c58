"""The way onto a signal's fixed plan: yellow, then red, then the plan from a green.

SUMO's `setProgram` alone switches abruptly, from any green to any other.
"""

from controller.safety import Override, PermittedHandover, PermittedState, SignalSafety


class PlanEntry:
    """Brings one signal onto its plan through a safe transition."""

    def __init__(self, safety: SignalSafety, program: str, first_green: int) -> None:
        self._safety = safety
        self._program = program
        self._first_green = first_green
        self.done = False
        """The program runs; nothing more is to be set."""

    def next(self, now: float) -> tuple[PermittedState | PermittedHandover | None, list[Override]]:
        """What to set at second `now`; None once the program runs."""
        if self.done:
            return None, []
        if self._safety.cleared(now):
            self.done = True
            return self._safety.hand_over(self._program, self._first_green, now), []
        state, overrides = self._safety.permit("r" * len(self._safety.shown), now)
        # its own wish goes straight to red on purpose: the yellow in between is no news
        return state, [override for override in overrides if override.reason.value not in ("yellow", "min_green")]
