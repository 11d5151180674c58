"""The state of a run as messages of the control API (protos/control.proto)."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from controller.alarms import ListedAlarm
from controller.events import TlDecision
from controller.operator.command_queue import CommandQueue
from controller.operator.run_state import TlSnapshot
from controller.pace import PaceState
from protos import control_pb2 as pb
from signals.policy import Answer

SERVICE = "greenserve.control.v1.Control"
METHODS = {
    "ListTls": (pb.ListTlsRequest, pb.ControllerState),
    "SetMode": (pb.SetModeRequest, pb.TlStates),
    "PinModel": (pb.PinModelRequest, pb.TlStates),
    "ReloadContracts": (pb.ReloadContractsRequest, pb.ReloadContractsResponse),
    "Pause": (pb.PauseRequest, pb.Run),
    "Resume": (pb.ResumeRequest, pb.Run),
    "Step": (pb.StepRequest, pb.Run),
    "SetSpeed": (pb.SetSpeedRequest, pb.Run),
    "ListAlarms": (pb.ListAlarmsRequest, pb.Alarms),
    "AcknowledgeAlarm": (pb.AcknowledgeAlarmRequest, pb.Alarms),
}
"""By name of a method with one answer: its request and its answer."""
WATCH = "WatchDecisions"
ANSWERED = "greenserve-answered"
"""Trailing metadata of a controller's own errors: it distinguishes their UNAVAILABLE from that of a lost connection."""


def fields(message: Any) -> dict[str, Any]:
    """Every field of a message by name, for JSON. (protobuf's own JSON has 64-bit numbers as text.)"""
    values: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        is_message = field.message_type is not None
        if field.is_repeated:
            values[field.name] = [fields(each) if is_message else each for each in value]
        else:
            values[field.name] = fields(value) if is_message else value
    return values


def run_message(second: float, pace: PaceState, policy: str, sumo: str) -> pb.Run:
    return pb.Run(
        second=second, is_paused=pace.is_paused, speed=pace.speed, step_until_s=pace.step_until_s,
        lateness_s=pace.lateness_s,
        late_steps=pace.late_steps, lost_s=pace.lost_s, policy=policy, sumo=sumo,
    )  # fmt: skip


def tl_message(state: TlSnapshot, queue: CommandQueue) -> pb.TlState:
    message = pb.TlState(
        tl=state.tl, mode=state.mode.name.lower(), since_s=state.since_s, model=state.model, version=state.version,
        signals=state.signals, shown=state.shown, reason=state.reason, decided_s=state.decided_s,
    )  # fmt: skip
    if (mode := queue.modes.get(state.tl)) is not None:
        message.set_by = mode.author
        message.until_s = mode.until_s if np.isfinite(mode.until_s) else 0.0
    if (pin := queue.pinned.get(state.tl)) is not None:
        message.pinned_version, message.pinned_by = pin.version, pin.author
    return message


def decision_messages(decisions: Sequence[TlDecision], at_s: float) -> list[pb.TlDecision]:
    return [_decision(decision, at_s) for decision in decisions]


def _decision(decision: TlDecision, at_s: float) -> pb.TlDecision:
    message = pb.TlDecision(tl=decision.tl, at_s=at_s, mode=decision.mode.name.lower(), failure=decision.failure)
    answer = decision.answer
    if isinstance(answer, Answer):
        message.model, message.version = answer.model, answer.version
        if not decision.failure:
            message.action.extend(np.ravel(np.asarray(answer.action, np.float64)).tolist())
    return message


def alarm_messages(alarms: Iterable[ListedAlarm]) -> list[pb.Alarm]:
    return [
        pb.Alarm(
            id=alarm.id, name=alarm.name, severity=alarm.severity, since_s=alarm.since_s,
            since_unix_s=alarm.since_unix_s,
            last_s=alarm.last_s, count=alarm.count, subjects=alarm.subjects, subject_count=alarm.subject_count,
            text=alarm.text, runbook=alarm.runbook, is_active=alarm.ended_s is None, ended_s=alarm.ended_s or 0.0,
            acknowledged_by=alarm.acknowledged_by, acknowledged_s=alarm.acknowledged_s, remedy=alarm.remedy,
            instructions=alarm.instructions,
        )
        for alarm in alarms
    ]  # fmt: skip
