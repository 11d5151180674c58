"""The scores of a fleet: probabilities and q-values of its categorical members."""

import json
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from export.__main__ import main
from export.fleets import fleet_graph
from export.graphs.graph_actor import extract
from export.saved_model import meta_graph, read
from protos import prediction_log_pb2 as prediction_log_pb
from serving.contract import ContractError, check_fleet, from_saved_model
from tests.export import mixed_fleet
from tests.export.exporting import run
from tests.export.mixed_fleet import ACTORS, CATEGORICAL


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return mixed_fleet.write_models(tmp_path_factory.mktemp("scores") / "models")


@pytest.mark.parametrize("rows", [1, 33])
def test_scores_of_a_fleet_are_those_of_the_actors_in_numpy(models, rows):
    manifest = json.loads((models / "city" / "1" / "assets.extra" / "export.json").read_text())
    assert [group["tls"] for group in manifest["groups"] if not group["stacked"]] == [["SA105"], ["SA106"]]
    contract = from_saved_model(models / "city" / "1")
    x = np.random.default_rng(rows).standard_normal((rows, contract.observation.size)).astype(np.float32)
    outputs = run(models / "city" / "1", "serving_default", observation=x)
    assert outputs["scores"].dtype == np.float32
    assert outputs["scores"].shape == (rows, sum(ACTORS[tl].outputs for tl in CATEGORICAL))
    for member in contract.members:
        if member.tl not in CATEGORICAL:
            assert (member.score_begin, member.score_size) == (0, 0)
            continue
        own = x[:, member.observation_begin : member.observation_begin + member.observation_size]
        scores = outputs["scores"][:, member.score_begin : member.score_begin + member.score_size]
        np.testing.assert_allclose(scores, ACTORS[member.tl].evaluate(own, True), atol=1e-5)
        assert (scores.argmax(1) == outputs["action"][:, member.action_begin]).all()


def build(models, tls, folder):
    """Build a fleet of some TLs in a folder of its own; return the exit code."""
    for tl in tls:
        (folder / tl).symlink_to(models / tl)
    return main(["fleet", "city", "--tl", "all", "--models-dir", str(folder)])


def test_describe_lists_the_columns_of_the_scores(models, capsys):
    assert main(["describe", str(models / "city" / "1")]) == 0
    out = capsys.readouterr().out
    for member in from_saved_model(models / "city" / "1").members:
        columns = f"{member.score_begin}:{member.score_begin + member.score_size}" if member.tl in CATEGORICAL else "-"
        assert re.search(rf"{member.tl} +1 +\d+:\d+ +\d+:\d+ +{columns} +{member.contract.action.kind}", out)


def test_fleet_without_categorical_members_has_no_scores(models, tmp_path):
    assert build(models, ["SA104"], tmp_path) == 0
    assert list(run(tmp_path / "city" / "1", "serving_default", observation=np.zeros((1, 9)))) == ["action"]


@pytest.mark.parametrize("wrong", [("SA101", "probabilities"), ("SA103", "q_values")])
def test_fleet_with_other_scores_than_its_models_is_not_published(models, tmp_path, monkeypatch, capsys, wrong):
    tl, kind = wrong
    scores = fleet_graph._scores

    def changed(actors, logits):
        row = next(k for k, actor in enumerate(actors) if actor.outputs == ACTORS[tl].outputs)
        return scores(actors, logits) + np.eye(len(actors), dtype=np.float32)[row][:, None, None] * 1e-4

    monkeypatch.setattr(fleet_graph, "_scores", changed)
    assert build(models, ["SA101", "SA103", "SA104"], tmp_path) == 1
    assert f"not published: its {kind} for {tl} differ" in capsys.readouterr().err
    assert not (tmp_path / "city").exists()


@pytest.mark.parametrize("model", ["SA101", "city"])
def test_warm_up_requests_the_action_with_and_without_scores(models, model):
    """TensorFlow prunes the graph at the first run for the requested outputs."""
    records = tf.compat.v1.io.tf_record_iterator(str(models / model / "1" / meta_graph.WARMUP_FILE))
    requests = [prediction_log_pb.PredictionLog.FromString(record).predict_log.request for record in records]
    assert [(r.model_spec.signature_name, list(r.output_filter)) for r in requests] == [
        ("serving_default", []),
        ("serving_default", ["action"]),
        ("policy", []),
    ]


def test_contract_whose_scores_do_not_fit_its_members_is_refused(models):
    check_fleet(from_saved_model(models / "city" / "1"))
    for tl, field, value in (("SA101", "score_size", 0), ("SA102", "score_begin", 1), ("SA104", "score_size", 2)):
        wrong = from_saved_model(models / "city" / "1")
        (member,) = (member for member in wrong.members if member.tl == tl)
        setattr(member, field, value)
        with pytest.raises(ContractError, match=f"the scores of {tl} are"):
            check_fleet(wrong)


def test_fleet_of_an_earlier_version_is_valid_without_scores(models, tmp_path):
    shutil.copytree(models / "city" / "1", tmp_path / "1")
    mixed_fleet.remove_scores(tmp_path / "1")
    contract = from_saved_model(tmp_path / "1")
    check_fleet(contract)
    x = np.zeros((1, contract.observation.size))
    assert list(run(tmp_path / "1", "serving_default", observation=x)) == ["action"]


def test_run_for_the_action_alone_computes_no_scores(models, tmp_path):
    assert build(models, ["SA101", "SA102", "SA104"], tmp_path) == 0
    meta = read.meta_graph(tmp_path / "city" / "1")
    outputs = {key: info.name for key, info in meta.signature_def["serving_default"].outputs.items()}
    softmax = {
        key: any(node.op == "Softmax" for node in extract(meta.graph_def, [name]).node) for key, name in outputs.items()
    }
    assert softmax == {"action": False, "scores": True}
