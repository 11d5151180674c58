"""The street dialect: one policy for any junction; an action is the index of a green.

Observation, float32: [one-hot of the current green | min_green bit | time for which it has been shown, s | for each
green the time since it was left, s | for each incoming lane its features (`signals.approach_features`)], from the
positions, speeds and waiting times of the vehicles within 300 m upstream. So a street needs sensors that see single
vehicles (radar, camera): counts by lane are not enough. A pedestrian crossing is one more lane, and a person who stands
before it or walks towards it is a vehicle.

The greens are the distinct ones of the program that runs. What the policy needs of the network is in the contract:
lanes, links, speed limits, and the time of each change of greens. Actions, yellow, minimum green and decision moments
are those of the sumo-rl dialect (`signals.green_phases`), with a yellow of 3 s; the safety rules make a yellow longer
where the approach speed asks for it.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from city.config import TL, Safety
from city.lanes import is_internal
from city.network import SignalNetwork
from protos import policy_pb2 as pb
from signals.approach_features import EXIT_M, FEATURES, LONGEST_RED_S, REACH_M, ApproachFeatures
from signals.dialects import contradiction
from signals.dialects.sumo_rl import SumoRl
from signals.green_phases import GreenPhaseSequencer
from signals.observation import Floats, Observation, Observer, ObserverGroup, PhaseState, Readings, Shares
from signals.policy_signals import PolicySignal, greens_of
from signals.safety.safety_times import times_for
from signals.safety.signal_safety import SignalSafety

YELLOW_S = 3.0
WALKING_MPS = 1.2
"""Speed at which a person loses no time, in the place of a crossing's limit, which no person reaches."""
HEAD = ("min_green", "green_time")
"""Features of the signal after the one-hot of its greens, before the times since they were left."""


class StreetSequencer(GreenPhaseSequencer):
    """Greens of one signal, and for how long each has or has not been shown."""

    def __init__(
        self, greens: Sequence[str], delta_time_s: float, yellow_s: float, min_green_s: float, all_red_s: float = 0.0
    ) -> None:
        super().__init__(greens, delta_time_s, yellow_s, min_green_s, all_red_s)
        self.state.left_s = [0.0] * len(greens)

    def enter(self, now: float, shown: Sequence[str], start: bool = False) -> None:
        super().enter(now, shown, start)
        self.state.left_s = [now] * len(self.state.left_s)
        self.state.shown_s = now

    def apply_action(self, now: float, action: Sequence[float]) -> None:
        state, before = self.state, self.state.green
        super().apply_action(now, action)
        if state.green != before:
            state.left_s[before] = now
            state.shown_s = state.green_from_s

    def note_shown(self, now: float, signal: int = 0) -> None:
        if now < self.state.awaits_green_until_s:
            self.state.shown_s = max(self.state.shown_s, now)
        super().note_shown(now, signal)

    def decides_at(self, now: float) -> bool:
        return self._may_change(now)

    def phase_state(self, now: float) -> PhaseState:
        green_phase, state = super().phase_state(now), self.state
        since_s = [now - left_s for left_s in state.left_s]
        since_s[state.green] = 0.0
        return PhaseState(
            green_phase.phases, green_phase.min_green_passed, max(now - state.shown_s, 0.0), tuple(since_s)
        )


class StreetDialect(SumoRl):
    """Settings, action and times of sumo-rl; an observation of its own."""

    name = "street"
    takes_first_program = False
    yellow_s = YELLOW_S
    sequencer_type = StreetSequencer

    def build_contract(self, tl: TL, signals: Sequence[PolicySignal], safety: Safety) -> pb.PolicyContract:
        contract = super().build_contract(tl, signals, safety)
        (signal,), (message,) = signals, contract.signals
        message.approaches.extend(approaches(signal.network))
        rules = SignalSafety(signal.network, times_for(contract, safety, runs_plan=False), signal.greens)
        message.change_s.extend(rules.change_between_s(a, b) for a in signal.greens for b in signal.greens)
        # once more: the lanes of the approaches have features
        features = self.features(message, len(signal.greens))
        contract.observation.ClearField("features")
        contract.observation.MergeFrom(pb.Observation(size=len(features), features=features))
        return contract

    def features(self, signal: pb.Signal, greens: int) -> list[pb.Feature]:
        kinds = (*("phase",) * greens, *HEAD, *("since_green",) * greens)
        head = [pb.Feature(kind=kind, signal_id=signal.id) for kind in kinds]
        return head + [
            pb.Feature(kind=kind, signal_id=signal.id, lane_id=approach.lane_id)
            for approach in signal.approaches
            for kind in FEATURES
        ]

    def check_contract(self, contract: pb.PolicyContract) -> None:
        super().check_contract(contract)
        signal = contract.signals[0]
        greens = greens_of(signal)
        if len(signal.change_s) != len(greens) ** 2:
            raise contradiction(contract, "has change times of another number of greens than its signal")
        links = min((len(green) for green in greens), default=0)
        if any(not 0 <= link < links for approach in signal.approaches for link in approach.links):
            raise contradiction(contract, "has a lane with a link that its signal does not have")
        if any(approach.exits and approach.exits[0].distance_m != 0 for approach in signal.approaches):
            raise contradiction(contract, "has an exit that does not begin at its signal")
        if any(a.walking_areas and [lane.lane_id for lane in a.upstream] != [a.lane_id] for a in signal.approaches):
            raise contradiction(contract, "has a crossing that persons reach over other lanes")
        lanes = [lane for approach in signal.approaches for lane in (*approach.upstream, *approach.exits)]
        numbers = [x for lane in lanes for x in (lane.distance_m, lane.share, lane.length_m, lane.limit_mps)]
        if not all(math.isfinite(x) and x >= 0 for x in (*numbers, *signal.change_s)):
            raise contradiction(contract, "has a length, speed or time that is negative or not finite")

    def vehicle_lanes(self, contract: pb.PolicyContract) -> list[str]:
        return list(
            dict.fromkeys(lane.lane_id for a in contract.signals[0].approaches for lane in (*a.upstream, *a.exits))
        )

    def observer(self, contract: pb.PolicyContract, lane_row: Mapping[str, int], length_m: Floats) -> Observer:
        return StreetObserver(contract.signals[0], lane_row)


DIALECT = StreetDialect()


def approaches(network: SignalNetwork) -> list[pb.Approach]:
    """The incoming lanes of a signal that vehicles use, then its pedestrian crossings."""
    pairs = [pair for link in network.links for pair in link]
    crossings = dict.fromkeys(lane for pair in pairs for lane in pair if lane in network.lane_graph.walking_areas)
    return [
        *(_approach(network, lane) for lane in network.lanes if not is_internal(lane)),
        *(_crossing(network, lane) for lane in crossings),
    ]


def _crossing(network: SignalNetwork, lane: str) -> pb.Approach:
    graph = network.lane_graph
    return pb.Approach(
        lane_id=lane,
        links=[k for k, link in enumerate(network.links) if any(lane in pair for pair in link)],
        upstream=[pb.ReadLane(lane_id=lane, share=1.0, length_m=graph.length_m[lane], limit_mps=WALKING_MPS)],
        walking_areas=graph.walking_areas[lane],
    )


def _approach(network: SignalNetwork, lane: str) -> pb.Approach:
    graph = network.lane_graph

    def read_lane(lane: str, share: float, distance_m: float = 0.0) -> pb.ReadLane:
        length_m, limit_mps = graph.length_m[lane], graph.limit_mps[lane]
        return pb.ReadLane(lane_id=lane, distance_m=distance_m, share=share, length_m=length_m, limit_mps=limit_mps)

    pairs = [(k, outgoing) for k, link in enumerate(network.links) for incoming, outgoing in link if incoming == lane]
    exits = [outgoing for _, outgoing in pairs if not is_internal(outgoing)]
    return pb.Approach(
        lane_id=lane,
        links=list(dict.fromkeys(k for k, _ in pairs)),
        upstream=[read_lane(each.lane, each.share, each.distance_m) for each in graph.upstream(lane, REACH_M)],
        exits=[
            read_lane(each, share * exits.count(outgoing) / len(exits), begin_m)
            for outgoing in dict.fromkeys(exits)
            for each, begin_m, share in graph.downstream(outgoing, EXIT_M)
        ],
    )


class StreetObserver(Observer):
    """[one-hot of the green | min_green bit | green time | time since each green | features of every incoming lane]."""

    def __init__(self, signal: pb.Signal, lane_row: Mapping[str, int]) -> None:
        self.approaches, self.lane_row = list(signal.approaches), lane_row
        self.greens = len(greens_of(signal))
        self.size = 2 * self.greens + len(HEAD) + len(self.approaches) * len(FEATURES)
        self._group: StreetObservers | None = None

    def observe(self, readings: Readings, shares: Shares, phase_state: PhaseState) -> Observation:
        if self._group is None:
            self._group = StreetObservers([self])
        return self._group.observe(readings, shares, [phase_state])[0]

    @staticmethod
    def together(observers: "Sequence[StreetObserver]") -> ObserverGroup:
        return StreetObservers(observers)


class StreetObservers:
    """The observations of TLs that decide at the same moment."""

    def __init__(self, observers: Sequence[StreetObserver]) -> None:
        self._observers = observers
        self._features = ApproachFeatures([a for o in observers for a in o.approaches], observers[0].lane_row)

    def observe(self, readings: Readings, shares: Shares, phase_states: Sequence[PhaseState]) -> list[Observation]:
        features = self._features.compute(readings.by_vehicle)
        observations, begin = [], 0
        for observer, state in zip(self._observers, phase_states, strict=True):
            end = begin + len(observer.approaches)
            observation = np.zeros(observer.size, np.float32)
            observation[state.phases[0]] = 1.0
            head = (state.min_green_passed, state.green_s, *np.minimum(state.since_green_s, LONGEST_RED_S))
            observation[observer.greens : 2 * observer.greens + len(HEAD)] = head
            observation[2 * observer.greens + len(HEAD) :] = features[begin:end].ravel()
            observations.append(observation)
            begin = end
        return observations
