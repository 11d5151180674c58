"""Operators' commands in one order: queued by any thread, applied by the decision loop between two steps.

Invariants:
- A decision never waits for a command: applying one makes no request, and writes no file.
- Of two commands for the same TL, the one that was queued last counts.
- A command is applied once or refused, and its author learns which; a repeated one changes nothing.
- What an author learns is saved. What is applied without an author who waits is saved right after it.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from city.errors import InputError, ProgramFailed
from city.printable import printable
from controller.alarms import Alarms, UnknownAlarm
from controller.decision_step import DecisionLoop
from controller.events import OperatorAction
from controller.operator.control_messages import OperatorError, Status
from controller.operator.run_state import RunState
from controller.operator.saved_modes import Pin, Saved, SavedModes, SetMode
from controller.pace import Pace
from controller.policies.served_policies import ServedPolicies
from signals.fallback.control_mode import OperatorMode

log = logging.getLogger("controller")

MAX_QUEUED = 1000
"""Commands that wait for the next step; further ones are refused."""
MAX_AUTHOR_CHARS, MAX_REASON_CHARS = 100, 200


Command = Callable[[DecisionLoop], None]
"""Changes the run between two steps: one of the queue's commands, with its arguments."""


def author_of(name: str) -> str:
    """A name as log, record and pages show it."""
    return printable(name.strip(), MAX_AUTHOR_CHARS) or "unnamed"


class CommandQueue:
    """The commands of one run."""

    def __init__(
        self,
        state: RunState,
        pace: Pace,
        alarms: Alarms,
        saved: SavedModes,
        pins: ServedPolicies | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the run.

        Args:
            state: learns of applied commands.
            pace: of the run.
            alarms: that can be acknowledged.
            saved: keeps modes and pins over a restart.
            pins: the policies; None: no model is asked.
            clock: wall time in s.
        """
        self._clock = clock
        self.modes: Mapping[str, SetMode] = {}
        """By TL, what operators have set. Replaced, never changed; so are the pins."""
        self.next_s = math.inf
        """The simulated second at which a mode is taken back next; inf: none is."""
        self.pinned: Mapping[str, Pin] = {}
        self._state = state
        self._pace = pace
        self._alarms = alarms
        self._saved = saved
        self._pins = pins
        self._uncontrolled = Saved({}, {})
        """Saved entries that this run does not use: of other TLs, and pins if it asks no model. They stay in the
        file."""
        self._submitted: deque[tuple[Command, Future[None]]] = deque()
        """Commands in the queue, and what tells their callers that they are applied."""
        self._arrived = threading.Condition()
        self._closed_reason = ""
        self._save_lock = threading.Lock()
        self._is_saved = True
        self._saver = ThreadPoolExecutor(1, "save-modes")
        """Saves what no author waits for: one that no longer does, or the end of a mode's time."""

    def submit(self, command: Command, timeout_s: float) -> None:
        """Queue a command and wait until it is applied. Called by any thread but the decision loop's.

        Raises OperatorError.
        """
        applied: Future[None] = Future()
        with self._arrived:
            if self._closed_reason:
                raise OperatorError(Status.UNAVAILABLE, self._closed_reason)
            if len(self._submitted) >= MAX_QUEUED:
                raise OperatorError(
                    Status.RESOURCE_EXHAUSTED, f"{MAX_QUEUED} commands wait for the next step; try again later"
                )
            self._submitted.append((command, applied))
            self._arrived.notify_all()
        try:
            applied.result(timeout_s)
        except TimeoutError:
            raise OperatorError(
                Status.DEADLINE_EXCEEDED,
                "the command is queued and is applied after the step in progress, which has not ended yet",
            ) from None
        self._save()

    def wait(self, timeout_s: float) -> None:
        """Wait until a command has arrived, or the time is over."""
        with self._arrived:
            if not self._submitted:
                self._arrived.wait(timeout_s)

    def restore(self, loop: DecisionLoop) -> None:
        """Apply what was saved, before the first step. Requests the contracts of pinned versions."""
        self._state.restore_commands(self._saved.log.read())
        saved, now = self._saved.read(), loop.now
        known = loop.intersections
        self._uncontrolled = Saved(
            {tl: mode for tl, mode in saved.modes.items() if tl not in known},
            {tl: pin for tl, pin in saved.pins.items() if tl not in known or self._pins is None},
        )
        modes = {}
        for tl, mode in saved.modes.items():
            if tl not in known:
                continue
            if now < mode.at_s:  # the simulation was restarted
                mode = mode._replace(at_s=now, until_s=now + mode.until_s - mode.at_s)
            if now >= mode.until_s:
                log.info("%s: the time of the mode %s that %s set is over", tl, mode.mode, mode.author)
                continue
            self._state.follow(loop.set_mode(tl, mode.mode, mode.author, mode.reason), now)
            modes[tl] = mode
            until = "" if mode.until_s == math.inf else f", until second {mode.until_s:g}"
            log.warning("%s begins in mode %s, which %s set before this start%s", tl, mode.mode, mode.author, until)
        self._replace_modes(modes)
        pinned = {}
        for tl, pin in saved.pins.items():
            if tl not in known or self._pins is None:
                continue
            try:
                self._pins.check_pin(tl, pin.version)
            except (InputError, ProgramFailed) as error:
                log.warning("%s: the version that %s pinned before this start is not used: %s", tl, pin.author, error)
                continue
            self._pins.pin(tl, pin.version)
            pinned[tl] = pin
            log.warning("%s begins with version %d, which %s pinned before this start", tl, pin.version, pin.author)
        self.pinned = pinned
        self._is_saved = self._to_save() == saved
        self._save()

    def apply(self, loop: DecisionLoop) -> None:
        """Apply the queued commands, and take modes back whose time is over. Called by the decision loop between two
        steps."""
        if loop.now >= self.next_s:
            ended = {tl: f"{mode.author} (time is over)" for tl, mode in self.modes.items() if loop.now >= mode.until_s}
            self._set_modes(loop, ended, OperatorMode.POLICY, math.inf, "")
        for tl, pin in self.pinned.items():
            if self._clock() >= pin.end_s:
                self.pin_model(tl, pin.then, 0.0, None, f"{pin.author}, who has not renewed it", loop)
        while self._submitted:
            command, applied = self._submitted.popleft()
            try:
                command(loop)
                applied.set_result(None)
            except UnknownAlarm as error:
                applied.set_exception(OperatorError(Status.NOT_FOUND, str(error)))
            except Exception as error:
                # a command must not end the run
                log.exception("a command could not be applied: %r", command)
                applied.set_exception(error)
        if not self._is_saved or self._saved.log.has_new:
            self._saver.submit(self._save)

    def close(self, reason: str) -> None:
        """Refuse the commands in the queue and all further ones."""
        with self._arrived:
            self._closed_reason = reason
            waiting, self._submitted = list(self._submitted), deque()
        for _, applied in waiting:
            applied.set_exception(OperatorError(Status.UNAVAILABLE, reason))
        self._save()

    # the commands: author and loop come last, because the caller adds the one and `apply` the other

    def set_modes(
        self, tls: Sequence[str], mode: OperatorMode, for_s: float, reason: str, author: str, loop: DecisionLoop
    ) -> None:
        """Set TLs to a mode. `for_s`: simulated time after which it is policy again; 0: until it is taken back."""
        until_s = loop.now + for_s if for_s and mode is not OperatorMode.POLICY else math.inf
        self._set_modes(loop, dict.fromkeys(tls, author), mode, until_s, printable(reason.strip(), MAX_REASON_CHARS))

    def pin_model(
        self, tl: str, version: int | None, for_s: float, then: int | None, author: str, loop: DecisionLoop
    ) -> None:
        """Ask a TL's own model by number, which has been checked; None: the run's version or fleet again.

        `for_s`: wall time after which `then` is pinned, unless this is called again; 0: the pin stays.
        """
        current = self.pinned.get(tl)
        lease = (self._clock() + for_s, then) if for_s else (math.inf, None)
        wanted = None if version is None else Pin(version, author, *lease)
        if current == wanted or self._pins is None:
            return
        others = {other: kept for other, kept in self.pinned.items() if other != tl}
        self.pinned = others if wanted is None else {**others, tl: wanted}
        self._is_saved = False
        if current is None or wanted is None or current[:2] != wanted[:2]:
            self._pins.pin(tl, version)
            self.note("pin", tl, "latest" if version is None else str(version), author, loop)

    def remaining_s(self, pin: Pin) -> float:
        """Wall time until a pin ends; 0: it does not."""
        return 0.0 if math.isinf(pin.end_s) else max(pin.end_s - self._clock(), 0.001)

    def pause(self, author: str, loop: DecisionLoop) -> None:
        self._set_pace(self._pace.pause, "pause", "", author, loop)

    def resume(self, author: str, loop: DecisionLoop) -> None:
        self._set_pace(self._pace.resume, "resume", "", author, loop)

    def step(self, until_s: float, author: str, loop: DecisionLoop) -> None:
        """Simulate to a moment and pause there."""
        self._set_pace(lambda: self._pace.step(until_s, loop.now), "step", f"{until_s:g}", author, loop)

    def set_speed(self, speed: float, author: str, loop: DecisionLoop) -> None:
        """Simulated seconds per wall second from now on; 0: as fast as possible."""
        self._set_pace(lambda: self._pace.set_speed(speed), "speed", f"{speed:g}", author, loop)

    def acknowledge(self, alarm_id: str, author: str, loop: DecisionLoop) -> None:
        if self._alarms.acknowledge(alarm_id, author):
            self.note("acknowledge", alarm_id, "", author, loop)

    def note(self, action: str, target: str, value: str, author: str, loop: DecisionLoop) -> None:
        """Log and record what an operator has done."""
        log.warning("%s: %s at second %g", author, " ".join(filter(None, (action, target, value))), loop.now)
        loop.note_action(OperatorAction(action, target, value, author))
        self._saved.log.add(self._state.note(loop.now, action, target, value, author))

    def _set_pace(self, change: Callable[[], None], action: str, value: str, author: str, loop: DecisionLoop) -> None:
        """Change the pace, and note the command if it changed anything but the lateness."""
        before = self._pace.state[:3]
        change()
        if self._pace.state[:3] != before:
            self.note(action, "", value, author, loop)

    def _set_modes(
        self, loop: DecisionLoop, authors: Mapping[str, str], mode: OperatorMode, until_s: float, reason: str
    ) -> None:
        """Set TLs to a mode. `authors`: by TL, who sets it."""
        modes = dict(self.modes)
        value = _value(mode, until_s)
        try:
            for tl, author in authors.items():
                wanted = None if mode is OperatorMode.POLICY else SetMode(mode, author, loop.now, until_s, reason)
                current = modes.get(tl)
                if current == wanted or (current and wanted and current._replace(at_s=wanted.at_s) == wanted):
                    continue
                command = loop.set_mode(tl, mode, author, reason)
                modes.pop(tl, None)
                if wanted is not None:
                    modes[tl] = wanted
                self._state.follow(command, loop.now)
                self._saved.log.add(self._state.note(loop.now, "set-mode", tl, value, author, reason))
        finally:  # an unknown TL ends the command, not what it has set before
            if modes != self.modes:
                self._replace_modes(modes)
                self._is_saved = False

    def _replace_modes(self, modes: Mapping[str, SetMode]) -> None:
        self.modes = modes
        self.next_s = min((mode.until_s for mode in modes.values()), default=math.inf)

    def _save(self) -> None:
        """Write the files that are older than the modes or the log; return when they are as new as the call. The newest
        modes are read inside the lock, so they are written last."""
        with self._save_lock:
            if not self._is_saved:
                self._is_saved = True
                self._saved.write(self._to_save())
            self._saved.log.write()

    def _to_save(self) -> Saved:
        pins = dict(self._uncontrolled.pins)
        for tl, pin in self.pinned.items():
            # a restart begins with what comes after a pin that ends
            version = pin.version if math.isinf(pin.end_s) else pin.then
            if version is not None:
                pins[tl] = Pin(version, pin.author)
        return Saved({**self._uncontrolled.modes, **self.modes}, pins)


def _value(mode: OperatorMode, until_s: float) -> str:
    """A mode, and until when it is set, as command lists show it."""
    return mode.value if until_s == math.inf else f"{mode.value} until second {until_s:g}"
