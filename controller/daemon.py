"""The daemon: fetch contracts, open SUMO, run decision steps until the end, release the signals in every case."""

import contextlib
import gc
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from city import network
from city.errors import InputError
from controller.alarms import Alarms
from controller.assembly import ControlledTls, Start, checked_start, loop_from, take_over
from controller.config import ControllerConfig, make_record_folder
from controller.decision_step import DecisionLoop
from controller.events import Subscriber
from controller.guard import handover
from controller.guard.start import open_guarded
from controller.policies.no_policies import NoPolicies, contracts_of_city
from controller.policies.periodic_thread import PeriodicThread
from controller.policies.served_contracts import fetch_contracts
from controller.policies.served_fleet import ServedFleet
from controller.policies.served_policies import ServedPolicies
from controller.release import Stop, abandon, log_connection_lost, release, release_at_once
from controller.sumo import libsumo_connection, start
from controller.sumo.connection import ApiConnection, CommandRejected, SumoConnection, SumoConnectionLost, WaitAborted
from controller.sumo.network import check_contracts_match_city, other_programs
from controller.sumo.traci_connection import traci_errors
from controller.sumo.tripinfo import check_complete
from controller.telemetry import tracing
from controller.telemetry.health import Health, HttpServer
from controller.telemetry.metrics import ControllerMetrics, RecordMetrics
from controller.telemetry.run_log import RunLog, figures
from controller.telemetry.traffic import TrafficMeter
from protos import policy_pb2 as pb
from serving.client import Client
from serving.client.client import Metadata
from serving.client.tls_files import ChangingTls
from signals import movement_names
from signals.change_times import change_times, describe_longer, describe_other_changes
from signals.contract import require_controllable
from signals.movement_names import MovementNames
from signals.policy import Policies
from signals.policy_signals import describe_programs, of_contract

if TYPE_CHECKING:
    from controller.operator.operator_interface import OperatorInterface

log = logging.getLogger("controller")

CERTIFICATE_INTERVAL_S = 10.0
"""Wall time between two checks of the certificate files."""
SUMMARY_INTERVAL_S = 600.0
"""Simulated seconds between two summary lines."""


def run(config: ControllerConfig, stop: Stop) -> int:
    """Control until the end of the simulation or until a stop request; return the exit code.

    Raises InputError before any signal is touched if the city, contracts, server or SUMO do not fit.
    """
    if config.record is not None:
        make_record_folder(config.record)
    street = network.of_city(config.city)
    infer_tls, notes = require_controllable(config.city, config.infer_tls, street, config.strict)
    for line in notes:
        log.warning("%s", line)
    config = replace(config, infer_tls=tuple(infer_tls))
    metrics, health = ControllerMetrics(CollectorRegistry()), Health()
    metrics.street_floors.set(config.city.safety.floors == "street")
    metrics.policy.info({"policy": config.policy})
    with contextlib.ExitStack() as closing:
        traces = tracing.provider_of_environment()
        if traces is not None:
            closing.callback(traces.shutdown)
        if config.http:
            closing.callback(HttpServer(config.http, metrics.registry, health).close)
        policies: Policies = NoPolicies()
        tl_of_signal = config.city.tl_of_signal
        alarms = Alarms(
            {s: tl for s, tl in tl_of_signal.items() if tl in config.infer_tls},
            len(config.infer_tls),
            "" if config.driver is not None else config.models.server,
        )
        metrics.registry.register(alarms)
        if config.driver is not None:
            contracts = contracts_of_city(config.city, config.infer_tls, street)
        else:
            contracts, policies = _served(config, metrics, alarms, tracing.metadata if traces else None, closing)
        names = movement_names.of_city(config.city, street)
        keeps_recent = config.page is not None or config.record is not None
        traffic = TrafficMeter(list(contracts.values()), street, keeps_recent)
        metrics.registry.register(traffic)
        interface = _interface(config, contracts, policies, alarms, metrics, health, traffic, names, closing)
        run_log = RunLog(metrics, contracts, names)
        connection = _open(config, stop, health)
        with _closed_if_control_does_not_begin(connection):
            city = config.city
            tls = ControlledTls(street, tuple(contracts.values()), city.safety, city.controller, config.driver, names)
            begin = checked_start(connection, street, tls.contracts)
            alarms.follow_greens(contracts.values(), street, names)
            subscribers: list[Subscriber] = [run_log, traffic, alarms]
            if interface is not None:
                subscribers.append(interface.state)
            if config.record is not None:
                recorder = _recorder(config, config.record, connection, tls, begin, metrics.registry, alarms, traffic)
                subscribers.append(recorder)
            if traces is not None:
                policies = tracing.TracedPolicies(policies, traces)
                subscribers.append(policies)
            loop = _assembled(connection, tls, policies, subscribers, begin)
            traffic.track(connection.lanes)
            end_s = control_end_s(config, connection)
            if interface is not None:
                interface.begin(loop, street, connection, begin)
            # last, because the guard ends with a controller that has registered one
            connection.register_handover(handover.encode(handover.handovers_of(loop.intersections.values())))
            # Freeze start-up objects so that a garbage collection never delays a decision.
            gc.collect()
            gc.freeze()
        try:
            is_only_client = not config.sumo.has_other_clients
            exit_code = _control(loop, end_s, is_only_client, connection, stop, health, run_log, interface)
        finally:
            loop.close()
        run_log.summary(loop)
        summary = {"second": loop.now, "policy": config.policy, **figures(loop.counters)}
        has_outputs = [_write_summary(config.summary, summary), exit_code != 0 or _has_complete_tripinfo(config)]
        return exit_code if all(has_outputs) else 1


@contextlib.contextmanager
def _closed_if_control_does_not_begin(connection: ApiConnection) -> Iterator[None]:
    """Close the connection if the block fails. Raises InputError if SUMO ended, rejected a request or sent damaged
    bytes."""
    try:
        with traci_errors(lambda error: error):
            yield
    except (connection.connection_error, SumoConnectionLost) as error:
        connection.close()
        raise InputError(f"SUMO ended before the control began: {connection.error_message() or error}") from None
    except BaseException as error:
        connection.close()
        if isinstance(error, CommandRejected):
            raise InputError(f"SUMO rejected a request before the control began: {error}") from None
        raise


def _assembled(
    connection: SumoConnection,
    tls: ControlledTls,
    policies: Policies,
    subscribers: Sequence[Subscriber],
    begin: Start,
) -> DecisionLoop:
    """Build the decision loop, take the signals over, and log the TLs and what the operator should know of them.

    Raises InputError.
    """
    driver = tls.driver
    loop = loop_from(begin, connection, tls, policies, subscribers)
    take_over(connection, tls.street, begin)
    signals = ((contract.tl, of_contract(contract, tls.street)) for contract in tls.contracts)
    information, warning = describe_programs(signals)
    if information:
        log.info("%s", information)
    how = "" if driver is None else f", by {driver}, without models"
    log.info("controlling %s from second %g%s", ", ".join(loop.intersections), loop.now, how)
    times = [change_times(intersection.contract, intersection.safeties) for intersection in loop.intersections.values()]
    floors = "[safety] floors = dialect: the street's floors are off; yellow, all-red and min green are the contracts'"
    slow = [] if driver is not None else describe_longer(times, slow_only=True)
    observed = (
        describe_other_changes((i.contract, i.safeties) for i in loop.intersections.values()) if driver is None else []
    )
    other = other_programs(begin.signals, tls.street, begin.now)
    for line in (other, warning, *slow, *observed, "" if tls.safety.floors == "street" else floors):
        if line:
            log.warning("%s", line)
    return loop


def _recorder(
    config: ControllerConfig,
    folder: Path,
    connection: SumoConnection,
    tls: ControlledTls,
    begin: Start,
    registry: CollectorRegistry,
    alarms: Alarms,
    traffic: TrafficMeter,
) -> Subscriber:
    """The subscriber that records the run, and its detectors if SUMO has loaded any. Raises InputError."""
    # the extra `record` is not installed everywhere
    from controller.recording.detectors import track_detectors
    from controller.recording.record_folder import RecordFolder
    from controller.recording.recorder import Recorder
    from controller.recording.run_start import of_tls

    city = config.city
    phases = {name: tl.phases for name, tl in city.tls.items() if name in config.infer_tls and tl.phases}
    tracked = track_detectors(connection, begin.signals, begin.sumo_step_s)
    if tracked:
        log.info("recording the vehicles on %d detectors, which are read after every step of SUMO", len(tracked))
    run = of_tls(tls, begin, tracked, phases)
    files = RecordFolder(folder, int(city.controller.record_max_gb * 1e9))
    metrics = RecordMetrics(registry)
    return Recorder(files, run, metrics, on_end_by_error=alarms.note_record, traffic=traffic)


def _write_summary(path: Path | None, summary: Mapping[str, Any]) -> bool:
    """Write --summary; if it cannot be written, log its content and return False."""
    if path is None:
        return True
    try:
        path.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        log.error("--summary %s: cannot be written (%s); its content: %s", path, error.strerror, json.dumps(summary))
        return False
    return True


def _has_complete_tripinfo(config: ControllerConfig) -> bool:
    """Check --tripinfo; if SUMO has not written it completely, log that and return False."""
    if config.tripinfo is None or config.sumo.clients != 1:
        return True  # with other clients SUMO continues, so the file is not complete yet
    try:
        check_complete(config.tripinfo)
    except InputError as error:
        log.error("--tripinfo %s; SUMO could not write it completely: free disk space and run again", error)
        return False
    return True


def _served(
    config: ControllerConfig,
    metrics: ControllerMetrics,
    alarms: Alarms,
    metadata: Callable[[], Metadata] | None,
    closing: contextlib.ExitStack,
) -> tuple[dict[str, pb.PolicyContract], ServedPolicies]:
    """The contracts and policies of the model server, kept up to date until `closing` ends. Raises InputError.

    `metadata`: as of the Client.
    """
    client = _client(config, alarms, metadata, closing)
    contracts = fetch_contracts(client, config.infer_tls, config.models.version, config.models.fleet)
    check_contracts_match_city(config.city, contracts)
    fleet = ServedFleet(client, config.models.fleet, contracts, config.models.version) if config.models.fleet else None
    if fleet is not None:
        fleet.update()
        fleet.updating.start()
        closing.callback(fleet.updating.stop)
    deadline_s = config.city.controller.deadline_ms / 1000
    with_scores = config.record is not None or config.page is not None
    policies = ServedPolicies(
        client, contracts, config.models.version, deadline_s, fleet=fleet, with_scores=with_scores
    )
    metrics.report_model_numbers(lambda: policies.model_numbers)
    policies.contracts.updating.start()
    closing.callback(policies.contracts.updating.stop)
    return contracts, policies


def _interface(
    config: ControllerConfig,
    contracts: Mapping[str, pb.PolicyContract],
    policies: Policies,
    alarms: Alarms,
    metrics: ControllerMetrics,
    health: Health,
    traffic: TrafficMeter,
    names: Mapping[str, MovementNames],
    closing: contextlib.ExitStack,
) -> "OperatorInterface | None":
    """The operator's interface until `closing` ends; None if no setting asks for one. Raises InputError."""
    if config.control is None and not config.speed and config.page is None:
        return None
    from controller.operator.operator_interface import OperatorInterface

    pins = policies if isinstance(policies, ServedPolicies) else None
    interface = OperatorInterface(config, list(contracts.values()), pins, alarms, metrics, health, traffic, names)
    closing.callback(interface.close)
    return interface


def _client(
    config: ControllerConfig,
    alarms: Alarms,
    metadata: Callable[[], Metadata] | None,
    closing: contextlib.ExitStack,
) -> Client:
    """The model server's client; it reconnects when its certificates change. Raises InputError."""
    # no retries: a failed request is repeated at the next decision step
    if config.models.tls_files is None:
        return closing.enter_context(Client(config.models.server, retries=0, metadata=metadata))
    tls = ChangingTls(config.models.tls_files)
    alarms.note_certificates("model server", tls.expiries_s())

    def check() -> None:
        alarms.note_certificates("model server", tls.expiries_s())
        if tls.has_changed():
            log.info("the certificates have changed; reconnecting to %s", client.address)
            client.reconnect()

    client = closing.enter_context(Client(config.models.server, tls=tls.newest, retries=0, metadata=metadata))
    checking = PeriodicThread("the check of certificates", CERTIFICATE_INTERVAL_S, check)
    checking.start()
    closing.callback(checking.stop)
    return client


def _control(
    loop: DecisionLoop,
    end_s: float,
    is_only_client: bool,
    connection: SumoConnection,
    stop: Stop,
    health: Health,
    run_log: RunLog,
    interface: "OperatorInterface | None",
) -> int:
    """Run decision steps, then release the signals; return the exit code."""
    stop.is_controlling = True
    failure = ""
    try:
        logged_s = loop.now
        while loop.now < end_s and not stop.is_requested():
            step_end_s = end_s if interface is None else interface.before_step(loop, end_s, connection, stop)
            if stop.is_requested():
                break
            loop.step(step_end_s)
            health.beat()
            if logged_s + SUMMARY_INTERVAL_S <= loop.now < end_s:
                logged_s = loop.now
                run_log.summary(loop)
        if interface is not None:
            interface.end()
        loop.finish()
        run_log.set_second(loop.now)
        health.begin_stopping()
        must_release = loop.now < end_s or not is_only_client
        if must_release and not release(loop, connection, end_s if is_only_client else float("inf"), stop):
            failure = "SUMO rejected the release of signals, which keep their last state"
            return 1
        return 0
    except SumoConnectionLost as error:
        if loop.now >= end_s:
            return 0
        failure = f"the connection to SUMO was lost: {error}"
        log_connection_lost(loop, connection, error)
        if not connection.is_guarded:
            connection.abandon(loop.unreleased())  # SUMO may still read, even if its answer was malformed
        return 1
    except WaitAborted:
        failure = "SUMO did not answer before a second stop request"
        abandon(loop, connection)
        return 1
    except CommandRejected as error:
        failure = f"SUMO rejected a command: {error}"
        log.error("second %g: %s", loop.now, error)
        release_at_once(loop, connection, stop)
        return 1
    except BaseException as error:
        failure = f"an error in the controller: {type(error).__name__}"
        # an error in this process must not leave a signal frozen
        release_at_once(loop, connection, stop)
        raise
    finally:
        if interface is not None:
            interface.end(failure)
        # is_controlling stays set: signals have been touched, so SIGTERM must not report the opposite
        connection.close()


def _open(config: ControllerConfig, stop: Stop, health: Health) -> SumoConnection:
    """Connect to SUMO: through a guard, to a running one, or to one that is started. Raises InputError."""
    if config.libsumo:
        return libsumo_connection.start_libsumo(config.sumo.arguments)

    def is_aborted() -> bool:
        health.wait()  # asked each second in which SUMO does not answer
        return stop.interrupts().abort_requested()

    interrupts = stop.interrupts()._replace(abort_requested=is_aborted)
    if config.guard:
        return open_guarded(config.sumo, config.city.controller.watchdog_s, interrupts, config.end_s)
    return start.connect(config.sumo, interrupts)


def control_end_s(config: ControllerConfig, connection: ApiConnection) -> float:
    """The simulated second at which control ends; inf: with the simulation. Raises InputError if it has passed."""
    begin_s = float(connection.api.simulation.getTime())
    if config.end_s is not None:
        if config.end_s <= begin_s:
            raise InputError(
                f"--end {config.end_s:g}: the simulation is already at second {begin_s:g}; pass a later --end"
            )
        return config.end_s
    # from SUMO's configuration or the arguments after --
    configured_s = float(connection.api.simulation.getEndTime())
    if 0 < configured_s <= begin_s:
        raise InputError(
            f"the simulation is at second {begin_s:g}, its end was {configured_s:g}; set a later end for SUMO"
        )
    return configured_s if configured_s > 0 else float("inf")
