"""The alarms of a run as they were at any second, made by the code that makes them in a running controller."""

from bisect import bisect_right
from dataclasses import replace

import numpy as np

from controller.alarms import CRITICAL, MAX_ENDED, Alarms, ListedAlarm
from controller.events import DecisionEvent, OperatorCommand, Sent, TlDecision
from controller.recording.record_writer import NS
from protos import record_pb2 as record
from records.playback.moments import MODES
from records.record_reader import RecordedStep
from signals.fallback.control_mode import ControlMode, OperatorMode
from signals.observation import PhaseState, Readings
from signals.policy import Answer
from signals.safety.conflicts import OverrideReason
from signals.safety.monitor import Alarm, MonitorRule
from signals.safety.signal_safety import Override

COUNT_INTERVAL_S = 10.0
"""Simulated time after which a further occurrence is a version of its own."""
_REASONS = {record.TlStep.OverrideReason.Value(reason.name): reason for reason in OverrideReason}
_RULES = {rule.value: rule for rule in MonitorRule}
_WANTED = frozenset(mode.value for mode in OperatorMode)
_NO_READINGS = Readings(np.zeros((2, 0)), np.zeros(0), np.zeros(0))
_NO_OBSERVATION = np.zeros(0, np.float32)
_NO_PHASES = PhaseState((), False)
_NO_ANSWER = Answer(np.zeros(0))


class AlarmHistory:
    """The versions of each alarm, from its begin to its end."""

    def __init__(self, tl_of_signal: dict[str, str], tls: int) -> None:
        """`tl_of_signal`: of the controlled signals. `tls`: number of controlled TLs."""
        self._wall_s = 0.0
        self._alarms = Alarms(tl_of_signal, tls, wall_clock=lambda: self._wall_s)
        self._versions: dict[tuple[str, float], list[tuple[float, ListedAlarm]]] = {}
        """By id and begin, (second, alarm), in their order."""
        self._ended_s: dict[tuple[str, float], float] = {}
        self._active: set[tuple[str, float]] = set()

    def add(self, recorded: RecordedStep) -> list[ListedAlarm]:
        """Take a step, in the run's order; return the alarms that begin with it."""
        at_s = recorded.step.at_s
        self._wall_s = recorded.publish_ns / NS
        self._alarms.add(alarm_event(recorded))
        for action in recorded.step.actions:
            if action.action == "acknowledge" and any(a.id == action.target for a in self._alarms.current()):
                self._alarms.acknowledge(action.target, action.author)
        current = {(alarm.id, alarm.since_s): alarm for alarm in self._alarms.current()}
        began = [alarm for key, alarm in current.items() if key not in self._versions]
        for key, alarm in current.items():
            versions = self._versions.setdefault(key, [])
            if not versions or _is_version(*versions[-1], alarm, at_s):
                versions.append((at_s, alarm))
        for key in self._active - current.keys():
            self._ended_s[key] = at_s
        self._active = set(current)
        return began

    def at(self, at_s: float) -> list[ListedAlarm]:
        """The alarms that a controller listed at a second: active ones, then those that had ended, the newest first."""
        active: list[ListedAlarm] = []
        ended: list[ListedAlarm] = []
        for key, versions in self._versions.items():
            k = bisect_right(versions, at_s, key=lambda version: version[0]) - 1
            if k < 0:
                continue
            ended_s = self._ended_s.get(key)
            if ended_s is not None and ended_s <= at_s:
                ended.append(replace(versions[-1][1], ended_s=ended_s))
            else:
                active.append(versions[k][1])
        active.sort(key=lambda alarm: (alarm.severity != CRITICAL, alarm.since_s))
        ended.sort(key=lambda alarm: -(alarm.ended_s or 0.0))
        return [*active, *ended[:MAX_ENDED]]


def _is_version(before_s: float, before: ListedAlarm, alarm: ListedAlarm, at_s: float) -> bool:
    """Whether an alarm has changed by more than its count, or some time has gone by."""
    same = (before.text, before.subjects, before.acknowledged_by) == (alarm.text, alarm.subjects, alarm.acknowledged_by)
    return not same or (before.count != alarm.count and at_s >= before_s + COUNT_INTERVAL_S)


def alarm_event(recorded: RecordedStep) -> DecisionEvent:
    """What alarms need of a step: its modes, failures, overrides, and the alarms of its monitors."""
    step = recorded.step
    decisions, sent = [], []
    for tl, tl_step in recorded.tls.items():
        if tl_step.HasField("decision"):
            decision = tl_step.decision
            before, after = MODES.get(decision.mode_before), MODES.get(tl_step.mode)
            decisions.append(
                TlDecision(
                    tl, _NO_OBSERVATION, _NO_PHASES, _NO_ANSWER, decision.failure,
                    before or ControlMode.POLICY, after or ControlMode.POLICY,
                )
            )  # fmt: skip
        for states in tl_step.states:
            overrides = tuple(
                Override(o.signal, _REASONS[o.reason], o.requested, o.permitted)
                for o in states.overrides
                if o.reason in _REASONS  # another version's reason has no text
            )
            if overrides:
                sent.append(Sent(states.at_s, (), (), overrides))
    return DecisionEvent(
        number=step.number,
        at_s=step.at_s,
        monotonic_s=recorded.publish_ns / NS,
        readings=_NO_READINGS,
        decisions=tuple(decisions),
        sent=tuple(sorted(sent, key=lambda each: each.at_s)),
        shown=(),
        alarms=tuple(Alarm(a.signal, _RULES[a.rule], a.at_s, a.message) for a in step.alarms if a.rule in _RULES),
        rejected={rejection.signal: rejection.reason for rejection in step.rejections},
        frozen=(),
        times=None,
        commands=tuple(
            OperatorCommand(
                c.tl,
                OperatorMode(c.wanted),
                c.author,
                MODES.get(c.mode_before, ControlMode.POLICY),
                MODES.get(c.mode, ControlMode.POLICY),
            )
            for c in step.commands
            if c.wanted in _WANTED
        ),
    )  # fmt: skip
