"""The decision step: read, observe, choose, permit, apply.

Two round trips whatever the number of TLs: one exchange with SUMO that sends
commands, simulates to the next decision and reads there, and one exchange with the
model server for all TLs that are due (a single Predict if a fleet is served). The
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
- A TL gets its commands at its `_due_s`; segments end at the earliest of these moments.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from city.network import StreetNetwork
from controller.sumo.connection import ONLINE, CommandRejected, SumoConnection
from signals.fallback.control_mode import ControlMode
from signals.intersection import Intersection
from signals.observation import MAX_CACHED_BATCHES, ObservationBatch, Readings, shares_of
from signals.policy import Policies
from signals.safety.monitor import Alarm, MonitorRule, SignalMonitor
from signals.safety.signal_safety import Override, PermittedRelease, SignalCommand
from signals.simulation_time import round_to_ms

MAX_SEGMENTS = 64
"""Segments of one exchange; bounded, so that a stop request need not wait long."""
MAX_KEPT_TIMES = 20_000
"""Wall times kept for percentiles; bounded, so that memory does not grow with the run."""
COUNTING_INTERVAL_S = 1.0
"""Simulated time between two samples of the lanes with counted outflow."""


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
    rejections: int = 0
    """Commands that SUMO rejected."""
    alarms: Counter[str] = field(default_factory=Counter)
    """Alarms of the monitors, by rule."""
    unexpected_states: Counter[str] = field(default_factory=Counter)
    """By signal, readings at which it showed another state than the one that was set."""
    fallbacks: int = 0
    """Times a TL entered its fallback."""
    decision_s: list[float] = field(default_factory=list)
    """Wall time of the newest decision steps, from readings to choices, in s."""
    inference_s: list[float] = field(default_factory=list)
    """Wall time of waiting for the policies in these steps, in s."""
    newest: "StepReport | None" = None
    """Report of the current decision step; None if no TL was due."""

    def add(self, report: "StepReport") -> None:
        self.newest = report
        for times, value in ((self.decision_s, report.decision_s), (self.inference_s, report.inference_s)):
            times.append(value)
            if len(times) > MAX_KEPT_TIMES:
                del times[: MAX_KEPT_TIMES // 2]


@dataclass(frozen=True)
class StepReport:
    """The result of a decision step, and its wall times in s."""

    tls: tuple[str, ...]
    """TLs that were due."""
    missing: dict[str, str]
    """TLs without a valid action, and the reasons."""
    observe_s: float
    inference_s: float
    """Waiting for the policies."""
    apply_s: float
    """Applying their actions, or the fallback."""
    sumo_s: float
    """Waiting for SUMO's answer before the step."""

    @property
    def decision_s(self) -> float:
        """From the readings to the choices."""
        return self.observe_s + self.inference_s + self.apply_s


@dataclass(frozen=True)
class Events:
    """Callbacks for logs and metrics; each may be left out."""

    missing_answer: Callable[[str, str, float], None] = lambda tl, reason, now: None
    override: Callable[[Override, float], None] = lambda override, now: None
    mode_change: Callable[[str, ControlMode, ControlMode, float, str], None] = lambda tl, old, new, now, reason: None
    rejection: Callable[[str, float], None] = lambda reason, now: None
    alarm: Callable[[Alarm], None] = lambda alarm: None
    step: Callable[[RunCounters, float], None] = lambda counters, now: None
    """Once a step, while SUMO simulates."""
    readings: Callable[[tuple[str, ...], Readings, float], None] = lambda tls, readings, now: None
    """After the decisions of a step, before `step`: the TLs that were read, the readings, and their second."""
    shown: Callable[[Sequence[str], float, float], None] = lambda states, begin_s, end_s: None
    """The states of all signals in each segment, one reading late."""


class MissingAnswer(Exception):
    """The policies gave no answer for this TL."""


NO_ANSWER = MissingAnswer("no answer")


class DecisionLoop:
    """Runs the decision steps of all TLs of a run."""

    def __init__(
        self,
        connection: SumoConnection,
        intersections: Sequence[Intersection],
        policies: Policies,
        street: StreetNetwork,
        events: Events,
        now: float,
        sumo_step_s: float,
        monitors: Sequence[SignalMonitor] = (),
        counts_outflow: bool = False,
    ) -> None:
        """Prepare the first step.

        Args:
            connection: must track the lanes and signals of these TLs.
            intersections: the TLs.
            policies: source of the actions.
            street: lane lengths.
            events: callbacks.
            now: simulated second at which the run begins.
            sumo_step_s: SUMO's step length.
            monitors: one per signal, in the connection's order.
            counts_outflow: whether lanes must be sampled every second.
        """
        self.counters = RunCounters()
        self.intersections = {intersection.tl: intersection for intersection in intersections}
        self._connection, self._policies, self._events = connection, policies, events
        self._length_m = np.array([street.lane_length_m[lane] for lane in connection.lanes])
        self._counts_outflow = counts_outflow
        self._due_s = {intersection.tl: -math.inf for intersection in intersections}
        self.now = self._begin_s = now
        self._sumo_step_s = sumo_step_s
        self._monitors = list(monitors)
        self._unmonitored: tuple[float, Sequence[tuple[float, Sequence[str]]], dict[str, float]] = (now, (), {})
        """What is not fed to the monitors yet: (begin in s, states shown since then, `_released_at_s` of that time)."""
        self._released_at_s: dict[str, float] = {}
        """By signal, since when it runs its own program, which is not monitored."""
        self._readings_s: float | None = None
        """When the newest readings arrived (time.monotonic)."""
        self._sumo_s = 0.0
        """Wall time of waiting for the newest readings."""
        self._observed: tuple[float, Sequence[Intersection]] | None = None
        """The second of the newest readings, and the TLs for which lanes were read."""
        self._read_for: tuple[str, ...] = ()
        self._overruled: set[str] = set()
        """TLs with an override since the last decision of their policy."""
        self._batches: dict[tuple[str, ...], ObservationBatch] = {}

    def step(self, end_s: float) -> None:
        """Run a decision step: decide for the TLs that are due now, then simulate to the next decision, at most to end_s."""
        self.counters.newest = None
        due = [intersection for intersection in self.intersections.values() if intersection.next_decision_s <= self.now]
        if due:
            if self._observed != (self.now, due):
                self._read(due)
            self._decide(due)
        self._correct_shown()
        self._correct_released(due)
        time_s = self.now
        for segment in range(MAX_SEGMENTS):
            sent_s = time_s
            commands, overrides = self._send_commands(sent_s)
            until_s = min(end_s, min(self._due_s.values()))
            if self._counts_outflow:
                until_s = min(until_s, math.floor(time_s / COUNTING_INTERVAL_S) * COUNTING_INTERVAL_S + COUNTING_INTERVAL_S)
            time_s = self._next_sumo_step_s(until_s)
            self._connection.advance(time_s)
            # SUMO simulates meanwhile, so this does not delay the next decision
            self._count_and_report(commands, overrides, sent_s)
            self.feed_monitors()
            if segment == 0:
                if self.counters.newest is not None:
                    self._events.readings(self.counters.newest.tls, self._connection.readings, self.now)
                self._events.step(self.counters, self.now)
            due = [intersection for intersection in self.intersections.values() if intersection.next_decision_s <= time_s]
            if due or time_s >= end_s:
                break
        self._read(due)

    def _correct_shown(self) -> None:
        """Compare the states that SUMO shows with those sent: another client may have set a signal.

        Runs after the policies' answers, so that SUMO's states have arrived meanwhile, and
        before new commands, which must start from the shown states.
        """
        shown = self._connection.shown()
        for intersection in self.intersections.values():
            for signal, sent, state in intersection.correct(shown, self.now):
                message = f"shows {state}, but {sent} was set; another client sets this signal too"
                self._report_unexpected(intersection, signal, message)

    def _correct_released(self, due: Sequence[Intersection]) -> None:
        """Release signals again that should run their own programs but are frozen in a state that another client set."""
        released = {signal: intersection for intersection in due for signal in intersection.released_signals}
        if not released:
            return
        for signal, program in self._connection.programs(list(released)).items():
            if program == ONLINE:
                intersection, state = released[signal], self._connection.shown()[signal]
                intersection.release_again(signal, state, self.now)
                self._report_unexpected(intersection, signal, f"shows {state}, which another client set in place of its program")

    def _report_unexpected(self, intersection: Intersection, signal: str, message: str) -> None:
        self._due_s[intersection.tl] = self.now
        self.counters.unexpected_states[signal] += 1
        self.counters.alarms[MonitorRule.UNEXPECTED_STATE.value] += 1
        self._events.alarm(Alarm(signal, MonitorRule.UNEXPECTED_STATE, self.now, message))

    def _send_commands(self, now: float) -> tuple[list[SignalCommand], list[Override]]:
        """Send the commands that are due at second `now`, and update when these TLs are due next."""
        commands: list[SignalCommand] = []
        overrides: list[Override] = []
        due = [intersection for intersection in self.intersections.values() if self._due_s[intersection.tl] <= now]
        for intersection in due:
            new_commands, new_overrides = intersection.commands(now)
            commands += new_commands
            overrides += new_overrides
            if new_overrides and intersection.mode is ControlMode.POLICY:
                self._overruled.add(intersection.tl)
        self._connection.set(commands)
        for intersection in due:
            self._due_s[intersection.tl] = intersection.next_due_s(now)
        return commands, overrides

    def _count_and_report(self, commands: Sequence[SignalCommand], overrides: Sequence[Override], now: float) -> None:
        """Count and report the commands and overrides of second `now`."""
        for command in commands:
            if isinstance(command, PermittedRelease):
                self._released_at_s[command.signal] = now
            else:
                self._released_at_s.pop(command.signal, None)
        for override in overrides:
            self.counters.overrides[override.reason.value] += 1
            self._events.override(override, now)

    def _read(self, due: Sequence[Intersection]) -> None:
        """Wait until SUMO has simulated the segments, and read for the TLs that are due there."""
        self._read_for = tuple(intersection.tl for intersection in due)
        self.feed_monitors()
        begin = time.perf_counter()
        result = self._connection.read(self._read_for)
        self._sumo_s = time.perf_counter() - begin
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
        self._observed = self.now, due
        self._readings_s = time.monotonic()
        for intersection in unconfirmed:
            intersection.confirm_sent(result.rejected)
            if not intersection.is_released and not intersection.awaits_confirmation:
                self._due_s[intersection.tl] = self.now  # rejected: send it again
        for signal, reason in result.rejected.items():
            self.counters.rejections += 1
            self._events.rejection(f"{signal}: {reason}", self.now)

    def feed_monitors(self) -> None:
        """Feed the monitors with the states that their signals showed up to the newest readings."""
        (begin_s, shown, released_at_s), self._unmonitored = self._unmonitored, (self.now, (), {})
        if self._monitors and begin_s < self.now:
            shown = [*shown, (self.now, tuple(self._connection.shown().values()))]
        for end_s, states in shown:
            self._events.shown(states, begin_s, end_s)
            for monitor, state in zip(self._monitors, states, strict=True):
                is_controlled = not released_at_s or released_at_s.get(monitor.signal, math.inf) > begin_s
                alarms = monitor.check_shown(state, begin_s, end_s) if is_controlled else monitor.follow_program(state, begin_s)
                for alarm in alarms:
                    self.counters.alarms[alarm.rule.value] += 1
                    self._events.alarm(alarm)
            begin_s = end_s

    def _batch(self, due: Sequence[Intersection]) -> ObservationBatch:
        if self._read_for not in self._batches:
            if len(self._batches) > MAX_CACHED_BATCHES:
                self._batches.clear()
            self._batches[self._read_for] = ObservationBatch({intersection.tl: intersection.observer for intersection in due})
        return self._batches[self._read_for]

    def _next_sumo_step_s(self, time_s: float) -> float:
        """The end of the first SUMO step that does not end before time_s.

        A command planned for a moment inside a step would take effect late, and a yellow
        counted from that moment would be short.
        """
        sumo_steps = math.ceil(round_to_ms(time_s - self._begin_s) / self._sumo_step_s - 1e-6)
        return round_to_ms(self._begin_s + sumo_steps * self._sumo_step_s)

    def _decide(self, due: Sequence[Intersection]) -> None:
        begin = time.perf_counter()
        readings = self._connection.readings
        shares = shares_of(readings, self._length_m)
        observations = self._batch(due).observe(readings, shares, [intersection.phase_state(self.now) for intersection in due])
        observed = time.perf_counter()
        answers = self._policies.ask(observations, self._readings_s)
        answered = time.perf_counter()
        missing: dict[str, str] = {}
        for intersection in due:
            before = intersection.mode
            shown = (
                [self._connection.shown().get(safety.signal, safety.shown) for safety in intersection.safeties]
                if intersection.is_on_fallback_plan
                else None
            )
            failure = intersection.apply_answer(answers.get(intersection.tl, NO_ANSWER), self.now, shown, readings)
            if failure:
                missing[intersection.tl] = failure
                self.counters.missing_answers[intersection.tl] += 1
                self._events.missing_answer(intersection.tl, failure, self.now)
            else:
                self.counters.decisions += 1
                self.counters.decisions_by_tl[intersection.tl] += 1
                if intersection.tl in self._overruled:
                    self._overruled.discard(intersection.tl)
                    self.counters.overruled_by_tl[intersection.tl] += 1
            if intersection.mode is not before:
                self._events.mode_change(intersection.tl, before, intersection.mode, self.now, failure)
                self.counters.fallbacks += intersection.mode is ControlMode.FALLBACK and before is not ControlMode.RECOVERING
        self.counters.decision_steps += 1
        applied = time.perf_counter()
        self.counters.add(
            StepReport(tuple(observations), missing, observed - begin, answered - observed, applied - answered, self._sumo_s)
        )

    def release(self, end_s: float, abort_requested: Callable[[], bool] = lambda: False) -> None:
        """Hand every signal back through a safe transition. This simulates some seconds more, at most to end_s."""
        self.feed_monitors()
        for intersection in self.intersections.values():
            intersection.release()
            self._due_s[intersection.tl] = -math.inf
        self._counts_outflow = False
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
            (safety.clearing_s for intersection in self.intersections.values() for safety in intersection.safeties), default=0.0
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
                self._events.rejection(f"{signal}: {error}", self.now)
                rejected.append(signal)
        return switched, rejected
