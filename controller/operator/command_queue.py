"""Operators' commands in one order: queued by any thread, applied by the decision loop between two steps.

Invariants:
- A decision never waits for a command: applying one makes no request, and writes no file.
- Of two commands for the same TL, the one that was queued last counts.
- A command is applied once or refused, and its author learns which; a repeated one changes nothing.
"""

import logging
import math
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from city.errors import InputError, ProgramFailed
from city.printable import printable
from controller.alarms import Alarms, UnknownAlarm
from controller.events import OperatorAction, OperatorCommand
from controller.operator.errors import OperatorError, Status
from controller.operator.run_state import RunState
from controller.operator.saved_modes import Pin, Saved, SavedModes, SetMode
from controller.pace import Pace, PaceState
from signals.fallback.control_mode import OperatorMode

log = logging.getLogger("controller")

MAX_QUEUED = 1000
"""Commands that wait for the next step; further ones are refused."""
MAX_AUTHOR_CHARS = 100


class SetModes(NamedTuple):
    """Set TLs to a mode."""

    tls: tuple[str, ...]
    mode: OperatorMode
    author: str
    for_s: float = 0.0
    """Simulated time after which the mode is policy again; 0: until it is taken back."""


class PinModel(NamedTuple):
    """Ask a TL's own model by number; the version has been checked."""

    tl: str
    version: int | None
    """None: the run's version or fleet again."""
    author: str


class Note(NamedTuple):
    """Record something that an operator has done already."""

    action: str
    target: str
    value: str
    author: str


class PauseRun(NamedTuple):
    author: str


class ResumeRun(NamedTuple):
    author: str


class StepRun(NamedTuple):
    """Simulate to a moment and pause there."""

    until_s: float
    author: str


class SetSpeed(NamedTuple):
    speed: float
    """Simulated seconds per wall second; 0: as fast as possible."""
    author: str


class Acknowledge(NamedTuple):
    alarm_id: str
    author: str


Request = SetModes | PinModel | Note | PauseRun | ResumeRun | StepRun | SetSpeed | Acknowledge


class Pins(Protocol):
    """Policies whose model numbers can be pinned."""

    def check_pin(self, tl: str, version: int) -> None:
        """Raise InputError if a version cannot be pinned, ProgramFailed if that is not known now."""

    def pin(self, tl: str, version: int | None) -> None:
        """Pin a version; None: the run's version again."""


class Loop(Protocol):
    """The part of the decision loop that commands change."""

    now: float

    @property
    def intersections(self) -> Mapping[str, Any]: ...

    def set_mode(self, tl: str, wanted: OperatorMode, author: str) -> OperatorCommand: ...

    def note_action(self, action: OperatorAction) -> None: ...


class _Waiting:
    """A command in the queue."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.is_done = threading.Event()
        self.error: Exception | None = None


def author_of(name: str) -> str:
    """A name as log, record and pages show it."""
    return printable(name.strip(), MAX_AUTHOR_CHARS) or "unnamed"


class CommandQueue:
    """The commands of one run."""

    def __init__(
        self, state: RunState, pace: Pace, alarms: Alarms, saved: SavedModes, pins: Pins | None = None
    ) -> None:
        """Prepare the run.

        Args:
            state: learns of applied commands.
            pace: of the run.
            alarms: that can be acknowledged.
            saved: keeps modes and pins over a restart.
            pins: the policies; None: no model is asked.
        """
        self.modes: Mapping[str, SetMode] = {}
        """By TL, what operators have set. Replaced, never changed; so are the pins."""
        self.pinned: Mapping[str, Pin] = {}
        self._state, self._pace, self._alarms, self._saved, self._pins = state, pace, alarms, saved, pins
        self._uncontrolled = Saved({}, {})
        """Saved entries that this run does not use: of other TLs, and pins if it asks no model. They stay in the
        file."""
        self._submitted: deque[_Waiting] = deque()
        self._arrived = threading.Condition()
        self._closed_reason = ""
        self._save_lock = threading.Lock()
        self._is_saved = True

    def submit(self, request: Request, timeout_s: float) -> None:
        """Queue a command and wait until it is applied. Called by any thread but the decision loop's.

        Raises OperatorError.
        """
        waiting = _Waiting(request)
        with self._arrived:
            if self._closed_reason:
                raise OperatorError(Status.UNAVAILABLE, self._closed_reason)
            if len(self._submitted) >= MAX_QUEUED:
                full = f"{MAX_QUEUED} commands wait for the next step; try again later"
                raise OperatorError(Status.RESOURCE_EXHAUSTED, full)
            self._submitted.append(waiting)
            self._arrived.notify_all()
        if not waiting.is_done.wait(timeout_s):
            late = "the command is queued and is applied after the step in progress, which has not ended yet"
            raise OperatorError(Status.DEADLINE_EXCEEDED, late)
        if waiting.error is not None:
            raise waiting.error
        self._save()

    def wait(self, timeout_s: float) -> None:
        """Wait until a command has arrived, or the time is over."""
        with self._arrived:
            if not self._submitted:
                self._arrived.wait(timeout_s)

    @property
    def next_s(self) -> float:
        """The simulated second at which a mode is taken back next; inf: none is."""
        return min((mode.until_s for mode in self.modes.values()), default=math.inf)

    def restore(self, loop: Loop) -> None:
        """Apply what was saved, before the first step. Requests the contracts of pinned versions."""
        saved, now = self._saved.read(), loop.now
        known = loop.intersections
        self._uncontrolled = Saved(
            {tl: mode for tl, mode in saved.modes.items() if tl not in known},
            {tl: pin for tl, pin in saved.pins.items() if tl not in known or self._pins is None},
        )
        for tl, mode in saved.modes.items():
            if tl not in known:
                continue
            if now < mode.at_s:  # the simulation was restarted
                mode = mode._replace(at_s=now, until_s=now + mode.until_s - mode.at_s)
            if now >= mode.until_s:
                log.info("%s: the time of the mode %s that %s set is over", tl, mode.mode, mode.author)
                continue
            self._state.follow(loop.set_mode(tl, mode.mode, mode.author), now)
            self.modes = {**self.modes, tl: mode}
            until = "" if mode.until_s == math.inf else f", until second {mode.until_s:g}"
            log.warning("%s begins in mode %s, which %s set before this start%s", tl, mode.mode, mode.author, until)
        for tl, pin in saved.pins.items():
            if tl in known and self._pins is not None:
                self._restore_pin(self._pins, tl, pin)
        self._is_saved = self._to_save() == saved
        self._save()

    def _restore_pin(self, pins: Pins, tl: str, pin: Pin) -> None:
        try:
            pins.check_pin(tl, pin.version)
        except (InputError, ProgramFailed) as error:
            log.warning("%s: the version that %s pinned before this start is not used: %s", tl, pin.author, error)
            return
        pins.pin(tl, pin.version)
        self.pinned = {**self.pinned, tl: pin}
        log.warning("%s begins with version %d, which %s pinned before this start", tl, pin.version, pin.author)

    def apply(self, loop: Loop) -> None:
        """Apply the queued commands, and take modes back whose time is over. Called by the decision loop between two
        steps."""
        for tl, mode in self.modes.items():
            if loop.now >= mode.until_s:
                self._set_mode(loop, tl, OperatorMode.POLICY, f"{mode.author} (time is over)", math.inf)
        while True:
            with self._arrived:
                if not self._submitted:
                    return
                waiting = self._submitted.popleft()
            try:
                self._apply(loop, waiting.request)
            except UnknownAlarm as error:
                waiting.error = OperatorError(Status.NOT_FOUND, str(error))
            except Exception as error:
                # a command must not end the run
                log.exception("a command could not be applied: %r", waiting.request)
                waiting.error = error
            waiting.is_done.set()

    def close(self, reason: str) -> None:
        """Refuse the commands in the queue and all further ones."""
        with self._arrived:
            self._closed_reason = reason
            waiting, self._submitted = list(self._submitted), deque()
        for each in waiting:
            each.error = OperatorError(Status.UNAVAILABLE, reason)
            each.is_done.set()
        self._save()

    def _apply(self, loop: Loop, request: Request) -> None:
        pace, before = self._pace, self._pace.state
        match request:
            case SetModes(tls, mode, author, for_s):
                until_s = loop.now + for_s if for_s and mode is not OperatorMode.POLICY else math.inf
                for tl in tls:
                    self._set_mode(loop, tl, mode, author, until_s)
            case PinModel(tl, version, author):
                self._pin(loop, tl, version, author)
            case Note(action, target, value, author):
                self._note(loop, action, target, value, author)
            case PauseRun(author):
                pace.pause()
                self._note_pace(before, loop, "pause", "", author)
            case ResumeRun(author):
                pace.resume()
                self._note_pace(before, loop, "resume", "", author)
            case StepRun(until_s, author):
                pace.step(until_s, loop.now)
                self._note_pace(before, loop, "step", f"{until_s:g}", author)
            case SetSpeed(speed, author):
                pace.set_speed(speed)
                self._note_pace(before, loop, "speed", f"{speed:g}", author)
            case Acknowledge(alarm_id, author):
                if self._alarms.acknowledge(alarm_id, author):
                    self._note(loop, "acknowledge", alarm_id, "", author)

    def _set_mode(self, loop: Loop, tl: str, mode: OperatorMode, author: str, until_s: float) -> None:
        current = self.modes.get(tl)
        wanted = None if mode is OperatorMode.POLICY else SetMode(mode, author, loop.now, until_s)
        if current == wanted or (current and wanted and current._replace(at_s=0.0) == wanted._replace(at_s=0.0)):
            return
        command = loop.set_mode(tl, mode, author)
        others = {other: kept for other, kept in self.modes.items() if other != tl}
        self.modes = others if wanted is None else {**others, tl: wanted}
        self._is_saved = False
        self._state.follow(command, loop.now)
        value = mode.value if until_s == math.inf else f"{mode.value} until second {until_s:g}"
        self._state.note(loop.now, "set-mode", tl, value, author)

    def _pin(self, loop: Loop, tl: str, version: int | None, author: str) -> None:
        current = self.pinned.get(tl)
        wanted = None if version is None else Pin(version, author)
        if current == wanted or self._pins is None:
            return
        self._pins.pin(tl, version)
        others = {other: kept for other, kept in self.pinned.items() if other != tl}
        self.pinned = others if wanted is None else {**others, tl: wanted}
        self._is_saved = False
        self._note(loop, "pin", tl, "latest" if version is None else str(version), author)

    def _note_pace(self, before: PaceState, loop: Loop, action: str, value: str, author: str) -> None:
        """Note a command if it has changed the pace."""
        after = self._pace.state
        if (after.is_paused, after.speed, after.step_until_s) != (before.is_paused, before.speed, before.step_until_s):
            self._note(loop, action, "", value, author)

    def _note(self, loop: Loop, action: str, target: str, value: str, author: str) -> None:
        log.warning("%s: %s at second %g", author, " ".join(filter(None, (action, target, value))), loop.now)
        loop.note_action(OperatorAction(action, target, value, author))
        self._state.note(loop.now, action, target, value, author)

    def _save(self) -> None:
        """Write the file, if it is older than the modes. The newest modes are read inside the lock, so they are written
        last."""
        if self._is_saved:
            return
        with self._save_lock:
            self._is_saved = True
            self._saved.write(self._to_save())

    def _to_save(self) -> Saved:
        return Saved({**self._uncontrolled.modes, **self.modes}, {**self._uncontrolled.pins, **self.pinned})
