"""A TL of one signal, its greens and the plan that it falls back to; decision steps of a TL."""

import math

import numpy as np

from city.config import Controller
from city.network import Program, ProgramPhase
from protos import policy_pb2 as pb
from signals.dialects.sumo_rl import SumoRlObserver
from signals.fallback.plan import FallbackPlan, FallbackSchedule
from signals.green_phases import GreenPhaseSequencer
from signals.intersection import Intersection
from signals.safety.safety_times import SafetyTimes
from signals.safety.signal_safety import SignalSafety

GREENS = ["GgGr", "rrrG"]
PLAN = FallbackPlan(
    Program(
        "0",
        "static",
        0,
        tuple(ProgramPhase(s, d, d, d) for s, d in (("GgGr", 20), ("yyyr", 3), ("rrrG", 10), ("rrry", 3))),
    ),
    False,
)
HOLD_S = 10


def one_signal(
    crossing,
    hold_s=HOLD_S,
    times=SafetyTimes(3, 5),  # noqa: B008 - immutable
    actions=None,
    greens=GREENS,
    sequencer=None,
    kind="categorical",
    lanes=4,
    **parts,
):
    """A TL that shows its first green. `parts`: max-pressure or a driver."""
    action = pb.Action(kind=kind, size=actions or len(greens))
    x = Intersection(
        pb.PolicyContract(tl="SA101", signal_ids=["X"], action=action),
        SumoRlObserver(np.arange(4), lanes, 2),
        sequencer or GreenPhaseSequencer(greens, 5, 3, 5),
        [SignalSafety(crossing, times, greens)],
        [FallbackSchedule(PLAN)],
        Controller(hold_s=hold_s, recovery_answers=2),
        **parts,
    )
    x.start(0, [greens[0]])
    return x


def play(x, until_s, answer, shown=("GgGr",), begin_s=0, readings_at=lambda now: None, release_s=math.inf):
    """(second, command) of everything sent while `answer(second)` answers; steps as the decision steps do."""
    sent, now = [], begin_s
    while now < until_s:
        if now >= release_s and not x.state.is_on_fallback_plan:
            x.release()
        if x.state.next_decision_s <= now:
            x.apply_answer(answer(now), now, shown, readings_at(now))
        sent += [(now, command) for command in x.commands(now)[0]]
        x.confirm_sent(())
        now = min(x.next_due_s(now), until_s, release_s if now < release_s else math.inf)
    return sent
