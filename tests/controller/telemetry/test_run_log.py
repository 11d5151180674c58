"""The log of a run: one line per kind of mode change, overrides at debug level only."""

import logging
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from controller.decision_step import RunCounters
from controller.events import OperatorCommand
from controller.policies.served_contracts import ContractChanged
from controller.telemetry.metrics import MISSING_REASONS, ControllerMetrics
from controller.telemetry.run_log import MAX_NAMED_TLS, RunLog
from serving.errors import ERROR_BY_STATUS, InvalidResponse
from signals.fallback.control_mode import ControlMode, OperatorMode
from signals.movement_names import MovementGroup, MovementNames
from signals.policy import InvalidAction
from signals.safety.conflicts import OverrideReason
from signals.safety.monitor import Alarm, MonitorRule
from signals.safety.signal_safety import Override
from tests.controller.decision_events import decision, event

TLS = [f"SA{number}" for number in range(101, 131)]


def run_of(counters, has_policy=True):
    x = SimpleNamespace(control_name="POLICY", has_policy=has_policy)
    return SimpleNamespace(now=600.0, counters=counters, intersections=dict.fromkeys(TLS, x))


@pytest.fixture
def metrics():
    return ControllerMetrics(CollectorRegistry())


@pytest.fixture
def run_log(metrics, caplog):
    caplog.set_level(logging.DEBUG, "controller")
    groups = (MovementGroup("northbound left", "northbound", "left", 0.0, (3,)),)
    return RunLog(metrics, TLS, {"B0": MovementNames(groups)})


def lines(caplog, level=logging.INFO):
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


def test_outage_writes_one_line_per_kind_of_mode_change(run_log, metrics, caplog):
    reason = "Unavailable: no server"
    held = [decision(tl, reason, ControlMode.POLICY, ControlMode.HOLD) for tl in TLS[:25]]
    fallen_back = [decision(tl, reason, ControlMode.HOLD, ControlMode.FALLBACK) for tl in TLS[25:27]]
    run_log.add(event(60.0, [*held, *fallen_back, decision(TLS[27], "", ControlMode.RECOVERING, ControlMode.POLICY)]))
    run_log.add(event(65.0))
    assert lines(caplog) == [
        f"25 TLs: {', '.join(TLS[:10])} and 15 more at 60: POLICY -> HOLD (Unavailable: no server)",
        f"2 TLs: {TLS[25]}, {TLS[26]} at 60: HOLD -> FALLBACK (Unavailable: no server)",
        f"{TLS[27]} at 60: RECOVERING -> POLICY",
    ]
    assert MAX_NAMED_TLS == 10
    levels = [record.levelname for record in caplog.records if record.levelno >= logging.INFO]
    assert levels == ["WARNING", "WARNING", "INFO"]
    mode = {tl: metrics.registry.get_sample_value("controller_mode", {"tl": tl}) for tl in TLS}
    assert [mode[tl] for tl in (TLS[24], TLS[26], TLS[27], TLS[29])] == [1, 2, 0, 0]
    count = {each: metrics.registry.get_sample_value("controller_tls", {"mode": each}) for each in ("hold", "fallback")}
    assert count == {"hold": 23, "fallback": 2}


def test_unexpected_states_are_counted_by_signal(run_log, metrics):
    unexpected = [
        Alarm(signal, MonitorRule.UNEXPECTED_STATE, 5.0, "shows another state") for signal in ("A0", "A0", "B1")
    ]
    run_log.add(event(5.0, alarms=[*unexpected, Alarm("A0", MonitorRule.CONFLICT, 5.0, "foes")]))
    assert {
        s: metrics.registry.get_sample_value("controller_unexpected_states_total", {"signal": s}) for s in ("A0", "B1")
    } == {"A0": 2, "B1": 1}


def test_a_command_is_logged_with_its_authors_reason(run_log, caplog):
    commands = [
        OperatorCommand(tl, OperatorMode.HOLD, "ann", ControlMode.HOLD, ControlMode.HOLD, reason)
        for tl, reason in (("SA101", "roadworks"), ("SA102", ""))
    ]
    run_log.add(replace(event(60.0), commands=commands))
    assert lines(caplog, logging.WARNING) == [
        "ann set SA101 to hold at 60 (roadworks)", "ann set SA102 to hold at 60",
    ]  # fmt: skip


def test_rejected_commands_are_counted_and_logged(run_log, metrics, caplog):
    run_log.add(event(60.0, rejected={"A0": "not now"}))
    assert lines(caplog) == ["SUMO rejected a command at 60: A0: not now"]
    assert metrics.registry.get_sample_value("controller_sumo_rejections_total") == 1


def test_overrides_and_missing_answers_are_logged_at_debug_level_only(run_log, metrics, caplog):
    overrides = [Override(signal, OverrideReason.MIN_GREEN, "rrrG", "GgGr") for signal in ("A0", "B0")]
    failures = "DeadlineExceeded: late", "SomethingNew: odd"
    run_log.add(event(61.0, [decision("SA101", failure) for failure in failures], overrides))
    assert lines(caplog) == []
    assert lines(caplog, logging.DEBUG)[:3] == [
        "SA101 at 61: DeadlineExceeded: late",
        "SA101 at 61: SomethingNew: odd",
        "A0 at 61: requested rrrG, permitted GgGr: a green has not reached its min green (min_green)",
    ]
    assert "B0 at 61: requested rrrG (northbound left), permitted GgGr: " in lines(caplog, logging.DEBUG)[3]
    value = metrics.registry.get_sample_value
    assert value("controller_safety_overrides_total", {"reason": "min_green"}) == 2
    for reason in ("deadline", "other"):
        assert value("controller_missing_answers_total", {"tl": "SA101", "reason": reason}) == 1


def test_every_class_of_a_missing_answer_has_its_own_label():
    classes = {each.__name__ for each in (*ERROR_BY_STATUS.values(), InvalidResponse, InvalidAction, ContractChanged)}
    assert classes == MISSING_REASONS.keys() and len(set(MISSING_REASONS.values())) == len(classes)


def test_each_decision_step_is_one_sentence_at_debug_level(run_log, metrics, caplog):
    decisions = [decision("SA101"), decision("SA102"), decision("SA103", "DeadlineExceeded: late")]
    run_log.add(event(35.0, decisions, [Override("A0", OverrideReason.MIN_GREEN, "rrrG", "GgGr")]))
    assert lines(caplog, logging.DEBUG)[-1] == (
        "second 35: SA101, SA102 decided; SA103 had no valid action (DeadlineExceeded: late); "
        "1 overrides until the next step; 2.00 ms, of which 1.50 ms for inference"
    )
    value = metrics.registry.get_sample_value
    assert value("controller_deadline_misses_total") == value("controller_decision_steps_total") == 1
    assert value("controller_decisions_total") == 2
    for stage, seconds in (("sumo", 0.004), ("observe", 0.0002), ("inference", 0.0015), ("apply", 0.0003)):
        assert value("controller_stage_seconds_sum", {"stage": stage}) == seconds
    caplog.clear()
    run_log.add(event(36.0))
    assert lines(caplog, logging.DEBUG) == [], "nothing was due"


@pytest.mark.parametrize(("overruled", "is_warning"), [(10, False), (11, True)])
def test_policy_overruled_in_more_than_a_tenth_of_its_decisions_is_a_warning(metrics, caplog, overruled, is_warning):
    caplog.set_level(logging.INFO, "controller")
    counters = RunCounters(decisions=200)
    counters.decisions_by_tl.update(SA101=100, SA102=100)
    counters.overruled_by_tl.update(SA101=overruled, SA102=1)
    counters.overruled_reason.update(SA101=OverrideReason.YELLOW, SA102=OverrideReason.YELLOW)
    RunLog(metrics, TLS, {}).summary(run_of(counters))
    warnings = lines(caplog, logging.WARNING)
    assert bool(warnings) == is_warning
    if is_warning:
        assert "more than 10 % of the decisions of SA101 (11 of 100);" in warnings[0] and "SA102" not in warnings[0]


@pytest.mark.parametrize("reason", list(OverrideReason))
def test_overruled_policy_has_a_remedy_that_fits_the_reason_and_max_pressure_none(metrics, caplog, reason):
    counters = RunCounters(decisions_by_tl=Counter(SA101=100), overruled_by_tl=Counter(SA101=50))
    counters.overruled_reason["SA101"] = reason
    RunLog(metrics, TLS, {}).summary(run_of(counters, has_policy=False))
    assert not lines(caplog, logging.WARNING)
    RunLog(metrics, TLS, {}).summary(run_of(counters))
    expected = {"max_red": "max_red_s", "max_green": "max_green_s", "conflict": "its greens", "malformed": "its greens"}
    assert expected.get(reason, "times to train with") in lines(caplog, logging.WARNING)[0]


def test_overruled_tl_is_reported_once_a_run_in_a_line_that_fits(metrics, caplog):
    caplog.set_level(logging.INFO, "controller")
    run_log, counters = RunLog(metrics, TLS, {}), RunCounters()
    counters.decisions_by_tl.update(dict.fromkeys(TLS, 720))
    counters.overruled_by_tl.update(dict.fromkeys(TLS[:20], 308))
    counters.overruled_reason.update(dict.fromkeys(TLS[:20], OverrideReason.CLEARANCE))
    loop = run_of(counters)
    run_log.summary(loop)
    (first,) = lines(caplog, logging.WARNING)
    assert "SA103 (308 of 720) and 17 more; greenserve check" in first and len(first) < 180
    run_log.summary(loop)
    assert lines(caplog, logging.WARNING) == [first], "the same TLs are not reported again"
    counters.overruled_by_tl["SA125"], counters.overruled_reason["SA125"] = 73, OverrideReason.MAX_RED
    run_log.summary(loop)
    assert "decisions of SA125 (73 of 720);" in lines(caplog, logging.WARNING)[-1]
