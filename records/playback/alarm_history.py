"""The alarms of a run as they were at any second, made by the code that makes them in a running controller."""

import contextlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np

from city.network import StreetNetwork
from controller.alarms import MAX_ENDED, Alarms, UnknownAlarm
from controller.decision_step import NO_ANSWER
from controller.events import TlDecision
from controller.recording.messages import MODE_OF
from controller.recording.record_writer import NS
from protos import control_pb2 as pb
from protos import record_pb2 as record
from protos.policy_pb2 import PolicyContract
from records.record_reader import RecordedStep
from signals.fallback.control_mode import ControlMode, OperatorMode
from signals.movement_names import MovementNames
from signals.observation import PhaseState
from signals.policy import Answer
from signals.safety.conflicts import OverrideReason
from signals.safety.monitor import Alarm, MonitorRule
from signals.safety.signal_safety import Override

COUNT_INTERVAL_S = 10.0
"""Simulated time after which a further occurrence counts as a change."""
_REASON_OF = {record.TlStep.OverrideReason.Value(reason.name): reason for reason in OverrideReason}
_RULES = {rule.value: rule for rule in MonitorRule}
_WANTED = frozenset(mode.value for mode in OperatorMode)


class AlarmHistory:
    """The list of alarms at each step that changed it."""

    def __init__(
        self, contracts: Sequence[PolicyContract], street: StreetNetwork, names: Mapping[str, MovementNames]
    ) -> None:
        """`contracts`: of the controlled TLs. `street`: their network. `names`: by signal, of its movements."""
        tl_of_signal = {signal: contract.tl for contract in contracts for signal in contract.signal_ids}
        self._wall_s = 0.0
        self._alarms = Alarms(tl_of_signal, len(contracts), wall_clock=lambda: self._wall_s)
        self._alarms.follow_greens(contracts, street, names)
        self._active: list[tuple[float, list[pb.Alarm]]] = []
        """(second, active alarms) of each change, in their order."""
        self._ended: list[pb.Alarm] = []
        """In the order of their ends."""

    def add(self, recorded: RecordedStep) -> list[pb.Alarm]:
        """Take a step, in the run's order; return the alarms that begin with it."""
        at_s = recorded.step.at_s
        self._wall_s = recorded.publish_ns / NS
        self._take(recorded)
        for action in recorded.step.actions:
            if action.action == "acknowledge":
                with contextlib.suppress(UnknownAlarm):  # of a record that lacks steps
                    self._alarms.acknowledge(action.target, action.author)
        before_s, listed = self._active[-1] if self._active else (at_s, [])
        before = {_key(alarm): alarm for alarm in listed}
        current = {_key(alarm): alarm for alarm in self._alarms.current()}
        if before.keys() - current.keys():
            newest_ended = [alarm for alarm in self._alarms.current(with_ended=True) if not alarm.is_active]
            self._ended += [alarm for alarm in reversed(newest_ended) if _key(alarm) in before]
        is_later = at_s >= before_s + COUNT_INTERVAL_S
        if before.keys() != current.keys() or any(_differs(before[key], current[key], is_later) for key in current):
            self._active.append((at_s, list(current.values())))
        return [alarm for key, alarm in current.items() if key not in before]

    def at(self, at_s: float) -> list[pb.Alarm]:
        """The alarms that a controller listed at a second: active ones, then those that had ended, the newest first."""
        changes = bisect_right(self._active, at_s, key=lambda change: change[0])
        active = self._active[changes - 1][1] if changes else []
        ended = self._ended[: bisect_right(self._ended, at_s, key=lambda alarm: alarm.ended_s)]
        return [*active, *reversed(ended[-MAX_ENDED:])]

    def _take(self, recorded: RecordedStep) -> None:
        step = recorded.step
        decisions, overrides = [], []
        for tl, tl_step in recorded.tls.items():
            if tl_step.HasField("decision"):
                decisions.append(_decision(tl, tl_step))
            overrides += [(states.at_s, override) for states in tl_step.states for override in states.overrides]
        overrides.sort(key=lambda timed: timed[0])
        self._alarms.take(
            step.at_s,
            [Alarm(a.signal, _RULES[a.rule], a.at_s, a.message) for a in step.alarms if a.rule in _RULES],
            {rejection.signal: rejection.reason for rejection in step.rejections},
            [command.tl for command in step.commands if command.wanted in _WANTED],
            decisions,
            [
                Override(o.signal, _REASON_OF[o.reason], o.requested, o.permitted)
                for _, o in overrides
                if o.reason in _REASON_OF  # another version's reason has no text
            ],
        )


def _decision(tl: str, recorded: record.TlStep) -> TlDecision:
    """A recorded decision, with what alarms look at."""
    made, mode = recorded.decision, MODE_OF.get(recorded.mode, ControlMode.POLICY)
    phase_state = PhaseState(tuple(made.phases), made.min_green_passed)
    answer: Answer | Exception = NO_ANSWER
    if made.action:
        answer = Answer(np.array(made.action), scores=np.array(made.scores, np.float32))
    return TlDecision(tl, np.array(made.observation, np.float32), phase_state, answer, made.failure, mode, mode)


def _key(alarm: pb.Alarm) -> tuple[str, float]:
    return alarm.id, alarm.since_s


def _differs(before: pb.Alarm, alarm: pb.Alarm, is_later: bool) -> bool:
    """True if an alarm has changed by more than its count, or by that if some time has gone by."""
    kept = ("text", "subjects", "acknowledged_by", "consequence_of")
    same = all(getattr(before, name) == getattr(alarm, name) for name in kept)
    return not same or (is_later and before.count != alarm.count)
