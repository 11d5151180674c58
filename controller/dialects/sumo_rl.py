"""The sumo-rl dialect: a TL of one signal whose green phase is chosen by index.

Observation, float32: [one-hot of the current green phase | min_green bit | density
per lane | queue per lane]. Lanes are the signal's controlled lanes without
duplicates, in link-index order.

- density = min(1, vehicles / (lane length / (2.5 + mean vehicle length of the last
  step))); queue is the same with halting vehicles (speed < 0.1 m/s).
- The min_green bit is 1 once the time since the last phase change is at least
  min_green + yellow.

Action: index into the green phases of the first program logic. A change requested
earlier than yellow + min_green after the last one is ignored; if the safety rules delay
the new green, the time counts from when it is shown. Otherwise yellow for
yellow_time: each `G`/`g` whose next state is `r`/`s` becomes `y`; then the new green.
Decisions are taken every delta_time from the begin time; the first green phase is
forced at the start.

Source: `TrafficSignal` of https://github.com/LucasAlegre/sumo-rl
(sumo_rl/environment/traffic_signal.py).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from city.config import TL, Safety
from city.errors import InputError
from city.network import SignalNetwork, green_states
from controller.dialects import ActionValues, PhaseSequencer, signal_messages
from controller.observation import Floats, GatheringObserver, Observation, PhaseState, Readings, Rows, Shares
from controller.simulation_time import next_multiple_s, round_to_ms
from protos import policy_pb2 as pb
from serving.contract import CATEGORICAL, ContractError

# sumo-rl's defaults
DELTA_TIME_S, YELLOW_S, MIN_GREEN_S = 5, 2.0, 5.0
MAX_CHANGE_S = 60.0
"""Time after which a change whose green has not been shown no longer holds up decisions."""


class SumoRl:
    name = "sumo-rl"
    action_kinds: tuple[str, ...] = (CATEGORICAL,)
    file_name_settings: tuple[str, ...] = ()

    def check_settings(self, tl: TL) -> None:
        if len(tl.signals) > 1:
            raise InputError(f"a sumo-rl TL has one signal, not {len(tl.signals)}; use dialect sappo for a group")
        if tl.state or tl.action:
            raise InputError("state and action are settings of the sappo dialect, not of sumo-rl")

    def action_kind(self, tl: TL) -> str:
        return CATEGORICAL

    def build_contract(self, tl: TL, signals: Sequence[SignalNetwork], safety: Safety) -> pb.PolicyContract:
        # sumo-rl takes the first program logic, whichever runs
        messages = signal_messages([(network, network.first_program.id) for network in signals])
        greens = len(_greens(messages[0]))
        features = _features(messages[0], greens)
        return pb.PolicyContract(
            tl=tl.name,
            signal_ids=[signal.id for signal in messages],
            signals=messages,
            observation=pb.Observation(dialect=self.name, size=len(features), features=features, normalisation="none"),
            action=pb.Action(kind=CATEGORICAL, size=greens, choices=[greens]),
            timing=pb.Timing(
                decision_interval_s=DELTA_TIME_S if tl.delta_time_s is None else tl.delta_time_s,
                yellow_s=YELLOW_S if tl.yellow_s is None else tl.yellow_s,
                all_red_s=tl.all_red_s or 0.0,
                min_green_s=MIN_GREEN_S if tl.min_green_s is None else tl.min_green_s,
                max_green_s=tl.max_green_s or 0.0,
            ),
        )

    def check_contract(self, contract: pb.PolicyContract) -> None:
        where = f"the contract of {contract.tl}"
        again = f"export it again (greenserve export --tl {contract.tl})"
        if contract.action.kind != CATEGORICAL:
            raise ContractError(f"{where} has action {contract.action.kind!r}, not {CATEGORICAL}; {again}")
        greens = len(_greens(contract.signals[0]))
        if list(contract.observation.features) != _features(contract.signals[0], greens):
            raise ContractError(f"{where} lists features that its signal does not have; {again}")
        if contract.action.size != greens:
            raise ContractError(
                f"{where} has action size {contract.action.size}, but its signal has {greens} green phases; {again}"
            )
        if not contract.timing.decision_interval_s >= 1:
            interval_s = contract.timing.decision_interval_s
            raise ContractError(f"{where} has decision_interval_s {interval_s:g}, but it must be at least 1; {again}")

    def runs_plan(self, contract: pb.PolicyContract) -> bool:
        return False

    def counts_outflow(self, contract: pb.PolicyContract) -> bool:
        return False

    def observer(self, contract: pb.PolicyContract, lane_row: Mapping[str, int], length_m: Floats) -> "SumoRlObserver":
        rows = np.array([lane_row[lane] for lane in contract.signals[0].lane_ids], np.intp)
        return SumoRlObserver(rows, len(lane_row), len(_greens(contract.signals[0])))

    def sequencer(self, contract: pb.PolicyContract) -> PhaseSequencer:
        timing = contract.timing
        greens = _greens(contract.signals[0])
        return GreenPhaseSequencer(greens, timing.decision_interval_s, timing.yellow_s, timing.min_green_s, timing.all_red_s)


DIALECT = SumoRl()


def _greens(signal: pb.Signal) -> list[str]:
    return green_states(phase.state for phase in signal.phases)


def _features(signal: pb.Signal, greens: int) -> list[pb.Feature]:
    head = [pb.Feature(kind="phase", signal_id=signal.id)] * greens + [pb.Feature(kind="min_green", signal_id=signal.id)]
    lanes = signal.lane_ids
    return head + [pb.Feature(kind=k, signal_id=signal.id, lane_id=lane) for k in ("density", "queue") for lane in lanes]


class SumoRlObserver(GatheringObserver):
    """[one-hot of the green phase | min_green bit | density per lane | queue per lane]."""

    def __init__(self, rows: Rows, lanes: int, greens: int) -> None:
        """`rows`: of its lanes among all `lanes` that are read."""
        self._greens = greens
        self.columns = np.concatenate([np.zeros(greens + 1, np.intp), 1 + rows, 1 + lanes + rows])
        self.size = len(self.columns)

    def write_phase_state(self, out: Observation, phase_state: PhaseState) -> None:
        out[phase_state.phases[0]] = 1.0
        out[self._greens] = phase_state.min_green_passed

    def observe(self, readings: Readings, shares: Shares, phase_state: PhaseState) -> Observation:
        out = shares.row[self.columns]
        self.write_phase_state(out, phase_state)
        return out

    def decided(self) -> None:
        """Nothing in this observation counts since the last decision."""


class GreenPhaseSequencer:
    """Green phases of one signal, chosen by index, with yellow and all-red in between."""

    def __init__(
        self, greens: Sequence[str], delta_time_s: float, yellow_s: float, min_green_s: float, all_red_s: float = 0.0
    ) -> None:
        self._greens = tuple((green,) for green in greens)
        self._yellows = [[(yellow_between(a, b),) for b in greens] for a in greens]
        self._delta_time_s, self._yellow_s, self._min_green_s, self._all_red_s = delta_time_s, yellow_s, min_green_s, all_red_s
        self._begin_s = 0.0
        self._green = 0
        self._yellow: tuple[str] | None = None
        self._yellow_end_s = self._green_from_s = -math.inf
        self._awaits_green_until_s = -math.inf
        """While the chosen green is not shown yet: when its change is given up."""
        self._change_allowed_s = -math.inf
        """From when on the green may change: yellow, all-red and min green after the last change."""

    def enter(self, now: float, shown: Sequence[str], start: bool = False) -> None:
        # the dialect forces the first green phase at the start; later, a green that is already shown is kept
        if start:
            self._begin_s = now
        state = tuple(shown)
        self._green = self._greens.index(state) if not start and state in self._greens else 0
        self._yellow = None
        self._awaits_green_until_s = -math.inf
        self._change_allowed_s = round_to_ms(now + self._min_green_s + self._yellow_s + self._all_red_s)

    def apply_action(self, now: float, action: ActionValues) -> None:
        chosen = int(action[0])
        if chosen == self._green or not self._may_change(now):
            return
        self._yellow = self._yellows[self._green][chosen]
        self._green = chosen
        self._yellow_end_s = round_to_ms(now + self._yellow_s)
        self._green_from_s = round_to_ms(now + self._yellow_s + self._all_red_s)
        self._change_allowed_s = round_to_ms(now + self._min_green_s + self._yellow_s + self._all_red_s)
        self._awaits_green_until_s = now + MAX_CHANGE_S

    def _may_change(self, now: float) -> bool:
        return now >= self._change_allowed_s and now >= self._awaits_green_until_s

    def note_shown(self, now: float, signal: int = 0) -> None:
        # longer yellows, clearances and services of the safety rules delay the green: it counts from when it came
        if now < self._awaits_green_until_s and now >= self._green_from_s:
            self._awaits_green_until_s = -math.inf
            self._change_allowed_s = max(self._change_allowed_s, round_to_ms(now + self._min_green_s))

    def requested_states(self, now: float) -> tuple[str, ...]:
        if self._yellow is not None:
            if now < self._yellow_end_s:
                return self._yellow
            if now < self._green_from_s:
                return (self._yellow[0].replace("y", "r"),)
            self._yellow = None
        return self._greens[self._green]

    def phase_state(self, now: float) -> PhaseState:
        return PhaseState((self._green,), self._may_change(now))

    def next_change_s(self, now: float) -> float:
        changes = (self._yellow_end_s, self._green_from_s) if self._yellow is not None else ()
        return next((moment for moment in changes if moment > now), math.inf)

    def next_decision_s(self, now: float) -> float:
        return next_multiple_s(now, self._begin_s, self._delta_time_s)

    def decides_at(self, now: float) -> bool:
        return True


def yellow_between(green: str, following: str) -> str:
    """sumo-rl's yellow: each G/g whose next state is r/s becomes y, all else as before."""
    return "".join("y" if a in "Gg" and b in "rs" else a for a, b in zip(green, following, strict=True))
