"""Open rollouts of a ledger's file as `ctl tls` and the live page show them."""

from datetime import timedelta

import pytest

from controller.operator import ctl
from controller.operator.open_rollouts import OpenRollouts
from protos import control_pb2 as pb
from tests.city.ledgers import ADOPTED, BEGIN, ENDED, IN_CANARY, line, stage, write
from tests.controller.operator.operated_runs import OperatedRun

BOTH = ("SA101", "SA104")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def test_tls_of_one_stage_are_one_line_that_follows_the_file(path):
    rollouts = OpenRollouts(path)
    assert rollouts.lines() == [], "no file yet"
    ledger = write(path, (*ADOPTED, line("begin", tls=BOTH, until="2026-11-24T09:00:00.000Z"), stage("evaluate", BOTH)))
    (shown,) = rollouts.lines()
    assert shown == (
        "rollout r1 of SA101, SA104 to 4: driven by 3, next stage load; owner ann, lease until "
        "2026-11-24T09:00:00.000Z; evaluate: better: "
    )
    ledger.append(line("pause", author="bob"), BEGIN + timedelta(seconds=60))
    ledger.append(stage("load", ("SA104",)), BEGIN + timedelta(seconds=60))
    first, second = rollouts.lines()
    assert "SA101 to 4: driven by 3, next stage load (paused)" in first and "SA104 to 4: driven by 3" in second


def test_a_canary_is_shown_and_an_ended_rollout_is_not(path):
    write(path, IN_CANARY)
    (shown,) = OpenRollouts(path).lines()
    assert "SA101 to 4: driven by 4 (canary), next stage canary" in shown
    path.unlink()
    write(path, ENDED)
    assert OpenRollouts(path).lines() == []


def test_a_damaged_ledger_is_one_line_until_it_is_restored(path):
    write(path, IN_CANARY)
    whole, rollouts = path.read_text(), OpenRollouts(path)
    path.write_text(whole.replace('"ann"', '"bob"', 1))
    (shown,) = rollouts.lines()
    assert shown.startswith("rollouts are unknown: ") and "line 2" in shown
    path.write_text(whole)
    assert "SA101 to 4" in rollouts.lines()[0]


def test_ctl_and_page_show_open_rollouts(path):
    write(path, IN_CANARY)
    operated = OperatedRun(ledger=path)
    with operated.client() as client:
        answer = client.call("ListTls", pb.ListTlsRequest())
    assert "rollout r1 of SA101 to 4: driven by 4 (canary)" in ctl.describe(answer)
    assert [line["text"] for line in operated.service.settings()] == list(answer.rollouts)
