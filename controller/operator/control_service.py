"""The methods of the control API: check the request, hand it to the queue, answer with the state that results."""

import difflib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from city import names
from city.config import MAX_SPEED
from city.errors import InputError, ProgramFailed
from city.printable import printable
from controller.alarms import Alarms, UnknownAlarm
from controller.operator import control_messages as messages
from controller.operator.command_queue import (
    Acknowledge,
    CommandQueue,
    Note,
    NotYetApplied,
    PauseRun,
    PinModel,
    QueueClosed,
    QueueFull,
    Request,
    ResumeRun,
    SetModes,
    SetSpeed,
    StepRun,
    author_of,
)
from controller.operator.run_state import RunState
from controller.pace import Pace
from controller.policies.served_policies import ServedPolicies
from protos import control_pb2 as pb
from signals.fallback.control_mode import OperatorMode

MAX_WATCHERS = 128
"""Concurrent WatchDecisions; each holds a thread."""
MIN_INTERVAL_S, MAX_INTERVAL_S = 0.1, 60.0
"""Wall time between two messages to a watcher."""
WAKE_INTERVAL_S = 1.0
"""Wall time after which a watcher without news looks whether its client is still there."""
APPLY_TIMEOUT_S = 10.0
"""Wall time for which a call waits until its command is applied: SUMO may wait for another client."""
ANSWER_MARGIN_S = 0.2
"""Part of a call's deadline that remains for its answer."""
WATCHED_COMMANDS = 10
"""Newest commands in a message to watchers."""
MAX_NAMED_TLS = 10
"""TLs named in an error."""
MAX_SHOWN_CHARS = 100
"""Limit for an invalid value in an error."""
MAX_VERSION_DIGITS = 19
LATEST = "latest"


class UnknownTl(Exception):
    """No TL of this controller has the name."""


class NothingToPin(Exception):
    """No model is asked."""


class PinRefused(Exception):
    """The model server lacks the version, or it has another contract."""


STATUS: dict[type[Exception], grpc.StatusCode] = {
    InputError: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownTl: grpc.StatusCode.NOT_FOUND,
    UnknownAlarm: grpc.StatusCode.NOT_FOUND,
    NothingToPin: grpc.StatusCode.FAILED_PRECONDITION,
    PinRefused: grpc.StatusCode.FAILED_PRECONDITION,
    ProgramFailed: grpc.StatusCode.UNAVAILABLE,
    QueueClosed: grpc.StatusCode.UNAVAILABLE,
    QueueFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    NotYetApplied: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""The status of each error."""


class ControlService:
    """The control API of one run."""

    def __init__(
        self,
        state: RunState,
        queue: CommandQueue,
        pace: Pace,
        alarms: Alarms,
        policies: ServedPolicies | None,
        policy: str,
        sumo: tuple[str, int] | None,
    ) -> None:
        """Prepare the methods.

        Args:
            state, queue, pace, alarms: of the run.
            policies: policies whose models can be pinned; None: no model is asked.
            policy: what controls the TLs in mode policy.
            sumo: (host, port) of the SUMO that the controller is attached to.
        """
        self._state, self._queue, self._pace, self._alarms, self._policies = state, queue, pace, alarms, policies
        self._policy, self._sumo = policy, f"{sumo[0]}:{sumo[1]}" if sumo else ""
        self._free = threading.BoundedSemaphore(MAX_WATCHERS)
        self._encoded: tuple[int, bytes] = (-1, b"")
        """(sequence, message) of the newest step, the same for all watchers."""
        self._encoding = threading.Lock()

    def handler(self) -> grpc.GenericRpcHandler:
        """The gRPC handler of all methods."""
        functions: dict[str, Callable[[Any, grpc.ServicerContext], Any]] = {
            "ListTls": self.list_tls,
            "SetMode": self.set_mode,
            "PinModel": self.pin_model,
            "ReloadContracts": self.reload_contracts,
            "Pause": lambda request, context: self._of_run(PauseRun(author(request, context)), context),
            "Resume": lambda request, context: self._of_run(ResumeRun(author(request, context)), context),
            "Step": self.step,
            "SetSpeed": self.set_speed,
            "ListAlarms": lambda request, context: self._list_alarms(request.with_ended),
            "AcknowledgeAlarm": self.acknowledge_alarm,
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                _method(functions[name], request_type), response_serializer=lambda message: message.SerializeToString()
            )
            for name, (request_type, _) in messages.METHODS.items()
        }
        # without a serializer the bytes are sent as they are: all watchers get the same ones
        handlers[messages.WATCH] = grpc.unary_stream_rpc_method_handler(_method(self.watch, pb.WatchDecisionsRequest))
        return grpc.method_handlers_generic_handler(messages.SERVICE, handlers)

    def list_tls(self, request: pb.ListTlsRequest, context: grpc.ServicerContext) -> pb.ControllerState:
        tls = self._selected(request.tls or ["all"])
        commands = messages.command_messages(self._state.commands())
        return pb.ControllerState(run=self._run(), tls=self._tl_messages(tls), commands=commands)

    def set_mode(self, request: pb.SetModeRequest, context: grpc.ServicerContext) -> pb.TlStates:
        try:
            mode = OperatorMode(request.mode)
        except ValueError:
            raise InputError(f"mode {_shown(request.mode)!r} must be one of {', '.join(OperatorMode)}") from None
        for_s = _number("for_seconds", request.for_seconds, 0, 1e9)
        if for_s and mode is OperatorMode.POLICY:
            raise InputError("for_seconds is for the modes hold and fixed; leave it out")
        tls = self._selected(request.tls)
        self._submit(SetModes(tuple(tls), mode, author(request, context), for_s), context)
        return pb.TlStates(run=self._run(), tls=self._tl_messages(tls))

    def pin_model(self, request: pb.PinModelRequest, context: grpc.ServicerContext) -> pb.TlStates:
        (tl,) = self._selected([request.tl], takes_all=False)
        version = _version(request.version)
        if self._policies is None:
            raise NothingToPin(f"{self._policy} controls the TLs; there is no model to pin")
        if version is not None:
            try:
                # before the command is queued, so that no decision waits for the model server
                self._policies.check_pin(tl, version)
            except InputError as error:
                raise PinRefused(str(error)) from None
        self._submit(PinModel(tl, version, author(request, context)), context)
        return pb.TlStates(run=self._run(), tls=self._tl_messages([tl]))

    def reload_contracts(
        self, request: pb.ReloadContractsRequest, context: grpc.ServicerContext
    ) -> pb.ReloadContractsResponse:
        if self._policies is None:
            raise NothingToPin(f"{self._policy} controls the TLs; there are no contracts to compare")
        compared = self._policies.compare_contracts()
        count = len(compared.same) + len(compared.changed)
        value = f"{count} compared, {len(compared.changed)} changed, {len(compared.failed)} failed"
        self._submit(Note("reload", "", value, author(request, context)), context)
        return pb.ReloadContractsResponse(
            run=self._run(), compared=count, changed=compared.changed, failed=compared.failed
        )

    def step(self, request: pb.StepRequest, context: grpc.ServicerContext) -> pb.Run:
        until_s = _number("until_s", request.until_s, 0, 1e9)
        return self._of_run(StepRun(until_s, author(request, context)), context)

    def set_speed(self, request: pb.SetSpeedRequest, context: grpc.ServicerContext) -> pb.Run:
        return self._of_run(
            SetSpeed(_number("factor", request.factor, 0, MAX_SPEED), author(request, context)), context
        )

    def acknowledge_alarm(self, request: pb.AcknowledgeAlarmRequest, context: grpc.ServicerContext) -> pb.Alarms:
        try:
            self._submit(Acknowledge(request.id, author(request, context)), context)
        except UnknownAlarm:
            active = [alarm.id for alarm in self._alarms.current()]
            remedy = f"the active ones are {names.listed(active, MAX_NAMED_TLS)}" if active else "no alarm is active"
            raise UnknownAlarm(f"{_shown(request.id)}: no active alarm has this id; {remedy}") from None
        return self._list_alarms()

    def watch(self, request: pb.WatchDecisionsRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        interval_s = _number("min_interval_s", request.min_interval_s, 0, MAX_INTERVAL_S)
        if not self._free.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_WATCHERS} watchers are connected; close one")
        ended = threading.Event()

        def end() -> None:
            ended.set()
            self._free.release()

        if not context.add_callback(end):
            end()
            return iter(())
        return self._messages(max(interval_s, MIN_INTERVAL_S), ended)

    def _messages(self, interval_s: float, ended: threading.Event) -> Iterator[bytes]:
        """The newest step, each time that there is a new one. gRPC asks for the next message when the one before is
        sent."""
        watchers, sequence = self._state.watchers, -1
        while not ended.is_set():
            newest = watchers.wait_after(sequence, WAKE_INTERVAL_S)
            if newest > sequence:
                sequence = newest
                yield self._newest(sequence)
                ended.wait(0.0 if watchers.is_closed else interval_s)
            elif watchers.is_closed:
                return

    def _newest(self, sequence: int) -> bytes:
        """The message of the newest step, at least that of a sequence; built once for all watchers."""
        with self._encoding:
            if self._encoded[0] < sequence:
                sequence = self._state.watchers.sequence
                newest = self._state.newest
                message = pb.Decisions(
                    sequence=sequence,
                    run=self._run(),
                    decisions=messages.decision_messages(newest.decisions, newest.at_s),
                    commands=messages.command_messages(self._state.commands(WATCHED_COMMANDS)),
                    active_alarms=[alarm.id for alarm in self._alarms.current()],
                )
                self._encoded = sequence, message.SerializeToString()
            return self._encoded[1]

    def _run(self) -> pb.Run:
        return messages.run_message(self._state.second, self._pace.state, self._policy, self._sumo)

    def _of_run(self, request: Request, context: grpc.ServicerContext) -> pb.Run:
        self._submit(request, context)
        return self._run()

    def _list_alarms(self, with_ended: bool = False) -> pb.Alarms:
        return pb.Alarms(run=self._run(), alarms=messages.alarm_messages(self._alarms.current(with_ended)))

    def _tl_messages(self, tls: Sequence[str]) -> list[pb.TlState]:
        return [messages.tl_message(state, self._queue) for state in self._state.states(tls)]

    def _submit(self, request: Request, context: grpc.ServicerContext) -> None:
        remaining_s = context.time_remaining()
        timeout_s = APPLY_TIMEOUT_S if remaining_s is None else min(remaining_s - ANSWER_MARGIN_S, APPLY_TIMEOUT_S)
        self._queue.submit(request, max(timeout_s, 0.0))

    def _selected(self, requested: Sequence[str], takes_all: bool = True) -> list[str]:
        """The TLs of a request, in their order. Raises InputError, UnknownTl."""
        tls = self._state.tls
        if not requested:
            raise InputError("no TL is named; name some, or all")
        selected: dict[str, None] = {}
        for word in requested:
            if word == "all" and takes_all:
                selected.update(dict.fromkeys(tls))
            elif (tl := names.find(word, tls)) is not None:
                selected[tl] = None
            else:
                raise UnknownTl(_unknown(word, tls, self._state.tl_of_signal.get(word)))
        return list(selected)


def _unknown(word: str, tls: Sequence[str], tl: str | None) -> str:
    """The error text for a name that no TL has. `tl`: the TL of the signal with this id, if there is one."""
    if tl is not None:
        return f"{word} is a signal, which belongs to TL {tl}; pass {tl}"
    word = _shown(word)
    near = difflib.get_close_matches(names.key(word).upper(), [name.upper() for name in tls], n=3)
    close = [name for name in tls if name.upper() in near]
    remedy = f"did you mean {' or '.join(close)}?" if close else f"its TLs are {names.listed(tls, MAX_NAMED_TLS)}"
    return f"{word} is not a TL of this controller; {remedy}"


def _version(text: str) -> int | None:
    """The model number of a text, None for the latest. Raises InputError."""
    if text == LATEST:
        return None
    # Python refuses to convert thousands of digits
    version = int(text) if len(text) <= MAX_VERSION_DIGITS and text.isdecimal() else 0
    if not 0 < version < 1 << 63:
        raise InputError(f"version {_shown(text)!r} must be a model number, such as 3, or {LATEST}")
    return version


def _shown(text: str) -> str:
    """A text of a request, for an error."""
    return printable(text, MAX_SHOWN_CHARS)


def _number(field: str, value: float, low: float, high: float) -> float:
    """A number of a request. Raises InputError."""
    if not (math.isfinite(value) and low <= value <= high):
        raise InputError(f"{field} {value:g} must lie between {low:g} and {high:g}")
    return value


def author(request: Any, context: grpc.ServicerContext) -> str:
    """Who commands: the name in the client's certificate, else the request's author."""
    names_of = context.auth_context()
    for key in ("x509_common_name", "x509_subject_alternative_name"):
        if names_of.get(key):
            return author_of(names_of[key][0].decode(errors="replace"))
    return author_of(request.author)


def _method(function: Callable[[Any, grpc.ServicerContext], Any], request_type: type[Any]) -> Callable[..., Any]:
    """A method as gRPC calls it, with the request's bytes; errors become its status."""

    def call(request: bytes, context: grpc.ServicerContext) -> Any:
        try:
            return function(request_type.FromString(request), context)
        except DecodeError:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request is not a {request_type.DESCRIPTOR.full_name}")
        except tuple(STATUS) as error:
            context.set_trailing_metadata(((messages.ANSWERED, "1"),))
            context.abort(STATUS[type(error)], str(error))

    return call
