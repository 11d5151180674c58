"""Causes of the ends of greens: force-off, max-out or gap-out, or None if it is not known.

`green_ends` of the signal's history      their cause
control mode off or lost                  not known
control mode policy or hold               force-off: the policy ended it
a client sets the states                  force-off: max-pressure, the operator or a plan ended it
another program begins                    force-off: the switch ended it
a static program runs                     force-off: the plan ended it
an actuated program runs                  max-out after its maximum; gap-out between minimum and maximum, as SUMO ends
                                          such a green for nothing else; force-off if the two are equal
any other program, or one with            not known
a coordination
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from city.network import Program
from records.atspm.analysis_period import (
    FORCE_OFF,
    GAP_OUT,
    HOLD,
    LOST,
    MAX_OUT,
    OFF,
    POLICY,
    ShownState,
    SignalHistory,
)

STATIC, ACTUATED = "static", "actuated"
TOLERANCE_S = 1e-3


def causes(signal: SignalHistory, programs: Sequence[Program]) -> dict[int, str]:
    """By millisecond at which a new state begins, why the greens that end there do; without those that are not known.

    Args:
        signal: the signal.
        programs: its programs.
    """
    stated = {round(time_s * 1000): cause for time_s, cause in signal.green_ends.items()}
    by_id = {program.id: program for program in programs}
    modes = [change.begin_s for change in signal.modes]
    changes = [change.begin_s for change in signal.programs]
    found: dict[int, str] = {}
    for k, (before, after) in enumerate(pairwise(signal.states)):
        time_s = after.begin_s
        at = bisect_right(modes, time_s) - 1
        mode = signal.modes[at].mode if at >= 0 else None
        cause = stated.get(round(time_s * 1000))
        if cause is None and mode not in (OFF, LOST):
            at = bisect_right(changes, time_s) - 1
            is_forced = at >= 0 and (signal.programs[at].program is None or changes[at] == time_s)
            if mode in (POLICY, HOLD) or is_forced:
                cause = FORCE_OFF
            elif at >= 0:
                program = by_id.get(signal.programs[at].program or "")
                # the first state may have begun before the period, or under another program
                has_begun_here = k > 0 and changes[at] <= before.begin_s
                cause = _cause(program, before, after, has_begun_here)
        if cause is not None:
            found[round(time_s * 1000)] = cause
    return found


def _cause(program: Program | None, before: ShownState, after: ShownState, has_begun_here: bool) -> str | None:
    if program is None:
        return None
    if program.type == STATIC:
        return FORCE_OFF
    if program.type != ACTUATED or program.is_coordinated or not has_begun_here:
        return None
    phases = program.phases
    bounds = {
        (phase.min_s, phase.max_s)
        for phase, follower in zip(phases, (*phases[1:], *phases[:1]), strict=True)
        if phase.state == before.state and follower.state == after.state
    }
    if len(bounds) != 1:
        return None
    (min_s, max_s), duration_s = bounds.pop(), after.begin_s - before.begin_s
    if max_s - min_s < TOLERANCE_S:
        return FORCE_OFF
    if duration_s > max_s - TOLERANCE_S:
        return MAX_OUT
    return GAP_OUT if duration_s > min_s - TOLERANCE_S else None
