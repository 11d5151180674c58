"""The control API (protos/control.proto): its methods and messages, and why it refuses a call."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np
from google.protobuf.message import Message

from controller.events import TlDecision
from protos import control_pb2 as pb
from signals.policy import Answer

SERVICE = "greenserve.control.v1.Control"
METHODS: Mapping[str, tuple[Any, Any]] = {
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
    "ListCommands": (pb.ListCommandsRequest, pb.Commands),
}
"""By name of a method with one answer: its request and its answer."""
WATCH = "WatchDecisions"
ANSWERED = "greenserve-answered"
"""Trailing metadata of a controller's own errors: it distinguishes their UNAVAILABLE from that of a lost connection."""


class Status(Enum):
    """Why a call is refused, by the name of its gRPC status; the value is its HTTP status."""

    INVALID_ARGUMENT = 400
    NOT_FOUND = 404
    FAILED_PRECONDITION = 409
    RESOURCE_EXHAUSTED = 429
    UNAVAILABLE = 503
    DEADLINE_EXCEEDED = 504


class OperatorError(Exception):
    """A call that is refused, or was not applied in time; the text is for its caller."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


def fields(message: Any) -> dict[str, Any]:
    """Every field of a message by name, for JSON. (protobuf's own JSON has 64-bit numbers as text.)"""

    def plain(value: Any) -> Any:
        return fields(value) if isinstance(value, Message) else value

    return {
        field.name: [plain(each) for each in getattr(message, field.name)]
        if field.is_repeated
        else plain(getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
    }


def decision_message(decision: TlDecision, at_s: float) -> pb.TlDecision:
    message = pb.TlDecision(tl=decision.tl, at_s=at_s, mode=decision.mode.name.lower(), failure=decision.failure)
    answer = decision.answer
    if isinstance(answer, Answer):
        message.model, message.version = answer.model, answer.version
        if not decision.failure:
            message.action.extend(np.ravel(np.asarray(answer.action, np.float64)).tolist())
    return message
