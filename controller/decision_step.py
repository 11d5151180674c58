"""The decision step: read, observe, choose, permit, apply.

Two round trips whatever the number of TLs: one exchange with SUMO that sends
commands, simulates to the next decision and reads there, and one exchange with the
model server for all TLs that are due (a single Predict if a fleet is served). TLs of
the street dialect add an exchange with SUMO, for their vehicles. The
signal states between two decisions are known at the first of them. So the exchange with
SUMO is a sequence of segments, and SUMO simulates each while the controller prepares
the next:

    controller  | decide t0 | commands t0, step to t1 | commands t1, step to t2 | read t2 | decide t2
                |           |  + log, monitors of t0  |  + log, monitors of t1  |         |
    SUMO        |  waits    |        simulates t0..t1 |        simulates t1..t2 | answers |  waits
                                                                                ^ lanes first; the shown
                                                                                  states follow while it decides

Invariants:
- `now` is the second of the newest readings; it only changes in `_read`.
- Commands are sent for second `now` or for the end of a segment, always before the
  step that leaves that second, so SUMO applies them there.
- A decision uses readings of its own second: `_observed` is that second and the TLs for
  which lanes were read.
- Before the commands of `now` are sent, the states shown at `now` are compared with those
  sent before, so that commands start from the shown states, even if another client set them.
- The monitors are fed one reading late, while SUMO simulates; before a run ends they
  are fed once more.
- A TL gets its commands at `due_s` of its state; segments end at the earliest of these moments.
"""

import functools
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controller.events import (
    DecisionEvent,
    LoopState,
    OperatorAction,
    OperatorCommand,
    Sent,
    Shown,
    StepReport,
    StepTimes,
    Subscriber,
    TlDecision,
    TlStates,
)
from controller.sumo.connection import ONLINE, CommandRejected, DecisionConnection, SimulationReplaced
from signals.fallback.control_mode import ControlMode, OperatorMode
from signals.intersection import Intersection
from signals.movement_names import MovementNames
from signals.observation import MAX_CACHED_BATCHES, Floats, Observation, ObservationBatch, PhaseState, shares_of
from signals.policy import Answer, Policies
from signals.safety.conflicts import OverrideReason
from signals.safety.monitor import Alarm, MonitorRule, SignalMonitor
from signals.safety.signal_safety import Override, PermittedRelease, SignalCommand
from signals.simulation_time import round_to_ms

log = logging.getLogger("controller")

MAX_SEGMENTS = 64
"""Segments of one exchange; bounded, so that a stop request need not wait long."""
COUNTING_INTERVAL_S = 1.0
"""Simulated time between two samples of the lanes with counted outflow."""
MAX_KEPT_TIMES = 20_000
"""Wall times kept for percentiles; bounded, so that memory does not grow with the run."""
CHANGE_REASONS = (OverrideReason.YELLOW, OverrideReason.CLEARANCE)
"""Overrides that delay a change until it is safe."""


class MissingAnswer(Exception):
    """The policies gave no answer for this TL."""


NO_ANSWER = MissingAnswer("no answer")


@dataclass
class RunCounters:
    """Counts of a run since its start."""

    decisions: int = 0
    """Valid answers, one per TL and decision moment; in fallback they are counted, but not followed."""
    decision_steps: int = 0
    """Moments at which at least one TL was due."""
    missing_answers: Counter[str] = field(default_factory=Counter)
    """Requests without a valid action, by TL."""
    overrides: Counter[str] = field(default_factory=Counter)
    """Requested states that the safety rules replaced, by reason."""
    decisions_by_tl: Counter[str] = field(default_factory=Counter)
    overruled_by_tl: Counter[str] = field(default_factory=Counter)
    """By TL, decisions that were followed by an override before the next decision."""
    overruled_reason: dict[str, OverrideReason] = field(default_factory=dict)
    """By TL, the reason of the newest of these overrides."""
    rejections: int = 0
    """Commands that SUMO rejected."""
    alarms: Counter[str] = field(default_factory=Counter)
    """Alarms of the monitors, by rule."""
    unexpected_states: Counter[str] = field(default_factory=Counter)
    """By signal, readings at which it showed another state than the one that was set."""
    fallbacks: int = 0
    """Times a TL entered its fallback."""
    times: deque[StepTimes] = field(default_factory=lambda: deque(maxlen=MAX_KEPT_TIMES))
    """Wall times of the newest decision steps."""


class DecisionLoop:
    """Runs the decision steps of all TLs of a run."""

    def __init__(
        self,
        connection: DecisionConnection,
        intersections: Sequence[Intersection],
        policies: Policies,
        length_m: Floats,
        now: float,
        sumo_step_s: float,
        subscribers: Iterable[Subscriber] = (),
        monitors: Sequence[SignalMonitor] = (),
        names: Mapping[str, MovementNames] = {},
    ) -> None:
        """Prepare the first step.

        Args:
            connection: must track the lanes and signals of these TLs.
            intersections: the TLs.
            policies: source of the actions.
            length_m: lengths of the connection's lanes, float64 [lanes].
            now: simulated second at which the run begins.
            sumo_step_s: SUMO's step length.
            subscribers: get an event for each step.
            monitors: one per signal, in the connection's order.
            names: by signal, of its movements, for the alarms.
        """
        self.counters = RunCounters()
        self.intersections = {intersection.tl: intersection for intersection in intersections}
        self._connection, self._policies = connection, policies
        self._subscribers = list(subscribers)
        self._length_m = length_m
        self._counts_outflow, self._is_releasing = bool(connection.outflow_lanes), False
        """Lanes with counted outflow are sampled every COUNTING_INTERVAL_S, but not during the release."""
        self.now = self._begin_s = now
        self._sumo_step_s = sumo_step_s
        self._monitors, self._names = list(monitors), names
        self._unmonitored: tuple[float, Sequence[tuple[float, Sequence[str]]], dict[str, float]] = (now, (), {})
        """Readings that are not fed to the monitors yet: (begin in s, states shown since then, `_released_at_s` of that
        time)."""
        self._released_at_s: dict[str, float] = {}
        """By signal, since when it runs its own program, which is not monitored."""
        self._readings_s: float | None = None
        """When the newest readings arrived (time.monotonic)."""
        self._sumo_s = 0.0
        """Wall time of waiting for the newest readings."""
        self._observed: tuple[float, tuple[str, ...]] | None = None
        """The second of the newest readings, and the TLs for which lanes were read."""
        self._overruled: dict[str, OverrideReason] = {}
        """By TL with an override since the last decision of its policy, the first reason."""
        self._observe_changes = {x.tl for x in intersections if any(s.change_s for s in x.contract.signals)}
        """TLs whose policies know how long each change takes: a change does not overrule their decisions."""
        self._batch_of = functools.lru_cache(MAX_CACHED_BATCHES)(self._new_batch)
        self._observations: dict[str, Observation] | None = None
        """Observations of the TLs that are due now; None before they are computed."""
        self._phase_states: list[PhaseState] = []
        self._observe_s = self._observed_at_s = 0.0
        """How long the observations took, and when they were ready (time.perf_counter)."""
        self._number = 0
        """Events so far."""
        self._unpublished = StepReport()
        self._times: StepTimes | None = None
        """Wall times of the decisions that are not published yet."""
        self.sent: Sequence[Sent] = ()
        """Commands that the newest step has sent to SUMO."""

    def step(self, end_s: float) -> None:
        """Run a decision step: decide for the TLs that are due now, then simulate to the next decision, at most to
        end_s."""
        observations = self.observe()
        self.act(self._policies.ask(observations, self._readings_s) if observations else {}, end_s)

    def observe(self) -> dict[str, Observation]:
        """The observations of the TLs that are due now, float32 [O] by TL; {} if none is."""
        if self._observations is None:
            due = self._due_at(self.now)
            tls = tuple(intersection.tl for intersection in due)
            if due and self._observed != (self.now, tls):
                self._read(tls)
            begin = time.perf_counter()
            readings = self._connection.readings
            self._phase_states = [intersection.phase_state(self.now) for intersection in due]
            shares = shares_of(readings, self._length_m)
            self._observations = self._batch_of(tls).observe(readings, shares, self._phase_states) if due else {}
            self._observed_at_s = time.perf_counter()
            self._observe_s = self._observed_at_s - begin
        return self._observations

    def act(self, answers: Mapping[str, Answer | Exception], end_s: float) -> None:
        """Apply the answers to the newest observations, then simulate to the next decision, at most to end_s."""
        answered_s = time.perf_counter()
        observations, self._observations = self.observe(), None
        due = [self.intersections[tl] for tl in observations]
        if due:
            self._decide(due, observations, answers, answered_s)
        self._correct_shown()
        self._correct_released(due)
        time_s = self.now
        for segment in range(MAX_SEGMENTS):
            sent = self._send_commands(time_s)
            until_s = min([end_s, *(intersection.state.due_s for intersection in self.intersections.values())])
            if self._counts_outflow:
                until_s = min(
                    until_s, math.floor(time_s / COUNTING_INTERVAL_S) * COUNTING_INTERVAL_S + COUNTING_INTERVAL_S
                )
            time_s = self._next_sumo_step_s(until_s)
            self._connection.advance(time_s)
            # SUMO simulates meanwhile, so this does not delay the next decision
            self._count(sent)
            if segment == 0:
                self._feed_monitors()
            next_due = self._due_at(time_s)
            if next_due or time_s >= end_s:
                break
        self._publish(self.saved_state)
        self._read(tuple(intersection.tl for intersection in next_due))

    def resume(self, state: LoopState, until_s: float) -> None:
        """Go on after the step with this state, which the loop's parts have; the next reading is of second until_s.

        Raises ValueError for a state that is not one of this loop.
        """
        self.now, self._number, self._is_releasing = state.now_s, state.next_number, state.is_releasing
        self._counts_outflow = self._counts_outflow and not state.is_releasing
        self._unmonitored, self._released_at_s = (self.now, (), {}), dict(state.released_at_s)
        for intersection in self.intersections.values():
            intersection.resume()
        self._read(tuple(intersection.tl for intersection in self._due_at(until_s)))

    def saved_state(self) -> LoopState:
        """The state between a step's event and the next reading: nothing is unmonitored or unpublished."""
        return LoopState(
            self._number,
            self.now,
            self._is_releasing,
            self._released_at_s,
            [intersection.state for intersection in self.intersections.values()],
            [monitor.state for monitor in self._monitors],
        )

    def set_mode(self, tl: str, wanted: OperatorMode, author: str, reason: str = "") -> OperatorCommand:
        """Follow an operator's command to a TL from the next step on; return what it changes.

        Called between two steps. Raises KeyError for an unknown TL.
        """
        intersection = self.intersections[tl]
        before = intersection.mode
        intersection.set_mode(wanted, self.now)
        self._observations = None  # the TL may be due now
        command = OperatorCommand(tl, wanted, author, before, intersection.mode, reason)
        self._unpublished.commands.append(command)
        return command

    def note_action(self, action: OperatorAction) -> None:
        """Make an operator's command part of the next event. Called between two steps."""
        self._unpublished.actions.append(action)

    def renew_readings(self) -> None:
        """Count the newest readings as new, after a wait between two steps: the deadline of the answers begins now."""
        self._readings_s = time.monotonic()

    def _due_at(self, time_s: float) -> list[Intersection]:
        return [each for each in self.intersections.values() if each.state.next_decision_s <= time_s]

    def _correct_shown(self) -> None:
        """Compare the states that SUMO shows with those sent: another client may have set a signal.

        Runs after the policies' answers, so that SUMO's states have arrived meanwhile, and
        before new commands, which must start from the shown states.
        """
        shown = self._connection.shown()
        for intersection in self.intersections.values():
            for signal, sent, state in intersection.correct(shown, self.now):
                text = self._names.get(signal, MovementNames()).with_letters
                message = f"shows {text(state)}, but {text(sent)} was set; another client sets this signal too"
                self._report_unexpected(intersection, signal, message)

    def _correct_released(self, due: Sequence[Intersection]) -> None:
        """Release signals again that should run their own programs but are frozen in a state that another client
        set."""
        if not self._released_at_s:
            return
        released = {signal: intersection for intersection in due for signal in intersection.released_signals}
        if not released:
            return
        for signal, program in self._connection.programs(list(released)).items():
            if program == ONLINE:
                intersection, state = released[signal], self._connection.shown()[signal]
                intersection.release_again(signal, state, self.now)
                self._unpublished.frozen.append(signal)
                name = self._names.get(signal, MovementNames()).with_letters(state)
                message = f"shows {name}, which another client set in place of its program"
                self._report_unexpected(intersection, signal, message)

    def _report_unexpected(self, intersection: Intersection, signal: str, message: str) -> None:
        intersection.state.due_s = self.now
        self.counters.unexpected_states[signal] += 1
        self._add_alarm(Alarm(signal, MonitorRule.UNEXPECTED_STATE, self.now, message))

    def _add_alarm(self, alarm: Alarm) -> None:
        self.counters.alarms[alarm.rule.value] += 1
        self._unpublished.alarms.append(alarm)

    def _send_commands(self, now: float) -> Sent:
        """Send the commands that are due at second `now`, and update when these TLs are due next."""
        commands: list[SignalCommand] = []
        overrides: list[Override] = []
        states: list[TlStates] = []
        due = [intersection for intersection in self.intersections.values() if intersection.state.due_s <= now]
        for intersection in due:
            new_commands, new_overrides = intersection.commands(now)
            commands += new_commands
            overrides += new_overrides
            if intersection.mode is ControlMode.POLICY:
                self._note_overruled(intersection.tl, new_overrides)
            if self._subscribers:
                permitted = tuple(safety.shown for safety in intersection.safeties)
                states.append(TlStates(intersection.tl, intersection.requested, permitted))
        self._connection.set(commands)
        for intersection in due:
            intersection.state.due_s = intersection.next_due_s(now)
        return Sent(now, tuple(states), tuple(commands), tuple(overrides))

    def _note_overruled(self, tl: str, overrides: Sequence[Override]) -> None:
        """Note that the safety rules did not follow the newest decision of a TL's policy."""
        for override in overrides:
            if tl not in self._observe_changes or override.reason not in CHANGE_REASONS:
                self._overruled.setdefault(tl, override.reason)

    def _count(self, sent: Sent) -> None:
        for command in sent.commands:
            if isinstance(command, PermittedRelease):
                self._released_at_s[command.signal] = sent.at_s
            else:
                self._released_at_s.pop(command.signal, None)
        for override in sent.overrides:
            self.counters.overrides[override.reason.value] += 1
        self._unpublished.sent.append(sent)

    def _publish(self, state: Callable[[], LoopState] | None = None) -> None:
        """Hand an event to the subscribers. An error in one ends its subscription, not the run."""
        unpublished, self._unpublished = self._unpublished, StepReport()
        times, self._times = self._times, None
        self.sent = unpublished.sent
        if not self._subscribers:
            return
        event = DecisionEvent(
            **vars(unpublished),
            number=self._number,
            at_s=self.now,
            monotonic_s=self._readings_s if self._readings_s is not None else time.monotonic(),
            readings=self._connection.readings,
            times=times,
            state=state,
        )
        self._number += 1
        for subscriber in tuple(self._subscribers):
            try:
                subscriber.add(event)
            except Exception:
                log.exception("an error in %s; it gets no more events of this run", type(subscriber).__name__)
                self._subscribers.remove(subscriber)

    def finish(self) -> None:
        """Check and publish what SUMO has reported since the last step; called before a run ends. Raises as a reading
        does."""
        self._feed_monitors()
        self._publish_rest()

    def close(self) -> None:
        """Publish what is not published yet, and end the subscriptions; SUMO may have ended."""
        self._publish_rest()
        for subscriber in self._subscribers:
            try:
                subscriber.close()
            except Exception:
                log.exception("an error in %s at the end of the run", type(subscriber).__name__)
        self._subscribers.clear()

    def _publish_rest(self) -> None:
        if any(vars(self._unpublished).values()):
            self._publish()

    def _read(self, tls: tuple[str, ...]) -> None:
        """Wait until SUMO has simulated the segments, and read for the TLs that are due there."""
        self._feed_monitors()
        begin = time.perf_counter()
        result = self._connection.read(tls)
        self._sumo_s = time.perf_counter() - begin
        if result.time_s < self.now:
            raise SimulationReplaced(
                f"another client has loaded another simulation or state: time went back to second {result.time_s:g}, "
                "so ages of states and readings are void; start the controller again with each new simulation"
            )
        unconfirmed = (
            [intersection for intersection in self.intersections.values() if intersection.awaits_confirmation]
            if self._released_at_s
            else []
        )
        for signal in result.rejected:
            self._released_at_s.pop(signal, None)
        # a copy: a signal may be taken over again before the monitors are fed
        self._unmonitored = self.now, result.shown, dict(self._released_at_s)
        self.now = result.time_s
        self._observed = self.now, tls
        self._readings_s = time.monotonic()
        for intersection in unconfirmed:
            intersection.confirm_sent(result.rejected)
            if not intersection.is_released and not intersection.awaits_confirmation:
                intersection.state.due_s = self.now  # rejected: send it again
        self.counters.rejections += len(result.rejected)
        self._unpublished.rejected.update(result.rejected)
        self._unpublished.detector_changes.extend(result.detector_changes)

    def _feed_monitors(self) -> None:
        """Feed the monitors with the states that their signals showed up to the newest readings."""
        (begin_s, shown, released_at_s), self._unmonitored = self._unmonitored, (self.now, (), {})
        if (self._monitors or self._subscribers) and begin_s < self.now:
            shown = [*shown, (self.now, tuple(self._connection.shown().values()))]
        for end_s, states in shown:
            if self._subscribers:
                self._unpublished.shown.append(Shown(begin_s, end_s, tuple(states)))
            for monitor, state in zip(self._monitors, states, strict=bool(self._monitors)):
                is_controlled = not released_at_s or released_at_s.get(monitor.signal, math.inf) > begin_s
                alarms = (
                    monitor.check_shown(state, begin_s, end_s)
                    if is_controlled
                    else monitor.follow_program(state, begin_s)
                )
                for alarm in alarms:
                    self._add_alarm(alarm)
            begin_s = end_s

    def _new_batch(self, tls: tuple[str, ...]) -> ObservationBatch:
        return ObservationBatch({tl: self.intersections[tl].observer for tl in tls})

    def _next_sumo_step_s(self, time_s: float) -> float:
        """The end of the first SUMO step that does not end before time_s.

        A command planned for a moment inside a step would take effect late, and a yellow
        counted from that moment would be short.
        """
        sumo_steps = math.ceil(round_to_ms(time_s - self._begin_s) / self._sumo_step_s - 1e-6)
        return round_to_ms(self._begin_s + sumo_steps * self._sumo_step_s)

    def _decide(
        self,
        due: Sequence[Intersection],
        observations: Mapping[str, Observation],
        answers: Mapping[str, Answer | Exception],
        answered_s: float,
    ) -> None:
        readings = self._connection.readings
        for intersection, phase_state in zip(due, self._phase_states, strict=True):
            tl, before = intersection.tl, intersection.mode
            shown = (
                [self._connection.shown().get(safety.signal, safety.shown) for safety in intersection.safeties]
                if intersection.state.is_on_fallback_plan
                else None
            )
            answer = answers.get(tl, NO_ANSWER)
            failure = intersection.apply_answer(answer, self.now, shown, readings)
            intersection.state.due_s = self.now  # an operator may have set its mode between two of its moments
            if failure:
                self.counters.missing_answers[tl] += 1
            else:
                self.counters.decisions += 1
                self.counters.decisions_by_tl[tl] += 1
                if reason := self._overruled.pop(tl, None):
                    self.counters.overruled_by_tl[tl] += 1
                    self.counters.overruled_reason[tl] = reason
            if intersection.mode is ControlMode.FALLBACK and before not in (
                ControlMode.FALLBACK,
                ControlMode.RECOVERING,
            ):
                self.counters.fallbacks += 1
            if self._subscribers:
                self._unpublished.decisions.append(
                    TlDecision(tl, observations[tl], phase_state, answer, failure, before, intersection.mode)
                )
        self._times = StepTimes(
            self._sumo_s, self._observe_s, answered_s - self._observed_at_s, time.perf_counter() - answered_s
        )
        self.counters.decision_steps += 1
        self.counters.times.append(self._times)

    def release(self, end_s: float, abort_requested: Callable[[], bool] = lambda: False) -> None:
        """Hand every signal back through a safe transition. This simulates some seconds more, at most to end_s."""
        self._feed_monitors()
        self._observations = None
        for intersection in self.intersections.values():
            intersection.release()
            intersection.state.due_s = -math.inf
        self._is_releasing, self._counts_outflow = True, False
        while (
            self.now < end_s
            and not abort_requested()
            and not all(intersection.is_released for intersection in self.intersections.values())
        ):
            self.step(min(end_s, self.now + 1.0))

    @property
    def clearing_s(self) -> float:
        """The longest time until every junction is clear, in s."""
        return max(
            (safety.clearing_s for intersection in self.intersections.values() for safety in intersection.safeties),
            default=0.0,
        )

    def unreleased(self) -> list[tuple[str, str]]:
        """(signal, program) of every signal that SUMO has not confirmed to run its own program."""
        return [pair for intersection in self.intersections.values() for pair in intersection.unreleased(self.now)]

    def release_without_transition(self) -> tuple[list[str], list[str]]:
        """Switch signals that are not released to their programs at once, as a last resort.

        Returns the switched signals and those that SUMO rejected.
        """
        switched, rejected = [], []
        for signal, program in self.unreleased():
            try:
                self._connection.switch_program(signal, program)
                switched.append(signal)
            except CommandRejected as error:
                self._unpublished.rejected[signal] = str(error)
                rejected.append(signal)
        return switched, rejected
