"""One TL: its observations, requested states and permitted states. Pure; time is passed in.

Everything that a decision step does to a TL goes through `Intersection`.
"""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from city.config import Controller as ControllerSettings
from protos import policy_pb2 as pb
from serving.contract import CATEGORICAL
from signals.fallback.control_mode import ControlMode, ModeState, OperatorMode, next_mode, operator_mode
from signals.fallback.plan import FallbackSchedule, PlanTransition
from signals.fallback.scored_greens import ScoredGreens
from signals.green_phases import GreenPhaseSequencer
from signals.observation import Observation, Observer, PhaseSequencer, PhaseState, Readings, SavedState, Shares
from signals.policy import ActionSpace, Answer, InvalidAction
from signals.safety.signal_safety import (
    RECHECK_INTERVAL_S,
    Override,
    SignalCommand,
    SignalSafety,
    SignalState,
)
from signals.simulation_time import round_to_ms

RECOVERY_INTERVAL_S = 2.0
"""In fallback the policy is queried at every multiple of this: for all such TLs at once, in one Predict."""


class StateSource(IntEnum):
    """The part of a TL that its requested states come from."""

    POLICY = 0
    MAX_PRESSURE = 1
    DRIVER = 2


@dataclass
class IntersectionState(SavedState):
    """A TL between two steps."""

    observer: SavedState | None
    sequencer: SavedState | None
    max_pressure: SavedState | None
    driver: SavedState | None
    signals: list[SignalState]
    mode_state: ModeState = ModeState()  # noqa: RUF009 - immutable
    next_decision_s: float = -math.inf
    due_s: float = -math.inf
    """When it needs commands next."""
    source: StateSource = StateSource.POLICY
    requested: tuple[str, ...] = ()
    is_on_fallback_plan: bool = False
    """True if the signals run their own programs, or are on the way there."""
    enter_plan_by_s: float | None = None
    """When the transition to the plan must begin at the latest, once the mode is FALLBACK."""


class Intersection:
    """A TL with its contract, observer, phase sequencer, control mode and safety rules."""

    def __init__(
        self,
        contract: pb.PolicyContract,
        observer: Observer,
        sequencer: PhaseSequencer,
        safeties: Sequence[SignalSafety],
        plans: Sequence[FallbackSchedule],
        config: ControllerSettings,
        max_pressure: ScoredGreens | None = None,
        driver: ScoredGreens | None = None,
    ) -> None:
        """Put a TL together.

        Args:
            contract: the policy contract.
            observer, sequencer: of the contract's dialect.
            safeties: by signal, in the contract's order.
            plans: fallback plans by signal.
            config: [controller] of city.toml.
            max_pressure: controls in fallback; without it, the fallback plans run.
            driver: controls in the place of a policy, so that no policy is asked.
        """
        self.tl = contract.tl
        self.contract = contract
        self._action_space = ActionSpace(contract)
        self.safeties = tuple(safeties)
        self.observer = observer
        self._policy_sequencer = sequencer
        self._sources: tuple[Any, ...] = (sequencer, max_pressure, driver)
        """By `StateSource`."""
        self.plans = tuple(plans)
        self._config = config
        self._max_pressure = max_pressure
        self._driver = driver
        self._transitions = [PlanTransition(*pair) for pair in zip(self.safeties, self.plans, strict=True)]
        self.state = IntersectionState(
            observer=_state_of(observer),
            sequencer=_state_of(sequencer),
            max_pressure=_state_of(max_pressure),
            driver=_state_of(driver),
            signals=[safety.state for safety in self.safeties],
        )

    @property
    def mode(self) -> ControlMode:
        return self.state.mode_state.mode

    @property
    def has_policy(self) -> bool:
        """True if a policy is asked; if not, a driver controls."""
        return self._driver is None

    @property
    def control_name(self) -> str:
        """The TL's control in log lines: the control mode, or the driver in the place of a policy."""
        if self._driver is None or self.state.mode_state.by_operator:
            return self.mode.name
        return self._driver.name.upper()

    def start(self, now: float, shown: Sequence[str], forces_first: bool = False) -> None:
        """Start from the states that the signals show; the first decision is due now.

        `forces_first`: show the dialect's first states at once, without a transition from the shown ones.
        """
        for safety, state in zip(self.safeties, shown, strict=True):
            safety.start_from(state, now)
        self._take_over(now, start=True)
        if self._driver is not None:
            self.state.source = StateSource.DRIVER
            self._driver.enter(now, shown)
        elif forces_first:
            for safety, state in zip(self.safeties, self._policy_sequencer.requested_states(now), strict=True):
                if safety.rules.violation(state) is None:
                    safety.start_from(state, now)
        self.state.next_decision_s = now

    def _take_over(self, now: float, start: bool) -> None:
        self._policy_sequencer.enter(now, [safety.shown for safety in self.safeties], start)
        self.state.is_on_fallback_plan = False
        for signal, transition in zip(self.state.signals, self._transitions, strict=True):
            signal.is_sent = False
            transition.restart()

    @property
    def requested(self) -> tuple[str, ...]:
        """The states requested last, by signal; empty while the signals run their programs, or are on the way there."""
        return () if self.state.is_on_fallback_plan else self.state.requested

    def observe(self, readings: Readings, shares: Shares, now: float) -> Observation:
        """float32 [O], as the contract describes it."""
        return self.observer.observe(readings, shares, self.phase_state(now))

    def decides_at(self, now: float) -> bool:
        """True if an answer at second `now` is a decision; if not, it only shows that the policy is available."""
        return self.mode is ControlMode.POLICY and self._policy_sequencer.decides_at(now)

    def action_mask(self, now: float) -> list[bool] | None:
        """By choice of a categorical policy, True if the safety rules let it be followed at second `now`; None for
        other actions."""
        sequencer = self._policy_sequencer
        if isinstance(sequencer, GreenPhaseSequencer):
            choices = sequencer.choices(now)
            mask = [may_begin and self.safeties[0].allows(green, now) for green, may_begin in choices]
            # a service that the rules force and no policy can choose: what it chooses is not followed
            return mask if any(mask) else [k == sequencer.state.green for k in range(len(mask))]
        return [True] * self.contract.action.size if self.contract.action.kind == CATEGORICAL else None

    def phase_state(self, now: float) -> PhaseState:
        return self._policy_sequencer.phase_state(now)

    def apply_answer(
        self,
        answer: Answer | Exception,
        now: float,
        shown: Sequence[str] | None = None,
        readings: Readings | None = None,
    ) -> str:
        """Apply the policy's answer to the observation of second `now`.

        Args:
            answer: the answer, or an exception if there is none.
            now: simulated second.
            shown: states that SUMO shows, by signal; needed while the fallback plan runs.
            readings: readings of second `now`; needed by observers that count from the last decision, by max-pressure
                as the fallback, and by a driver.

        Returns:
            Why the answer is not a valid action, or "". In fallback a valid action is not followed. A driver
            decides by the readings, and there is no answer.
        """
        if self._driver is not None and readings is not None:
            self._drive(self._driver, now, shown, readings)
            return ""
        failure = ""
        action = None
        try:
            if isinstance(answer, Exception):
                failure = f"{type(answer).__name__}: {answer}"
            else:
                action = self._action_space.validated(answer.action)
        except (InvalidAction, TypeError, ValueError) as error:
            failure = f"{type(error).__name__}: {error}"
        if action is None or self.mode is not ControlMode.POLICY:
            self.state.mode_state = next_mode(
                self.state.mode_state, action is not None, now, self._config.hold_s, self._config.recovery_answers
            )
            if self.state.mode_state.is_fallback:
                self._observe_plan(now, shown)
                self._run_fallback(now, readings if self.mode is not ControlMode.FIXED else None)
                return failure
            self._leave_fallback(now, shown)
        if action is not None and self.mode is ControlMode.POLICY and self._policy_sequencer.decides_at(now):
            try:
                self._policy_sequencer.apply_action(now, action)
            except (IndexError, ValueError) as error:
                # inconsistent contracts are refused at the start; if one is not, the run continues
                failure = f"the action cannot be applied: {error}"
            if readings is not None:
                self.observer.decided(readings)
        self._policy_sequencer.note_asked(now)
        self.state.next_decision_s = round_to_ms(self._policy_sequencer.next_decision_s(now))
        if self.mode is ControlMode.HOLD:
            # plan-based policies decide minutes apart: hold must end before that
            self.state.next_decision_s = min(self.state.next_decision_s, _next_recovery_s(now))
        return failure

    def set_mode(self, wanted: OperatorMode, now: float) -> None:
        """Follow an operator's command from second `now` on, by safe transitions."""
        before = self.state.mode_state
        self.state.mode_state = operator_mode(before, wanted, now)
        if self._driver is not None and self.mode is ControlMode.RECOVERING:
            self.state.mode_state = ModeState(ControlMode.POLICY, now)  # a driver needs no answers
        if self.state.mode_state is not before:
            self.state.next_decision_s = now

    def _drive(self, driver: ScoredGreens, now: float, shown: Sequence[str] | None, readings: Readings) -> None:
        if self.mode is ControlMode.FIXED:
            self._observe_plan(now, shown)
            self._run_fallback(now, None)
            return
        self.state.enter_plan_by_s = None
        if self.state.is_on_fallback_plan:
            self._leave_fallback(now, shown)
            self.state.source = StateSource.DRIVER
            driver.enter(now, [safety.shown for safety in self.safeties])
        if self.mode is ControlMode.HOLD:
            self.state.next_decision_s = _next_recovery_s(now)
            return
        driver.decide(now, readings)
        self.state.next_decision_s = driver.state.next_decision_s

    def _observe_plan(self, now: float, shown: Sequence[str] | None) -> None:
        if self.state.is_on_fallback_plan and shown is not None:
            for safety, state in zip(self.safeties, shown, strict=True):
                safety.follow_program(state, now)

    def _run_fallback(self, now: float, readings: Readings | None) -> None:
        """Let max-pressure decide by the readings, or without any run the fallback plan."""
        self.state.next_decision_s = _next_recovery_s(now)
        if self._max_pressure is not None and not self.state.is_on_fallback_plan and readings is not None:
            if self.state.source is not StateSource.MAX_PRESSURE:
                self.state.source = StateSource.MAX_PRESSURE
                self._max_pressure.enter(now, [safety.shown for safety in self.safeties])
            self._max_pressure.decide(now, readings)
            self.state.next_decision_s = min(self.state.next_decision_s, self._max_pressure.state.next_decision_s)
        elif not self.state.is_on_fallback_plan:
            if self.state.enter_plan_by_s is None:
                self.state.enter_plan_by_s = round_to_ms(now + 2 * max(safety.clearing_s for safety in self.safeties))
            # The plan waits for one green that serves a link beyond max red, as other links may wait too: a TL that
            # alternates between modes would restart that service each time and never reach the green.
            is_serving = any(safety.is_serving for safety in self.safeties)
            self.state.is_on_fallback_plan = now >= self.state.enter_plan_by_s or not is_serving

    def _leave_fallback(self, now: float, shown: Sequence[str] | None) -> None:
        self.state.enter_plan_by_s = None
        if self.state.source is not StateSource.POLICY:
            self.state.source = StateSource.POLICY
            self._policy_sequencer.enter(now, [safety.shown for safety in self.safeties])
        if self.state.is_on_fallback_plan:
            # a signal that is not released yet shows the sent state, so its ages are known
            for safety, state in zip(self.safeties, shown or (), strict=shown is not None):
                if safety.state.is_release_confirmed:
                    safety.start_from(state, now)
            self._take_over(now, start=False)

    def release(self) -> None:
        """Begin the final transition to the signals' own programs."""
        self.state.is_on_fallback_plan = True
        self.state.next_decision_s = math.inf

    @property
    def is_released(self) -> bool:
        """True if SUMO has confirmed that every signal runs its own program."""
        return all(signal.is_release_confirmed for signal in self.state.signals)

    @property
    def awaits_confirmation(self) -> bool:
        """True if a release has been sent and not yet confirmed."""
        return any(signal.is_release_sent and not signal.is_release_confirmed for signal in self.state.signals)

    def confirm_sent(self, rejected: Container[str]) -> None:
        """Mark the releases that were sent as accepted, except for those of the rejected signals."""
        for safety, transition in zip(self.safeties, self._transitions, strict=True):
            transition.set_result(safety.signal not in rejected)

    def unreleased(self, now: float) -> list[tuple[str, str]]:
        """(signal, its fallback program at second `now`) of the signals that do not run their own programs yet."""
        return [
            (safety.signal, plans.at(now).program.id)
            for safety, plans in zip(self.safeties, self.plans, strict=True)
            if not safety.state.is_release_confirmed
        ]

    def commands(self, now: float) -> tuple[list[SignalCommand], list[Override]]:
        """Commands to send at second `now`, and overrides; states equal to those sent before are left out."""
        commands: list[SignalCommand] = []
        overrides: list[Override] = []
        if self.state.is_on_fallback_plan:
            for safety, transition in zip(self.safeties, self._transitions, strict=True):
                before = safety.permitted
                command, more = transition.next(now)
                overrides += more
                if command is not None and (command is not before or not safety.state.is_sent):
                    commands.append(command)
                    safety.state.is_sent = command is safety.permitted
            return commands, overrides
        sequencer = self._sources[self.state.source]
        self.state.requested = requested_states = sequencer.requested_states(now)
        for k, (safety, requested) in enumerate(zip(self.safeties, requested_states, strict=True)):
            before = safety.permitted
            permitted, more = safety.permit(requested, now)
            overrides += more
            if permitted is not before or not safety.state.is_sent:
                commands.append(permitted)
                safety.state.is_sent = True
            if safety.shows(requested):
                sequencer.note_shown(now, k)
        return commands, overrides

    def correct(self, shown: Mapping[str, str], now: float) -> list[tuple[str, str, str]]:
        """Start again from the shown state of signals that show another state than the sent one.

        The next commands lead from there to the requested state by a safe transition.
        `shown`: by signal, the state that SUMO shows at second `now`, before new commands.
        Returns (signal, sent state, shown state) of these signals.
        """
        corrected = []
        for safety in self.safeties:
            signal, state = safety.state, shown.get(safety.signal)
            if signal.is_sent and state is not None and state != signal.shown:
                corrected.append((safety.signal, signal.shown, state))
                safety.start_from(state, now)
                signal.is_sent = False  # so that a permitted state is sent even if it was sent last
        return corrected

    @property
    def released_signals(self) -> list[str]:
        """The signals that SUMO has confirmed to run their own programs."""
        return [safety.signal for safety in self.safeties if safety.state.is_release_confirmed]

    def release_again(self, signal: str, shown: str, now: float) -> None:
        """Release a signal once more, by a safe transition from the state that it shows."""
        for safety, transition in zip(self.safeties, self._transitions, strict=True):
            if safety.signal == signal:
                safety.start_from(shown, now)
                transition.restart()

    def next_due_s(self, now: float) -> float:
        """The next moment at which this TL needs commands, after those of `now`."""
        if self.state.is_on_fallback_plan:
            if all(signal.is_release_sent for signal in self.state.signals):
                return self.state.next_decision_s
            # a cleared signal has been permitted for the last time: its release comes next
            recheck_s = round_to_ms(now + RECHECK_INTERVAL_S)
            dues_s = (recheck_s if safety.is_cleared(now) else safety.next_change_s(now) for safety in self.safeties)
            return min(self.state.next_decision_s, *dues_s)
        state = self.state
        due_s: float = min(state.next_decision_s, self._sources[state.source].next_change_s(now))
        for safety, requested in zip(self.safeties, state.requested, strict=True):
            if not safety.shows(requested):
                due_s = min(due_s, safety.next_change_s(now))
            else:
                due_s = min(due_s, max(safety.state.bound_exceeded_at_s, round_to_ms(now + RECHECK_INTERVAL_S)))
        return due_s

    def resume(self) -> None:
        """Go on from the values of `state`. Raises ValueError if they are not those of this TL."""
        for safety in self.safeties:
            safety.resume()


def _state_of(part: object) -> SavedState | None:
    """The state of a sequencer or observer; one of the user's own need not have one."""
    state = getattr(part, "state", None)
    return state if isinstance(state, SavedState) else None


def _next_recovery_s(now: float) -> float:
    return round_to_ms((math.floor(now / RECOVERY_INTERVAL_S) + 1) * RECOVERY_INTERVAL_S)
