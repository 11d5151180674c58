"""The operator API of one run: check a request, hand its command to the queue, answer with the state that results.

Requests and answers are the messages of protos/control.proto. gRPC (`control_server`) and the page (`page.server`) are
thin over it: both call `OperatorService.call`, and both answer with the status of its OperatorError.
"""

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from city import names
from city.config import MAX_SPEED
from city.errors import InputError, ProgramFailed
from city.printable import printable
from controller.alarms import Alarms
from controller.operator.command_queue import CommandQueue, author_of
from controller.operator.control_messages import OperatorError, Status, decision_message
from controller.operator.open_rollouts import OpenRollouts
from controller.operator.run_state import MAX_LOGGED_COMMANDS, RunState
from controller.pace import Pace
from controller.policies.served_policies import ServedPolicies
from protos import control_pb2 as pb
from signals.fallback.control_mode import OperatorMode

APPLY_TIMEOUT_S = 10.0
"""Wall time for which a call waits until its command is applied: SUMO may wait for another client."""
WATCHED_COMMANDS = 10
"""Newest commands in a message to watchers."""
MAX_NAMED_TLS = 10
"""TLs named in an error, and of one setting."""
MAX_SHOWN_CHARS = 100
"""Limit for an invalid value in an error."""
MAX_FOR_S = 1e9
MAX_VERSION_DIGITS = 19
LATEST = "latest"


Applied = Callable[..., pb.Run]
"""Applies a command of the queue, with its arguments but the author, and returns the run. Raises OperatorError."""


class OperatorService:
    """The operator API of one run. Every method may be called by any thread but the decision loop's."""

    def __init__(
        self,
        state: RunState,
        queue: CommandQueue,
        pace: Pace,
        alarms: Alarms,
        policies: ServedPolicies | None,
        policy: str,
        sumo: tuple[str, int] | None,
        rollouts: OpenRollouts,
    ) -> None:
        """Prepare the methods.

        Args:
            state, queue, pace, alarms: of the run.
            policies: policies whose models can be pinned; None: no model is asked.
            policy: what controls the TLs in mode policy.
            sumo: (host, port) of the SUMO that the controller is attached to.
            rollouts: of the city's ledger.
        """
        self.state = state
        self.alarms = alarms
        self.policies = policies
        self._queue, self._pace = queue, pace
        self._index = names.Index(state.tls)
        self._policy, self._rollouts = policy, rollouts
        self._sumo = f"{sumo[0]}:{sumo[1]}" if sumo else ""
        self._methods: Mapping[str, Callable[[Any, Applied], Any]] = {
            "ListTls": self._list_tls,
            "SetMode": self._set_mode,
            "PinModel": self._pin_model,
            "ReloadContracts": self._reload_contracts,
            "Pause": lambda request, applied: applied(queue.pause),
            "Resume": lambda request, applied: applied(queue.resume),
            "Step": lambda request, applied: applied(queue.step, _number("until_s", request.until_s, 0, MAX_FOR_S)),
            "SetSpeed": lambda request, applied: applied(
                queue.set_speed, _number("factor", request.factor, 0, MAX_SPEED)
            ),
            "ListAlarms": lambda request, applied: self._list_alarms(request.with_ended),
            "AcknowledgeAlarm": self._acknowledge,
            "ListCommands": lambda request, applied: pb.Commands(
                run=self.run(), commands=state.commands(MAX_LOGGED_COMMANDS)
            ),
        }

    def call(self, method: str, request: Any, author: str, timeout_s: float = APPLY_TIMEOUT_S) -> Any:
        """Answer a method of METHODS. Raises OperatorError.

        Args:
            method: its name.
            request: its message.
            author: who commands.
            timeout_s: wall time to wait until a command is applied, at most APPLY_TIMEOUT_S.
        """
        applied = partial(self._applied, author_of(author), min(timeout_s, APPLY_TIMEOUT_S))
        try:
            return self._methods[method](request, applied)
        except InputError as error:
            raise OperatorError(Status.INVALID_ARGUMENT, str(error)) from None
        except ProgramFailed as error:
            raise OperatorError(Status.UNAVAILABLE, str(error)) from None

    def run(self) -> pb.Run:
        """The run as a whole."""
        return pb.Run(second=self.state.second, policy=self._policy, sumo=self._sumo, **self._pace.state._asdict())

    def tl_states(self, tls: Sequence[str]) -> list[pb.TlState]:
        """The states of TLs, in their order."""
        states = [self.state.state(tl) for tl in tls]
        modes, pinned = self._queue.modes, self._queue.pinned
        for state in states:
            if (mode := modes.get(state.tl)) is not None:
                state.set_by, state.set_reason = mode.author, mode.reason
                state.until_s = mode.until_s if math.isfinite(mode.until_s) else 0.0
            if (pin := pinned.get(state.tl)) is not None:
                state.pinned_version, state.pinned_by = pin.version, pin.author
                state.pinned_for_s = self._queue.remaining_s(pin)
        return states

    def settings(self) -> list[dict[str, Any]]:
        """Modes and pins that operators have set, as lines, the newest first; TLs of one command are together. Then
        their open rollouts."""
        together: dict[tuple[float | None, str], list[str]] = {}
        for tl, mode in self._queue.modes.items():
            until = "" if math.isinf(mode.until_s) else f" until second {mode.until_s:g}"
            text = f"{mode.mode}{until}, by {mode.author}{mode.reason and f': {mode.reason}'}"
            together.setdefault((mode.at_s, text), []).append(tl)
        for tl, pin in self._queue.pinned.items():
            together.setdefault((None, f"version {pin.version}, by {pin.author}"), []).append(tl)
        lines: list[dict[str, Any]] = [
            {"at_s": at_s, "text": f"{names.listed(tls, MAX_NAMED_TLS)}: {text}"}
            for (at_s, text), tls in together.items()
        ]
        lines.sort(key=lambda line: -(line["at_s"] or 0.0))
        return lines + [{"at_s": None, "text": text} for text in self._rollouts.lines()]

    def newest_decisions(self, sequence: int) -> pb.Decisions:
        """The newest step with decisions. `sequence`: counts steps and commands."""
        newest = self.state.newest_decided.event
        return pb.Decisions(
            sequence=sequence,
            run=self.run(),
            decisions=[decision_message(decision, newest.at_s) for decision in newest.decisions],
            commands=self.state.commands(WATCHED_COMMANDS),
            active_alarms=[alarm.id for alarm in self.alarms.current()],
        )

    def _list_tls(self, request: pb.ListTlsRequest, applied: Applied) -> pb.ControllerState:
        tls = self._selected(request.tls or ["all"])
        commands, rollouts = self.state.commands(), self._rollouts.lines()
        return pb.ControllerState(run=self.run(), tls=self.tl_states(tls), commands=commands, rollouts=rollouts)

    def _set_mode(self, request: pb.SetModeRequest, applied: Applied) -> pb.TlStates:
        try:
            mode = OperatorMode(request.mode)
        except ValueError:
            raise InputError(
                f"mode {printable(request.mode, MAX_SHOWN_CHARS)!r} must be one of {', '.join(OperatorMode)}"
            ) from None
        for_s = _number("for_seconds", request.for_seconds, 0, MAX_FOR_S)
        if for_s and mode is OperatorMode.POLICY:
            raise InputError("for_seconds is for the modes hold and fixed; leave it out")
        tls = self._selected(request.tls)
        applied(self._queue.set_modes, tls, mode, for_s, request.reason)
        return pb.TlStates(run=self.run(), tls=self.tl_states(tls))

    def _pin_model(self, request: pb.PinModelRequest, applied: Applied) -> pb.TlStates:
        (tl,) = self._selected([request.tl], takes_all=False)
        version, then = _version(request.version), _version(request.then_version or LATEST)
        for_s = _number("for_seconds", request.for_seconds, 0, MAX_FOR_S)
        if self.policies is None:
            raise self._without_models("there is no model to pin")
        if version is not None:
            try:
                # before the command is queued, so that no decision waits for the model server
                self.policies.check_pin(tl, version)
            except InputError as error:
                raise OperatorError(Status.FAILED_PRECONDITION, str(error)) from None
        applied(self._queue.pin_model, tl, version, for_s, then)
        return pb.TlStates(run=self.run(), tls=self.tl_states([tl]))

    def _reload_contracts(self, request: pb.ReloadContractsRequest, applied: Applied) -> pb.ReloadContractsResponse:
        if self.policies is None:
            raise self._without_models("there are no contracts to compare")
        compared = self.policies.compare_contracts()
        count = len(compared.same) + len(compared.changed)
        value = f"{count} compared, {len(compared.changed)} changed, {len(compared.failed)} failed"
        applied(self._queue.note, "reload", "", value)
        return pb.ReloadContractsResponse(
            run=self.run(), compared=count, changed=compared.changed, failed=compared.failed
        )

    def _acknowledge(self, request: pb.AcknowledgeAlarmRequest, applied: Applied) -> pb.Alarms:
        applied(self._queue.acknowledge, request.id)
        return self._list_alarms()

    def _list_alarms(self, with_ended: bool = False) -> pb.Alarms:
        return pb.Alarms(run=self.run(), alarms=map(self.alarms.with_instructions, self.alarms.current(with_ended)))

    def _applied(self, author: str, timeout_s: float, command: Callable[..., None], *arguments: Any) -> pb.Run:
        self._queue.submit(partial(command, *arguments, author), timeout_s)
        return self.run()

    def _without_models(self, lacking: str) -> OperatorError:
        return OperatorError(Status.FAILED_PRECONDITION, f"{self._policy} controls the TLs; {lacking}")

    def _selected(self, requested: Sequence[str], takes_all: bool = True) -> list[str]:
        """The TLs of a request, in their order. Raises InputError, OperatorError."""
        tls = self.state.tls
        if not requested:
            raise InputError("no TL is named; name some, or all")
        selected: dict[str, None] = {}
        for word in requested:
            if word == "all" and takes_all:
                selected.update(dict.fromkeys(tls))
            elif (tl := self._index.find(word)) is not None:
                selected[tl] = None
            else:
                raise OperatorError(Status.NOT_FOUND, _unknown(word, tls, self.state.layout.tl_of_signal.get(word)))
        return list(selected)


def _unknown(word: str, tls: Sequence[str], tl: str | None) -> str:
    """The error text for a name that no TL has. `tl`: the TL of the signal with this id, if there is one."""
    if tl is not None:
        return f"{word} is a signal, which belongs to TL {tl}; pass {tl}"
    word = printable(word, MAX_SHOWN_CHARS)
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
        raise InputError(f"version {printable(text, MAX_SHOWN_CHARS)!r} must be a model number, such as 3, or {LATEST}")
    return version


def _number(field: str, value: float, low: float, high: float) -> float:
    """A number of a request. Raises InputError."""
    if not (math.isfinite(value) and low <= value <= high):
        raise InputError(f"{field} {value:g} must lie between {low:g} and {high:g}")
    return value
