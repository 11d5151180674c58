"""Decision events as messages of the record (protos/record.proto)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from controller.events import DecisionEvent, Sent, TlDecision, TlStates
from controller.recording.run_start import RunStart
from protos import record_pb2 as record
from signals.fallback.control_mode import ControlMode
from signals.observation import Readings
from signals.policy import Answer
from signals.safety.conflicts import OverrideReason
from signals.safety.signal_safety import Override, PermittedState, SignalCommand

MODES: Mapping[ControlMode, Any] = {mode: record.TlStep.ControlMode.Value(mode.name) for mode in ControlMode}
REASONS: Mapping[OverrideReason, Any] = {reason: record.TlStep.OverrideReason.Value(reason.name) for reason in OverrideReason}


def snapshot(event: DecisionEvent) -> DecisionEvent:
    """The event with readings of its own, which the next reading does not change."""
    readings = event.readings
    own = Readings(readings.counts.copy(), readings.mean_length_m.copy(), readings.outflow.copy(), readings.by_vehicle)
    return replace(event, readings=own)


class Encoder:
    """Encodes the events of a run, in their order."""

    def __init__(self, run: RunStart) -> None:
        self._lanes = run.tracked_lanes()
        self._index = {contract.tl: k for k, contract in enumerate(run.contracts)}
        self._tl_of = {signal: contract.tl for contract in run.contracts for signal in contract.signal_ids}
        self._outflow_rows = [self._lanes.row[lane] for lane in self._lanes.outflow_lanes]
        self._modes: dict[str, ControlMode] = dict.fromkeys(self._index, ControlMode.POLICY)

    def encode(self, event: DecisionEvent) -> tuple[record.Step, dict[str, record.TlStep]]:
        """The message of a step, and by TL those of the TLs that were due or needed commands."""
        step = record.Step(
            number=event.number,
            at_s=event.at_s,
            due=[self._index[decision.tl] for decision in event.decisions],
            shown=[record.Shown(begin_s=begin_s, end_s=end_s, states=states) for begin_s, end_s, states in event.shown],
            alarms=[record.Alarm(signal=a.signal, rule=a.rule.value, at_s=a.at_s, message=a.message) for a in event.alarms],
            rejections=[record.Rejection(signal=signal, reason=reason) for signal, reason in event.rejected.items()],
            frozen=event.frozen,
            commands=[
                record.OperatorCommand(
                    tl=c.tl, wanted=c.wanted.value, author=c.author, mode_before=MODES[c.mode_before], mode=MODES[c.mode]
                )
                for c in event.commands
            ],
            actions=[record.OperatorAction(**action._asdict()) for action in event.actions],
        )
        self._modes.update((command.tl, command.mode) for command in event.commands)
        if event.decisions:
            step.readings.CopyFrom(self._readings(event))
        if event.times is not None:
            step.times.CopyFrom(record.Times(**event.times._asdict()))
        return step, self._tl_steps(event)

    def _readings(self, event: DecisionEvent) -> record.Readings:
        _, rows = self._lanes.rows_of(event.tls)
        readings, by_vehicle = event.readings, event.readings.by_vehicle
        return record.Readings(
            vehicles=readings.vehicles[rows].astype(np.uint32).tolist(),
            halting=readings.halting[rows].astype(np.uint32).tolist(),
            mean_length_m=readings.mean_length_m[rows].tolist(),
            outflow=readings.outflow[self._outflow_rows].astype(np.uint32).tolist(),
            vehicle_lane=by_vehicle.row.tolist(),
            position_m=by_vehicle.position_m.tolist(),
            speed_mps=by_vehicle.speed_mps.tolist(),
            waiting_s=by_vehicle.waiting_s.tolist(),
        )

    def _tl_steps(self, event: DecisionEvent) -> dict[str, record.TlStep]:
        decisions = {decision.tl: decision for decision in event.decisions}
        self._modes.update((tl, decision.mode) for tl, decision in decisions.items())
        # a TL's states at each second, without a search in the others'
        states: dict[str, list[record.States]] = {tl: [] for tl in decisions}
        for sent in event.sent:
            commands, overrides = self._by_tl(sent)
            for each in sent.states:
                states.setdefault(each.tl, []).append(_states(sent.at_s, each, commands, overrides))
        return {tl: self._tl_step(event, tl, decisions.get(tl), states[tl]) for tl in states}

    def _by_tl(self, sent: Sent) -> tuple[dict[str, list[SignalCommand]], dict[str, list[Override]]]:
        commands: dict[str, list[SignalCommand]] = {}
        for command in sent.commands:
            commands.setdefault(self._tl_of[command.signal], []).append(command)
        overrides: dict[str, list[Override]] = {}
        for override in sent.overrides:
            overrides.setdefault(self._tl_of[override.signal], []).append(override)
        return commands, overrides

    def _tl_step(self, event: DecisionEvent, tl: str, decision: TlDecision | None, states: list[record.States]) -> record.TlStep:
        first = next((override.reason for each in states for override in each.overrides), record.TlStep.NONE)
        message = record.TlStep(number=event.number, at_s=event.at_s, mode=MODES[self._modes[tl]], override=first, states=states)
        if decision is not None:
            message.decision.CopyFrom(_decision(decision))
        return message


def _decision(decision: TlDecision) -> record.Decision:
    phase_state, answer = decision.phase_state, decision.answer
    message = record.Decision(
        mode_before=MODES[decision.mode_before],
        observation=decision.observation.tolist(),
        phases=phase_state.phases,
        min_green_passed=phase_state.min_green_passed,
        green_s=phase_state.green_s,
        since_green_s=phase_state.since_green_s,
        failure=decision.failure,
    )
    if isinstance(answer, Answer):
        message.action.extend(np.ravel(np.asarray(answer.action, np.float64)).tolist())
        message.model, message.version = answer.model, answer.version
        if answer.scores is not None:
            message.scores.extend(answer.scores.tolist())
    else:
        message.error, message.error_text = type(answer).__name__, str(answer)
    return message


def _states(
    at_s: float,
    states: TlStates,
    commands: Mapping[str, list[SignalCommand]],
    overrides: Mapping[str, list[Override]],
) -> record.States:
    return record.States(
        at_s=at_s,
        requested=states.requested,
        permitted=states.permitted,
        commands=[_command(command) for command in commands.get(states.tl, ())],
        overrides=[
            record.Override(signal=o.signal, reason=REASONS[o.reason], requested=o.requested, permitted=o.permitted)
            for o in overrides.get(states.tl, ())
        ],
    )


def _command(command: SignalCommand) -> record.Command:
    if isinstance(command, PermittedState):
        return record.Command(signal=command.signal, state=command.state)
    return record.Command(signal=command.signal, program=command.program, phase=command.phase, remaining_s=command.remaining_s)
