"""The sappo dialect: signal-group PPO for TLs of one or more signals, by cycle plans or keep-or-change.

Observation: per signal of the TL in order, per incoming lane in order, one block of
state `d` (density: vehicles per metre), `v` (volume: vehicles that left the lane since
the last decision), `vd` (all densities, then all volumes) or `vdd` (volume /
(density + machine epsilon)). Each block is (block + machine epsilon) / its maximum.
Then per signal the current phase index / (largest number of phases in the TL - 1).

Action: values in [-1, 1].

- `offset`, one per signal: shift in s = int(round(a * cycle) / 2 / offset_range),
  added to the plan's own offset. The plan is its phase indices second by second,
  rolled forward by the offset; at second t the phase is entry (t - 1) mod cycle.
- `gr`, one per signal: index = digitize(a, linspace(-1, 1, n)) - 1 into the signal's
  list of n green-split changes; the change times add_time s is added to the green
  durations, so that the cycle keeps its length. `gro`: per signal offset, then gr.
- These three are decided every control_cycle cycles of the plan, at multiples of
  cycle * control_cycle.
- `kc`, one per signal: change if a >= actionp, else keep; decided every
  3 + action_t s. A change steps to the program's next phase (its yellow) and 3 s
  later on to the following green.

Source: the training system of this dialect; tests compare with vectors that it computed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from city.config import TL, Safety
from city.errors import InputError
from city.network import SEQUENTIAL_TYPES, ProgramPhase, is_green
from protos import policy_pb2 as pb
from signals.cycle_plans import PlanSequencer, cycle_plan
from signals.dialects import Dialect, contradiction
from signals.observation import (
    ActionValues,
    Floats,
    Observation,
    PhaseSequencer,
    PhaseState,
    Readings,
    Rows,
    SavedState,
    Shares,
)
from signals.policy_signals import PolicySignal, signal_messages
from signals.simulation_time import next_multiple_s, round_to_ms

STATES = ("d", "v", "vd", "vdd")
PLAN_ACTIONS = ("offset", "gr", "gro")
ACTIONS = (*PLAN_ACTIONS, "kc")
# the trainer's defaults
CONTROL_CYCLE = 5
ADD_TIME_S = 2
OFFSET_RANGE = 2
KC_YELLOW_S = 3.0
ACTION_T_S = 12
ACTIONP = 0.2
_EPSILON = float(np.finfo(float).eps)
_BLOCKS = {"d": ("density",), "v": ("volume",), "vd": ("density", "volume"), "vdd": ("volume_per_density",)}


class Sappo(Dialect):
    name = "sappo"
    action_kinds = ACTIONS
    takes_first_program = False
    file_name_settings = ("state", "action", "offset_range", "control_cycle", "add_time_s", "actionp", "action_t_s")

    def check_settings(self, tl: TL) -> None:
        # the checkpoint's file name sets a missing value
        for key, value, choices in (("state", tl.state, STATES), ("action", tl.action, ACTIONS)):
            if value is not None and value not in choices:
                raise InputError(f"{key} = {value!r} must be one of {', '.join(choices)}")

    def action_kind(self, tl: TL) -> str:
        return str(tl.action)

    def build_contract(self, tl: TL, signals: Sequence[PolicySignal], safety: Safety) -> pb.PolicyContract:
        for key, value, choices in (("state", tl.state, STATES), ("action", tl.action, ACTIONS)):
            if value not in choices:
                raise InputError(
                    f"{tl.name}: {key} is missing; set it in [tl.{tl.name}] to one of {', '.join(choices)}"
                )
        state, kind = tl.state or "", tl.action or ""
        for signal in signals:
            if signal.program.type not in SEQUENTIAL_TYPES:
                raise InputError(
                    f"{tl.name}: program {signal.program.id!r} of signal {signal.id} has type {signal.program.type}, "
                    "which does not run its phases in sequence; dialect sappo needs a program of type "
                    f"{', '.join(SEQUENTIAL_TYPES)}"
                )
        messages = signal_messages(signals)
        if kind in PLAN_ACTIONS:
            _check_plans(tl, messages)
        timing = pb.Timing(
            yellow_s=KC_YELLOW_S if tl.yellow_s is None else tl.yellow_s,
            all_red_s=tl.all_red_s or 0.0,
            min_green_s=safety.min_green_s if tl.min_green_s is None else tl.min_green_s,
            max_green_s=(safety.max_green_s if tl.max_green_s is None else tl.max_green_s) or 0.0,
        )
        if kind == "kc":
            timing.decision_interval_s = KC_YELLOW_S + (ACTION_T_S if tl.action_t_s is None else tl.action_t_s)
        else:
            timing.control_cycle = tl.control_cycle or CONTROL_CYCLE
        features = _features(state, messages)
        return pb.PolicyContract(
            tl=tl.name,
            signal_ids=[signal.id for signal in signals],
            signals=messages,
            observation=pb.Observation(
                dialect=self.name, state=state, size=len(features), features=features, normalisation="block-maximum"
            ),
            action=pb.Action(
                kind=kind,
                size=_action_size(kind, len(signals)),
                actionp=ACTIONP if tl.actionp is None else tl.actionp,
                add_time_s=ADD_TIME_S if tl.add_time_s is None else tl.add_time_s,
                offset_range=tl.offset_range or OFFSET_RANGE,
            ),
            timing=timing,
        )

    def check_contract(self, contract: pb.PolicyContract) -> None:
        kind, state = contract.action.kind, contract.observation.state
        if kind not in ACTIONS:
            raise contradiction(contract, f"has action {kind!r}, not one of {', '.join(ACTIONS)}")
        if state not in STATES:
            raise contradiction(contract, f"has state {state!r}, not one of {', '.join(STATES)}")
        if list(contract.observation.features) != _features(state, contract.signals):
            raise contradiction(contract, "lists features that its signals do not have")
        size = _action_size(kind, len(contract.signals))
        if contract.action.size != size:
            raise contradiction(contract, f"has action size {contract.action.size}, but its signals take {size}")
        intervals: dict[str, float] = {"decision_interval_s": contract.timing.decision_interval_s}
        if kind in PLAN_ACTIONS:
            intervals = {"control_cycle": contract.timing.control_cycle, "offset_range": contract.action.offset_range}
        for name, value in intervals.items():
            if not value >= 1:
                raise contradiction(contract, f"has {name} {value:g}, but it must be at least 1")

    def runs_plan(self, contract: pb.PolicyContract) -> bool:
        return contract.action.kind in PLAN_ACTIONS

    def counts_outflow(self, contract: pb.PolicyContract) -> bool:
        return contract.observation.state != "d"

    def observer(self, contract: pb.PolicyContract, lane_row: Mapping[str, int], length_m: Floats) -> "SappoObserver":
        rows = np.array([lane_row[lane] for signal in contract.signals for lane in signal.lane_ids], np.intp)
        return SappoObserver(
            contract.observation.state, rows, length_m, tuple(len(signal.phases) for signal in contract.signals)
        )

    def sequencer(self, contract: pb.PolicyContract) -> PhaseSequencer:
        programs = [
            [ProgramPhase(p.state, p.duration_s, p.min_s, p.max_s) for p in signal.phases]
            for signal in contract.signals
        ]
        action, timing = contract.action, contract.timing
        if action.kind == "kc":
            return KeepChangeSequencer(programs, timing.decision_interval_s, action.actionp)
        plans = [
            cycle_plan(phases, signal.offset_s, timing.min_green_s, timing.max_green_s or math.inf)
            for phases, signal in zip(programs, contract.signals, strict=True)
        ]
        return PlanSequencer(action.kind, plans, timing.control_cycle, action.add_time_s, action.offset_range)


DIALECT = Sappo()


def _features(state: str, signals: Sequence[pb.Signal]) -> list[pb.Feature]:
    lanes = [(signal.id, lane) for signal in signals for lane in signal.lane_ids]
    blocks = [pb.Feature(kind=k, signal_id=s, lane_id=lane) for k in _BLOCKS[state] for s, lane in lanes]
    return blocks + [pb.Feature(kind="phase", signal_id=signal.id) for signal in signals]


def _action_size(kind: str, signals: int) -> int:
    return 2 * signals if kind == "gro" else signals


def _check_plans(tl: TL, signals: Sequence[pb.Signal]) -> None:
    """Raise InputError unless all phases last whole seconds, by which plans are shifted, and all signals have the same
    cycle."""
    cycles = {signal.id: sum(phase.duration_s for phase in signal.phases) for signal in signals}
    for signal in signals:
        if any(phase.duration_s != int(phase.duration_s) or phase.duration_s < 1 for phase in signal.phases):
            raise InputError(
                f"{tl.name}: action {tl.action} needs a plan of whole seconds; signal {signal.id} has other phases; "
                "round their durations in its program"
            )
    if len(set(cycles.values())) > 1:
        lengths = ", ".join(f"{signal} {cycle:g} s" for signal, cycle in cycles.items())
        raise InputError(
            f"{tl.name}: action {tl.action} needs one cycle length for all its signals; they have {lengths}; "
            "give their programs the same cycle, or make them TLs of their own"
        )


@dataclass
class ObserverState(SavedState):
    """The counts from which the next volumes count."""

    outflow_before: tuple[float, ...] = ()
    """By lane, at the last decision; empty before the first one."""


class SappoObserver:
    """[lane blocks of `d`, `v`, `vd` or `vdd` | phase per signal], float32."""

    def __init__(self, state: str, rows: Rows, length_m: Floats, phase_counts: tuple[int, ...]) -> None:
        self._state = state
        self._rows = rows
        self._length_m = length_m[rows]
        self._phase_scale = max(max(phase_counts) - 1, 1)
        self.state = ObserverState()
        self.size = len(_BLOCKS[state]) * len(rows) + len(phase_counts)

    def observe(self, readings: Readings, shares: Shares, phase_state: PhaseState) -> Observation:
        density = readings.vehicles[self._rows] / self._length_m
        outflow = readings.outflow[self._rows]
        volume = outflow - (self.state.outflow_before or outflow)
        blocks = {
            "d": (density,),
            "v": (volume,),
            "vd": (density, volume),
            "vdd": (volume / (density + _EPSILON),),
        }[self._state]
        raised = [block + _EPSILON for block in blocks]
        phase = np.array(phase_state.phases, np.float64) / self._phase_scale
        return np.concatenate([*(block / block.max() for block in raised), phase]).astype(np.float32)

    def decided(self, readings: Readings) -> None:
        self.state.outflow_before = tuple(readings.outflow[self._rows].tolist())


@dataclass
class KeepChangeState(SavedState):
    """The phase of each signal, and since when it may be green."""

    phases: list[int]
    green_from_s: list[float]
    begin_s: float = 0.0


class KeepChangeSequencer(PhaseSequencer):
    """`kc`: each signal keeps its green or steps through yellow to the following green."""

    def __init__(self, programs: Sequence[Sequence[ProgramPhase]], interval_s: float, actionp: float) -> None:
        self._programs = [tuple(phases) for phases in programs]
        self._interval_s, self._actionp = interval_s, actionp
        self.state = KeepChangeState([0] * len(self._programs), [-math.inf] * len(self._programs))

    def enter(self, now: float, shown: Sequence[str], start: bool = False) -> None:
        if start:
            self.state.begin_s = now
        for k, (phases, state) in enumerate(zip(self._programs, shown, strict=True)):
            greens = [i for i, phase in enumerate(phases) if is_green(phase.state)]
            self.state.phases[k] = next((i for i in greens if phases[i].state == state), greens[0] if greens else 0)
            self.state.green_from_s[k] = -math.inf

    def apply_action(self, now: float, action: ActionValues) -> None:
        for k, a in enumerate(action):
            if a >= self._actionp:
                phases = self._programs[k]
                self.state.phases[k] = (self._current(k, now) + 1) % len(phases)
                # a program without a yellow in between steps to the next green at once
                at_once = is_green(phases[self.state.phases[k]].state)
                self.state.green_from_s[k] = -math.inf if at_once else round_to_ms(now + KC_YELLOW_S)

    def _current(self, k: int, now: float) -> int:
        """Phase index of signal k at second `now`: after its yellow, that of the following green."""
        phases = self._programs[k]
        index = self.state.phases[k]
        if now >= self.state.green_from_s[k]:
            for _ in phases:
                if is_green(phases[index].state):
                    break
                index = (index + 1) % len(phases)
        return index

    def requested_states(self, now: float) -> tuple[str, ...]:
        return tuple(phases[self._current(k, now)].state for k, phases in enumerate(self._programs))

    def phase_state(self, now: float) -> PhaseState:
        return PhaseState(tuple(self._current(k, now) for k in range(len(self._programs))), True)

    def next_change_s(self, now: float) -> float:
        return min((t for t in self.state.green_from_s if t > now), default=math.inf)

    def next_decision_s(self, now: float) -> float:
        return next_multiple_s(now, self.state.begin_s, self._interval_s)
