"""Decide a recorded run again, without SUMO, and compare it with its record.

The same decision loop runs; readings, shown states and rejections come from the record in
the place of SUMO, and the answers in the place of the policies:

    record  | step 0: readings, answers | step 1: shown, rejections, readings, answers | step 2 ...
    loop    | read 0, decide, publish 0 | read 1,               decide,    publish 1   | read 2 ...
                              compare 0                                    compare 1

The shown states are always the recorded ones. So after a difference the loop starts again from
the recorded states, as it does in the street if another client sets a signal, and later
differences are the code's own. After a hole of the record, a new loop begins with the next recorded state.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np

from city.errors import InputError
from controller.assembly import loop_from
from controller.decision_step import DecisionLoop
from controller.events import DecisionEvent, OperatorAction
from controller.recording import loop_state
from controller.recording.messages import Encoder
from controller.recording.run_start import RunStart
from controller.sumo.connection import ONLINE, LanesToRead, StepResult, TrackedLanes
from controller.sumo.tracked_detectors import DetectorChange
from protos import policy_pb2 as pb
from protos import record_pb2 as record
from records.differences import Difference, Differences, StepComparer
from records.record_reader import RecordedStep
from records.recorded_run import MALFORMED, RecordedRun
from serving.contract import CATEGORICAL
from signals.fallback.control_mode import OperatorMode
from signals.observation import NO_VEHICLES, Observation, VehicleReadings
from signals.policy import Answer
from signals.safety.signal_safety import SignalCommand
from signals.simulation_time import round_to_ms

MAX_EXCEPTION_CLASSES = 256
"""Classes of recorded errors that are kept."""


class EndOfRecord(Exception):
    """The record has no further readings."""


class NotRecorded(Exception):
    """The loop asks for readings or answers that the record does not have, because it no longer decides at the same
    moments."""

    def __init__(self, tl: str, at_s: float) -> None:
        super().__init__(tl, at_s)
        self.tl, self.at_s = tl, at_s


class RecordedSteps:
    """The step that is decided now, and those after it that readings may come from."""

    def __init__(self, steps: Iterator[RecordedStep]) -> None:
        self._steps = steps
        self._window: list[RecordedStep] = []
        self._load()

    def _load(self) -> None:
        while len(self._window) < 3 and (step := next(self._steps, None)) is not None:
            self._window.append(step)

    @property
    def current(self) -> RecordedStep | None:
        return self._window[0] if self._window else None

    @property
    def following(self) -> RecordedStep | None:
        return self._window[1] if len(self._window) > 1 else None

    def advance(self) -> None:
        del self._window[:1]
        self._load()

    def with_readings(self) -> record.Step:
        """The step with the readings of the current second: a step that only reports what was shown has none."""
        steps = [each.step for each in self._window if each.step.at_s == self._window[0].step.at_s]
        return next((step for step in steps if step.due), steps[0])


class RecordedConnection(TrackedLanes):
    """A `TrackingConnection` that returns what was recorded, and sends nothing."""

    def __init__(self, run: RunStart, steps: RecordedSteps) -> None:
        self._steps = steps
        self._tls = [contract.tl for contract in run.contracts]
        self._outflow_rows: list[int] = []
        self._shown = {signal: running.shown for signal, running in run.start.signals.items()}
        self._until_s: float | None = None
        """End of the newest segment; None if nothing was simulated since the last reading."""
        self._detectors_read_of: record.Step | None = None
        """The step whose vehicles on detectors a reading has returned."""

    def track(self, lanes: LanesToRead, signals: Mapping[str, int]) -> None:
        self.track_lanes(lanes)
        self._outflow_rows = [self.row[lane] for lane in lanes.outflow_lanes]

    def set(self, commands: Sequence[SignalCommand]) -> None:
        """Do nothing: the record has the states that SUMO showed."""

    def advance(self, until_s: float) -> None:
        self._until_s = until_s

    def read(self, due: tuple[str, ...]) -> StepResult:
        """The next recorded reading. Raises EndOfRecord, NotRecorded, ValueError for malformed readings."""
        if self._until_s is not None:
            if self._steps.following is None:
                raise EndOfRecord
            if self._until_s < self._steps.following.step.at_s:
                raise NotRecorded(due[0] if due else "", self._until_s)
            self._steps.advance()
            self._until_s = None
        assert self._steps.current is not None, "a run with no steps is not replayed"
        step = self._steps.current.step
        self._set_readings(self._steps.with_readings())
        if not all(len(shown.states) == len(self._shown) for shown in step.shown):
            raise ValueError(f"step {step.number} shows another number of signals")
        if step.shown:
            self._shown = dict(zip(self._shown, step.shown[-1].states, strict=True))
        shown = [(each.end_s, tuple(each.states)) for each in step.shown[:-1]]
        rejected = {each.signal: each.reason for each in step.rejections}
        # once, although the step may be read again
        changes = step.detectors if step is not self._detectors_read_of else record.DetectorChanges()
        self._detectors_read_of = step
        by_change = zip(changes.detector, changes.time_s, changes.is_entry, strict=True)
        return StepResult(step.at_s, shown, rejected, [DetectorChange(*each) for each in by_change])

    def _set_readings(self, step: record.Step) -> None:
        recorded = tuple(self._tls[k] for k in step.due)
        if not recorded:
            self.set_vehicles(NO_VEHICLES)
            return
        values, readings = step.readings, self.readings
        _, rows = self.rows_of(recorded)
        # numpy refuses sequences of another length than the rows
        readings.counts[:, rows] = np.array((values.vehicles, values.halting), np.float64)
        readings.mean_length_m[rows] = np.array(values.mean_length_m)
        readings.outflow[self._outflow_rows] = np.array(values.outflow, np.float64)
        row = np.array(values.vehicle_lane, np.intp)
        if row.size and row.max() >= len(self.lanes):
            raise ValueError(f"step {step.number} has a vehicle on a lane that is not read")
        by_vehicle = [np.array(each, np.float64) for each in (values.position_m, values.speed_mps, values.waiting_s)]
        if any(each.size != row.size for each in by_vehicle):
            raise ValueError(f"step {step.number} has vehicles without all of their values")
        self.set_vehicles(VehicleReadings(row, *by_vehicle))

    def shown(self) -> dict[str, str]:
        return self._shown

    def programs(self, signals: Sequence[str]) -> dict[str, str]:
        frozen = self._steps.current.step.frozen if self._steps.current is not None else ()
        return {signal: ONLINE if signal in frozen else "" for signal in signals}

    def switch_program(self, signal: str, program: str) -> None:
        """Do nothing: no simulation runs."""


class RecordedPolicies:
    """`Policies` that return the recorded answers."""

    def __init__(
        self,
        contracts: Sequence[pb.PolicyContract],
        steps: RecordedSteps,
        on_answers: Callable[[RecordedStep, dict[str, Answer | Exception]], None],
    ) -> None:
        """`on_answers`: gets each decided step with its answers, before the loop does."""
        self._steps, self._on_answers = steps, on_answers
        self._categorical = {contract.tl for contract in contracts if contract.action.kind == CATEGORICAL}

    def ask(
        self, observations: Mapping[str, Observation], observed_s: float | None = None
    ) -> dict[str, Answer | Exception]:
        """The recorded answers to these TLs. Raises NotRecorded for a TL that did not decide: it has no readings
        either."""
        current = self._steps.current
        assert current is not None, "a step is decided while there is one"
        answers: dict[str, Answer | Exception] = {}
        for tl in observations:
            if tl not in current.tls or not current.tls[tl].HasField("decision"):
                raise NotRecorded(tl, current.step.at_s)
            answers[tl] = self._answer(tl, current.tls[tl].decision)
        self._on_answers(current, answers)
        return answers

    def _answer(self, tl: str, decision: record.Decision) -> Answer | Exception:
        if decision.error:
            return _error_class(decision.error)(decision.error_text)
        action = np.array(decision.action)
        is_index = tl in self._categorical and action.size == 1 and action[0] == np.trunc(action[0])
        if is_index and abs(action[0]) < 1 << 53:
            action = action.astype(np.int64)
        scores = np.array(decision.scores, np.float32) if decision.scores else None
        return Answer(action, decision.version, decision.model, scores)


@lru_cache(MAX_EXCEPTION_CLASSES)
def _error_class(name: str) -> type[Exception]:
    """An exception class of this name, so that the failure reads as it was recorded."""
    return type(name, (Exception,), {})


class Replay:
    """The replay of a run: drives the decision loop, and compares each of its events with the recorded step."""

    def __init__(
        self,
        run: RecordedRun,
        tls: Collection[str] | None = None,
        on_step: Callable[[record.Step, dict[str, record.TlStep], int], None] = lambda step, tls, publish_ns: None,
    ) -> None:
        """Build the loop.

        Args:
            run: the recorded run.
            tls: those that are compared (default: all).
            on_step: gets the messages of each step of the replay, with the recorded wall clock and wall times.

        Raises InputError if this version cannot build the run.
        """
        contracts = run.start.contracts
        self.differences = Differences()
        self.replayed_steps = 0
        self.replayed_to_s = run.begin_s
        self.holes: list[str] = []
        """What is missing in the record, and what the replay did there."""
        self.not_recorded: NotRecorded | None = None
        """Where the loop decided at another moment, so that the replay had to end."""
        self._comparer = StepComparer(contracts, [c.tl for c in contracts] if tls is None else tls)
        self._on_step = on_step
        self._error: Exception | None = None
        """An error of the comparison, which the loop would only log."""
        self.on_answers: Callable[[RecordedStep, dict[str, Answer | Exception]], None] = lambda step, answers: None
        """Gets each decided step with its answers, before the loop does."""
        if not self._begin(run):
            hole = f" ({'; '.join(self.holes)})" if self.holes else ""
            raise InputError(f"{run.path}: has no step of a run{hole}; name another record")

    def _begin(self, run: RecordedRun) -> bool:
        """Build the loop at the run's begin, or at the next state with a step after it; False if there is none."""
        steps = RecordedSteps(run.steps())
        while (first := steps.current) is None:
            if not self._note_hole(run) or run.rest is None:
                return False
            run = run.rest
            steps = RecordedSteps(run.steps())
        self._run, self._steps, start = run, steps, run.start
        self._steps_before = self.replayed_steps
        self._compared: RecordedStep | None = None
        self.policies = RecordedPolicies(start.contracts, steps, lambda step, answers: self.on_answers(step, answers))
        try:
            self._encoder = Encoder(start, run.state)
            connection = RecordedConnection(start, self._steps)
            self.loop: DecisionLoop = loop_from(start.start, connection, start, self.policies, [self])
            if run.state is not None:
                state = loop_state.restore(self.loop.saved_state(), run.state)
                self.loop.resume(state, first.step.at_s)
        except MALFORMED as error:
            raise self._malformed(error) from error
        self._is_released = run.state is not None and run.state.is_releasing
        return True

    def _note_hole(self, run: RecordedRun) -> bool:
        """Note why the steps of a part have ended, if they did before the run."""
        if run.ended:
            goes_on = "it ends there" if run.rest is None else f"it goes on from second {run.rest.begin_s:g}"
            self.holes.append(f"{run.ended}, so {goes_on}")
        return bool(run.ended)

    def add(self, event: DecisionEvent) -> None:
        """Compare an event of the loop."""
        try:
            self._compare(event)
        except Exception as error:
            self._error = error
            raise

    def close(self) -> None:
        """Do nothing: each step was compared at once."""

    def _compare(self, event: DecisionEvent) -> None:
        step, tls = self._encoder.encode(event)
        current = self._steps.current
        if current is None or current is self._compared:
            self.differences.add(Difference("", event.at_s, "step", "", "absent", "present"))
            return
        self._compared = current
        for difference in self._comparer.compare((current.step, current.tls), (step, tls)):
            self.differences.add(difference)
        if current.step.HasField("times"):
            step.times.CopyFrom(current.step.times)
        self._on_step(step, tls, current.publish_ns)

    def run(self) -> None:
        """Replay every step; after a hole, from the next recorded state on. Raises InputError for a malformed
        record."""
        self._replay_part()
        while self._note_hole(self._run) and self._run.rest is not None and self._begin(self._run.rest):
            self._replay_part()

    def _replay_part(self) -> None:
        flushed_s = -math.inf
        while (current := self._steps.current) is not None:
            is_flush = self._is_flush(current)
            try:
                if is_flush:
                    self.loop.finish()
                    flushed_s = current.step.at_s
                elif not self._is_released and self._begins_release(current, flushed_s):
                    self._is_released = True
                    self.loop.release(math.inf)
                else:
                    for command in current.step.commands:
                        self.loop.set_mode(command.tl, OperatorMode(command.wanted), command.author, command.reason)
                    for action in current.step.actions:
                        self.loop.note_action(OperatorAction(action.action, action.target, action.value, action.author))
                    self.loop.step(self._end_s(current))
            except EndOfRecord:
                self._note(current)
                break
            except NotRecorded as error:
                self.not_recorded = error
                self.differences.add(Difference(error.tl, error.at_s, "due", "", "false", "true"))
                self._note(current)
                break
            except MALFORMED as error:
                if self._error is not None:
                    raise
                raise self._malformed(error) from error
            if self._error is not None:
                raise self._error
            self._note(current)
            if self._steps.current is current:
                # no reading followed: the step only reported what was shown, or it is the last one
                self._steps.advance()

    def _note(self, current: RecordedStep) -> None:
        compared = self._compared
        if compared is None or compared.step.number < current.step.number:
            self.differences.add(Difference("", current.step.at_s, "step", "", "present", "absent"))
        else:
            self.replayed_steps = self._steps_before + compared.step.number + 1 - self._run.first_number
            self.replayed_to_s = compared.step.at_s

    def _is_flush(self, current: RecordedStep) -> bool:
        """True for a step that only reports what was shown before the run's end, or before its release of signals."""
        following = self._steps.following
        return not current.tls and (following is None or following.step.at_s == current.step.at_s)

    def _begins_release(self, current: RecordedStep, flushed_s: float) -> bool:
        """True if the signals were handed back from this step on: every TL needs commands, and none decides."""
        if current.step.due or current.tls.keys() != self.loop.intersections.keys():
            return False
        is_due = any(
            intersection.state.next_decision_s <= self.loop.now for intersection in self.loop.intersections.values()
        )
        return is_due or flushed_s == current.step.at_s

    def _end_s(self, current: RecordedStep) -> float:
        """The end of the step's simulation, which is the moment of the next reading."""
        if self._steps.following is not None:
            return self._steps.following.step.at_s
        # of the last step, only the recorded commands are known
        newest_s = max((states.at_s for tl in current.tls.values() for states in tl.states), default=current.step.at_s)
        return round_to_ms(newest_s + self._run.start.start.sumo_step_s)

    def _malformed(self, error: Exception) -> InputError:
        return InputError(
            f"{self._run.path}: its contracts, settings, state or readings are malformed ({type(error).__name__}: "
            f"{error}); copy the file again, or replay it with the version that wrote it"
        )
