"""The decision event: everything that is known of one decision step, for the run log, metrics, the record, and pages.

The decision loop hands one event a step to its subscribers, while SUMO simulates. Without
subscribers, no event is built.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from controller.sumo.tracked_detectors import DetectorChange
from signals.fallback.control_mode import ControlMode, OperatorMode
from signals.intersection import IntersectionState
from signals.observation import Observation, PhaseState, Readings
from signals.policy import Answer
from signals.safety.monitor import Alarm, MonitorState
from signals.safety.signal_safety import Override, SignalCommand
from signals.saved_state import SavedState


@dataclass
class LoopState(SavedState):
    """The decision loop between two steps. Those of its TLs and monitors change with the next reading."""

    next_number: int
    """Number of the step that follows."""
    now_s: float
    """Simulated second of the step before."""
    is_releasing: bool
    """True if the signals are being handed back, at the end of the run."""
    released_at_s: dict[str, float]
    """By signal, since when it runs its own program, which is not monitored."""
    tls: list[IntersectionState]
    monitors: list[MonitorState]


class OperatorCommand(NamedTuple):
    """An operator's command to a TL, followed from this step on."""

    tl: str
    wanted: OperatorMode
    author: str
    mode_before: ControlMode
    mode: ControlMode
    """The control mode after the command."""


class OperatorAction(NamedTuple):
    """An operator's command that does not set a TL's mode."""

    action: str
    """pin | reload | pause | resume | step | speed | acknowledge"""
    target: str
    """TL or alarm; "" for the run."""
    value: str
    author: str


class StepTimes(NamedTuple):
    """Wall times of a decision step, in s."""

    sumo_s: float
    """Waiting for SUMO's answer before the step."""
    observe_s: float
    inference_s: float
    """Waiting for the policies."""
    apply_s: float
    """Applying their actions, or the fallback."""

    @property
    def decision_s(self) -> float:
        """From the readings to the choices."""
        return self.observe_s + self.inference_s + self.apply_s


class TlDecision(NamedTuple):
    """Observation and choice of a TL that was due."""

    tl: str
    observation: Observation
    """float32 [O]"""
    phase_state: PhaseState
    answer: Answer | Exception
    """Answer of the policy, or why there is none."""
    failure: str
    """Why the answer is not a valid action, or ""."""
    mode_before: ControlMode
    mode: ControlMode
    """The control mode after the answer."""

    @property
    def is_missing(self) -> bool:
        """True if the policy gave no valid action."""
        return bool(self.failure)


class TlStates(NamedTuple):
    """The states of a TL at a moment at which it needs commands, by signal in the contract's order."""

    tl: str
    requested: tuple[str, ...]
    """Empty while the signals run their own programs, or are on the way there."""
    permitted: tuple[str, ...]
    """The states that the safety rules permit now."""


class Sent(NamedTuple):
    """Commands and states that were sent to SUMO for one second."""

    at_s: float
    states: tuple[TlStates, ...]
    commands: tuple[SignalCommand, ...]
    """Without states that were sent before."""
    overrides: tuple[Override, ...]


class Shown(NamedTuple):
    """The states that SUMO showed from begin_s to end_s, in the order of the connection's signals."""

    begin_s: float
    end_s: float
    states: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DecisionEvent:
    """One decision step. What SUMO reported of the time before it is part of it: states shown, alarms, rejections."""

    number: int
    """0 for the first step of the run."""
    at_s: float
    """Simulated second of the readings and decisions."""
    monotonic_s: float
    """Wall time at which the readings arrived (time.monotonic)."""
    readings: Readings
    """SUMO's readings, those of the TLs in `decisions` are of this second. Their arrays change with the next reading:
    copy what is kept."""
    decisions: tuple[TlDecision, ...]
    """Decisions of the TLs that were due."""
    sent: tuple[Sent, ...]
    """From this second to the next reading, in order."""
    shown: tuple[Shown, ...]
    """Since the reading before."""
    alarms: tuple[Alarm, ...]
    rejected: Mapping[str, str]
    """By signal, SUMO's reason for rejecting a command."""
    frozen: tuple[str, ...]
    """Signals on their own program that another client had frozen in a state, so that they are released again."""
    times: StepTimes | None
    """None if no TL was due."""
    commands: tuple[OperatorCommand, ...] = ()
    """Commands of operators, before the decisions of this step."""
    actions: tuple[OperatorAction, ...] = ()
    """Commands of operators that do not set a TL's mode."""
    state: Callable[[], LoopState] | None = None
    """Returns the loop's state after this step, from which a run can be replayed; only while a subscriber gets the
    event. None if no reading follows."""
    detector_changes: tuple[DetectorChange, ...] = ()
    """Vehicles that came onto detectors or left them since the reading before, if detectors are read."""

    @property
    def tls(self) -> tuple[str, ...]:
        """The TLs that were due."""
        return tuple(decision.tl for decision in self.decisions)


class Unpublished:
    """Everything that has happened since the last event."""

    def __init__(self) -> None:
        self.decisions: list[TlDecision] = []
        self.sent: list[Sent] = []
        self.shown: list[Shown] = []
        self.alarms: list[Alarm] = []
        self.rejected: dict[str, str] = {}
        self.frozen: list[str] = []
        self.commands: list[OperatorCommand] = []
        self.actions: list[OperatorAction] = []
        self.detector_changes: list[DetectorChange] = []
        self.times: StepTimes | None = None

    @property
    def is_empty(self) -> bool:
        reported = (self.decisions, self.sent, self.shown, self.alarms, self.rejected, self.commands, self.actions)
        return not any((*reported, self.detector_changes))


class Subscriber(Protocol):
    """Gets the decision events of a run. An error in it ends its subscription, never the run."""

    def add(self, event: DecisionEvent) -> None:
        """Take an event, quickly: the next step waits for it."""

    def close(self) -> None:
        """The run has ended; there are no more events."""
