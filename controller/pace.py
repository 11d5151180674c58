"""When the next step may begin: as fast as possible, at a speed, in single steps, or not now. Time is passed in.

A schedule maps simulated to wall time: the step at simulated second s begins at wall second

    wall_s(s) = anchor_wall_s + (s - anchor_s) / speed

It is anchored anew when the run resumes, when the speed changes, and when the run is more than MAX_CATCH_UP_S late: a
stall must not be followed by a race.
"""

import math
from typing import NamedTuple

MAX_CATCH_UP_S = 1.0
"""Wall time by which a run may be late and still catch up; beyond it, the schedule is moved."""
LATE_S = 0.1
"""Wall time after its schedule from which a step counts as late."""
PACED_STEP_S = 1.0
"""Simulated seconds of a step at a speed, at most: a decision's seconds must not pass all at once."""
PACED_STEP_WALL_S = 0.02
"""Wall time of a step at a high speed, so that the run is not slowed by its own steps."""


class PaceState(NamedTuple):
    """The pace as readers in other threads see it."""

    is_paused: bool
    speed: float
    """Simulated seconds per wall second; 0: as fast as possible."""
    step_until_s: float
    """Simulated second at which a step in progress pauses again; 0: none is in progress."""
    lateness_s: float
    """Wall time by which the newest step began after its schedule."""
    late_steps: int
    lost_s: float
    """Wall time by which the schedule was moved, in all."""


class Pace:
    """The pace of one run. Used by the thread of the decision loop; `state` may be read by any."""

    def __init__(self, speed: float = 0.0) -> None:
        """`speed`: simulated seconds per wall second; 0: as fast as possible."""
        self.state = PaceState(False, speed, 0.0, 0.0, 0, 0.0)
        """Replaced, never changed."""
        self._anchor: tuple[float, float] | None = None
        """(simulated s, wall s) of the schedule; None: the next step begins one."""

    def pause(self) -> None:
        self.state = self.state._replace(is_paused=True, step_until_s=0.0, lateness_s=0.0)

    def resume(self) -> None:
        if self.state.is_paused or self.state.step_until_s:
            self.state = self.state._replace(is_paused=False, step_until_s=0.0)
            self._anchor = None

    def step(self, until_s: float, now: float) -> None:
        """Simulate to until_s and pause there. `now`: simulated second; at or after until_s, the run only pauses."""
        if until_s <= now:
            self.pause()
        elif not (self.state.step_until_s and not self.state.is_paused and self.state.step_until_s == until_s):
            self.state = self.state._replace(is_paused=False, step_until_s=until_s)
            self._anchor = None

    def set_speed(self, speed: float) -> None:
        """Simulated seconds per wall second from now on; 0: as fast as possible."""
        if speed != self.state.speed:
            self.state = self.state._replace(speed=speed, lateness_s=0.0)
            self._anchor = None

    def wait_s(self, now: float, wall_s: float) -> float:
        """Wall time until the step at simulated second `now` may begin; inf while the run is paused."""
        state = self.state
        if state.step_until_s and now >= state.step_until_s:
            self.pause()
        if self.state.is_paused:
            return math.inf
        if not state.speed:
            return 0.0
        if self._anchor is None or now < self._anchor[0]:
            self._anchor = now, wall_s
        anchor_s, anchor_wall_s = self._anchor
        return max(anchor_wall_s + (now - anchor_s) / state.speed - wall_s, 0.0)

    def begin_step(self, now: float, wall_s: float) -> None:
        """Count the lateness of the step that begins now, after `wait_s` was 0."""
        if self._anchor is None or not self.state.speed:
            return
        anchor_s, anchor_wall_s = self._anchor
        late_s = max(wall_s - anchor_wall_s - (now - anchor_s) / self.state.speed, 0.0)
        lost_s = 0.0
        if late_s > MAX_CATCH_UP_S:
            self._anchor, lost_s = (now, wall_s), late_s
        self.state = self.state._replace(
            lateness_s=late_s, late_steps=self.state.late_steps + (late_s > LATE_S), lost_s=self.state.lost_s + lost_s
        )

    def step_end_s(self, now: float) -> float:
        """Simulated second at which the step at `now` ends at the latest."""
        end_s = self.state.step_until_s or math.inf
        if self.state.speed:
            end_s = min(end_s, now + max(PACED_STEP_S, PACED_STEP_WALL_S * self.state.speed))
        return end_s
