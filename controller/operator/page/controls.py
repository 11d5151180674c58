"""What the page shows of a run beside its events, and what its buttons do."""

import dataclasses
import difflib
import math
from collections.abc import Mapping
from typing import Any, Protocol

from city.config import MAX_SPEED
from city.errors import InputError
from controller.alarms import Alarms, UnknownAlarm
from controller.operator.command_queue import (
    Acknowledge,
    CommandQueue,
    NotYetApplied,
    PauseRun,
    QueueClosed,
    QueueFull,
    Request,
    ResumeRun,
    SetModes,
    SetSpeed,
    StepRun,
    author_of,
)
from controller.operator.page.exports import Exports
from controller.operator.run_state import RunState
from controller.pace import Pace
from signals.fallback.control_mode import OperatorMode

APPLY_TIMEOUT_S = 10.0
"""Wall time for which a command's answer waits until it is applied."""
MAX_COMMAND_TLS = 10_000
MAX_FOR_S = 1e9


class UnknownTl(Exception):
    """No TL of the run has this name."""


class Controls(Protocol):
    """A run's pace, modes, alarms and commands. Methods may be called by any thread; the values are JSON."""

    def run(self) -> dict[str, Any]:
        """is_paused, speed, step_until_s, lateness_s, late_steps and lost_s of PaceState."""

    def tl(self, tl: str) -> dict[str, Any]:
        """mode, since_s, set_by, until_s, model, version, pinned_version, reason, decided_s, and export if it is known:
        see Exports.of. Raises KeyError.
        """

    def alarms(self) -> list[dict[str, Any]]:
        """Active alarms, then those that ended."""

    def commands(self) -> list[dict[str, Any]]:
        """Applied commands, the newest last."""

    def apply(self, command: Mapping[str, Any]) -> None:
        """Apply a command, and wait until it is applied. Raises one of ERRORS."""


ERRORS: dict[type[Exception], int] = {
    InputError: 400,
    UnknownTl: 404,
    UnknownAlarm: 404,
    QueueFull: 429,
    QueueClosed: 503,
    NotYetApplied: 504,
}
"""The HTTP status of each error of a command."""


class LiveControls:
    """The controls of a running controller."""

    def __init__(self, state: RunState, queue: CommandQueue, pace: Pace, alarms: Alarms, exports: Exports) -> None:
        self._state, self._queue, self._pace, self._alarms, self._exports = state, queue, pace, alarms, exports

    def run(self) -> dict[str, Any]:
        return {"second": self._state.second, **self._pace.state._asdict()}

    def tl(self, tl: str) -> dict[str, Any]:
        (state,) = self._state.states([tl])
        mode, pin = self._queue.modes.get(tl), self._queue.pinned.get(tl)
        return {
            "mode": state.mode.name.lower(),
            "since_s": state.since_s,
            "set_by": mode.author if mode else "",
            "until_s": mode.until_s if mode and math.isfinite(mode.until_s) else 0.0,
            "model": state.model,
            "version": state.version,
            "pinned_version": pin.version if pin else 0,
            "reason": state.reason,
            "decided_s": state.decided_s,
            "export": self._exports.of(tl, state.model, state.version),
        }

    def alarms(self) -> list[dict[str, Any]]:
        return [dataclasses.asdict(alarm) for alarm in self._alarms.current(with_ended=True)]

    def commands(self) -> list[dict[str, Any]]:
        return [command._asdict() for command in self._state.commands()]

    def apply(self, command: Mapping[str, Any]) -> None:
        self._queue.submit(parse_command(command, self._state.tls), APPLY_TIMEOUT_S)


def parse_command(command: Mapping[str, Any], tls: Any) -> Request:
    """A command of the page as one of the queue's. Raises InputError, UnknownTl."""
    if not isinstance(command, dict):
        raise InputError("a command must be a JSON object with an action")
    author = author_of(_text(command, "author"))
    match command.get("action"):
        case "set-mode":
            return _set_modes(command, author, tls)
        case "pause":
            return PauseRun(author)
        case "resume":
            return ResumeRun(author)
        case "step":
            return StepRun(_number(command, "until_s", 0, MAX_FOR_S), author)
        case "speed":
            return SetSpeed(_number(command, "speed", 0, MAX_SPEED), author)
        case "acknowledge":
            return Acknowledge(_text(command, "alarm"), author)
    raise InputError("action must be set-mode, pause, resume, step, speed or acknowledge")


def _set_modes(command: Mapping[str, Any], author: str, tls: Any) -> SetModes:
    try:
        mode = OperatorMode(_text(command, "mode"))
    except ValueError:
        raise InputError(f"mode must be one of {', '.join(OperatorMode)}") from None
    wanted = command.get("tls")
    if (
        not isinstance(wanted, list)
        or not 0 < len(wanted) <= MAX_COMMAND_TLS
        or not all(isinstance(tl, str) for tl in wanted)
    ):
        raise InputError("tls must be a list of TLs")
    known = set(tls)
    for tl in wanted:
        if tl not in known:
            close = difflib.get_close_matches(tl, tls, n=3)
            raise UnknownTl(
                f"{author_of(tl)} is not a TL of this controller" + (f"; did you mean {close[0]}?" if close else "")
            )
    for_s = _number(command, "for_s", 0, MAX_FOR_S) if "for_s" in command else 0.0
    return SetModes(tuple(wanted), mode, author, for_s)


def _text(command: Mapping[str, Any], key: str) -> str:
    value = command.get(key, "")
    if not isinstance(value, str):
        raise InputError(f"{key} must be a text")
    return value


def _number(command: Mapping[str, Any], key: str, low: float, high: float) -> float:
    value = command.get(key)
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not (math.isfinite(value) and low <= value <= high)
    ):
        raise InputError(f"{key} must be a number from {low:g} to {high:g}")
    return float(value)
