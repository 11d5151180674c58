"""Shadow evaluation of recorded runs, with policies of the test and with a real server."""

import json
import time

import numpy as np
import pytest

from controller.policies.served_contracts import fetch_contracts
from controller.policies.served_policies import ServedPolicies
from records.recorded_run import RecordedRun
from records.replay import Replay
from records.replay_command import main
from records.shadow import ShadowEvaluation
from serving.client import Client
from serving.errors import DeadlineExceeded
from signals.policy import Answer
from tests.error_lines import refused
from tests.records.replayed_city import record_run
from tests.records.test_replay import rewrite
from tests.records.update import path


class Scripted:
    """Policies with the answers of a function of (TL, observation)."""

    def __init__(self, answers):
        self.answers = answers

    def ask(self, observations, observed_s=None):
        return {tl: self.answers(tl, observation) for tl, observation in observations.items()}


def shadowed(file, answers, tls=None, clock=time.perf_counter):
    run = RecordedRun([file])
    contracts = {contract.tl: contract for contract in run.start.contracts if tls is None or contract.tl in tls}
    replay = Replay(run)
    shadow = ShadowEvaluation(Scripted(answers), contracts, lambda: replay.loop.intersections, clock)
    replay.on_answers = shadow.ask
    replay.run()
    assert str(replay.differences.first) == "None", "the loop follows the recorded answers"
    return shadow


def recorded_decisions(file, tl):
    """The recorded valid decisions of a TL that was under its policy."""
    return [
        step.tls[tl].decision
        for step in RecordedRun([file]).steps()
        if tl in step.tls and step.tls[tl].HasField("decision") and not step.tls[tl].decision.failure
        if step.tls[tl].decision.mode_before == 0
    ]


def test_other_choices_are_counted_with_their_probabilities():
    file = path("sample-city")

    scores = [0.25, 0.125, 0.5, 0.125]

    def third_green(tl, observation):
        return Answer(np.array([2]), 9, tl, np.array(scores, np.float32))

    shadow = shadowed(file, third_green, ["SA101"])
    decisions = recorded_decisions(file, "SA101")
    others = [decision for decision in decisions if decision.action[0] != 2]
    figures = shadow.by_tl["SA101"].as_dict()
    assert figures["decisions"] == len(decisions) > 20
    assert figures["otherwise"] == len(others) > 5
    assert figures["mean_probability"] == 0.5
    expected = np.mean([scores[int(decision.action[0])] for decision in others])
    assert figures["mean_probability_of_recorded"] == pytest.approx(expected)
    assert figures["versions"] == [9]
    assert shadow.by_tl.keys() == {"SA101"}, "only selected TLs are asked"


def test_missing_and_invalid_answers_are_counted():
    def fails(tl, observation):
        if tl == "SA101":
            return DeadlineExceeded("late")
        return Answer(np.array([99.0])) if tl == "SA102" else Answer(np.array([0]))

    late, invalid, fine = shadowed(path("sample-city"), fails, ["SA101", "SA102", "SA104"]).by_tl.values()
    assert (late.missing, late.decisions) == (late.asked, 0)
    assert late.first_failure == "DeadlineExceeded: late"
    assert invalid.first_failure == "InvalidAction: the answer 99 is not an index below 4"
    assert (fine.missing, fine.first_failure) == (0, "")


def test_would_be_overrides_of_other_choices_are_counted_without_changing_the_run():
    # always the next phase of both signals, which breaks min green
    shadow = shadowed(path("sample-city"), lambda tl, observation: Answer(np.array([1.0, 1.0])), ["SA108"])
    assert shadow.by_tl["SA108"].otherwise > 10
    assert shadow.by_tl["SA108"].overrides > shadow.by_tl["SA108"].recorded_overrides
    keeps = shadowed(path("sample-city"), lambda tl, observation: Answer(np.array([-1.0, -1.0])), ["SA108"])
    assert keeps.by_tl["SA108"].overrides < shadow.by_tl["SA108"].overrides


def test_latency_is_that_of_the_requests():
    times = iter(np.arange(0, 1000, 0.010))
    shadow = shadowed(path("street"), lambda tl, observation: Answer(np.array([0])), clock=lambda: next(times))
    assert shadow.by_tl["SA104"].as_dict()["latency_ms"] == pytest.approx({"p50": 10, "p95": 10, "p99": 10}, rel=1e-4)
    assert len(shadow.latency_s) >= shadow.by_tl["SA104"].asked


@pytest.fixture(scope="module")
def served(grid_server, grid_city, tmp_path_factory):
    file = tmp_path_factory.mktemp("record") / "run.mcap"
    with Client(grid_server) as client:
        contracts = fetch_contracts(client, list(grid_city.tls), None)
        policies = ServedPolicies(client, contracts, None, 10.0, with_scores=True)
        record_run(file, grid_city, 120, policies=policies, contracts=list(contracts.values()))
    return file


def test_served_models_decide_as_they_did(served, grid_server, tmp_path, capsys):
    assert main([str(served), "--server", grid_server, "--json", str(tmp_path / "out.json")]) == 0
    output = capsys.readouterr().out
    assert "bit for bit the same" in output
    shadow = json.loads((tmp_path / "out.json").read_text())["shadow"]
    assert {tl: each["otherwise"] for tl, each in shadow.items()} == dict.fromkeys(shadow, 0)
    assert {tl: each["missing"] for tl, each in shadow.items()} == dict.fromkeys(shadow, 0)
    assert min(each["decisions"] for each in shadow.values()) >= 1
    assert min(each["latency_ms"]["p50"] for each in shadow.values()) > 0
    assert "SA108" in output


def test_other_decisions_of_served_models_are_in_the_table(served, grid_server, tmp_path, capsys):
    def first_green(step):
        for each in step.tls.values():
            if each.HasField("decision") and len(each.decision.action) == 1:
                each.decision.action[0] = 0
        return step

    others = {
        tl: sum(decision.action[0] != 0 for decision in recorded_decisions(served, tl)) for tl in ("SA102", "SA104")
    }
    assert sum(others.values()) > 5
    changed = rewrite(served, tmp_path / "run.mcap", first_green)
    assert main([str(changed), "--server", grid_server, "--tl", "SA102,SA104"]) == 3
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("SA10")}
    assert {tl: int(rows[tl][3]) for tl in others} == others


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--model-number", "99"), "serves no model SA101 version 99"),
        (("--server", "127.0.0.1:1"), "no model server answers at 127.0.0.1:1"),
        (("--fleet", "nowhere"), "fleet nowhere is not served"),
    ],
)
def test_server_without_the_models_is_one_line(served, grid_server, capsys, flags, message):
    refused(capsys, main([str(served), "--server", grid_server, *flags]), message)


def test_model_with_another_contract_is_one_line(served, grid_server, tmp_path, capsys):
    slower = rewrite(served, tmp_path / "x.mcap", city=lambda city: setattr(city.contracts[0].timing, "yellow_s", 4.5))
    message = "model SA101 has another contract than the record: timing.yellow_s is 3.0, recorded 4.5"
    refused(capsys, main([str(slower), "--server", grid_server]), message)
