"""The decision step: read, observe, choose, permit, apply.

Two round trips whatever the number of TLs: one exchange with SUMO that sets,
simulates to the next decision and reads there, and one Predict for every TL
that is due. SUMO simulates each part of the way while the next is computed.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from city.network import StreetNetwork
from controller.failover import Rung
from controller.intersection import Intersection
from controller.monitor import Alarm, SignalMonitor
from controller.observation import ObservationBatch, shares
from controller.policy import Policies
from controller.safety import Override, PermittedHandover
from controller.simulation_time import ms
from controller.sumo.link import Link, Setting, SumoRefused

MOST_LEGS = 64
"""Parts of the way in one exchange at most, so that somebody who stops the controller need not wait long."""


@dataclass
class Tally:
    """What a run did; counts since the start."""

    decisions: int = 0
    """Actions taken, one per TL and decision moment."""
    steps: int = 0
    """Decision steps: moments at which at least one TL was due."""
    failures: Counter[str] = field(default_factory=Counter)
    """By TL: answers that were no decision."""
    overrides: Counter[str] = field(default_factory=Counter)
    """By reason."""
    refusals: int = 0
    alarms: Counter[str] = field(default_factory=Counter)
    """Of the monitor, by rule: what really was shown and must not have been."""
    decision_s: list[float] = field(default_factory=list)
    """Wall time of the newest decision steps, from readings to choices, in s."""
    inference_s: list[float] = field(default_factory=list)
    """Of these, waiting for the policies."""

    plan_entries: int = 0
    """Times a TL went onto its fixed plan."""
    newest: tuple[float, float] | None = None
    """(decision, inference) wall time of the step just taken, in s; None: nothing was due."""

    def timed(self, decision_s: float, inference_s: float) -> None:
        self.newest = decision_s, inference_s
        for times, value in ((self.decision_s, decision_s), (self.inference_s, inference_s)):
            times.append(value)
            if len(times) > 20_000:
                del times[:10_000]  # a daemon's memory must not grow with its age


@dataclass(frozen=True)
class Events:
    """Called with what happened, for logs and metrics; each may be left out."""

    failure: Callable[[str, str, float], None] = lambda tl, why, now: None
    override: Callable[[Override, float], None] = lambda override, now: None
    rung: Callable[[str, Rung, Rung, float, str], None] = lambda tl, old, new, now, why: None
    refusal: Callable[[str, float], None] = lambda why, now: None
    alarm: Callable[[Alarm], None] = lambda alarm: None
    meanwhile: Callable[[Tally, float], None] = lambda tally, now: None
    """Once a step, while SUMO simulates: what need not hold up a decision."""


class MissingAnswer(Exception):
    """The policies gave no answer for this TL."""


NO_ANSWER = MissingAnswer("no answer")


class DecisionSteps:
    """All TLs of a run and the link to their street."""

    def __init__(
        self,
        link: Link,
        intersections: Sequence[Intersection],
        policies: Policies,
        street: StreetNetwork,
        events: Events,
        now: float,
        step_s: float,
        monitors: Sequence[SignalMonitor] = (),
    ) -> None:
        """`now`: simulated second at which the run begins; `step_s`: SUMO's step length; `monitors`: as the link watches them."""
        self.tally = Tally()
        self.intersections = {x.tl: x for x in intersections}
        self._link, self._policies, self._events = link, policies, events
        self._length_m = np.array([street.lane_length_m[lane] for lane in link.lanes])
        self._sampled = any(x.policy.observation.state in ("v", "vd", "vdd") for x in intersections)
        self._due_s = {x.tl: -math.inf for x in intersections}
        self.now = self._begin_s = now
        self._step_s = step_s
        self._monitors = list(monitors)
        self._unwatched: tuple[float, Sequence[tuple[float, Sequence[str]]], dict[str, float]] = (now, (), {})
        """(from when, states on the way to now, since when signals run their own programs): what monitors have not seen yet."""
        self._handed_s: dict[str, float] = {}
        """Since when a signal runs its own program, which nobody watches."""
        self._observed_s: float | None = None
        """When the newest readings came (time.monotonic)."""
        self._has_read: tuple[float, Sequence[Intersection]] | None = None
        """When, and for whom."""
        self._wanted: tuple[str, ...] = ()
        """The TLs of the newest readings."""
        self._batches: dict[tuple[str, ...], ObservationBatch] = {}

    def step(self, end_s: float) -> None:
        """One decision step: what is due now, then on to the next decision, at most to end_s."""
        self.tally.newest = None
        due = [x for x in self.intersections.values() if x.next_decision_s <= self.now]
        if due:
            if self._has_read != (self.now, due):
                self._read(due)
            self._decide(due)
        time_s = self.now
        for leg in range(MOST_LEGS):
            set_s = time_s
            settings, overrides = self._set(set_s)
            until = min(end_s, min(self._due_s.values()))
            if self._sampled:
                until = min(until, math.floor(time_s) + 1.0)
            time_s = self._on_step(until)
            self._link.go(time_s)
            # while SUMO simulates: what must not make the next decision later
            self._note(settings, overrides, set_s)
            self.watch()
            if leg == 0:
                self._events.meanwhile(self.tally, self.now)
            due = [x for x in self.intersections.values() if x.next_decision_s <= time_s]
            if due or time_s >= end_s:
                break
        self._read(due)

    def _set(self, now: float) -> tuple[list[Setting], list[Override]]:
        """Set what must be set at second `now`, and see when something must be next."""
        settings: list[Setting] = []
        overrides: list[Override] = []
        due = [x for x in self.intersections.values() if self._due_s[x.tl] <= now]
        for x in due:
            news, more = x.settings(now)
            settings += news
            overrides += more
        self._link.set(settings)
        for x in due:
            self._due_s[x.tl] = x.next_due_s(now)
        return settings, overrides

    def _note(self, settings: Sequence[Setting], overrides: Sequence[Override], now: float) -> None:
        """Keep and tell what was set at second `now`."""
        for setting in settings:
            if isinstance(setting, PermittedHandover):
                self._handed_s[setting.signal] = now
            else:
                self._handed_s.pop(setting.signal, None)
        for override in overrides:
            self.tally.overrides[override.reason.value] += 1
            self._events.override(override, now)

    def _read(self, due: Sequence[Intersection]) -> None:
        """Wait for SUMO to be where it was sent, and read for the TLs that are due there."""
        self._wanted = tuple(x.tl for x in due)
        self.watch()
        moment = self._link.read(self._wanted)
        handing_over = [x for x in self.intersections.values() if x.handing_over] if self._handed_s else []
        for signal in moment.refusals:
            self._handed_s.pop(signal, None)
        # what is on its plan may not be any more when this is looked at
        self._unwatched = self.now, moment.seen, dict(self._handed_s)
        self.now = moment.time_s
        self._has_read = self.now, due
        self._observed_s = time.monotonic()
        for x in handing_over:
            x.confirm(moment.refusals)
            if not x.released and not x.handing_over:
                self._due_s[x.tl] = self.now  # refused: it is tried again
        for signal, why in moment.refusals.items():
            self.tally.refusals += 1
            self._events.refusal(f"{signal}: {why}", self.now)

    def watch(self) -> None:
        """Show the monitors what their signals showed up to the newest reading."""
        (begin_s, seen, handed_s), self._unwatched = self._unwatched, (self.now, (), {})
        if self._monitors and begin_s < self.now:
            seen = [*seen, (self.now, tuple(self._link.shown().values()))]
        for end_s, states in seen:
            for monitor, state in zip(self._monitors, states, strict=True):
                is_ours = not handed_s or handed_s.get(monitor.signal, math.inf) > begin_s
                for alarm in monitor.see(state, begin_s, end_s) if is_ours else monitor.see_plan(state, begin_s):
                    self.tally.alarms[alarm.rule.value] += 1
                    self._events.alarm(alarm)
            begin_s = end_s

    def _batch(self, due: Sequence[Intersection]) -> ObservationBatch:
        if self._wanted not in self._batches:
            if len(self._batches) > 256:
                self._batches.clear()
            self._batches[self._wanted] = ObservationBatch({x.tl: x.observer for x in due})
        return self._batches[self._wanted]

    def _on_step(self, time_s: float) -> float:
        """The first moment, not before time_s, at which SUMO will really stop.

        What is planned for a moment between two steps would take effect late, and
        a yellow that counts from the plan would be short.
        """
        return ms(self._begin_s + math.ceil(ms(time_s - self._begin_s) / self._step_s - 1e-6) * self._step_s)

    def _decide(self, due: Sequence[Intersection]) -> None:
        start = time.perf_counter()
        readings = self._link.readings
        shared = shares(readings, self._length_m)
        observations = self._batch(due).observe(readings, shared, [x.seen(self.now) for x in due])
        asked = time.perf_counter()
        answers = self._policies.ask(observations, self._observed_s)
        answered = time.perf_counter()
        for x in due:
            before = x.ladder.rung
            states = [self._link.shown().get(safety.signal, safety.shown) for safety in x.safeties] if x.on_plan else None
            failure = x.take(answers.get(x.tl, NO_ANSWER), self.now, states, readings)
            if failure:
                self.tally.failures[x.tl] += 1
                self._events.failure(x.tl, failure, self.now)
            else:
                self.tally.decisions += 1
            if x.ladder.rung is not before:
                self._events.rung(x.tl, before, x.ladder.rung, self.now, failure)
                self.tally.plan_entries += x.ladder.rung is Rung.PLAN and before is not Rung.PROBING
        self.tally.steps += 1
        self.tally.timed(time.perf_counter() - start, answered - asked)

    def release(self, end_s: float, hurry: Callable[[], bool] = lambda: False) -> None:
        """Hand every signal back through a safe transition; simulates some seconds more, at most to end_s."""
        self.watch()
        for x in self.intersections.values():
            x.release()
            self._due_s[x.tl] = -math.inf
        self._sampled = False
        while self.now < end_s and not hurry() and not all(x.released for x in self.intersections.values()):
            self.step(min(end_s, self.now + 1.0))

    @property
    def clearing_s(self) -> float:
        """The longest that it takes until every junction is clear, in s."""
        return max((safety.clearing_s for x in self.intersections.values() for safety in x.safeties), default=0.0)

    def unreleased(self) -> list[tuple[str, str]]:
        """(signal, program) of every signal that SUMO has not confirmed to run its own program."""
        return [pair for x in self.intersections.values() for pair in x.unreleased()]

    def switch_back(self) -> tuple[list[str], list[str]]:
        """Hand back at once what is not released: the last resort.

        Returns the signals it had to do so for, and those that SUMO refused.
        """
        done, refused = [], []
        for signal, program in self.unreleased():
            try:
                self._link.switch_program(signal, program)
                done.append(signal)
            except SumoRefused as error:
                self._events.refusal(f"{signal}: {error}", self.now)
                refused.append(signal)
        return done, refused
