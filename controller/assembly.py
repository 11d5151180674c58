"""Assemble a run: check every contract against the running simulation and take its signals over."""

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from city import config as city_config
from city.errors import InputError
from city.network import StreetNetwork
from controller.decision_step import DecisionLoop
from controller.events import Subscriber
from controller.sumo.connection import LanesToRead, StartConnection, TrackingConnection
from controller.sumo.network import (
    RunningSignal,
    check_contract_matches_network,
    check_options,
    check_sumo_matches_contract,
    define_off_programs,
    fallback_schedule,
    running_signals,
)
from protos import policy_pb2 as pb
from signals import dialects
from signals.change_times import change_times, signal_safeties, with_street_changes
from signals.fallback.scored_greens import Greedy, GreenScore, MaxPressure, ScoredGreens
from signals.intersection import Intersection
from signals.movement_names import MovementNames
from signals.observation import Floats
from signals.policy import Policies
from signals.policy_signals import distinct_greens, greens_of, running_program
from signals.safety.monitor import SignalMonitor
from signals.safety.safety_times import SafetyTimes

DRIVERS: dict[str, type[GreenScore]] = {kind.name: kind for kind in (MaxPressure, Greedy)}
"""Drivers that can control in the place of the policies, by name."""
PERSONS = "stats.persons.running"
"""SUMO's number of persons on the street. At the first request of the person domain itself, SUMO 1.28 would prepare for
persons, and from then on look for them wherever a vehicle nears a junction: 2 % of its time on cologne8."""


@dataclass(frozen=True)
class Start:
    """The simulation at the moment at which control begins."""

    now: float
    """Simulated second."""
    sumo_step_s: float
    has_traffic: bool
    """True if vehicles or persons are there."""
    signals: Mapping[str, RunningSignal]
    """By signal of the contracts, in their order."""


@dataclass(frozen=True)
class ControlledTls:
    """TLs of a street, and the settings under which they are controlled."""

    street: StreetNetwork
    contracts: Sequence[pb.PolicyContract]
    safety: city_config.Safety
    control: city_config.Controller
    driver: str | None = None
    """One of DRIVERS, which controls in the place of the policies, with the greens of the programs that run."""
    names: Mapping[str, MovementNames] = field(default_factory=dict)
    """By signal, the names of its movements, for people."""


def assemble(
    connection: StartConnection,
    tls: ControlledTls,
    policies: Policies,
    subscribers: Iterable[Subscriber] = (),
    is_monitored: bool = True,
    is_checked: bool = False,
) -> DecisionLoop:
    """Check every contract against the running simulation and take its signals over.

    Args:
        connection: to SUMO.
        tls: the TLs and their settings.
        policies: source of the actions.
        subscribers: get the decision events.
        is_monitored: whether monitors check the shown states; False for a run whose alarms are not used.
        is_checked: see `checked_start`.

    Raises InputError that names the difference.
    """
    start = checked_start(connection, tls.street, tls.contracts, is_checked)
    loop = loop_from(start, connection, tls, policies, subscribers, is_monitored)
    take_over(connection, tls.street, start)
    return loop


def checked_start(
    connection: StartConnection, street: StreetNetwork, contracts: Sequence[pb.PolicyContract], is_checked: bool = False
) -> Start:
    """Check every contract against the running simulation. Raises InputError that names the difference.

    `is_checked`: whether the contracts are known to match the network file (`check_contract_matches_network`).
    """
    api = connection.api
    for contract in () if is_checked else contracts:
        check_contract_matches_network(contract, street)
    check_options(api)
    running = running_signals(api, street, [signal for contract in contracts for signal in contract.signal_ids])
    for contract in contracts:
        check_sumo_matches_contract(contract, running, api, street)
    return Start(
        now=float(api.simulation.getTime()),
        sumo_step_s=float(api.simulation.getDeltaT()),
        has_traffic=api.vehicle.getIDCount() > 0 or api.simulation.getParameter("", PERSONS) != "0",
        signals=running,
    )


def take_over(connection: StartConnection, street: StreetNetwork, start: Start) -> None:
    """Prepare the signals in SUMO for a controller, and mark them as controlled."""
    define_off_programs(connection.api, [street.signals[signal] for signal in start.signals])
    # so that a second controller of these signals is refused
    connection.mark_controlled(list(start.signals), f"process {os.getpid()} on {socket.gethostname()}")


def loop_from(
    start: Start,
    connection: TrackingConnection,
    tls: ControlledTls,
    policies: Policies,
    subscribers: Iterable[Subscriber],
    is_monitored: bool = True,
) -> DecisionLoop:
    """The decision loop of a start; it asks nothing more of SUMO. Arguments and errors as `assemble`."""
    street = tls.street
    links = {signal: len(street.signals[signal].links) for signal in start.signals}
    connection.track(lanes_to_read(tls), links)
    # as in training, where an episode begins on an empty network, with the first green phase at once
    forces_first = tls.safety.floors == "dialect" and not start.has_traffic
    row = {lane: i for i, lane in enumerate(connection.lanes)}
    length_m: Floats = np.array([street.lane_length_m[lane] for lane in row])
    intersections: list[Intersection] = []
    monitors: list[SignalMonitor] = []
    for contract in tls.contracts:
        intersection = _intersection(contract, tls, row, length_m, start)
        for signal, safety in zip(contract.signals, intersection.safeties, strict=True) if is_monitored else ():
            names = tls.names.get(signal.id)
            monitor = SignalMonitor(street.signals[signal.id], safety.times, greens_of(signal), names)
            if not forces_first:
                # the change from the signal's program is monitored too
                monitor.follow_program(start.signals[signal.id].shown, start.now)
            monitors.append(monitor)
        intersection.start(start.now, [start.signals[signal].shown for signal in contract.signal_ids], forces_first)
        intersections.append(intersection)
    return DecisionLoop(
        connection,
        intersections,
        policies,
        length_m,
        start.now,
        start.sumo_step_s,
        subscribers,
        monitors,
        tls.names,
    )


def lanes_to_read(tls: ControlledTls) -> LanesToRead:
    """The lanes that the TLs' observers, the driver and the fallback need."""
    street = tls.street
    with_pressure = MaxPressure.name in (tls.driver, tls.control.fallback)
    lanes_of, outflow_lanes, vehicle_lanes_of = {}, [], {}
    for contract in tls.contracts:
        lanes = [lane for signal in contract.signals for lane in signal.lane_ids]
        outflow_lanes += lanes if dialects.of(contract).counts_outflow(contract) else []
        signals = [street.signals[signal] for signal in contract.signal_ids]
        if with_pressure:
            lanes += [lane for signal in signals for lane in MaxPressure.lanes_of(signal, street.lanes_behind)]
        lanes_of[contract.tl] = lanes
        vehicle_lanes = list(dialects.of(contract).vehicle_lanes(contract))
        if tls.driver == Greedy.name:
            vehicle_lanes += [lane for signal in signals for lane in Greedy.lanes_of(signal, street.lanes_behind)]
        vehicle_lanes_of[contract.tl] = vehicle_lanes
    crossings = [a for c in tls.contracts for signal in c.signals for a in signal.approaches if a.walking_areas]
    walking_areas_of = {crossing.lane_id: list(crossing.walking_areas) for crossing in crossings}
    return LanesToRead(lanes_of, list(dict.fromkeys(outflow_lanes)), vehicle_lanes_of, walking_areas_of)


def _intersection(
    contract: pb.PolicyContract, tls: ControlledTls, row: Mapping[str, int], length_m: Floats, start: Start
) -> Intersection:
    """`row`, `length_m`: of the lanes in readings."""
    street, driver = tls.street, tls.driver
    dialect = dialects.of(contract)
    safeties = signal_safeties(contract, street, tls.safety)
    times = safeties[0].times
    driving = _scored_greens(DRIVERS[driver], contract, street, row, length_m, times) if driver is not None else None
    if driver is not None and driving is None:
        raise InputError(
            f"{contract.tl}: one of its signals has no green phase, so {driver} has nothing to choose; "
            "leave it out with --infer-tl"
        )
    pressure = (
        _scored_greens(MaxPressure, contract, street, row, length_m, times)
        if tls.control.fallback == MaxPressure.name
        else None
    )
    return Intersection(
        contract,
        dialect.observer(contract, row, length_m),
        dialect.sequencer(with_street_changes(contract, change_times(contract, safeties))),
        safeties,
        [fallback_schedule(start.signals[signal], street.signals[signal], start.now) for signal in contract.signal_ids],
        tls.control,
        pressure,
        driving,
    )


def _scored_greens(
    kind: type[GreenScore],
    contract: pb.PolicyContract,
    street: StreetNetwork,
    row: Mapping[str, int],
    length_m: Floats,
    times: SafetyTimes,
) -> ScoredGreens | None:
    """Max-pressure or greedy of a TL; None if one of its signals has no green phase, so that nothing can be chosen."""
    signals = [street.signals[signal] for signal in contract.signal_ids]
    # of the program that runs, whichever one the policy was trained on
    greens = [distinct_greens(signal, running_program(signal)) for signal in signals]
    if not all(greens):
        return None
    return ScoredGreens(kind, signals, greens, row, length_m, times, street.lanes_behind)
