"""What is known of every TL now: a subscriber that keeps references to the newest decisions, for readers in other
threads."""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from controller.events import DecisionEvent, OperatorCommand, TlDecision
from controller.operator.watchers import Watchers
from protos import policy_pb2 as pb
from signals.fallback.control_mode import ControlMode
from signals.policy import Answer
from signals.safety.conflicts import EXPLANATIONS
from signals.safety.signal_safety import Override

MAX_COMMANDS = 100
"""Applied commands that are kept."""


class AppliedCommand(NamedTuple):
    """A command that was applied."""

    number: int
    at_s: float
    action: str
    target: str
    value: str
    author: str


class TlSnapshot(NamedTuple):
    """A TL as a reader sees it."""

    tl: str
    mode: ControlMode
    since_s: float
    """Simulated second of the last change of the mode."""
    signals: tuple[str, ...]
    shown: tuple[str, ...]
    """Empty before the first step."""
    reason: str
    """Why the newest decision was not followed as it was; "": it was."""
    decided_s: float
    """0 before the first decision."""
    model: str
    version: int


class NewestStep(NamedTuple):
    """The newest step with decisions."""

    at_s: float
    decisions: tuple[TlDecision, ...]


class RunState:
    """The newest decision, mode and shown state of every TL; notifies the watchers of each step and command."""

    def __init__(self, contracts: Sequence[pb.PolicyContract], watchers: Watchers, begin_s: float = 0.0) -> None:
        """`contracts`: of the controlled TLs; their signals in this order are those of the events."""
        self.watchers = watchers
        self._lock = threading.Lock()
        self._signals = {contract.tl: tuple(contract.signal_ids) for contract in contracts}
        self._tl_of = {signal: tl for tl, signals in self._signals.items() for signal in signals}
        places, first = {}, 0
        for tl, signals in self._signals.items():
            places[tl] = slice(first, first := first + len(signals))
        self._places = places
        self._modes: dict[str, tuple[ControlMode, float]] = dict.fromkeys(self._signals, (ControlMode.POLICY, begin_s))
        self._decisions: dict[str, tuple[TlDecision, float]] = {}
        self._overrides: dict[str, Override] = {}
        """By TL, the newest override since its newest decision."""
        self._shown: tuple[str, ...] = ()
        self.newest = NewestStep(begin_s, ())
        """Replaced, never changed."""
        self.second = begin_s
        self._commands: deque[AppliedCommand] = deque(maxlen=MAX_COMMANDS)
        self._number = 0

    @property
    def tls(self) -> Sequence[str]:
        return list(self._signals)

    @property
    def tl_of_signal(self) -> Mapping[str, str]:
        return self._tl_of

    def add(self, event: DecisionEvent) -> None:
        with self._lock:
            self.second = max(self.second, event.at_s)
            if event.shown:
                self._shown = event.shown[-1].states
            for decision in event.decisions:
                self._decisions[decision.tl] = decision, event.at_s
                self._overrides.pop(decision.tl, None)
                if decision.mode is not self._modes[decision.tl][0]:
                    self._modes[decision.tl] = decision.mode, event.at_s
            for sent in event.sent:
                for override in sent.overrides:
                    self._overrides[self._tl_of[override.signal]] = override
            if event.decisions:
                self.newest = NewestStep(event.at_s, event.decisions)
        self.watchers.notify()

    def close(self) -> None:
        self.watchers.close()

    def follow(self, command: OperatorCommand, now: float) -> None:
        """Take a mode that an operator has set, before the event of its step."""
        with self._lock:
            if command.mode is not self._modes[command.tl][0]:
                self._modes[command.tl] = command.mode, now

    def note(self, at_s: float, action: str, target: str, value: str, author: str) -> AppliedCommand:
        """Keep a command that was applied, and notify the watchers."""
        with self._lock:
            self._number += 1
            command = AppliedCommand(self._number, at_s, action, target, value, author)
            self._commands.append(command)
        self.watchers.notify()
        return command

    def commands(self, count: int = MAX_COMMANDS) -> list[AppliedCommand]:
        """The newest commands, the newest last."""
        with self._lock:
            return list(self._commands)[-count:]

    def states(self, tls: Sequence[str]) -> list[TlSnapshot]:
        """The states of TLs, in their order."""
        with self._lock:
            return [self._state(tl) for tl in tls]

    def _state(self, tl: str) -> TlSnapshot:
        mode, since_s = self._modes[tl]
        decision, decided_s = self._decisions.get(tl, (None, 0.0))
        answer = decision.answer if decision is not None and isinstance(decision.answer, Answer) else None
        reason = decision.failure if decision is not None else ""
        if not reason and (override := self._overrides.get(tl)):
            reason = f"{override.signal}: {EXPLANATIONS[override.reason]}"
        return TlSnapshot(
            tl, mode, since_s, self._signals[tl], self._shown[self._places[tl]], reason, decided_s,
            answer.model if answer else "", answer.version if answer else 0,
        )  # fmt: skip
