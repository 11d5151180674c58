"""Putting the TLs of a run together: every contract checked against the running street, its signals taken over."""

import math
from collections.abc import Sequence

import numpy as np

from city import config as city_config
from city.network import StreetNetwork
from controller import max_pressure
from controller.decision_step import DecisionSteps, Events
from controller.intersection import Intersection
from controller.max_pressure import MaxPressure
from controller.monitor import Limits, SignalMonitor
from controller.observation import Floats, observer
from controller.policy import Policies
from controller.safety import SignalSafety
from controller.safety_times import SafetyTimes
from controller.signal_timing import timing_of
from controller.sumo.link import Link
from controller.sumo.network import check_contract, check_running, plan_of, running_signals
from protos import policy_pb2 as pb
from serving.contract import PLAN_ACTIONS, green_states


def assemble(
    link: Link,
    street: StreetNetwork,
    contracts: Sequence[pb.Policy],
    policies: Policies,
    safety: city_config.Safety,
    control: city_config.Controller,
    events: Events | None = None,
) -> DecisionSteps:
    """Check every contract against the running street and take its signals over.

    Raises InputError with what does not fit.
    """
    signals = [signal for policy in contracts for signal in policy.signal_ids]
    for policy in contracts:
        check_contract(policy, street)
    running = running_signals(link.api, street, signals)
    for policy in contracts:
        check_running(policy, running, link.api, street)
    now = float(link.api.simulation.getTime())
    by_pressure = control.fallback == "max-pressure"
    lanes_of = {policy.tl: [lane for signal in policy.signals for lane in signal.lane_ids] for policy in contracts}
    counted = [lane for policy in contracts if policy.observation.state in ("v", "vd", "vdd") for lane in lanes_of[policy.tl]]
    read_of = {
        policy.tl: [*lanes_of[policy.tl], *(lane for signal in policy.signal_ids for lane in _vehicle_lanes(street, signal))]
        for policy in contracts
        if by_pressure
    }
    link.watch(
        read_of or lanes_of, list(dict.fromkeys(counted)), {signal: len(street.signals[signal].links) for signal in signals}
    )
    row = {lane: i for i, lane in enumerate(link.lanes)}
    length_m = np.array([street.lane_length_m[lane] for lane in link.lanes])
    intersections = []
    monitors = []
    for policy in contracts:
        greens = green_states(phase.state for phase in policy.signals[0].phases)
        times = safety_times(policy, safety)
        safeties = [
            SignalSafety(street.signals[trained.id], times, green_states(phase.state for phase in trained.phases))
            for trained in policy.signals
        ]
        x = Intersection(
            policy,
            observer(policy, row, length_m, len(greens)),
            timing_of(policy, safety.min_yellow_s, safety.min_green_s),
            safeties,
            [plan_of(running[signal], street.signals[signal]) for signal in policy.signal_ids],
            control,
            pressure_of(policy, street, row, length_m, times) if by_pressure else None,
        )
        limits = Limits(times.yellow_s, times.min_green_s, times.all_red_s, times.max_red_s, times.walking_mps)
        for trained in policy.signals:
            monitor = SignalMonitor(street.signals[trained.id], limits, green_states(phase.state for phase in trained.phases))
            # how the signal is taken over from its program is seen as well
            monitor.see_plan(running[trained.id].shown, now)
            monitors.append(monitor)
        x.start(now, [running[signal].shown for signal in policy.signal_ids])
        intersections.append(x)
    step_s = float(link.api.simulation.getDeltaT())
    return DecisionSteps(link, intersections, policies, street, events or Events(), now, step_s, monitors)


def pressure_of(
    policy: pb.Policy, street: StreetNetwork, row: dict[str, int], length_m: Floats, times: SafetyTimes
) -> MaxPressure | None:
    """None where a signal has no green to choose: such a TL falls back to its plan."""
    greens = [green_states(phase.state for phase in trained.phases) for trained in policy.signals]
    if not all(greens):
        return None
    signals = [street.signals[signal] for signal in policy.signal_ids]
    return MaxPressure(signals, greens, row, length_m, times.yellow_s, times.min_green_s)


def _vehicle_lanes(street: StreetNetwork, signal: str) -> list[str]:
    """The lanes of a signal that vehicles drive on: crossings and walking areas are inside of junctions."""
    return [lane for lane in max_pressure.lanes_of(street.signals[signal]) if not lane.startswith(":")]


def safety_times(policy: pb.Policy, floors: city_config.Safety) -> SafetyTimes:
    """The contract's times, never below the floors."""
    times = policy.timing
    # a plan's links may be green over several of its phases; its own durations have their bounds already
    is_plan = policy.action.kind in PLAN_ACTIONS
    bounds = [bound for bound in (0 if is_plan else times.max_green_s, floors.max_green_s) if bound]
    return SafetyTimes(
        yellow_s=max(times.yellow_s, floors.min_yellow_s),
        min_green_s=max(0.0 if is_plan else times.min_green_s, floors.min_green_s),
        all_red_s=max(times.all_red_s, floors.all_red_s),
        max_green_s=min(bounds, default=math.inf),
        max_red_s=floors.max_red_s or math.inf,
        walking_mps=floors.walking_mps,
    )
