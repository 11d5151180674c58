"""Assemble a run: check every contract against the running simulation and take its signals over."""

import os
import socket
from collections.abc import Mapping, Sequence

import numpy as np

from city import config as city_config
from city.errors import InputError
from city.lanes import is_internal
from city.network import StreetNetwork
from controller.decision_step import DecisionLoop, Events
from controller.sumo.connection import SumoConnection
from controller.sumo.network import (
    RunningSignal,
    check_contract_matches_network,
    check_sumo_matches_contract,
    define_off_programs,
    fallback_schedule,
    running_signals,
)
from protos import policy_pb2 as pb
from signals import dialects
from signals.change_times import change_times, signal_safeties, with_street_changes
from signals.fallback import max_pressure
from signals.fallback.max_pressure import MaxPressure
from signals.intersection import Intersection
from signals.observation import Floats
from signals.policy import Policies
from signals.policy_signals import distinct_greens, greens_of, running_program
from signals.safety.monitor import Limits, SignalMonitor
from signals.safety.safety_times import SafetyTimes

MAX_PRESSURE = "max-pressure"


def assemble(
    connection: SumoConnection,
    street: StreetNetwork,
    contracts: Sequence[pb.PolicyContract],
    policies: Policies,
    safety: city_config.Safety,
    control: city_config.Controller,
    events: Events | None = None,
    drives_by_pressure: bool = False,
) -> DecisionLoop:
    """Check every contract against the running simulation and take its signals over.

    `drives_by_pressure`: max-pressure controls in the place of the policies, with the greens of the programs that run.
    Raises InputError that names the difference.
    """
    signals = [signal for contract in contracts for signal in contract.signal_ids]
    for contract in contracts:
        check_contract_matches_network(contract, street)
    running = running_signals(connection.api, street, signals)
    for contract in contracts:
        check_sumo_matches_contract(contract, running, connection.api, street)
    counts_outflow = _track(connection, street, contracts, with_pressure=drives_by_pressure or control.fallback == MAX_PRESSURE)
    now = float(connection.api.simulation.getTime())
    # as in training, where an episode begins on an empty network, with the first green phase at once
    has_traffic = any(domain.getIDCount() for domain in (connection.api.vehicle, connection.api.person))
    forces_first = safety.floors == "dialect" and not has_traffic
    lanes = ReadLanes({lane: i for i, lane in enumerate(connection.lanes)}, street)
    intersections: list[Intersection] = []
    monitors: list[SignalMonitor] = []
    for contract in contracts:
        intersection = _intersection(contract, street, lanes, running, safety, control, now, drives_by_pressure)
        for monitor, signal in zip(_monitors(intersection, street), contract.signal_ids, strict=True):
            if not forces_first:
                # the change from the signal's program is monitored too
                monitor.follow_program(running[signal].shown, now)
            monitors.append(monitor)
        intersection.start(now, [running[signal].shown for signal in contract.signal_ids], forces_first)
        intersections.append(intersection)
    define_off_programs(connection.api, [street.signals[signal] for signal in signals])
    # so that a second controller of these signals is refused
    connection.mark_controlled(signals, f"process {os.getpid()} on {socket.gethostname()}")
    step_s = float(connection.api.simulation.getDeltaT())
    return DecisionLoop(connection, intersections, policies, street, events or Events(), now, step_s, monitors, counts_outflow)


class ReadLanes:
    """The lanes that a connection reads."""

    def __init__(self, row: Mapping[str, int], street: StreetNetwork) -> None:
        """`row`: row of a lane in the readings."""
        self.row = row
        self.length_m: Floats = np.array([street.lane_length_m[lane] for lane in row])
        """float64 [lanes]"""


def _track(
    connection: SumoConnection, street: StreetNetwork, contracts: Sequence[pb.PolicyContract], with_pressure: bool
) -> bool:
    """Set what the connection reads for the TLs; return whether it counts vehicles that left a lane.

    `with_pressure`: also read the lanes of max-pressure.
    """
    lanes_of, outflow_lanes = {}, []
    for contract in contracts:
        lanes = [lane for signal in contract.signals for lane in signal.lane_ids]
        outflow_lanes += lanes if dialects.of(contract).counts_outflow(contract) else []
        pressure = [lane for signal in contract.signal_ids for lane in _vehicle_lanes(street, signal)] if with_pressure else []
        lanes_of[contract.tl] = [*lanes, *pressure]
    links = {signal: len(street.signals[signal].links) for contract in contracts for signal in contract.signal_ids}
    vehicle_lanes_of = {contract.tl: dialects.of(contract).vehicle_lanes(contract) for contract in contracts}
    connection.track(lanes_of, list(dict.fromkeys(outflow_lanes)), links, vehicle_lanes_of)
    return bool(outflow_lanes)


def _intersection(
    contract: pb.PolicyContract,
    street: StreetNetwork,
    lanes: ReadLanes,
    running: Mapping[str, RunningSignal],
    safety: city_config.Safety,
    control: city_config.Controller,
    now: float,
    drives_by_pressure: bool,
) -> Intersection:
    """Build one TL, before it starts."""
    dialect = dialects.of(contract)
    safeties = signal_safeties(contract, street, safety)
    uses_pressure = drives_by_pressure or control.fallback == MAX_PRESSURE
    pressure = _max_pressure(contract, street, lanes, safeties[0].times) if uses_pressure else None
    if drives_by_pressure and pressure is None:
        raise InputError(
            f"{contract.tl}: one of its signals has no green phase, so max-pressure has nothing to choose; "
            "leave it out with --infer-tl"
        )
    return Intersection(
        contract,
        dialect.observer(contract, lanes.row, lanes.length_m),
        dialect.sequencer(with_street_changes(contract, change_times(contract, safeties))),
        safeties,
        [fallback_schedule(running[signal], street.signals[signal], now) for signal in contract.signal_ids],
        control,
        pressure,
        drives_by_pressure,
    )


def _monitors(intersection: Intersection, street: StreetNetwork) -> list[SignalMonitor]:
    """A monitor for each signal of a TL."""
    times = intersection.safeties[0].times
    limits = Limits(
        yellow_s=times.yellow_s,
        min_green_s=times.min_green_s,
        all_red_s=times.all_red_s,
        max_red_s=times.max_red_s,
        walking_speed_mps=times.walking_speed_mps,
        yellow_by_speed=times.yellow_by_speed,
        red_by_path=times.red_by_path,
    )
    signals = intersection.contract.signals
    return [SignalMonitor(street.signals[signal.id], limits, greens_of(signal)) for signal in signals]


def _max_pressure(contract: pb.PolicyContract, street: StreetNetwork, lanes: ReadLanes, times: SafetyTimes) -> MaxPressure | None:
    """Max-pressure of a TL; None if one of its signals has no green phase, so that the TL falls back to its plan."""
    signals = [street.signals[signal] for signal in contract.signal_ids]
    # of the program that runs, whichever one the policy was trained on
    greens = [distinct_greens(signal, running_program(signal)) for signal in signals]
    if not all(greens):
        return None
    return MaxPressure(
        signals, greens, lanes.row, lanes.length_m, times.yellow_s, times.min_green_s, times.all_red_s, street.lanes_behind
    )


def _vehicle_lanes(street: StreetNetwork, signal: str) -> list[str]:
    """The lanes of a signal that vehicles use; crossings and walking areas are inside junctions."""
    return [lane for lane in max_pressure.lanes_of(street.signals[signal], street.lanes_behind) if not is_internal(lane)]
