"""The daemon: contracts, street, decision steps until the end, release on every way out."""

import contextlib
import gc
import json
import logging
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from prometheus_client import CollectorRegistry

from city import network
from city.config import City
from city.errors import InputError
from city.network import StreetNetwork
from controller.assembly import assemble
from controller.config import ControllerConfig
from controller.conflicts import EXPLAINED
from controller.decision_step import DecisionSteps, Events, Tally
from controller.failover import Rung
from controller.guard import will
from controller.guard.start import open_guarded
from controller.health import Health, HttpServer
from controller.metrics import Metrics
from controller.monitor import Alarm
from controller.release import Stop, abandon, release, release_at_once, tell_gone
from controller.report import TRIPINFO_OPTIONS
from controller.safety import Override
from controller.served_contracts import fetch_contracts
from controller.served_fleet import ServedFleet
from controller.served_policy import ServedPolicies
from controller.sumo import libsumo_link, start
from controller.sumo.link import Link, NotWaiting, SumoGone, SumoRefused
from controller.sumo.network import check_city
from serving.client import Client

log = logging.getLogger("controller")

TELL_S = 600.0
"""Simulated seconds between two lines about how the run goes."""


def run(config: ControllerConfig, stop: Stop) -> int:
    """Control until the end of the simulation or until asked to stop; the exit code.

    Raises InputError where something does not fit, before any signal is touched.
    """
    street = network.of_city(config.city)
    metrics, health = Metrics(CollectorRegistry()), Health()
    with contextlib.ExitStack() as closing:
        client = Client(config.server, retries=0)  # a step asks once: what failed is asked at the next
        closing.callback(client.close)
        if config.http:
            closing.callback(HttpServer(config.http, metrics.registry, health).close)
        contracts = fetch_contracts(client, config.infer_tls, config.model_number)
        check_city(config.city, contracts)
        control = config.city.controller
        fleet = ServedFleet(client, config.fleet, contracts, config.model_number) if config.fleet else None
        if fleet is not None:
            fleet.look()
            fleet.watch.begin()
            closing.callback(fleet.watch.end)
        policies = ServedPolicies(client, contracts, config.model_number, control.deadline_ms / 1000, fleet=fleet)
        policies.contracts.watch.begin()
        closing.callback(policies.contracts.watch.end)
        link = _open(config, street, stop)
        try:
            steps = assemble(
                link, street, list(contracts.values()), policies, config.city.safety, control, _events(metrics, health, contracts)
            )
            end_s = _end(config, street, link)
            link.leave_will(will.of(steps.intersections.values()))
            # what was made up to here stays: Python would look through it for garbage in the middle of a decision
            gc.collect()
            gc.freeze()
        except (link.lost, SumoGone) as error:
            link.close()
            raise InputError(f"SUMO ended before the control began: {link.why() or error}") from None
        except BaseException:
            link.close()
            raise
        log.info("controlling %s from second %g", ", ".join(contracts), steps.now)
        code = _loop(steps, end_s, config, link, stop, metrics, health)
        _tell(steps)
        if config.summary is not None:
            told = {"second": steps.now, **figures(steps.tally)}
            try:
                config.summary.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
            except OSError as error:
                log.error(
                    "--summary %s: cannot be written (%s); it would say %s", config.summary, error.strerror, json.dumps(told)
                )
                return 1
        return code


def _loop(
    steps: DecisionSteps, end_s: float, config: ControllerConfig, link: Link, stop: Stop, metrics: Metrics, health: Health
) -> int:
    alone = config.attach is None and config.clients == 1
    stop.controlling = True
    try:
        told_s = steps.now
        while steps.now < end_s and not stop():
            steps.step(end_s)
            if steps.now >= told_s + TELL_S:
                told_s = steps.now
                _tell(steps)
        steps.watch()
        metrics.simulated_s.set(steps.now)
        health.stopping()
        if (steps.now < end_s or not alone) and not release(steps, link, end_s if alone else float("inf"), stop):
            return 1
        return 0
    except SumoGone as error:
        if steps.now >= end_s:
            return 0
        tell_gone(steps, link, error)
        if not link.guarded:
            link.abandon(steps.unreleased())  # an answer that could not be read says nothing about whether it hears
        return 1
    except NotWaiting:
        abandon(steps, link)
        return 1
    except SumoRefused as error:
        log.error("%s at second %g", error, steps.now)
        release_at_once(steps, link, stop)
        return 1
    except BaseException:
        # whatever went wrong here must not leave a signal frozen
        release_at_once(steps, link, stop)
        raise
    finally:
        # stop.controlling stays set: from here on an interrupt is no end before the control began
        link.close()


def _open(config: ControllerConfig, street: StreetNetwork, stop: Stop) -> Link:
    if config.guard:
        arguments = () if config.attach else _sumo_arguments(config.city, config)
        watchdog_s = config.city.controller.watchdog_s
        return open_guarded(config.attach, arguments, config.clients, config.order, config.sumo_port, watchdog_s, stop.hurried)
    if config.attach is not None:
        return start.attach(*config.attach, hurried=stop.hurried, order=config.order)
    arguments = _sumo_arguments(config.city, config)
    if config.libsumo:
        return libsumo_link.start_libsumo(arguments)
    return start.start(arguments, config.clients, stop.hurried, config.order, config.sumo_port)


def _sumo_arguments(city: City, config: ControllerConfig) -> Sequence[str]:
    where = ["-c", str(city.network.sumocfg)] if city.network.sumocfg else ["-n", str(city.network.net)]
    seed = [] if config.seed is None else ["--seed", str(config.seed)]
    trips = [] if config.tripinfo is None else ["--tripinfo-output", str(config.tripinfo), *TRIPINFO_OPTIONS]
    return [*where, "--no-step-log", "true", "--no-warnings", "true", *seed, *trips, *config.sumo_options]


def _end(config: ControllerConfig, street: StreetNetwork, link: Link) -> float:
    begin_s = float(link.api.simulation.getTime())
    if config.end_s is not None:
        if config.end_s <= begin_s:
            raise InputError(f"--end {config.end_s:g} lies before second {begin_s:g}, at which the simulation is")
        return config.end_s
    # SUMO's own word counts: its configuration, and what stands behind --
    configured = float(link.api.simulation.getEndTime())
    if 0 < configured <= begin_s:
        raise InputError(f"the simulation is at second {begin_s:g}, and its end was {configured:g}: nothing is left to control")
    return configured if configured > 0 else float("inf")


def _events(metrics: Metrics, health: Health, tls: Iterable[str]) -> Events:
    for tl in tls:
        metrics.rung.labels(tl).set(Rung.SERVED.value)
        metrics.failures.labels(tl)

    def failure(tl: str, why: str, now: float) -> None:
        metrics.failures.labels(tl).inc()
        log.debug("%s at %g: %s", tl, now, why)

    explained_s: dict[tuple[str, str], float] = {}

    def override(told: Override, now: float) -> None:
        metrics.overrides.labels(told.reason.value).inc()
        # one explanation of each kind now and then: a policy that always asks for too much must not drown the rest
        is_news = now - explained_s.get((told.signal, told.reason.value), -TELL_S) >= TELL_S
        if is_news:
            explained_s[told.signal, told.reason.value] = now
        level = logging.INFO if is_news else logging.DEBUG
        log.log(level, "%s at %g: wished %s, shown %s: %s", told.signal, now, told.wish, told.permitted, EXPLAINED[told.reason])

    def rung(tl: str, old: Rung, new: Rung, now: float, why: str) -> None:
        metrics.rung.labels(tl).set(new.value)
        level = logging.INFO if new is Rung.SERVED else logging.WARNING
        log.log(level, "%s at %g: %s -> %s%s", tl, now, old.name, new.name, f" ({why})" if why else "")

    def refusal(why: str, now: float) -> None:
        metrics.refusals.inc()
        log.error("SUMO refused at %g: %s", now, why)

    def alarm(told: Alarm) -> None:
        metrics.alarms.labels(told.rule.value).inc()
        log.error("ALARM: %s at %g: %s: %s", told.signal, told.at_s, told.rule.value, told.words)

    counted = 0

    def meanwhile(tally: Tally, now: float) -> None:
        nonlocal counted
        health.beat()
        metrics.simulated_s.set(now)
        metrics.decisions.inc(tally.decisions - counted)
        counted = tally.decisions
        if tally.newest is not None:
            decision_s, inference_s = tally.newest
            metrics.steps.inc()
            metrics.decision_s.observe(decision_s)
            metrics.inference_s.observe(inference_s)

    return Events(failure, override, rung, refusal, alarm, meanwhile)


def figures(tally: Tally) -> dict[str, object]:
    """The run's figures: counts, and decision times in ms."""
    decision_ms, inference_ms = (1000 * np.array(times or [0.0]) for times in (tally.decision_s, tally.inference_s))
    return {
        "decisions": tally.decisions,
        "decision_steps": tally.steps,
        "decision_ms_p50": float(np.percentile(decision_ms, 50)),
        "decision_ms_p99": float(np.percentile(decision_ms, 99)),
        "inference_ms_p50": float(np.percentile(inference_ms, 50)),
        "inference_ms_p99": float(np.percentile(inference_ms, 99)),
        "failures": sum(tally.failures.values()),
        "failures_by_tl": dict(tally.failures),
        "plan_entries": tally.plan_entries,
        "overrides": sum(tally.overrides.values()),
        "overrides_by_reason": dict(tally.overrides),
        "alarms": sum(tally.alarms.values()),
        "alarms_by_rule": dict(tally.alarms),
        "refusals": tally.refusals,
    }


def _tell(steps: DecisionSteps) -> None:
    told = figures(steps.tally)
    rungs = Counter(x.ladder.rung.name.lower() for x in steps.intersections.values())
    log.info(
        "second %g: %s; %d decisions, p50 %.2f ms, p99 %.2f ms; %d answers missing, %d times on a plan; %d overrides%s",
        steps.now,
        ", ".join(f"{count} {name}" for name, count in sorted(rungs.items())),
        steps.tally.decisions,
        told["decision_ms_p50"],
        told["decision_ms_p99"],
        told["failures"],
        steps.tally.plan_entries,
        told["overrides"],
        "".join(f", {reason} {count}" for reason, count in sorted(steps.tally.overrides.items())),
    )
