"""One TL: its observations, requested states and permitted states. Pure; time is passed in.

Everything that a decision step does to a TL goes through `Intersection`.
"""

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any

from city.config import Controller as ControllerSettings
from protos import loop_state_pb2 as loop_state
from protos import policy_pb2 as pb
from protos import record_pb2 as record
from signals.dialects import PhaseSequencer, SavesState
from signals.fallback.control_mode import ControlMode, ModeState, OperatorMode, next_mode, operator_mode
from signals.fallback.plan import FallbackSchedule, PlanTransition
from signals.fallback.scored_greens import ScoredGreens
from signals.observation import Observation, Observer, PhaseState, Readings, Shares
from signals.policy import ActionSpace, Answer, InvalidAction
from signals.safety.signal_safety import RECHECK_INTERVAL_S, Override, PermittedState, SignalCommand, SignalSafety
from signals.simulation_time import round_to_ms

RECOVERY_INTERVAL_S = 2.0
"""In fallback the policy is queried at every multiple of this: for all such TLs at once, in one Predict."""
_MODES: Mapping[ControlMode, Any] = {mode: record.TlStep.ControlMode.Value(mode.name) for mode in ControlMode}


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
        self.mode_state = ModeState()
        self.next_decision_s = -math.inf
        self.observer = observer
        self._policy_sequencer = sequencer
        self._phase_sequencer: PhaseSequencer | ScoredGreens = sequencer
        """The source of the requested states now."""
        self.plans = tuple(plans)
        self._config = config
        self._max_pressure = max_pressure
        self._driver = driver
        self._transitions: list[PlanTransition] | None = None
        """Set while the signals run their fallback plans or are on the way there."""
        self._enter_plan_by_s: float | None = None
        """When the transition to the plan must begin at the latest, once the mode is FALLBACK."""
        self._requested: tuple[str, ...] = ()
        self._sent: list[PermittedState | None] = [None] * len(self.safeties)

    @property
    def mode(self) -> ControlMode:
        return self.mode_state.mode

    @property
    def has_policy(self) -> bool:
        """Whether a policy is asked; if not, a driver controls."""
        return self._driver is None

    @property
    def control_name(self) -> str:
        """What controls the TL, in log lines: the control mode, or the driver in the place of a policy."""
        return self.mode.name if self._driver is None or self.mode_state.by_operator else self._driver.name.upper()

    def start(self, now: float, shown: Sequence[str], forces_first: bool = False) -> None:
        """Start from the states that the signals show; the first decision is due now.

        `forces_first`: show the dialect's first states at once, without a transition from the shown ones.
        """
        for safety, state in zip(self.safeties, shown, strict=True):
            safety.start_from(state, now)
        self._take_over(now, start=True)
        if self._driver is not None:
            self._phase_sequencer = self._driver
            self._driver.enter(now, shown)
        elif forces_first:
            for safety, state in zip(self.safeties, self._policy_sequencer.requested_states(now), strict=True):
                if safety.rules.violation(state) is None:
                    safety.start_from(state, now)
        self.next_decision_s = now

    def _take_over(self, now: float, start: bool) -> None:
        self._policy_sequencer.enter(now, [safety.shown for safety in self.safeties], start)
        self._transitions = None
        self._sent = [None] * len(self.safeties)

    @property
    def requested(self) -> tuple[str, ...]:
        """The states requested last, by signal; empty while the signals run their programs, or are on the way there."""
        return () if self._transitions is not None else self._requested

    @property
    def is_on_fallback_plan(self) -> bool:
        """Whether the signals run their own programs, or are on the way there."""
        return self._transitions is not None

    def observe(self, readings: Readings, shares: Shares, now: float) -> Observation:
        """float32 [O], as the contract describes it."""
        return self.observer.observe(readings, shares, self.phase_state(now))

    def decides_at(self, now: float) -> bool:
        """Whether an answer at second `now` is a decision; if not, it only shows that the policy is available."""
        return self.mode is ControlMode.POLICY and self._policy_sequencer.decides_at(now)

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
            readings: readings of second `now`; needed if max-pressure is the fallback, or for a driver.

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
            self.mode_state = next_mode(
                self.mode_state, action is not None, now, self._config.hold_s, self._config.recovery_answers
            )
            if self.mode_state.is_fallback:
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
            self.observer.decided()
        self.next_decision_s = round_to_ms(self._policy_sequencer.next_decision_s(now))
        if self.mode is ControlMode.HOLD:
            # plan-based policies decide minutes apart: hold must end before that
            self.next_decision_s = min(self.next_decision_s, _next_recovery_s(now))
        return failure

    def set_mode(self, wanted: OperatorMode, now: float) -> None:
        """Follow an operator's command from second `now` on, by safe transitions."""
        before = self.mode_state
        self.mode_state = operator_mode(before, wanted, now)
        if self._driver is not None and self.mode is ControlMode.RECOVERING:
            self.mode_state = ModeState(ControlMode.POLICY, now)  # a driver needs no answers
        if self.mode_state is not before:
            self.next_decision_s = now

    def _drive(self, driver: ScoredGreens, now: float, shown: Sequence[str] | None, readings: Readings) -> None:
        """Let the driver decide, unless an operator has taken the TL."""
        if self.mode is ControlMode.FIXED:
            self._observe_plan(now, shown)
            self._run_fallback(now, None)
            return
        self._enter_plan_by_s = None
        if self._transitions is not None:
            self._leave_fallback(now, shown)
            self._phase_sequencer = driver
            driver.enter(now, [safety.shown for safety in self.safeties])
        if self.mode is ControlMode.HOLD:
            self.next_decision_s = _next_recovery_s(now)
            return
        driver.decide(now, readings)
        self.next_decision_s = driver.next_decision_s

    def _observe_plan(self, now: float, shown: Sequence[str] | None) -> None:
        if self._transitions is not None and shown is not None:
            for safety, state in zip(self.safeties, shown, strict=True):
                safety.follow_program(state, now)

    def _run_fallback(self, now: float, readings: Readings | None) -> None:
        """Let max-pressure decide by the readings, or without any run the fallback plan."""
        self.next_decision_s = _next_recovery_s(now)
        if self._max_pressure is not None and self._transitions is None and readings is not None:
            if self._phase_sequencer is not self._max_pressure:
                self._phase_sequencer = self._max_pressure
                self._max_pressure.enter(now, [safety.shown for safety in self.safeties])
            self._max_pressure.decide(now, readings)
            self.next_decision_s = min(self.next_decision_s, self._max_pressure.next_decision_s)
        elif self._transitions is None and not self._must_finish_service(now):
            self._enter_plan()

    def _must_finish_service(self, now: float) -> bool:
        """Whether the plan must wait for a green that serves a link beyond max red.

        A TL that alternates between modes would restart that service each time and never
        reach the green. The plan waits for one such green at most: other links may wait too.
        """
        if self._enter_plan_by_s is None:
            self._enter_plan_by_s = round_to_ms(now + 2 * max(safety.clearing_s for safety in self.safeties))
        return now < self._enter_plan_by_s and any(safety.is_serving for safety in self.safeties)

    def _leave_fallback(self, now: float, shown: Sequence[str] | None) -> None:
        """Take over from the fallback, if it was in control."""
        self._enter_plan_by_s = None
        if self._phase_sequencer is not self._policy_sequencer:
            self._phase_sequencer = self._policy_sequencer
            self._policy_sequencer.enter(now, [safety.shown for safety in self.safeties])
        if self._transitions is not None:
            # a signal that is not released yet shows the sent state, so its ages are known
            for safety, transition, state in zip(
                self.safeties, self._transitions, shown or (), strict=shown is not None
            ):
                if transition.is_confirmed:
                    safety.start_from(state, now)
            self._take_over(now, start=False)

    def release(self) -> None:
        """Begin the final transition to the signals' own programs."""
        if self._transitions is None:
            self._enter_plan()
        self.next_decision_s = math.inf

    @property
    def is_released(self) -> bool:
        """Whether SUMO has confirmed that every signal runs its own program."""
        return self._transitions is not None and all(transition.is_confirmed for transition in self._transitions)

    @property
    def awaits_confirmation(self) -> bool:
        """Whether a release has been sent and not yet confirmed."""
        return self._transitions is not None and any(
            transition.is_sent and not transition.is_confirmed for transition in self._transitions
        )

    def confirm_sent(self, rejected: Container[str]) -> None:
        """Mark the releases that were sent as accepted, except for those of the rejected signals."""
        for safety, transition in zip(self.safeties, self._transitions or (), strict=False):
            transition.set_result(safety.signal not in rejected)

    def unreleased(self, now: float) -> list[tuple[str, str]]:
        """(signal, its fallback program at second `now`) of the signals that do not run their own programs yet."""
        return [
            (safety.signal, plans.at(now).program.id)
            for k, (safety, plans) in enumerate(zip(self.safeties, self.plans, strict=True))
            if self._transitions is None or not self._transitions[k].is_confirmed
        ]

    def _enter_plan(self) -> list[PlanTransition]:
        self._transitions = [
            PlanTransition(safety, plans) for safety, plans in zip(self.safeties, self.plans, strict=True)
        ]
        return self._transitions

    def commands(self, now: float) -> tuple[list[SignalCommand], list[Override]]:
        """Commands to send at second `now`, and overrides; states equal to those sent before are left out."""
        commands: list[SignalCommand] = []
        overrides: list[Override] = []
        if self._transitions is not None:
            for k, transition in enumerate(self._transitions):
                command, more = transition.next(now)
                overrides += more
                if command is not None and command is not self._sent[k]:
                    commands.append(command)
                    self._sent[k] = command if isinstance(command, PermittedState) else None
            return commands, overrides
        self._requested = self._phase_sequencer.requested_states(now)
        for k, (safety, requested) in enumerate(zip(self.safeties, self._requested, strict=True)):
            state, more = safety.permit(requested, now)
            overrides += more
            if state is not self._sent[k]:
                commands.append(state)
                self._sent[k] = state
            if safety.shows(requested):
                self._phase_sequencer.note_shown(now, k)
        return commands, overrides

    def correct(self, shown: Mapping[str, str], now: float) -> list[tuple[str, str, str]]:
        """Start again from the shown state of signals that show another state than the sent one.

        The next commands lead from there to the requested state by a safe transition.
        `shown`: by signal, the state that SUMO shows at second `now`, before new commands.
        Returns (signal, sent state, shown state) of these signals.
        """
        corrected = []
        for k, (safety, sent) in enumerate(zip(self.safeties, self._sent, strict=True)):
            state = shown.get(safety.signal, "")
            if sent is not None and state != sent.state and safety.signal in shown:
                safety.start_from(state, now)
                self._sent[k] = None  # so that a permitted state is sent even if it is the one that was sent last
                corrected.append((safety.signal, sent.state, state))
        return corrected

    @property
    def released_signals(self) -> list[str]:
        """The signals that SUMO has confirmed to run their own programs."""
        return [
            safety.signal
            for safety, transition in zip(self.safeties, self._transitions or (), strict=False)
            if transition.is_confirmed
        ]

    def release_again(self, signal: str, shown: str, now: float) -> None:
        """Release a signal once more, by a safe transition from the state that it shows."""
        for k, safety in enumerate(self.safeties):
            if safety.signal == signal and self._transitions is not None:
                safety.start_from(shown, now)
                self._transitions[k].restart()

    def next_due_s(self, now: float) -> float:
        """The next moment at which this TL needs commands, after those of `now`."""
        if self._transitions is not None:
            if all(transition.is_sent for transition in self._transitions):
                return self.next_decision_s
            # a cleared signal has been permitted for the last time: its release comes next
            recheck_s = round_to_ms(now + RECHECK_INTERVAL_S)
            dues_s = (recheck_s if safety.is_cleared(now) else safety.next_change_s(now) for safety in self.safeties)
            return min(self.next_decision_s, *dues_s)
        due_s = min(self.next_decision_s, self._phase_sequencer.next_change_s(now))
        for safety, requested in zip(self.safeties, self._requested, strict=True):
            if not safety.shows(requested):
                due_s = min(due_s, safety.next_change_s(now))
            else:
                due_s = min(due_s, max(safety.bound_exceeded_at_s, round_to_ms(now + RECHECK_INTERVAL_S)))
        return due_s

    def save_state(self, state: loop_state.TlState) -> None:
        """Write what later commands depend on, after those of a step: each state that was sent is the permitted one.

        A sequencer or observer of the user's own, which does not save its state, is left out.
        """
        mode = self.mode_state
        state.mode = _MODES[mode.mode]
        state.mode_since_s, state.good_answers, state.by_operator = mode.since_s, mode.good_answers, mode.by_operator
        state.next_decision_s = self.next_decision_s
        state.source = next(value for value, source in self._sources().items() if source is self._phase_sequencer)
        state.requested.extend(self._requested)
        state.is_on_fallback_plan = self._transitions is not None
        if self._enter_plan_by_s is not None:
            state.enter_plan_by_s = self._enter_plan_by_s
        for part, message in self._parts(state):
            part.save_state(message)
        for k, safety in enumerate(self.safeties):
            signal = state.signals.add()
            safety.save_state(signal)
            signal.is_sent = self._sent[k] is not None
            if self._transitions is not None:
                self._transitions[k].save_state(signal)

    def restore_state(self, state: loop_state.TlState) -> None:
        """Go on from a saved state. Raises ValueError or KeyError if it is not one of this TL."""
        mode = {value: mode for mode, value in _MODES.items()}[state.mode]
        self.mode_state = ModeState(mode, state.mode_since_s, state.good_answers, state.by_operator)
        self.next_decision_s = state.next_decision_s
        self._phase_sequencer = self._sources()[state.source]
        self._requested = tuple(state.requested)
        self._enter_plan_by_s = state.enter_plan_by_s if state.HasField("enter_plan_by_s") else None
        for part, message in self._parts(state):
            part.restore_state(message)
        for safety, signal in zip(self.safeties, state.signals, strict=True):
            safety.restore_state(signal)
        self._sent = [
            s.permitted if signal.is_sent else None for s, signal in zip(self.safeties, state.signals, strict=True)
        ]
        self._transitions = None
        if state.is_on_fallback_plan:
            transitions = self._enter_plan()
            for transition, signal in zip(transitions, state.signals, strict=True):
                transition.restore_state(signal)

    def _sources(self) -> dict[Any, PhaseSequencer | ScoredGreens]:
        """What can be the source of the requested states."""
        sources: dict[Any, PhaseSequencer | ScoredGreens] = {loop_state.TlState.POLICY: self._policy_sequencer}
        if self._max_pressure is not None:
            sources[loop_state.TlState.MAX_PRESSURE] = self._max_pressure
        if self._driver is not None:
            sources[loop_state.TlState.DRIVER] = self._driver
        return sources

    def _parts(self, state: loop_state.TlState) -> list[tuple[SavesState, Any]]:
        """The parts with a state of their own, and their messages in the TL's."""
        parts: list[tuple[Any, Any]] = [(self.observer, state.observer), (self._policy_sequencer, state.sequencer)]
        parts += [(self._max_pressure, state.max_pressure), (self._driver, state.driver)]
        return [(part, message) for part, message in parts if _saves_state(type(part))]


def _saves_state(kind: type) -> bool:
    """Whether a class is a `SavesState`; isinstance with a Protocol would look at all of its methods at each call."""
    return hasattr(kind, "save_state") and hasattr(kind, "restore_state")


def _next_recovery_s(now: float) -> float:
    return round_to_ms((math.floor(now / RECOVERY_INTERVAL_S) + 1) * RECOVERY_INTERVAL_S)
