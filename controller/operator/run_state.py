"""The newest step of a run, and a short history for the page: a subscriber of the decision events.

`add` is called by the thread of the decision loop and keeps references alone; nothing is encoded there. Readers in
other threads get what is replaced as a whole and never changed, or take the lock.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from controller.events import DecisionEvent, OperatorCommand, StepTimes, TlDecision
from controller.operator.tl_layout import TlLayout
from protos import control_pb2
from protos import policy_pb2 as pb
from signals.fallback.control_mode import ControlMode
from signals.movement_names import MovementNames
from signals.observation import Floats, Readings
from signals.policy import Answer
from signals.safety.conflicts import EXPLANATIONS
from signals.safety.signal_safety import Override

MAX_COMMANDS, MAX_LOGGED_COMMANDS = 100, 10_000
"""Newest commands that pages and `ctl tls` get, and those of the whole log."""
HISTORY_S = 600.0
"""Simulated time for which steps are kept."""
MAX_KEPT = 60_000
"""Decisions and shown states that are kept, of all TLs together: a city of 1,000 signals has about one minute of
them."""
MAX_TIMES = 256
"""Steps of which latencies are shown."""


class Watchers:
    """Wakes what waits for the newest step. Nothing is queued: a slow reader skips steps."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.sequence = 0
        self.is_closed = False
        self.wake_page: Callable[[], None] = lambda: None
        """Called at each change, by the thread that makes it: the page's loop does not wait on a condition."""

    def notify(self) -> None:
        """Count a change and wake all that wait."""
        with self._changed:
            self.sequence += 1
            self._changed.notify_all()
        self.wake_page()

    def wait_after(self, sequence: int, timeout_s: float) -> int:
        """Wait until the sequence is higher, this is closed or the time is over; return the sequence."""
        end_s = time.monotonic() + timeout_s
        with self._changed:
            while self.sequence <= sequence and not self.is_closed:
                remaining_s = end_s - time.monotonic()
                if remaining_s <= 0:
                    break
                self._changed.wait(remaining_s)
            return self.sequence

    def close(self) -> None:
        """Wake all that wait, for the last time."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()
        self.wake_page()


class KeptStep(NamedTuple):
    """A decision event as it is kept: without what the next reading changes."""

    number: int
    """0 for the first event; -1: there was none yet."""
    event: DecisionEvent
    """In a history without its readings."""
    states: tuple[str, ...]
    """By signal, the newest state that was shown; empty before the first step."""
    modes: bytes
    """By TL, the value of its ControlMode after the decisions."""
    halting: Floats
    """float64 [lanes], of the readings; of an older step if no TL was due, and empty without a history."""

    @property
    def weight(self) -> int:
        return 1 + len(self.event.decisions) + sum(len(shown.states) for shown in self.event.shown)


_NO_READINGS = Readings(np.zeros((2, 0)), np.zeros(0), np.zeros(0))
_NO_EVENT = DecisionEvent(number=-1, at_s=0.0, monotonic_s=0.0, readings=_NO_READINGS)


class RunState:
    """The newest step, and every TL's newest decision, mode and shown state; notifies the watchers of each step and
    command."""

    def __init__(
        self,
        contracts: Sequence[pb.PolicyContract],
        keeps_history: bool = False,
        names: Mapping[str, MovementNames] = {},
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare the state.

        Args:
            contracts: of the controlled TLs.
            keeps_history: whether a page will show steps and queues.
            names: by signal, the names of its movements.
            wall_clock: s since 1970.
        """
        self._wall_clock = wall_clock
        self.watchers = Watchers()
        self.layout = TlLayout(contracts, names=names)
        self._keeps_history = keeps_history
        self._lock = threading.Lock()
        self.tls = list(self.layout.contracts)
        self._modes = bytearray([ControlMode.POLICY.value] * len(self.tls))
        self._since_s = dict.fromkeys(self.tls, 0.0)
        self._decided: dict[str, tuple[TlDecision, float]] = {}
        self._overrides: dict[str, Override] = {}
        """By TL, the newest override since its newest decision."""
        self.newest = KeptStep(-1, _NO_EVENT, (), bytes(self._modes), np.zeros(0))
        self.newest_decided = self.newest
        """The newest step with decisions. Both are replaced, never changed."""
        self.second = 0.0
        self.failure = ""
        """The error that has ended the run; "" for a run that goes on, or has ended as it should."""
        self.decisions = self.missing = 0
        """Counts of the run so far; decisions without those that were missing."""
        self.durations: deque[tuple[float, int, StepTimes]] = deque(maxlen=MAX_TIMES)
        """(time.monotonic, decisions, wall times) of the newest steps with decisions."""
        self._history: deque[KeptStep] = deque()
        self._weight = 0
        self._commands: deque[control_pb2.Command] = deque(maxlen=MAX_LOGGED_COMMANDS)
        self._command_number = 0

    def begin(self, at_s: float) -> None:
        """Take the simulated second at which the run begins, before its first event."""
        self.second = at_s
        self._since_s = dict.fromkeys(self.tls, at_s)

    def add(self, event: DecisionEvent) -> None:
        with self._lock:
            self.second = max(self.second, event.at_s)
            for command in event.commands:
                self._set_mode(command.tl, command.mode, event.at_s)
            for decision in event.decisions:
                self._decided[decision.tl] = decision, event.at_s
                self._overrides.pop(decision.tl, None)
                # without a call for each of a thousand TLs: few change their mode
                if decision.mode is not decision.mode_before:
                    self._set_mode(decision.tl, decision.mode, event.at_s)
            for sent in event.sent:
                for override in sent.overrides:
                    self._overrides[self.layout.tl_of_signal[override.signal]] = override
            self._keep(event)
        if event.times is not None:
            missing = sum(1 for decision in event.decisions if decision.failure)
            self.missing += missing
            self.decisions += len(event.decisions) - missing
            self.durations.append((event.monotonic_s, len(event.decisions), event.times))
        self.watchers.notify()

    def close(self) -> None:
        self.watchers.close()

    def follow(self, command: OperatorCommand, now: float) -> None:
        """Take a mode that an operator has set, before the event of its step."""
        with self._lock:
            self._set_mode(command.tl, command.mode, now)

    def note(
        self, at_s: float, action: str, target: str, value: str, author: str, reason: str = ""
    ) -> control_pb2.Command:
        """Keep a command that was applied, notify the watchers, and return it for the log."""
        command = control_pb2.Command(at_s=at_s, action=action, target=target, value=value, author=author)
        command.reason, command.unix_s = reason, self._wall_clock()
        self.restore_commands([command])
        self.watchers.notify()
        return command

    def restore_commands(self, commands: Iterable[control_pb2.Command]) -> None:
        """Keep commands, such as those of the runs before, as the next ones by number."""
        with self._lock:
            for command in commands:
                self._command_number += 1
                command.number = self._command_number
                self._commands.append(command)

    def commands(self, count: int = MAX_COMMANDS) -> list[control_pb2.Command]:
        """The newest commands, the newest last."""
        with self._lock:
            return list(self._commands)[-count:]

    def state(self, tl: str) -> control_pb2.TlState:
        """A TL's control mode, newest decision and shown state."""
        layout = self.layout
        with self._lock:
            decision, decided_s = self._decided.get(tl, (None, 0.0))
            override = self._overrides.get(tl)
            mode, since_s = ControlMode(self._modes[layout.index[tl]]), self._since_s[tl]
        answer = decision.answer if decision is not None and isinstance(decision.answer, Answer) else None
        shown = self.newest.states[layout.places[tl]]
        reason = decision.failure if decision is not None else ""
        if override is not None and not reason:
            requested = layout.names.get(override.signal, MovementNames()).of_state(override.requested)
            reason = f"{override.signal}: not {requested}: {EXPLANATIONS[override.reason]}"
        return control_pb2.TlState(
            tl=tl,
            mode=mode.name.lower(),
            since_s=since_s,
            signals=layout.contracts[tl].signal_ids,
            shown=shown,
            shown_names=[
                layout.names.get(signal, MovementNames()).of_state(state)
                for signal, state in zip(layout.contracts[tl].signal_ids, shown, strict=False)
            ],
            reason=reason,
            decided_s=decided_s,
            model=answer.model if answer is not None else "",
            version=answer.version if answer is not None else 0,
        )

    def since(self, number: int) -> list[KeptStep]:
        """The kept steps after a number, in order."""
        # copying a deque is one step to other threads: the decision loop does not wait for a lock here
        return [step for step in self._history.copy() if step.number > number]

    def _set_mode(self, tl: str, mode: ControlMode, at_s: float) -> None:
        index = self.layout.index[tl]
        if self._modes[index] != mode.value:
            self._modes[index] = mode.value
            self._since_s[tl] = at_s

    def _keep(self, event: DecisionEvent) -> None:
        before, halting = self.newest, self.newest.halting
        modes = before.modes if before.modes == self._modes else bytes(self._modes)
        states = event.shown[-1].states if event.shown else before.states
        if self._keeps_history:
            halting = event.readings.halting.copy() if event.decisions else halting
            event = replace(event, readings=_NO_READINGS, state=None, detector_changes=[])
        step = KeptStep(before.number + 1, event, states, modes, halting)
        self.newest = step
        if event.decisions:
            self.newest_decided = step
        if self._keeps_history:
            self._history.append(step)
            self._weight += step.weight
            begin_s = event.at_s - HISTORY_S
            while len(self._history) > 1 and (self._weight > MAX_KEPT or self._history[0].event.at_s < begin_s):
                self._weight -= self._history.popleft().weight
