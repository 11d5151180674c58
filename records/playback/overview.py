"""Alarms, commands, changes of control modes, counts, and gaps, for which a whole record must be read.

A thread of its own reads the record once, while the page already shows any second of it. What lies after `read_to_s` is
not known yet.
"""

import logging
import threading
import time
from array import array
from bisect import bisect_right
from typing import Any, NamedTuple

import numpy as np

from city.errors import InputError
from city.network import StreetNetwork
from controller.operator import command_log
from controller.operator.page import panels
from controller.operator.page.panels import RATE_S, STAGES
from controller.operator.run_state import MAX_COMMANDS, MAX_TIMES
from controller.recording.record_writer import NS
from controller.recording.run_start import movement_names_of
from protos import control_pb2
from protos import record_pb2 as record
from records.playback.alarm_history import AlarmHistory
from records.record_reader import RecordedStep
from records.run_files import RunReader

log = logging.getLogger("greenserve.playback")

MAX_MARKS = 5000
SLICE_S, PAUSE_S = 0.02, 0.002
"""The thread pauses after each slice, so that frames do not wait for Python's interpreter lock."""


class Mark(NamedTuple):
    """Where something happened, for the slider."""

    at_s: float
    kind: str
    """critical | warning | command | missing"""
    text: str


class Overview:
    """Filled by `read`, in a thread of its own; everything else may be called by any thread."""

    def __init__(self, reader: RunReader, street: StreetNetwork) -> None:
        """`street`: the network of the record."""
        self._reader = reader
        self._lock = threading.Lock()
        self._has_stopped = threading.Event()
        contracts = reader.city.contracts
        self._alarms = AlarmHistory(contracts, street, movement_names_of(reader.city))
        self._at_s, self._wall_s = array("d"), array("d")
        self._decisions, self._missing = array("q", [0]), array("q", [0])
        """Up to a step; one more than steps."""
        self._timed_at_s = array("d")
        self._times: dict[str, array[float]] = {stage: array("d") for stage in STAGES}
        """Wall times in s, of the steps in `_timed_at_s`."""
        self._commands: list[control_pb2.Command] = []
        self._modes: dict[str, list[tuple[float, int]]] = {c.tl: [] for c in contracts}
        """By TL, (second, mode) of each change."""
        self._marks: list[Mark] = []
        self._unshown_marks = 0
        self._number: int | None = None
        self._losses: list[str] = list(reader.missing)
        self.read_to_s = -np.inf
        self.is_complete = False

    def read(self) -> None:
        """Read the record, up to its end or to `stop`."""
        pause_at_s = time.monotonic() + SLICE_S
        try:
            for recorded in self._reader.steps():
                with self._lock:
                    self._add(recorded)
                if self._has_stopped.is_set():
                    return
                if time.monotonic() > pause_at_s:
                    time.sleep(PAUSE_S)
                    pause_at_s = time.monotonic() + SLICE_S
        except Exception as error:
            reason = str(error)
            if not isinstance(error, InputError | OSError):
                log.exception("the overview of the record")
                reason = f"{type(error).__name__}: {error}"
            self._reader.missing.append(f"the overview ends at second {self.read_to_s:g}: {reason}")
        with self._lock:
            self._losses, self.is_complete = list(self._reader.missing), True

    def stop(self) -> None:
        """End `read`."""
        self._has_stopped.set()

    def as_json(self) -> dict[str, Any]:
        """How far the record is read, what is missing, and the marks."""
        with self._lock:
            return {
                "read_to_s": self.read_to_s if self._at_s else None,
                "is_complete": self.is_complete,
                "missing": self._losses,
                "marks": self._marks.copy(),
                "unshown_marks": self._unshown_marks,
            }

    def tl(self, tl: str, at_s: float) -> dict[str, Any]:
        """Since when a TL has its control mode (None: not known yet), which operator set it, and its pinned version."""
        with self._lock:
            if at_s > self.read_to_s and not self.is_complete:
                return {"since_s": None, "set_by": "", "set_reason": "", "pinned_version": 0}
            changes = bisect_right(self._modes[tl], at_s, key=lambda change: change[0])
            since_s = self._modes[tl][changes - 1][0] if changes else self._reader.city.begin_s
            mode, pin = self._newest_command("set-mode", tl, at_s), self._newest_command("pin", tl, at_s)
            return {
                "since_s": since_s,
                "set_by": "" if mode.value == "policy" else mode.author,
                "set_reason": "" if mode.value == "policy" else mode.reason,
                "pinned_version": int(pin.value) if pin.value.isdecimal() else 0,
            }

    def alarms(self, at_s: float) -> list[control_pb2.Alarm]:
        with self._lock:
            return self._alarms.at(at_s)

    def commands(self, at_s: float) -> list[control_pb2.Command]:
        """The newest commands up to a second, the newest last."""
        with self._lock:
            return self._commands_up_to(at_s)[-MAX_COMMANDS:]

    def _commands_up_to(self, at_s: float) -> list[control_pb2.Command]:
        return self._commands[: bisect_right(self._commands, at_s, key=lambda command: command.at_s)]

    def _newest_command(self, action: str, tl: str, at_s: float) -> control_pb2.Command:
        """A TL's newest command of a kind up to a second; an empty one if there is none."""
        commands = (c for c in reversed(self._commands_up_to(at_s)) if c.action == action and c.target == tl)
        return next(commands, control_pb2.Command())

    def figures(self, at_s: float) -> dict[str, Any]:
        """Counts up to a second, and times of the steps before it."""
        with self._lock:
            first, end = self._recent(at_s)
            recent = self._decisions[end] - self._decisions[first]
            timed = bisect_right(self._timed_at_s, at_s)
            times_s = {stage: values[max(timed - MAX_TIMES, 0) : timed] for stage, values in self._times.items()}
            return panels.figures(self._decisions[end], self._missing[end], recent, times_s)

    def progress(self, at_s: float) -> dict[str, Any]:
        """How far the record is read, and how fast the run was at a second; None if that is not known."""
        with self._lock:
            first, end = self._recent(at_s)
            simulated_s = self._at_s[end - 1] - self._at_s[first] if end else 0.0
            passed_s = self._wall_s[end - 1] - self._wall_s[first] if end else 0.0
            return {
                "read_to_s": self.read_to_s if self._at_s else None,
                "is_read": self.is_complete or at_s <= self.read_to_s,
                "recorded_speed": round(simulated_s / passed_s, 3) if passed_s > 0 else None,
            }

    def _recent(self, at_s: float) -> tuple[int, int]:
        """The first step of the RATE_S of wall time up to a second, and the number of steps up to it."""
        end = bisect_right(self._at_s, at_s)
        wall_s = self._wall_s[end - 1] if end else 0.0
        return bisect_right(self._wall_s, wall_s - RATE_S, 0, end), end

    def _add(self, recorded: RecordedStep) -> None:
        step, at_s = recorded.step, recorded.step.at_s
        if self._number is not None and step.number > self._number + 1:
            self._mark(Mark(self.read_to_s, "missing", f"steps {self._number + 1} to {step.number - 1} are missing"))
        self._number = step.number
        decided = [each.decision for each in recorded.tls.values() if each.HasField("decision")]
        missing = sum(bool(decision.failure) for decision in decided)
        self._at_s.append(at_s)
        self._wall_s.append(recorded.publish_ns / NS)
        self._missing.append(self._missing[-1] + missing)
        self._decisions.append(self._decisions[-1] + len(decided) - missing)
        if step.HasField("times"):
            self._timed_at_s.append(at_s)
            for stage, values in self._times.items():
                values.append(getattr(step.times, f"{stage}_s"))
        for command in step.commands:
            self._add_mode(command.tl, at_s, command.mode)
            self._add_command(at_s, "set-mode", command.tl, command.wanted, command.author, command.reason)
        for action in step.actions:
            self._add_command(at_s, action.action, action.target, action.value, action.author)
        for tl, tl_step in recorded.tls.items():
            self._add_mode(tl, at_s, tl_step.mode)
        for alarm in self._alarms.add(recorded):
            self._mark(Mark(at_s, alarm.severity, alarm.text))
        self.read_to_s = max(self.read_to_s, at_s)

    def _add_mode(self, tl: str, at_s: float, mode: int) -> None:
        changes = self._modes.get(tl)
        if changes is not None and mode != (changes[-1][1] if changes else record.TlStep.POLICY):
            changes.append((at_s, mode))

    def _add_command(self, at_s: float, action: str, target: str, value: str, author: str, reason: str = "") -> None:
        command = control_pb2.Command(at_s=at_s, action=action, target=target, value=value, author=author)
        command.number, command.reason = len(self._commands) + 1, reason
        self._commands.append(command)
        ((_, text),) = command_log.lines([command])
        self._mark(Mark(at_s, "command", text))

    def _mark(self, mark: Mark) -> None:
        if len(self._marks) < MAX_MARKS:
            self._marks.append(mark)
        else:
            self._unshown_marks += 1
