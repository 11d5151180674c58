"""Decision events as messages of the record (protos/record.proto).

Parts of messages are dicts: protobuf fills a message from a dict in its place, but copies a message that is
put into another one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from controller.events import DecisionEvent, TlDecision, TlStates
from controller.recording.run_start import RunStart
from protos import policy_pb2 as pb
from protos import record_pb2 as record
from protos.loop_state_pb2 import LoopState
from signals.fallback.control_mode import ControlMode
from signals.observation import MAX_CACHED_BATCHES, Readings
from signals.policy import Answer
from signals.safety.signal_safety import Override, PermittedState, SignalCommand

S = TypeVar("S", SignalCommand, Override)

MODE_OF: Mapping[int, ControlMode] = {record.TlStep.ControlMode.Value(mode.name): mode for mode in ControlMode}
"""By the record's value."""


def snapshot(event: DecisionEvent) -> DecisionEvent:
    """The event with readings of its own, which the next reading does not change, or unchanged if no TL was due."""
    if not event.decisions:
        return event  # its readings are not recorded
    readings = event.readings
    own = Readings(readings.counts.copy(), readings.mean_length_m.copy(), readings.outflow.copy(), readings.by_vehicle)
    return replace(event, readings=own)


class Encoder:
    """Encodes the events of a run, in their order."""

    def __init__(self, run: RunStart, state: LoopState | None = None) -> None:
        """`state`: that of the step before the first one, if it is not the run's first."""
        self._lanes = run.tracked_lanes()
        self._index = {contract.tl: k for k, contract in enumerate(run.contracts)}
        self._tl_of = {signal: contract.tl for contract in run.contracts for signal in contract.signal_ids}
        self._outflow_rows = [self._lanes.row[lane] for lane in self._lanes.outflow_lanes]
        self._modes: dict[str, ControlMode] = dict.fromkeys(self._index, ControlMode.POLICY)
        if state is not None:
            self._modes = {tl: MODE_OF[saved.mode] for tl, saved in zip(self._index, state.tls, strict=True)}
        self._rows_of = lru_cache(MAX_CACHED_BATCHES)(self._lanes.rows_of)

    def encode(self, event: DecisionEvent) -> tuple[record.Step, dict[str, record.TlStep]]:
        """The message of a step, and by TL those of the TLs that were due or needed commands."""
        return self.step(event), dict(self.tl_steps(event))

    def step(self, event: DecisionEvent) -> record.Step:
        """The message of a step."""
        changes = event.detector_changes
        return record.Step(
            number=event.number,
            at_s=event.at_s,
            due=[self._index[decision.tl] for decision in event.decisions],
            readings=self.readings(event.tls, event.readings) if event.decisions else None,
            shown=[dict(begin_s=begin_s, end_s=end_s, states=states) for begin_s, end_s, states in event.shown],
            alarms=[
                dict(signal=a.signal, rule=a.rule.value, at_s=a.at_s, message=_valid(a.message)) for a in event.alarms
            ],
            rejections=[dict(signal=signal, reason=_valid(reason)) for signal, reason in event.rejected.items()],
            frozen=event.frozen,
            times=event.times._asdict() if event.times is not None else None,
            commands=[
                dict(
                    tl=c.tl,
                    wanted=c.wanted.value,
                    author=_valid(c.author),
                    mode_before=c.mode_before.name,
                    mode=c.mode.name,
                    reason=_valid(c.reason),
                )
                for c in event.commands
            ],
            actions=[record.OperatorAction(**action._asdict()) for action in event.actions],
            detectors=dict(
                detector=[change.detector for change in changes],
                time_s=[change.time_s for change in changes],
                is_entry=[change.is_entry for change in changes],
            )
            if changes
            else None,
        )

    def tl_steps(self, event: DecisionEvent) -> Iterator[tuple[str, record.TlStep]]:
        """The TLs of a step that were due or needed commands, and their messages, one by one. Takes every step, in
        order."""
        decisions = {decision.tl: decision for decision in event.decisions}
        self._modes.update((command.tl, command.mode) for command in event.commands)
        self._modes.update((tl, decision.mode) for tl, decision in decisions.items())
        # a TL's states at each second, without a search in the others'
        states: dict[str, list[dict[str, Any]]] = {tl: [] for tl in decisions}
        for sent in event.sent:
            commands = self._by_tl(sent.commands)
            overrides = self._by_tl(sent.overrides)
            for each in sent.states:
                encoded = _states(sent.at_s, each, commands.get(each.tl, ()), overrides.get(each.tl, ()))
                states.setdefault(each.tl, []).append(encoded)
        for tl in states:
            yield tl, _tl_step(event, self._modes[tl], decisions.get(tl), states[tl])

    def readings(self, tls: tuple[str, ...], readings: Readings) -> dict[str, Any]:
        """The message of the readings for these TLs, in its parts."""
        (_, rows), by_vehicle = self._rows_of(tls), readings.by_vehicle
        return dict(
            vehicles=readings.vehicles[rows].astype(np.uint32).tolist(),
            halting=readings.halting[rows].astype(np.uint32).tolist(),
            mean_length_m=readings.mean_length_m[rows].tolist(),
            outflow=readings.outflow[self._outflow_rows].astype(np.uint32).tolist(),
            vehicle_lane=by_vehicle.row.tolist(),
            position_m=by_vehicle.position_m.tolist(),
            speed_mps=by_vehicle.speed_mps.tolist(),
            waiting_s=by_vehicle.waiting_s.tolist(),
        )

    def _by_tl(self, of_signals: Iterable[S]) -> dict[str, list[S]]:
        found: dict[str, list[S]] = {}
        for each in of_signals:
            found.setdefault(self._tl_of[each.signal], []).append(each)
        return found


def encode_tl_step(event: DecisionEvent, contract: pb.PolicyContract, mode: ControlMode) -> record.TlStep | None:
    """One TL's message of a step; None if it was neither due nor needed commands. `mode`: after the step."""
    signals = set(contract.signal_ids)
    states = []
    for sent in event.sent:
        for each in sent.states:
            if each.tl == contract.tl:
                commands = [command for command in sent.commands if command.signal in signals]
                overrides = [override for override in sent.overrides if override.signal in signals]
                states.append(_states(sent.at_s, each, commands, overrides))
    decision = next((each for each in event.decisions if each.tl == contract.tl), None)
    return _tl_step(event, mode, decision, states) if decision is not None or states else None


def _tl_step(
    event: DecisionEvent, mode: ControlMode, decision: TlDecision | None, states: Sequence[Mapping[str, Any]]
) -> record.TlStep:
    reasons = (override["reason"] for each in states for override in each["overrides"])
    return record.TlStep(
        number=event.number,
        at_s=event.at_s,
        mode=mode.name,
        override=next(reasons, record.TlStep.NONE),
        decision=_decision(decision) if decision is not None else None,
        states=states,
    )


def _states(
    at_s: float, states: TlStates, commands: Iterable[SignalCommand], overrides: Iterable[Override]
) -> dict[str, Any]:
    """A TL's states at one second, with the commands and overrides of its signals."""
    return dict(
        at_s=at_s,
        requested=states.requested,
        permitted=states.permitted,
        commands=[_command(command) for command in commands],
        overrides=[
            dict(signal=o.signal, reason=o.reason.name, requested=o.requested, permitted=o.permitted) for o in overrides
        ],
    )


def _decision(decision: TlDecision) -> dict[str, Any]:
    phase_state, answer = decision.phase_state, decision.answer
    message: dict[str, Any] = dict(
        mode_before=decision.mode_before.name,
        observation=decision.observation.tolist(),
        phases=phase_state.phases,
        min_green_passed=phase_state.min_green_passed,
        green_s=phase_state.green_s,
        since_green_s=phase_state.since_green_s,
        failure=_valid(decision.failure),
    )
    if isinstance(answer, Answer):
        message.update(action=_values(answer.action), model=answer.model, version=answer.version)
        if answer.scores is not None:
            message["scores"] = answer.scores.tolist()
    else:
        message.update(error=type(answer).__name__, error_text=_valid(str(answer)))
    return message


def _values(action: object) -> list[float]:
    """An action's values; [] if they are not numbers: `failure` has the reason."""
    if isinstance(action, np.ndarray | np.generic) and action.dtype.kind in "iuf":
        usual: list[float] = action.ravel().tolist()
        return usual
    try:
        values: list[float] = np.asarray(action, np.float64).ravel().tolist()
    except (TypeError, ValueError):
        return []
    return values


def _valid(text: str) -> str:
    """The text without characters that UTF-8, and so protobuf, does not have."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _command(command: SignalCommand) -> dict[str, Any]:
    if isinstance(command, PermittedState):
        return dict(signal=command.signal, state=command.state)
    return dict(signal=command.signal, program=command.program, phase=command.phase, remaining_s=command.remaining_s)
