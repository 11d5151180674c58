"""The newest step and a short history for the page: a subscriber of the decision event.

`add` is called by the thread of the decision loop, everything else by the page's. What is read from both is replaced as
a whole and never changed.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from controller.events import DecisionEvent, Sent, Shown, StepTimes, TlDecision
from controller.operator.page.frames import NO_VEHICLES, Vehicles, View
from protos import policy_pb2 as pb
from signals.fallback.control_mode import ControlMode
from signals.observation import Floats

HISTORY_S = 600.0
"""Simulated time for which steps are kept."""
MAX_KEPT = 60_000
"""Decisions and shown states that are kept, of all TLs together: a city of 1,000 signals has about one minute of
them."""
MAX_TIMES = 256
"""Steps of which latencies are shown."""


class KeptStep(NamedTuple):
    """What the history keeps of an event: nothing that the next reading changes."""

    number: int
    at_s: float
    decisions: tuple[TlDecision, ...]
    sent: tuple[Sent, ...]
    shown: tuple[Shown, ...]
    halting: Floats
    """float64 [lanes], of the readings; of an older step if no TL was due."""

    @property
    def weight(self) -> int:
        return 1 + len(self.decisions) + sum(len(shown.states) for shown in self.shown)


class StepTime(NamedTuple):
    """How long a step with decisions took, and how many it had."""

    monotonic_s: float
    decisions: int
    times: StepTimes


class Newest(NamedTuple):
    """The newest step."""

    sequence: int
    """Number of events."""
    at_s: float
    shown: tuple[str, ...]
    """By signal in the contracts' order; empty before the first step."""
    modes: bytes
    """By TL, the value of its ControlMode."""
    halting: Floats
    """float64 [lanes]"""


class Collected(NamedTuple):
    """What was read from SUMO for the watchers."""

    number: int
    at_s: float
    vehicles: Vehicles
    states: Mapping[int, str]
    """By index of the page, states of uncontrolled signals."""


class Feed:
    """What the page knows of a run."""

    def __init__(self, contracts: Sequence[pb.PolicyContract], begin_s: float = 0.0) -> None:
        """`contracts`: of the controlled TLs; their signals in this order are those of the events."""
        self.contracts = {contract.tl: contract for contract in contracts}
        self.signals = tuple(signal for contract in contracts for signal in contract.signal_ids)
        self.places: dict[str, slice] = {}
        first = 0
        for contract in contracts:
            self.places[contract.tl] = slice(first, first := first + len(contract.signal_ids))
        self.lanes: tuple[str, ...] = ()
        self.lane_rows: dict[str, list[int]] = {}
        """By TL, the rows of its lanes in the readings."""
        self._index = {contract.tl: k for k, contract in enumerate(contracts)}
        self._modes = bytearray([ControlMode.POLICY.value] * len(self._index))
        self._history: deque[KeptStep] = deque()
        self._weight = 0
        self.times: deque[StepTime] = deque(maxlen=MAX_TIMES)
        self.decisions = self.missing = 0
        """Of the run so far; decisions without those that were missing."""
        self.newest = Newest(0, begin_s, (), bytes(self._modes), np.zeros(0))
        self.collected = Collected(0, begin_s, NO_VEHICLES, {})
        self.wanted_view: View | None = None
        """The part of the map that watchers see, set by the page; None: there is no watcher."""
        self.wake: Callable[[], None] = lambda: None
        """Tells the page's thread of a new step; called only while there is a watcher."""
        self.has_ended = False

    def track(self, lanes: Sequence[str]) -> None:
        """Set the lanes of the readings, in their order; before the first event."""
        self.lanes = tuple(lanes)
        row = {lane: k for k, lane in enumerate(lanes)}
        for tl, contract in self.contracts.items():
            of_tl = dict.fromkeys(lane for signal in contract.signals for lane in signal.lane_ids)
            self.lane_rows[tl] = [row[lane] for lane in of_tl if lane in row]
        self.newest = self.newest._replace(halting=np.zeros(len(self.lanes)))

    def add(self, event: DecisionEvent) -> None:
        before = self.newest
        modes = before.modes
        changed = [(c.tl, c.mode) for c in event.commands]
        missing = 0
        for decision in event.decisions:
            if decision.failure:
                missing += 1
            if decision.mode is not decision.mode_before:
                changed.append((decision.tl, decision.mode))
        if changed:
            for tl, mode in changed:
                self._modes[self._index[tl]] = mode.value
            modes = bytes(self._modes)
        halting = event.readings.halting.copy() if event.decisions else before.halting
        shown = event.shown[-1].states if event.shown else before.shown
        self.newest = Newest(before.sequence + 1, event.at_s, shown, modes, halting)
        self._keep(KeptStep(before.sequence + 1, event.at_s, event.decisions, event.sent, event.shown, halting))
        if event.times is not None:
            self.missing += missing
            self.decisions += len(event.decisions) - missing
            self.times.append(StepTime(event.monotonic_s, len(event.decisions), event.times))
        if self.wanted_view is not None:
            self.wake()

    def close(self) -> None:
        self.has_ended = True
        if self.wanted_view is not None:
            self.wake()

    def set_collected(self, at_s: float, vehicles: Vehicles, states: Mapping[int, str]) -> None:
        """Take what was read of a second, before the event of its step. Called by the decision loop's thread."""
        self.collected = Collected(self.collected.number + 1, at_s, vehicles, states)

    def since(self, number: int) -> Iterator[KeptStep]:
        """The kept steps after a number, in order. The page's thread: the history may grow or shrink meanwhile."""
        return iter([step for step in self._history.copy() if step.number > number])

    def _keep(self, step: KeptStep) -> None:
        history = self._history
        history.append(step)
        self._weight += step.weight
        while len(history) > 1 and (self._weight > MAX_KEPT or history[0].at_s < step.at_s - HISTORY_S):
            self._weight -= history.popleft().weight
