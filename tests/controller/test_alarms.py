"""The list of alarms: what begins, counts and ends one."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from prometheus_client import CollectorRegistry

from city import config, network
from city.config import TL, City
from controller import alarms as alarms_module
from controller.alarms import KINDS, Alarms, UnknownAlarm, WaitingGreens, instructions
from controller.decision_step import NO_ANSWER
from controller.events import OperatorCommand
from controller.pace import PaceState
from signals import contract
from signals.fallback.control_mode import ControlMode, OperatorMode
from signals.movement_names import movement_names
from signals.observation import PhaseState
from signals.policy import Answer
from signals.policy_signals import greens_of
from signals.safety.conflicts import OverrideReason
from signals.safety.monitor import Alarm, MonitorRule
from signals.safety.signal_safety import Override
from tests.conftest import GRID, ROOT
from tests.controller.decision_events import decision, event

TLS = [f"SA{100 + k}" for k in range(1, 11)]
POLICY, FALLBACK, RECOVERING, FIXED = (
    ControlMode.POLICY,
    ControlMode.FALLBACK,
    ControlMode.RECOVERING,
    ControlMode.FIXED,
)


@pytest.fixture
def alarms():
    return Alarms({f"signal_{tl}": tl for tl in TLS}, len(TLS), wall_clock=lambda: 1e9)


def ids(alarms):
    return [alarm.id for alarm in alarms.current()]


def added(alarms, event):
    """The ids of the alarms after an event."""
    alarms.add(event)
    return ids(alarms)


def monitor_alarm(at_s, signal="A0", rule=MonitorRule.CONFLICT):
    return event(at_s, alarms=[Alarm(signal, rule, at_s, "0 and 2 are green together")])


def test_a_flood_of_one_kind_is_one_alarm_with_a_count(alarms):
    for second in range(50):
        alarms.add(
            event(second, alarms=[Alarm(f"A{k}", MonitorRule.CONFLICT, second, "both green") for k in range(40)])
        )
    (alarm,) = alarms.current()
    assert (alarm.id, alarm.severity, alarm.count) == ("GreenserveMonitorAlarm/conflict", "critical", 2000)
    assert (alarm.since_s, alarm.last_s, alarm.since_unix_s) == (0, 49, 1e9)
    assert alarm.subject_count == 40 and len(alarm.subjects) == 20
    assert alarms.with_instructions(alarm).runbook == "docs/runbook.md#greenservemonitoralarm"


def test_an_alarm_of_occurrences_ends_when_it_is_quiet_and_begins_anew(alarms):
    alarms.add(monitor_alarm(10))
    assert added(alarms, event(310)) == ["GreenserveMonitorAlarm/conflict"]
    assert added(alarms, event(311)) == []
    alarms.add(monitor_alarm(400))
    newest, ended = alarms.current(with_ended=True)
    assert (newest.since_s, newest.count, newest.is_active) == (400, 1, True) and ended.ended_s == 311


def test_a_tl_without_its_policy_is_an_alarm_until_it_is_back(alarms):
    assert added(alarms, event(5, [decision("SA101", "Unavailable: refused", POLICY, ControlMode.HOLD)])) == [
        "GreenserveServerDown"
    ]
    alarms.add(event(30, [decision("SA101", "DeadlineExceeded: late", ControlMode.HOLD, FALLBACK)]))
    (alarm,) = alarms.current()
    assert (alarm.name, [*alarm.subjects], alarm.count) == ("GreenserveTLInFallback", ["SA101"], 1)
    assert alarm.text == "SA101: DeadlineExceeded: late"
    assert added(alarms, event(40, [decision("SA101", "", FALLBACK, RECOVERING), decision("SA102")])) == [
        "GreenserveTLInFallback"
    ]
    assert added(alarms, event(45, [decision("SA101", "", RECOVERING, POLICY)])) == []


def test_many_tls_without_their_policy_are_critical(alarms):
    assert added(alarms, event(5, [decision(tl, "Unavailable: refused", POLICY, FALLBACK) for tl in TLS[:2]])) == [
        "GreenserveServerDown",
        "GreenserveTLInFallback",
    ]
    assert added(alarms, event(6, [decision(TLS[2], "Unavailable: refused", POLICY, FALLBACK)])) == [
        "GreenserveServerDown",
        "GreenserveManyTLsInFallback",
        "GreenserveTLInFallback",
    ]
    fallback = alarms.current()[-1]
    assert fallback.count == 3 and fallback.subject_count == 3


def causes(alarms):
    return {alarm.name: alarm.consequence_of for alarm in alarms.current()}


def test_fallbacks_of_one_cause_are_its_consequences(alarms):
    server, many = "GreenserveServerDown", "GreenserveManyTLsInFallback"
    alarms.add(event(4, [decision(TLS[4], "NotFound: no model", POLICY, FALLBACK), decision(TLS[1], "Unavailable: x")]))
    assert causes(alarms) == {server: "", "GreenserveTLInFallback": ""}
    alarms.add(event(4, [decision(TLS[4], "", FALLBACK, POLICY)]))
    alarms.add(event(5, [decision(tl, "Unavailable: refused", POLICY, FALLBACK) for tl in TLS[:3]]))
    assert causes(alarms) == {server: "", many: server, "GreenserveTLInFallback": server}
    # another reason beside it: the server is not all that is wrong
    alarms.add(event(6, [decision(TLS[3], "InvalidAction: NaN", POLICY, FALLBACK)]))
    assert causes(alarms) == {server: "", many: "", "GreenserveTLInFallback": many}
    alarms.add(event(7, [decision(TLS[3], "", FALLBACK, POLICY)]))
    assert causes(alarms)[many] == server
    alarms.add(event(30))  # the server is no alarm any more
    assert causes(alarms) == {many: "", "GreenserveTLInFallback": many}


def test_instructions_name_the_server_of_the_run():
    texts = instructions("GreenserveServerDown", "unix:/a folder/socket")
    for text in texts.values():
        assert "greenserve status --server 'unix:/a folder/socket'" in text and "HOST:PORT" not in text
    assert "--server HOST:PORT" in instructions("GreenserveServerDown")["remedy"]


def test_what_an_operator_set_is_no_alarm(alarms):
    alarms.add(event(5, [decision("SA101", "Unavailable: refused", POLICY, FALLBACK)]))
    command = OperatorCommand("SA101", OperatorMode.FIXED, "ann", FALLBACK, FIXED)
    alarms.add(replace(event(30, [decision("SA101", "Unavailable: refused", FIXED, FIXED)]), commands=(command,)))
    assert "GreenserveTLInFallback" not in ids(alarms)
    back = OperatorCommand("SA101", OperatorMode.POLICY, "ann", FIXED, RECOVERING)
    assert added(alarms, replace(event(60, [decision("SA101", "", RECOVERING, RECOVERING)]), commands=(back,))) == []


def test_policies_that_are_overridden_in_most_decisions_are_an_alarm_of_the_next_window(alarms):
    override = Override("signal_SA101", OverrideReason.MIN_GREEN, "GG", "rr")

    def window(begin_s, overridden):
        for k in range(61):
            overrides = [override] if k % 4 < overridden else []
            alarms.add(event(begin_s + 5 * k, [decision("SA101"), decision("SA102")], overrides))
            for second in (1, 2, 3):
                # still not permitted: the same decision
                alarms.add(event(begin_s + 5 * k + second, (), overrides))

    window(0, 3)
    window(305, 1)
    (alarm,) = alarms.current(with_ended=True)
    assert (alarm.name, [*alarm.subjects]) == ("GreenserveOverrides", ["SA101"]) and "overridden in most" in alarm.text
    assert (alarm.since_s, alarm.ended_s) == (300, 600)
    assert ids(alarms) == []


@pytest.fixture(scope="module")
def sa101():
    """The contract of a TL of dialect sumo-rl with four greens, and its network."""
    city = config.load(GRID / "city.toml")
    street = network.of_city(city)
    return contract.build(city, city.tls["SA101"], street), street


def observed_queue(built, lanes):
    """An observation with a queue on lanes alone."""
    features = built.observation.features
    return np.array([float(f.kind == "queue" and f.lane_id in lanes) for f in features], np.float32)


def test_a_green_that_is_kept_while_vehicles_wait_at_others_is_an_alarm(alarms, sa101):
    built, street = sa101
    names = {built.signal_ids[0]: movement_names(street.signals[built.signal_ids[0]])}
    alarms.follow_greens([built], street, names)
    signal = street.signals[built.signal_ids[0]]
    state = greens_of(built.signals[0])[0]
    by_lane = {}
    for link, connections in enumerate(signal.links):
        for lane, _ in connections:
            by_lane.setdefault(lane, []).append(state[link] in "Gg")
    served = {lane for lane, shown in by_lane.items() if any(shown)}
    assert served and served != by_lane.keys()

    def decide(at_s, lanes, green=0, mode=POLICY, **changes):
        x = observed_queue(built, lanes)
        made = decision("SA101", mode=mode)._replace(observation=x, phase_state=PhaseState((green,), True), **changes)
        alarms.add(event(at_s, [made]))
        return ids(alarms)

    others = by_lane.keys() - served
    assert not any(decide(5 * k, others) for k in range(60))
    assert decide(300, others) == ["GreenserveGreenKept"]
    (alarm,) = alarms.current()
    assert [*alarm.subjects] == ["SA101"] and alarm.text == (
        "1 TL has kept a green for 300 s while vehicles halt or persons wait at others: SA101 green 0 (northbound and "
        "southbound through + permissive left + right)"
    )
    assert decide(305, served) == [], "nobody waits at another green"
    for k in range(200):
        assert decide(310 + 5 * k, others, green=k // 50 % 2) == [], "it changes"
    found = [decide(1400 + 5 * k, others, mode=FALLBACK) for k in range(100)]
    assert not any("GreenserveGreenKept" in names for names in found), "its policy has no part in it"
    found = [decide(2000 + 5 * k, others, answer=NO_ANSWER) for k in range(100)]
    assert not any("GreenserveGreenKept" in names for names in found), "max-pressure or greedy controls it"


def test_a_contract_of_another_network_has_no_greens_to_leave(sa101, crossroads_net):
    built, street = sa101
    other = network.read(crossroads_net)
    same_id = replace(other, signals={built.signal_ids[0]: other.signals["J"]})
    for given in (other, same_id):
        x = np.ones(built.observation.size)
        assert WaitingGreens([built], given, {}).green_to_leave("SA101", x, (0,)) is None
    assert WaitingGreens([built], street, {}).green_to_leave("SA101", x, (0,)) == 0


def test_persons_who_wait_at_other_greens_are_seen_at_each_crossing(crossroads_net):
    street = network.read(crossroads_net)
    built = contract.build(City(Path("city.toml")), TL(("J",), "street", "J"), street)
    waiting, (signal,) = WaitingGreens([built], street, {}), built.signals
    halting = {f.lane_id: k for k, f in enumerate(built.observation.features) if f.kind == "halting"}
    crossings = [approach for approach in signal.approaches if approach.walking_areas]
    assert len(crossings) == 3
    for crossing in crossings:
        x = np.zeros(built.observation.size)
        x[halting[crossing.lane_id]] = 1
        serving = [any(state[k] in "Gg" for k in crossing.links) for state in greens_of(signal)]
        assert any(serving) and not all(serving)
        for green, serves in enumerate(serving):
            assert waiting.green_to_leave("J", x, (green,)) == (None if serves else green)


@pytest.mark.parametrize(
    ("scores", "mode", "is_alarm"),
    [
        ([0.25] * 4, POLICY, True),
        ([0.25, 0.25 + 1e-7, 0.25, 0.25], POLICY, True),
        ([0.25, 0.2501, 0.25, 0.25], POLICY, False),
        ([1.0], POLICY, False),
        (None, POLICY, False),
        ([0.25] * 4, FALLBACK, False),
    ],
)
def test_one_score_for_all_greens_for_a_minute_is_an_alarm(alarms, scores, mode, is_alarm):
    def decide(at_s, scores):
        answer = Answer(np.array([0.0]), scores=None if scores is None else np.array(scores, np.float32))
        alarms.add(event(at_s, [decision("SA101", mode=mode)._replace(answer=answer)]))
        return "GreenserveUniformAnswers" in ids(alarms)

    assert not any(decide(5 * k, scores) for k in range(12))
    assert decide(60, scores) == is_alarm
    assert not decide(65, [0.1, 0.9])
    assert not decide(70, scores), "it begins anew"


def test_answers_after_the_deadline_in_many_steps_are_an_alarm(alarms):
    for k in range(61):
        alarms.add(
            event(5 * k, [decision("SA101", "DeadlineExceeded: late" if k % 10 == 0 else ""), decision("SA102")])
        )
    assert ids(alarms) == ["GreenserveDeadlineMisses"] and "7 of 61" in alarms.current()[0].text


def test_rejections_lateness_record_and_certificates_are_alarms(alarms):
    alarms.add(event(5, rejected={"A0": "unknown program"}))
    alarms.note_pace(PaceState(False, 4.0, 0.0, 0.5, 3, 0.0))
    assert ids(alarms) == ["GreenserveSumoRejections"]
    alarms.note_pace(PaceState(False, 4.0, 0.0, 2.5, 3, 0.0))
    alarms.note_record("the disk is full")
    alarms.note_certificates("model server", {"ca": 1e9 + 15 * 86400, "certificate": 1e9 + 13 * 86400})
    alarms.note_certificates("control", {"control_ca": 1e9 - 1})
    expiry = {tuple(s.labels.values()): s.value for family in alarms.collect() for s in family.samples}
    assert expiry["certificate",] == 1e9 + 13 * 86400 and expiry["control_ca",] == 1e9 - 1
    found = {alarm.name: alarm for alarm in alarms.current()}
    assert found.keys() == {
        "GreenserveSumoRejections", "GreenserveRunLate", "GreenserveRecordStopped", "GreenserveCertificateExpires",
    }  # fmt: skip
    certificates = found["GreenserveCertificateExpires"]
    assert certificates.text == "certificate expires in 13.0 days; control_ca has expired" and certificates.count == 2
    assert found["GreenserveRunLate"].text.startswith("the run is 2.5 s behind speed 4")
    alarms.note_certificates("model server", {"ca": 2e9})
    alarms.note_certificates("control", {"control_ca": 2e9})
    alarms.note_record("")
    assert added(alarms, event(400)) == []


def test_an_acknowledgement_keeps_its_first_author_until_the_alarm_ends(alarms):
    alarms.add(monitor_alarm(10))
    assert alarms.acknowledge("GreenserveMonitorAlarm/conflict", "ann")
    alarms.add(monitor_alarm(20))
    assert not alarms.acknowledge("GreenserveMonitorAlarm/conflict", "bob")
    (alarm,) = alarms.current()
    assert (alarm.acknowledged_by, alarm.acknowledged_s, alarm.count) == ("ann", 10, 2)
    alarms.add(event(400))
    alarms.add(monitor_alarm(401))
    assert alarms.current()[0].acknowledged_by == ""
    with pytest.raises(UnknownAlarm, match="the active ones are GreenserveMonitorAlarm/conflict"):
        alarms.acknowledge("GreenserveTLInFallback", "ann")


def test_ended_alarms_are_bounded(alarms):
    for k in range(200):
        alarms.add(monitor_alarm(1000 * k))
    assert len(alarms.current(with_ended=True)) == alarms_module.MAX_ENDED + 1


def test_metric_names_every_alarm(alarms):
    registry = CollectorRegistry()
    registry.register(alarms)
    alarms.add(monitor_alarm(1))
    assert added(alarms, monitor_alarm(2, rule=MonitorRule.YELLOW)) == [
        "GreenserveMonitorAlarm/conflict",
        "GreenserveMonitorAlarm/yellow",
    ]
    (family,) = registry.collect()
    values = {sample.labels["name"]: sample.value for sample in family.samples}
    assert values.keys() == KINDS.keys()
    assert values.pop("GreenserveMonitorAlarm") == 2 and set(values.values()) == {0}


def test_names_severities_and_anchors_are_those_of_the_alert_rules():
    groups = yaml.safe_load((ROOT / "k8s" / "monitoring" / "rules.yaml").read_text())["groups"]
    rules = {rule["alert"]: rule for group in groups for rule in group["rules"]}
    assert KINDS.keys() <= rules.keys()
    assert {name: rules[name]["labels"]["severity"] for name in KINDS} == {
        name: kind.severity for name, kind in KINDS.items()
    }
    sections = re.findall(r"^### (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.M)
    assert KINDS.keys() <= set(sections)
