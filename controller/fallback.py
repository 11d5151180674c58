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
            return self._safety.hand_over(self._program, self._first_green, now), []
        state, overrides = self._safety.permit("r" * len(self._safety.shown), now, clearing=True)
        # its own wish goes straight to red on purpose: the yellow in between is no news
        return state, [override for override in overrides if override.reason.value not in ("yellow", "min_green")]

    def confirm(self, refused: bool) -> None:
        """SUMO's word on the handover: it is done, or must be tried again."""
        if self.handed and not self.done:
            self.handed = self.done = not refused
