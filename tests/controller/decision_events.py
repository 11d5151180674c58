"""Decision events with defaults, and subscribers that collect."""

import numpy as np

from controller.events import DecisionEvent, Sent, Shown, StepTimes, TlDecision, TlStates
from signals.fallback.control_mode import ControlMode
from signals.observation import PhaseState, Readings
from signals.policy import Answer

TIMES = StepTimes(0.004, 0.0002, 0.0015, 0.0003)


def decision(tl, failure="", mode_before=ControlMode.POLICY, mode=ControlMode.POLICY):
    return TlDecision(
        tl, np.zeros(4, np.float32), PhaseState((0,), False), Answer(np.array([0])), failure, mode_before, mode
    )


def event(at_s, decisions=(), overrides=(), states=(), alarms=(), rejected=None, readings=None, times=None):
    """`states`: those that SUMO showed, as (begin_s, end_s, states)."""
    readings = readings or Readings(np.zeros((2, 0)), np.zeros(0), np.zeros(0))
    sent = Sent(at_s, tuple(TlStates(each.tl, (), ()) for each in decisions), (), tuple(overrides))
    return DecisionEvent(
        number=0,
        at_s=at_s,
        monotonic_s=0.0,
        readings=readings,
        decisions=list(decisions),
        sent=[sent] if overrides else [],
        shown=[Shown(*each) for each in states],
        alarms=list(alarms),
        rejected=rejected or {},
        times=times or (TIMES if decisions else None),
    )


class Events(list):
    def add(self, event):
        self.append(event)

    def close(self):
        pass


class Alarms(Events):
    def add(self, event):
        self.extend(event.alarms)
