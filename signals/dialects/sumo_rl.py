"""The sumo-rl dialect: a TL of one signal; an action is the index of a green phase.

Observation, float32: [one-hot of the current green phase | min_green bit | density
per lane | queue per lane]. Lanes are the signal's controlled lanes without
duplicates, in link-index order.

- density = min(1, vehicles / (lane length / (2.5 + mean vehicle length of the last
  step))); queue is the same with halting vehicles (speed < 0.1 m/s).
- The min_green bit is 1 once the time since the last phase change is at least
  min_green + yellow.

Action: index into the green phases: all of the first program logic, as in sumo-rl, or the
distinct ones of the program that runs (`policy_signals`). A change requested
earlier than yellow + min_green after the last one is ignored; if the safety rules delay
the new green, the time counts from when it is shown. Otherwise yellow for
yellow_time: each `G`/`g` with `r`/`s` as next state becomes `y`; then the new green.
Decisions are taken every delta_time from the begin time; the first green phase is
forced at the start.

Source: `TrafficSignal` of https://github.com/LucasAlegre/sumo-rl
(sumo_rl/environment/traffic_signal.py).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from city.config import TL, Safety
from city.errors import InputError
from protos import policy_pb2 as pb
from serving.contract import CATEGORICAL
from signals.dialects import Dialect, contradiction
from signals.green_phases import GreenPhaseSequencer
from signals.observation import (
    Floats,
    Observation,
    Observer,
    ObserverGroup,
    PhaseSequencer,
    PhaseState,
    Readings,
    Rows,
    Shares,
)
from signals.policy_signals import PolicySignal, greens_of, signal_messages

# sumo-rl's defaults
DELTA_TIME_S = 5
YELLOW_S = 2.0
MIN_GREEN_S = 5.0


class SumoRl(Dialect):
    """Also the base of other dialects whose action is a green of one signal."""

    name = "sumo-rl"
    yellow_s = YELLOW_S
    sequencer_type = GreenPhaseSequencer
    action_kinds: tuple[str, ...] = (CATEGORICAL,)
    takes_first_program = True
    file_name_settings: tuple[str, ...] = ()

    def check_settings(self, tl: TL) -> None:
        if len(tl.signals) > 1:
            raise InputError(f"a {self.name} TL has one signal, not {len(tl.signals)}; use dialect sappo for a group")
        if tl.state or tl.action:
            raise InputError(f"state and action are settings of the sappo dialect, not of {self.name}")

    def action_kind(self, tl: TL) -> str:
        return CATEGORICAL

    def build_contract(self, tl: TL, signals: Sequence[PolicySignal], safety: Safety) -> pb.PolicyContract:
        messages = signal_messages(signals)
        greens = len(signals[0].greens)
        features = self.features(messages[0], greens)
        return pb.PolicyContract(
            tl=tl.name,
            signal_ids=[signal.id for signal in signals],
            signals=messages,
            observation=pb.Observation(dialect=self.name, size=len(features), features=features, normalisation="none"),
            action=pb.Action(kind=CATEGORICAL, size=greens, choices=[greens]),
            timing=self.timing(tl),
        )

    def timing(self, tl: TL) -> pb.Timing:
        """The times of a [tl.NAME] table, with the dialect's defaults."""
        return pb.Timing(
            decision_interval_s=DELTA_TIME_S if tl.delta_time_s is None else tl.delta_time_s,
            yellow_s=self.yellow_s if tl.yellow_s is None else tl.yellow_s,
            all_red_s=tl.all_red_s or 0.0,
            min_green_s=MIN_GREEN_S if tl.min_green_s is None else tl.min_green_s,
            max_green_s=tl.max_green_s or 0.0,
        )

    def check_contract(self, contract: pb.PolicyContract) -> None:
        if contract.action.kind != CATEGORICAL:
            raise contradiction(contract, f"has action {contract.action.kind!r}, not {CATEGORICAL}")
        greens = len(greens_of(contract.signals[0]))
        if list(contract.observation.features) != self.features(contract.signals[0], greens):
            raise contradiction(contract, "lists features that its signal does not have")
        size = contract.action.size
        if size != greens:
            raise contradiction(contract, f"has action size {size}, but its signal has {greens} green phases")
        interval_s = contract.timing.decision_interval_s
        if not interval_s >= 1:
            raise contradiction(contract, f"has decision_interval_s {interval_s:g}, but it must be at least 1")

    def features(self, signal: pb.Signal, greens: int) -> list[pb.Feature]:
        """The features of a signal with a number of greens, in the order of the observation."""
        head = [pb.Feature(kind="phase", signal_id=signal.id)] * greens + [
            pb.Feature(kind="min_green", signal_id=signal.id)
        ]
        return head + [
            pb.Feature(kind=kind, signal_id=signal.id, lane_id=lane)
            for kind in ("density", "queue")
            for lane in signal.lane_ids
        ]

    def observer(self, contract: pb.PolicyContract, lane_row: Mapping[str, int], length_m: Floats) -> Observer:
        rows = np.array([lane_row[lane] for lane in contract.signals[0].lane_ids], np.intp)
        return SumoRlObserver(rows, len(lane_row), len(greens_of(contract.signals[0])))

    def sequencer(self, contract: pb.PolicyContract) -> PhaseSequencer:
        timing = contract.timing
        return self.sequencer_type(
            greens_of(contract.signals[0]),
            timing.decision_interval_s,
            timing.yellow_s,
            timing.min_green_s,
            timing.all_red_s,
        )


DIALECT = SumoRl()


class SumoRlObserver(Observer):
    """[one-hot of the green phase | min_green bit | density per lane | queue per lane]."""

    def __init__(self, rows: Rows, lanes: int, greens: int) -> None:
        """`rows`: the rows of the TL's lanes in the readings of `lanes` lanes."""
        self._greens = greens
        self.columns: Rows = np.concatenate([np.zeros(greens + 1, np.intp), 1 + rows, 1 + lanes + rows])
        """[size], the column of each value in `Shares.row`; column 0, a zero, for those of the phases."""
        self.size = len(self.columns)

    def write_phase_state(self, out: Observation, phase_state: PhaseState) -> None:
        out[phase_state.phases[0]] = 1.0
        out[self._greens] = phase_state.min_green_passed

    def observe(self, readings: Readings, shares: Shares, phase_state: PhaseState) -> Observation:
        out = shares.row[self.columns]
        self.write_phase_state(out, phase_state)
        return out

    @staticmethod
    def together(observers: "Sequence[SumoRlObserver]") -> ObserverGroup:
        return SumoRlObservers(observers)


class SumoRlObservers:
    """The observations of TLs that decide at the same moment: one indexing operation gathers all lane features."""

    def __init__(self, observers: Sequence[SumoRlObserver]) -> None:
        self._observers = observers
        self._columns = np.concatenate([observer.columns for observer in observers])
        ends = np.cumsum([observer.size for observer in observers]).tolist()
        self._parts = [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]

    def observe(self, readings: Readings, shares: Shares, phase_states: Sequence[PhaseState]) -> list[Observation]:
        row = shares.row[self._columns]
        observations = [row[part] for part in self._parts]
        for observer, observation, phase_state in zip(self._observers, observations, phase_states, strict=True):
            observer.write_phase_state(observation, phase_state)
        return observations
