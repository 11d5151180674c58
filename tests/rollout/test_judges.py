"""Verdicts of shadow and evaluation on records and models of the sample city."""

import json
import shutil
from dataclasses import replace

import pytest

from city import config
from city.errors import InputError
from city.signatures import Signers
from controller.policies.served_contracts import fetch_contracts
from controller.policies.served_policies import ServedPolicies
from rollout import model_files
from rollout.judges import StreetJudges
from rollout.verdicts import Limits
from serving.client import Client
from tests.conftest import GRID
from tests.records.replayed_city import record_run
from tests.records.test_replay import rewrite
from tests.serving.signed_versions import sign, write_keys

LIMITS = Limits(min_decisions=10, max_latency_share=100.0)


@pytest.fixture(scope="module")
def record(grid_server, grid_city, tmp_path_factory):
    folder = tmp_path_factory.mktemp("record")
    with Client(grid_server) as client:
        contracts = fetch_contracts(client, list(grid_city.tls), None)
        policies = ServedPolicies(client, contracts, None, 10.0, with_scores=True)
        file = folder / "20260101T000000Z-abc-0000.mcap"
        record_run(file, grid_city, 120, policies=policies, contracts=list(contracts.values()))
    return folder


@pytest.fixture
def judges(grid_server, grid_models, record, tmp_path):
    with Client(grid_server, retries=0) as client:
        yield StreetJudges(config.load(GRID / "city.toml"), grid_models, record, client, tmp_path / "kept", LIMITS)


def shadow(judges, tl="SA104"):
    return judges.shadow({tl: judges.model(tl, 1)})[tl]


def test_a_record_is_replayed_once_and_its_verdict_kept(judges, tmp_path):
    first = shadow(judges)
    assert first.value == "better" and " 0% of " in first.sentence
    assert shadow(judges).sentence == first.sentence, "no step is counted twice"
    (digest,) = judges.keep("shadow", ["SA104"], {"SA104": first}).values()
    (kept,) = (tmp_path / "kept" / "shadow").iterdir()
    document = json.loads(kept.read_text())
    assert document["figures"]["SA104"]["versions"] == [1] and document["limits"]["min_decisions"] == 10
    assert document["record"][0]["name"] == "20260101T000000Z-abc-0000.mcap" and len(digest) == 64


def test_too_few_requests_are_not_enough_evidence(judges):
    judges.limits = replace(LIMITS, min_decisions=1000)
    assert shadow(judges).value == "not enough evidence"


def test_a_model_with_another_contract_is_worse(judges, record, tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    (file,) = record.iterdir()
    rewrite(file, folder / file.name, city=lambda city: setattr(city.contracts[3].timing, "yellow_s", 4.5))
    judges.record = folder
    verdict = shadow(judges)
    assert verdict.value == "worse" and "SA104/1 has another contract" in verdict.sentence


def test_a_server_that_does_not_answer_is_no_evidence(judges):
    with Client("127.0.0.1:1", retries=0) as unreachable:
        judges.client = unreachable
        assert shadow(judges).value == "not enough evidence"


def test_a_new_model_needs_the_signature_and_an_old_one_does_not(judges, grid_models, tmp_path):
    judges.models_dir = tmp_path / "models"
    version = judges.models_dir / "SA104" / "1"
    shutil.copytree(grid_models / "SA104" / "1", version)
    assert judges.new_model("SA104", 1) == judges.model("SA104", 1), "no signature is needed"
    keys, others = write_keys(tmp_path), write_keys(tmp_path, "other")
    judges.signers = Signers.read(keys.public)
    with pytest.raises(InputError, match=r"SA104/1: is not signed: model.sig is missing"):
        judges.new_model("SA104", 1)
    sign(version, keys, "SA104", 1)
    assert judges.new_model("SA104", 1) == judges.model("SA104", 1)
    judges.signers = Signers.read(others.public)
    with pytest.raises(InputError, match=r"SA104/1: .*is not signed by"):
        judges.new_model("SA104", 1)
    judges.model("SA104", 1)


def test_a_record_without_files_is_no_evidence(judges, tmp_path):
    judges.record = tmp_path
    assert "has no files yet" in shadow(judges).sentence and shadow(judges).value == "not enough evidence"


def test_the_same_models_are_not_better(judges, tmp_path):
    judges.seeds, judges.seconds = 2, 60.0
    stable = {tl: model_files.of_version(judges.models_dir, tl, 1) for tl in judges.city.tls}
    ticks = []
    verdict = judges.evaluate({"SA104": stable["SA104"]}, stable, lambda: ticks.append(1))
    assert verdict.value == "not enough evidence" and "mean delay +0.00 s" in verdict.sentence and len(ticks) == 4
    (name,) = judges.keep("evaluate", ["SA104"], {"SA104": verdict})
    results = json.loads((tmp_path / "kept" / name).read_text())
    assert results["conditions"]["models"]["new"]["SA104"].endswith("SA104/1")
