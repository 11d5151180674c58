"""The alarms of a run as they were at any second, made by the code that makes them in a running controller."""

from bisect import bisect_right

from controller.alarms import MAX_ENDED, Alarms, urgency
from controller.recording.messages import MODE_OF, REASONS
from controller.recording.record_writer import NS
from protos import control_pb2 as pb
from records.record_reader import RecordedStep
from signals.fallback.control_mode import ControlMode, OperatorMode
from signals.safety.monitor import Alarm, MonitorRule
from signals.safety.signal_safety import Override

COUNT_INTERVAL_S = 10.0
"""Simulated time after which a further occurrence is a version of its own."""
_REASON_OF = {value: reason for reason, value in REASONS.items()}
_RULES = {rule.value: rule for rule in MonitorRule}
_WANTED = frozenset(mode.value for mode in OperatorMode)


class AlarmHistory:
    """The versions of each alarm, from its begin to its end."""

    def __init__(self, tl_of_signal: dict[str, str], tls: int) -> None:
        """`tl_of_signal`: of the controlled signals. `tls`: number of controlled TLs."""
        self._wall_s = 0.0
        self._alarms = Alarms(tl_of_signal, tls, wall_clock=lambda: self._wall_s)
        self._versions: dict[tuple[str, float], list[tuple[float, pb.Alarm]]] = {}
        """By id and begin, (second, alarm), in their order."""
        self._ended_s: dict[tuple[str, float], float] = {}
        self._active: set[tuple[str, float]] = set()

    def add(self, recorded: RecordedStep) -> list[pb.Alarm]:
        """Take a step, in the run's order; return the alarms that begin with it."""
        at_s = recorded.step.at_s
        self._wall_s = recorded.publish_ns / NS
        self._take(recorded)
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

    def _take(self, recorded: RecordedStep) -> None:
        step = recorded.step
        decisions, overrides = [], []
        for tl, tl_step in recorded.tls.items():
            if tl_step.HasField("decision"):
                decisions.append((tl, tl_step.decision.failure, MODE_OF.get(tl_step.mode, ControlMode.POLICY)))
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

    def at(self, at_s: float) -> list[pb.Alarm]:
        """The alarms that a controller listed at a second: active ones, then those that had ended, the newest first."""
        active: list[pb.Alarm] = []
        ended: list[pb.Alarm] = []
        for key, versions in self._versions.items():
            k = bisect_right(versions, at_s, key=lambda version: version[0]) - 1
            if k < 0:
                continue
            ended_s = self._ended_s.get(key)
            if ended_s is not None and ended_s <= at_s:
                alarm = pb.Alarm()
                alarm.CopyFrom(versions[-1][1])
                alarm.is_active, alarm.ended_s = False, ended_s
                ended.append(alarm)
            else:
                active.append(versions[k][1])
        active.sort(key=urgency)
        ended.sort(key=lambda alarm: -alarm.ended_s)
        return [*active, *ended[:MAX_ENDED]]


def _is_version(before_s: float, before: pb.Alarm, alarm: pb.Alarm, at_s: float) -> bool:
    """Whether an alarm has changed by more than its count, or some time has gone by."""
    same = (before.text, before.subjects, before.acknowledged_by) == (alarm.text, alarm.subjects, alarm.acknowledged_by)
    return not same or (before.count != alarm.count and at_s >= before_s + COUNT_INTERVAL_S)
