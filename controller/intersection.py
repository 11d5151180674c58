"""One TL: what its policy sees, wants and may show. Pure; time is passed in.

Everything that a decision step does to a TL goes through here, for the
controller and for a trainer alike.
"""

import math
from collections.abc import Container, Sequence

from city.config import Controller as ControllerConfig
from controller import failover
from controller.failover import Ladder, Rung
from controller.fallback import Plan, PlanEntry
from controller.max_pressure import MaxPressure
from controller.observation import Clockwork, Observation, Observer, Readings, Shares
from controller.policy import ActionSpace, BadAction
from controller.safety import Override, PermittedHandover, PermittedState, SignalSafety
from controller.signal_timing import SignalTiming
from controller.simulation_time import ms
from protos import policy_pb2 as pb

PROBE_S = 2.0
"""A TL whose policy does not answer asks it at every multiple of this: all of them at once, in one Predict."""
CHECK_S = 1.0
"""A wish that is not permitted yet is looked at again after this long."""

Setting = PermittedState | PermittedHandover


class Intersection:
    """A TL with its contract, observer, clockwork, ladder and safety rules."""

    def __init__(
        self,
        policy: pb.Policy,
        observer: Observer,
        timing: SignalTiming,
        safeties: Sequence[SignalSafety],
        plans: Sequence[Plan],
        config: ControllerConfig,
        pressure: MaxPressure | None = None,
    ) -> None:
        """`plans`: by signal the program that is its fixed plan. `pressure`: what controls in place of the plans."""
        self.tl = policy.tl
        self.policy = policy
        self._space = ActionSpace(policy)
        self.safeties = tuple(safeties)
        self.ladder = Ladder()
        self.next_decision_s = -math.inf
        self.observer = observer
        self._timing = timing
        self._clockwork: SignalTiming | MaxPressure = timing
        """What wishes come from."""
        self.plans = tuple(plans)
        self._config = config
        self._pressure = pressure
        self._entries: list[PlanEntry] | None = None
        self._plan_by_s: float | None = None
        """By when the way to the plan must begin, once the ladder is there."""
        self._wishes: tuple[str, ...] = ()
        self._sent: list[PermittedState | None] = [None] * len(self.safeties)

    def start(self, now: float, shown: Sequence[str]) -> None:
        """Take the signals over as they show; the first decision is due now."""
        for safety, state in zip(self.safeties, shown, strict=True):
            safety.adopt(state, now)
        self._take_over(now, start=True)
        self.next_decision_s = now

    def _take_over(self, now: float, start: bool) -> None:
        self._timing.enter(now, [safety.shown for safety in self.safeties], start)
        self._entries = None
        self._sent = [None] * len(self.safeties)

    @property
    def on_plan(self) -> bool:
        """Whether the signals run their own programs, or are on the way there."""
        return self._entries is not None

    def observe(self, readings: Readings, shared: Shares, now: float) -> Observation:
        """float32 [O], as the contract describes it."""
        return self.observer.observe(readings, shared, *self.seen(now))

    def seen(self, now: float) -> Clockwork:
        """(phases, whether min green has passed): what an observation holds of the TL's own clockwork."""
        return self._timing.phases(now), self._timing.min_green_passed(now)

    def take(self, answer: object, now: float, shown: Sequence[str] | None = None, readings: Readings | None = None) -> str:
        """Take the answer to a question of second `now`: an action, or an exception.

        `shown`: the states that SUMO shows, needed where the TL runs its plan;
        `readings`: of this moment, needed where max-pressure is its fallback.
        Returns why the answer is no decision, or "".
        """
        failure = ""
        action = None
        try:
            if isinstance(answer, Exception):
                failure = f"{type(answer).__name__}: {answer}"
            else:
                action = self._space.checked(answer)
        except (BadAction, TypeError, ValueError) as error:
            failure = f"{type(error).__name__}: {error}"
        # a policy that decides and goes on doing so changes nothing of who is in control
        if action is None or self.ladder.rung is not Rung.SERVED:
            self.ladder = failover.step(self.ladder, action is not None, now, self._config.hold_s, self._config.probes)
            if self.ladder.plan_runs:
                self._see_plan(now, shown)
                self._run_plan(now, readings)
                return failure
            self._leave_plan(now, shown)
        if action is not None and self._timing.decides_at(now):
            try:
                self._timing.decide(now, action)
            except (IndexError, ValueError) as error:
                # a contract that contradicts itself is refused at the start; if one slips through, the street goes on
                failure = f"the action cannot be taken: {error}"
            self.observer.decided()
        self.next_decision_s = ms(self._timing.next_decision_s(now))
        if self.ladder.rung is Rung.HOLD:
            # plan-based policies decide minutes apart: the ladder must not wait for that
            self.next_decision_s = min(self.next_decision_s, _next_probe_s(now))
        return failure

    def _see_plan(self, now: float, shown: Sequence[str] | None) -> None:
        if self._entries is not None and shown is not None:
            for safety, state in zip(self.safeties, shown, strict=True):
                safety.see(state, now)

    def _run_plan(self, now: float, readings: Readings | None) -> None:
        self.next_decision_s = _next_probe_s(now)
        if self._pressure is not None and self._entries is None and readings is not None:
            if self._clockwork is not self._pressure:
                self._clockwork = self._pressure
                self._pressure.enter(now, [safety.shown for safety in self.safeties])
            self._pressure.decide(now, readings)
            self.next_decision_s = min(self.next_decision_s, self._pressure.next_decision_s)
        elif self._entries is None and not self._serves(now):
            self._enter_plan()

    def _serves(self, now: float) -> bool:
        """Whether somebody is still served for having waited too long.

        A TL that comes and goes would begin that each time, and never get to the
        green. There is time for one green, and not for ever: others may wait too.
        """
        if self._plan_by_s is None:
            self._plan_by_s = ms(now + 2 * max(safety.clearing_s for safety in self.safeties))
        return now < self._plan_by_s and any(safety.serves for safety in self.safeties)

    def _leave_plan(self, now: float, shown: Sequence[str] | None) -> None:
        """Take over from whatever was in control, if anything was."""
        self._plan_by_s = None
        if self._clockwork is not self._timing:
            self._clockwork = self._timing
            self._timing.enter(now, [safety.shown for safety in self.safeties])
        if self._entries is not None:
            # one that has not been handed over shows what it was told to, and its ages are known
            for safety, entry, state in zip(self.safeties, self._entries, shown or (), strict=shown is not None):
                if entry.done:
                    safety.adopt(state, now)
            self._take_over(now, start=False)

    def release(self) -> None:
        """Begin the way back to the signals' own programs, for good."""
        if self._entries is None:
            self._enter_plan()
        self.next_decision_s = math.inf

    @property
    def released(self) -> bool:
        """Whether SUMO has confirmed that every signal runs its own program."""
        return self._entries is not None and all(entry.done for entry in self._entries)

    @property
    def handing_over(self) -> bool:
        """Whether a handover waits for SUMO's word."""
        return self._entries is not None and any(entry.handed and not entry.done for entry in self._entries)

    def confirm(self, refused: Container[str]) -> None:
        """SUMO has taken what was sent, but for the signals it refused."""
        for safety, entry in zip(self.safeties, self._entries or (), strict=False):
            entry.confirm(safety.signal in refused)

    def unreleased(self) -> list[tuple[str, str]]:
        """(signal, program) of the signals that do not run their own programs."""
        return [
            (safety.signal, plan.program.id)
            for k, (safety, plan) in enumerate(zip(self.safeties, self.plans, strict=True))
            if self._entries is None or not self._entries[k].done
        ]

    def _enter_plan(self) -> None:
        self._entries = [PlanEntry(safety, plan) for safety, plan in zip(self.safeties, self.plans, strict=True)]

    def settings(self, now: float) -> tuple[list[Setting], list[Override]]:
        """What must be set at second `now`: only states that differ from those sent before."""
        news: list[Setting] = []
        overrides: list[Override] = []
        if self._entries is not None:
            for k, entry in enumerate(self._entries):
                setting, more = entry.next(now)
                overrides += more
                if setting is not None and setting is not self._sent[k]:
                    news.append(setting)
                    self._sent[k] = setting if isinstance(setting, PermittedState) else None
            return news, overrides
        self._wishes = self._clockwork.wishes(now)
        for k, (safety, wish) in enumerate(zip(self.safeties, self._wishes, strict=True)):
            state, more = safety.permit(wish, now)
            overrides += more
            if state is not self._sent[k]:
                news.append(state)
                self._sent[k] = state
        return news, overrides

    def next_due_s(self, now: float) -> float:
        """The next moment at which this TL needs a step, after its settings of `now`."""
        if self._entries is not None:
            return min(self.next_decision_s, math.inf if all(entry.handed for entry in self._entries) else ms(now + CHECK_S))
        due = min(self.next_decision_s, self._clockwork.next_change_s(now))
        for safety, wish in zip(self.safeties, self._wishes, strict=True):
            if not safety.settled(wish):
                return min(due, ms(now + CHECK_S))
            if safety.overdue_s < due:
                due = max(safety.overdue_s, ms(now + CHECK_S))
        return due


def _next_probe_s(now: float) -> float:
    return ms((math.floor(now / PROBE_S) + 1) * PROBE_S)
