"""The decision event: everything that is known of one decision step, for the run log, metrics, the record, and pages.

The decision loop hands one event a step to its subscribers, while SUMO simulates. Without
subscribers, no event is built.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from controller.sumo.tracked_detectors import DetectorChange
from signals.fallback.control_mode import ControlMode, OperatorMode
from signals.intersection import IntersectionState
from signals.observation import Observation, PhaseState, Readings, SavedState
from signals.policy import Answer
from signals.safety.monitor import Alarm, MonitorState
from signals.safety.signal_safety import Override, SignalCommand


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
    reason: str = ""
    """The reason that its author gave; "": none."""


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


@dataclass(frozen=True)
class StepReport:
    """Decisions, states and alarms since the event before.

    The decision loop adds to the lists until it publishes the event.
    """

    decisions: list[TlDecision] = field(default_factory=list)
    """Decisions of the TLs that were due."""
    sent: list[Sent] = field(default_factory=list)
    """From this second to the next reading, in order."""
    shown: list[Shown] = field(default_factory=list)
    """Since the reading before."""
    alarms: list[Alarm] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)
    """By signal, SUMO's reason for rejecting a command."""
    frozen: list[str] = field(default_factory=list)
    """Signals on their own program that another client had frozen in a state, so that they are released again."""
    commands: list[OperatorCommand] = field(default_factory=list)
    """Commands of operators, before the decisions of this step."""
    actions: list[OperatorAction] = field(default_factory=list)
    """Commands of operators that do not set a TL's mode."""
    detector_changes: list[DetectorChange] = field(default_factory=list)
    """Vehicles that came onto detectors or left them since the reading before, if detectors are read."""


@dataclass(frozen=True, kw_only=True)
class DecisionEvent(StepReport):
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
    times: StepTimes | None = None
    """None if no TL was due."""
    state: Callable[[], LoopState] | None = None
    """Returns the loop's state after this step, from which a run can be replayed; only while a subscriber gets the
    event. None if no reading follows."""

    @property
    def tls(self) -> tuple[str, ...]:
        """The TLs that were due."""
        return tuple(decision.tl for decision in self.decisions)


class Subscriber(Protocol):
    """Gets the decision events of a run. An error in it ends its subscription, never the run."""

    def add(self, event: DecisionEvent) -> None:
        """Take an event, quickly: the next step waits for it."""

    def close(self) -> None:
        """The run has ended; there are no more events. Does nothing, unless a subscriber has something to end."""
        return
