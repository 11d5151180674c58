"""Decision events as messages of the record (protos/record.proto).

Parts of messages are dicts: protobuf fills a message from a dict in its place, but copies a message that is
put into another one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from controller.events import DecisionEvent, Sent, TlDecision
from controller.recording.run_start import RunStart
from controller.sumo.tracked_detectors import DetectorChange
from protos import record_pb2 as record
from protos.loop_state_pb2 import LoopState
from signals.fallback.control_mode import ControlMode
from signals.observation import MAX_CACHED_BATCHES, Readings, Rows
from signals.policy import Answer
from signals.safety.conflicts import OverrideReason
from signals.safety.signal_safety import PermittedState, SignalCommand

MODES: Mapping[ControlMode, Any] = {mode: record.TlStep.ControlMode.Value(mode.name) for mode in ControlMode}
REASONS: Mapping[OverrideReason, Any] = {
    reason: record.TlStep.OverrideReason.Value(reason.name) for reason in OverrideReason
}


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
            modes = {value: mode for mode, value in MODES.items()}
            self._modes = {tl: modes[saved.mode] for tl, saved in zip(self._index, state.tls, strict=True)}
        self._rows: dict[tuple[str, ...], slice | Rows] = {}
        """By TLs, the rows of their lanes in the readings."""

    def encode(self, event: DecisionEvent) -> tuple[record.Step, dict[str, record.TlStep]]:
        """The message of a step, and by TL those of the TLs that were due or needed commands."""
        return self.step(event), dict(self.tl_steps(event))

    def step(self, event: DecisionEvent) -> record.Step:
        """The message of a step."""
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
                    mode_before=MODES[c.mode_before],
                    mode=MODES[c.mode],
                )
                for c in event.commands
            ],
            actions=[record.OperatorAction(**action._asdict()) for action in event.actions],
            detectors=_detectors(event.detector_changes) if event.detector_changes else None,
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
            commands, overrides = self._by_tl(sent)
            for tl, requested, permitted in sent.states:
                states.setdefault(tl, []).append(
                    dict(
                        at_s=sent.at_s,
                        requested=requested,
                        permitted=permitted,
                        commands=commands.get(tl, ()),
                        overrides=overrides.get(tl, ()),
                    )
                )
        for tl in states:
            yield tl, self._tl_step(event, tl, decisions.get(tl), states[tl])

    def readings(self, tls: tuple[str, ...], readings: Readings) -> dict[str, Any]:
        """The message of the readings for these TLs, in its parts."""
        rows, by_vehicle = self._rows_of(tls), readings.by_vehicle
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

    def _rows_of(self, tls: tuple[str, ...]) -> slice | Rows:
        if tls not in self._rows:
            if len(self._rows) > MAX_CACHED_BATCHES:
                self._rows.clear()
            _, self._rows[tls] = self._lanes.rows_of(tls)
        return self._rows[tls]

    def _by_tl(self, sent: Sent) -> tuple[dict[str, list[dict[str, Any]]], dict[str, list[dict[str, Any]]]]:
        """Commands and overrides by TL."""
        commands: dict[str, list[dict[str, Any]]] = {}
        for command in sent.commands:
            commands.setdefault(self._tl_of[command.signal], []).append(_command(command))
        overrides: dict[str, list[dict[str, Any]]] = {}
        for o in sent.overrides:
            override = dict(signal=o.signal, reason=REASONS[o.reason], requested=o.requested, permitted=o.permitted)
            overrides.setdefault(self._tl_of[o.signal], []).append(override)
        return commands, overrides

    def _tl_step(
        self, event: DecisionEvent, tl: str, decision: TlDecision | None, states: Sequence[Mapping[str, Any]]
    ) -> record.TlStep:
        return record.TlStep(
            number=event.number,
            at_s=event.at_s,
            mode=MODES[self._modes[tl]],
            override=next(
                (override["reason"] for each in states for override in each["overrides"]), record.TlStep.NONE
            ),
            decision=_decision(decision) if decision is not None else None,
            states=states,
        )


def _detectors(changes: Sequence[DetectorChange]) -> dict[str, Any]:
    detector, time_s, is_entry = zip(*changes, strict=True)
    return dict(detector=detector, time_s=time_s, is_entry=is_entry)


def _decision(decision: TlDecision) -> dict[str, Any]:
    phase_state, answer = decision.phase_state, decision.answer
    message: dict[str, Any] = dict(
        mode_before=MODES[decision.mode_before],
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
