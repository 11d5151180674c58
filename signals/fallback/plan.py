"""The transition to a signal's own program: yellow, then red, then the program from a green.

SUMO's `setProgram` alone switches abruptly, from any green to any other.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from city.network import Program, ProgramSwitch, newest_program
from signals.safety.conflicts import GREEN
from signals.safety.signal_safety import Override, PermittedRelease, PermittedState, SignalSafety


@dataclass(frozen=True)
class FallbackPlan:
    """A signal's own program, and the phase in which it is entered."""

    program: Program
    is_synchronised: bool
    """True if the program is in step with simulated time: it is static and its offset is known."""

    def entry_phase(self, now: float, min_green_s: float) -> tuple[int | None, float | None]:
        """(green phase to begin with at second `now`, its remaining time in s); without a time, its full duration.

        A program without green phases (off, blinking) is entered as SUMO does, with phase None.
        A synchronised program shows phase (now - offset) mod cycle, as SUMO's static
        programs do. It is entered in step, to keep its green waves: in the green that
        runs if its links stay green for at least min green, else early in the next green, until its end.
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
            if k in greens and end_s > 0 and end_s + self._kept_s(k) >= min_green_s:
                return k, end_s
        return greens[0], None

    def _kept_s(self, k: int) -> float:
        """The time after phase k in which all of its green links stay green: logged plans have steps of 1 s."""
        phases = self.program.phases
        links = [i for i, character in enumerate(phases[k].state) if character in GREEN]
        kept_s = 0.0
        for phase in (*phases[k + 1 :], *phases[:k]):
            if any(phase.state[i] not in GREEN for i in links):
                break
            kept_s += phase.duration_s
        return kept_s


@dataclass(frozen=True)
class FallbackSchedule:
    """The fallback plans of a signal over time.

    SUMO does not apply the network's schedule of programs (WAUT) while a client sets the
    signal, so the plan of each moment is found here.
    """

    first: FallbackPlan
    since_s: float = -math.inf
    """When the first plan ran. Earlier switches have no effect; a switch at this second has."""
    switches: tuple[ProgramSwitch, ...] = ()
    later: Mapping[str, FallbackPlan] = field(default_factory=dict)
    """Plans of the switches, by program id."""

    def at(self, now: float) -> FallbackPlan:
        """The plan that the signal would run at second `now`."""
        program_id = newest_program(self.switches, now, self.since_s)
        return self.first if program_id is None else self.later[program_id]


class PlanTransition:
    """Brings one signal onto its fallback plan through a safe transition."""

    def __init__(self, safety: SignalSafety, plans: FallbackSchedule) -> None:
        self._safety = safety
        self._plans = plans

    @property
    def is_confirmed(self) -> bool:
        """True if SUMO has accepted the release, so that the program runs."""
        return self._safety.state.is_release_confirmed

    def next(self, now: float) -> tuple[PermittedState | PermittedRelease | None, list[Override]]:
        """The command to send at second `now`, and overrides; no command once the release has been sent."""
        if self._safety.state.is_release_sent:
            return None, []
        if self._safety.is_cleared(now):
            self._safety.state.is_release_sent = True
            plan = self._plans.at(now)
            phase, remaining_s = plan.entry_phase(now, self._safety.times.min_green_s)
            return self._safety.permit_release(plan.program.id, phase, now, remaining_s), []
        state, overrides = self._safety.permit("r" * len(self._safety.shown), now, clearing=True)
        # all-red is requested here: the yellow and min green before it are not overrides of a policy
        return state, [override for override in overrides if override.reason.value not in ("yellow", "min_green")]

    def restart(self) -> None:
        """Begin anew: the signal does not run its program, or no longer."""
        self._safety.state.is_release_sent = self._safety.state.is_release_confirmed = False

    def set_result(self, accepted: bool) -> None:
        """Record whether SUMO accepted the release; a rejected one is sent again."""
        state = self._safety.state
        if state.is_release_sent and not state.is_release_confirmed:
            state.is_release_sent = state.is_release_confirmed = accepted
