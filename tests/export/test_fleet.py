"""Fleets: a single model of many TLs, whose actions and scores are the single models'."""

import json
import os
import re
import shutil
import tracemalloc
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.random_models import random_actor
from export.__main__ import main
from export.fleets import fleet_graph
from export.fleets.fleet_graph import FleetActor
from export.graphs.graph_actor import extract
from export.saved_model import read, verify, write
from protos import policy_pb2 as pb
from protos import prediction_log_pb2 as prediction_log_pb
from serving.contract import ContractError, check, check_fleet, from_saved_model
from tests.conftest import GRID
from tests.export import mixed_fleet, writers
from tests.export.compared_fleets import compare_fleet
from tests.export.exporting import refused, run
from tests.export.mixed_fleet import ACTORS, CATEGORICAL
from tests.export.phase_competition_models import random_network, random_observations, random_policy
from tests.export.writers import keras3


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Models of several kinds: stackable ones of two shapes, a norm, a trainer's own graph."""
    checkpoints = tmp_path_factory.mktemp("checkpoints")
    for tl, model in {
        "SA101": writers.sequential(keras3),
        "SA102": writers.sequential(keras3, sizes=(8, 5)),
        "SA103": writers.functional(keras3),
        "SA104": writers.sequential(keras3, outputs=3),
        "SA105": writers.functional(keras3),
    }.items():
        model.save(checkpoints / f"{tl}_trial_4.keras")
    models = tmp_path_factory.mktemp("exported") / "models"
    assert main(["--model-path", str(checkpoints), "--tl", "all", "--models-dir", str(models)]) == 0
    return models


@pytest.fixture
def models(exported, tmp_path):
    """A test's own copy of them."""
    return shutil.copytree(exported, tmp_path / "models")


def build(models, *flags, name="city"):
    return main(["fleet", name, "--tl", "all", "--models-dir", str(models), *flags])


def contract_of(folder):
    return pb.PolicyContract.FromString(run(folder, "policy", rows=np.zeros(1, np.int32))["policy"][0])


def actions_of_each(models, contract, x):
    found = []
    for member in contract.members:
        own = x[:, member.observation_begin : member.observation_begin + member.observation_size]
        action = run(models / member.tl / str(member.version), "serving_default", observation=own)["action"]
        found.append(action.reshape(len(x), -1))
    return np.concatenate(found, axis=1)


def test_a_fleet_acts_like_its_models_of_every_kind(models, capsys):
    assert build(models) == 0
    assert "5 TLs" in capsys.readouterr().out
    contract = contract_of(models / "city" / "1")
    check_fleet(contract)
    assert sorted(member.tl for member in contract.members) == [f"SA10{k}" for k in range(1, 6)]
    assert {member.version for member in contract.members} == {4}
    x = np.random.default_rng(0).standard_normal((17, contract.observation.size)).astype(np.float32)
    actions = run(models / "city" / "1", "serving_default", observation=x)["action"]
    assert actions.dtype == np.float32 and actions.shape == (17, contract.action.size)
    assert np.abs(actions - actions_of_each(models, contract, x)).max() <= 1e-6
    text = (models / "city" / "1" / "assets.extra" / "policy.json").read_text()
    assert text == json_format.MessageToJson(contract, preserving_proto_field_name=True) + "\n"
    recorded = json.loads((models / "city" / "1" / "assets.extra" / "export.json").read_text())
    assert {tuple(entry["tls"]): entry["stacked"] for entry in recorded["groups"]} == {
        ("SA101", "SA102", "SA104"): True,
        ("SA103",): False,
        ("SA105",): False,
    }


@given(
    junctions=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 40), st.integers(0, 1)), max_size=8),
    plain=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 6), st.booleans()), min_size=1, max_size=12),
    shared=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), max_size=2),
    budget=st.sampled_from([0, 20_000, 10**9]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=30, deadline=None)
def test_grouping_and_padding_change_no_action(junctions, plain, shared, budget, seed):
    """Any mixture of sizes and kinds, padded not at all, a little or to one group: NumPy's actions, TL by TL."""
    rng = np.random.default_rng(seed)
    policies = [random_network(rng), random_network(rng)]
    members, x = [], {}
    for k, (greens, lanes, policy) in enumerate(junctions):
        members.append(FleetActor(f"TL{k}", random_policy(rng, greens, lanes, policies[policy]), True))
        x[f"TL{k}"] = random_observations(rng, greens, lanes, 5, 150)
    for k, (inputs, outputs, categorical) in enumerate(plain):
        members.append(FleetActor(f"MLP{k}", random_actor(inputs, outputs, k, categorical), categorical))
    # two policies that TLs of several sizes share
    for policy, (inputs, outputs) in enumerate(shared):
        whole = random_actor(inputs, outputs, 100 + policy, True)
        for k in range(3):
            own = whole.for_tl(max(1, inputs - k), max(1, outputs - k))
            members.append(FleetActor(f"SHARED{policy}{k}", own, True))
    for member in members[len(junctions) :]:
        x[member.tl] = rng.standard_normal((5, member.actor.inputs)).astype(np.float32)
    with mock.patch.object(fleet_graph, "MAX_PADDING_BYTES", budget):
        compare_fleet(members, x)


@pytest.mark.parametrize("limit", [verify.MAX_RUN_NUMBERS, 1], ids=["one batch", "many batches"])
def test_a_fleet_that_fails_the_parity_check_is_not_published(models, limit, monkeypatch, capsys):
    monkeypatch.setattr(verify, "MAX_RUN_NUMBERS", limit)
    real = fleet_graph.weights

    def wrong(groups):
        made = real(groups)
        made[0].values[...] += 0.01
        return made

    monkeypatch.setattr(fleet_graph, "weights", wrong)
    assert build(models) == 1
    assert "not published: its actions for SA10" in capsys.readouterr().err
    assert not (models / "city").exists()


def test_observations_of_a_large_fleet_do_not_fill_the_memory():
    rows = []

    def run(_signature, inputs):
        rows.append(len(inputs["observation"]))
        return {"action": inputs["observation"][:, :1]}

    tracemalloc.start()
    try:
        halves = verify._fleet_observations(500_000)
        actions = verify._run_in_batches(run, halves)["action"]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10_000_000, "256 rows have 512 MB"
    assert sum(rows) == len(np.unique(actions)) == 256 and set(rows) == {2}
    np.testing.assert_array_equal(actions, np.concatenate([half[:, :1] for half in halves]))


def test_fleet_versions_count_up_and_old_ones_are_removed(models, capsys):
    for _ in range(3):
        assert build(models, "--keep", "2") == 0
    assert sorted(path.name for path in (models / "city").iterdir()) == ["2", "3"]
    assert build(models, "--model-number", "3") == 2
    refused(capsys, "city/3 exists already")
    assert build(models, "--model-number", "3", "--overwrite") == 0
    assert main(["describe", str(models / "city" / "3")]) == 0
    out = capsys.readouterr().out
    assert "fleet      5 TLs" in out and re.search(r"SA101 +4 +\d+:\d+", out) and "parity" in out


def test_a_fleet_is_not_a_member_of_another_fleet(models, capsys):
    assert build(models) == 0
    assert build(models, name="whole") == 0
    assert {member.tl for member in contract_of(models / "whole" / "1").members} == {f"SA10{k}" for k in range(1, 6)}
    assert main(["fleet", "other", "--tl", "city", "--models-dir", str(models)]) == 2
    refused(capsys, "city has no model under")


def test_invalid_input_to_a_fleet_gives_one_error_line(models, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words, why in {
        ("city", "--tl", "SA999", "--models-dir", str(models)): "SA999 has no model under",
        ("city", "--tl", "all", "--models-dir", str(tmp_path / "nowhere")): "nowhere: no such folder",
        ("SA101", "--tl", "all", "--city", str(GRID / "city.toml")): "has a TL of that name",
        ("a/b", "--tl", "all", "--models-dir", str(models)): "is not a valid TL name",
        ("city", "--tl", "all", "--models-dir", str(models), "--keep", "0"): "--keep 0 must be at least 1",
        ("city", "--tl", "all", "--models-dir", str(models), "--model-number", "-1"): "must be a version number",
        (): "the fleet has no name, and there is no city.toml",
        ("city",): "--tl is missing",
        ("--model-number", "3"): "--model-number is for one fleet",
    }.items():
        assert main(["fleet", *words]) == 2, words
        refused(capsys, why)
    (models / "SA102" / "4" / "saved_model.pb").write_bytes(b"garbage")
    assert build(models) == 2
    refused(capsys, "SA102/4")
    assert not (models / "city").exists()


def test_an_inconsistent_fleet_contract_is_refused():
    def member(tl, begin, size=3, column=0, columns=1):
        own = pb.PolicyContract(
            tl=tl, observation=pb.Observation(size=size), action=pb.Action(kind="categorical", size=4)
        )
        return pb.Member(
            tl=tl,
            observation_begin=begin,
            observation_size=size,
            action_begin=column,
            action_size=columns,
            contract=own,
        )

    def whole(*members, inputs=6, outputs=2):
        return pb.PolicyContract(
            tl="c",
            observation=pb.Observation(size=inputs),
            action=pb.Action(kind="fleet", size=outputs),
            members=members,
        )

    check_fleet(whole(member("A", 0), member("B", 3, column=1)))
    for contract, why in (
        (whole(member("A", 0), member("A", 3, column=1)), "lists A twice"),
        (whole(member("A", 0), member("B", 4, column=1)), "do not begin at the end"),
        (whole(member("A", 0), member("B", 3, column=1, columns=2)), "its contract has 3 and 1"),
        (whole(member("A", 0), member("B", 3, column=1), inputs=7), "has 7 inputs"),
        (pb.PolicyContract(tl="c"), "not a fleet"),
    ):
        with pytest.raises(ContractError, match=why):
            check_fleet(contract)
    with pytest.raises(ContractError, match="is a fleet of 2 TLs"):
        check(whole(member("A", 0), member("B", 3, column=1)))


DAMAGED_STEPS = [
    b"",
    b"[]",
    b"{}",
    b'{"steps":[]}',
    b'{"steps":[{"join":""}]}',
    b'{"steps":[{"dense":"x"},{"activation":"odd"}]}',
    b'{"steps":[{"dense":"x"},{"batch_norm":"n","units":8,"epsilon":1e-05}]}',  # before Affine
    b"[" * 100_000,
]


@pytest.mark.parametrize("content", DAMAGED_STEPS, ids=range(len(DAMAGED_STEPS)))
def test_a_model_with_a_damaged_actor_json_is_read_as_a_graph(content, grid_models, tmp_path):
    shutil.copytree(grid_models / "SA103", tmp_path / "SA103")
    (tmp_path / "SA103" / "1" / write.ACTOR_FILE).write_bytes(content)
    _, actor = read.read(tmp_path / "SA103" / "1")
    assert actor.architecture == "graph"


def test_fleet_of_the_newest_versions_is_left_as_it_is(models, capsys):
    assert build(models) == 0
    capsys.readouterr()
    assert build(models, "--skip-existing") == 0
    assert "city: version 1 holds the newest versions of its 5 TLs; left as it is" in capsys.readouterr().out
    shutil.copytree(models / "SA102" / "4", models / "SA102" / "5")
    assert build(models, "--skip-existing") == 0
    assert sorted(version.name for version in (models / "city").iterdir()) == ["1", "2"]


CITY = '[network]\n[tl.SA101]\nsignals = ["A"]\ndialect = "sumo-rl"\n[tl.SA102]\nsignals = ["B"]\ndialect = "sumo-rl"\n'
DISTRICT = '[serving.districts.{name}]\naddress = "127.0.0.1:8500"\ntls = ["{tl}"]\n'


@pytest.mark.parametrize(
    ("text", "fleets"),
    [
        (CITY, {"city": {"SA101", "SA102"}}),
        (f'{CITY}[serving]\nfleet = "north_2"\n', {"north2": {"SA101", "SA102"}}),
        (
            CITY + DISTRICT.format(name="east", tl="SA101") + DISTRICT.format(name="west", tl="SA102"),
            {"east": {"SA101"}, "west": {"SA102"}},
        ),
    ],
)
def test_fleets_without_a_name_are_those_of_city_toml(models, tmp_path, text, fleets):
    (tmp_path / "city.toml").write_text(text)
    assert main(["fleet", "--city", str(tmp_path / "city.toml"), "--models-dir", str(models)]) == 0
    for name, tls in fleets.items():
        assert {member.tl for member in contract_of(models / name / "1").members} == tls


def test_city_without_a_fleet_needs_none(models, tmp_path, capsys):
    (tmp_path / "city.toml").write_text(f'{CITY}[serving]\nfleet = ""\n')
    assert main(["fleet", "--city", str(tmp_path / "city.toml"), "--models-dir", str(models), "--skip-existing"]) == 0
    assert "there is no fleet to build" in capsys.readouterr().out and not (models / "city").exists()


@pytest.mark.parametrize("kind", ["FIFO", "device"])
def test_model_with_a_file_that_is_not_regular_is_refused_at_once(models, tmp_path, capsys, kind):
    for name in ("saved_model.pb", "assets.extra/policy.json", "assets.extra/export.json", "notes"):
        path = models / "SA103" / "4" / name
        whole = path.exists() and path.rename(tmp_path / "aside")
        os.mkfifo(path) if kind == "FIFO" else path.symlink_to("/dev/zero")
        assert build(models) == 2
        refused(capsys, str(path), f"it is a {kind}, not a regular file")
        if whole:
            whole.rename(path)
    assert main(["fleet", "city", "--tl", "SA101,SA102", "--models-dir", str(models)]) == 0, "other fleets are built"


@pytest.fixture(scope="module")
def mixed_models(tmp_path_factory):
    return mixed_fleet.write_models(tmp_path_factory.mktemp("scores") / "mixed_models")


@pytest.mark.parametrize("rows", [1, 33])
def test_scores_of_a_fleet_are_those_of_the_actors_in_numpy(mixed_models, rows):
    manifest = json.loads((mixed_models / "city" / "1" / "assets.extra" / "export.json").read_text())
    assert [group["tls"] for group in manifest["groups"] if not group["stacked"]] == [["SA105"], ["SA106"]]
    contract = from_saved_model(mixed_models / "city" / "1")
    x = np.random.default_rng(rows).standard_normal((rows, contract.observation.size)).astype(np.float32)
    outputs = run(mixed_models / "city" / "1", "serving_default", observation=x)
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


def build_of(mixed_models, tls, folder):
    """Build a fleet of some TLs in a folder of its own; return the exit code."""
    for tl in tls:
        (folder / tl).symlink_to(mixed_models / tl)
    return main(["fleet", "city", "--tl", "all", "--models-dir", str(folder)])


def test_describe_lists_the_columns_of_the_scores(mixed_models, capsys):
    assert main(["describe", str(mixed_models / "city" / "1")]) == 0
    out = capsys.readouterr().out
    for member in from_saved_model(mixed_models / "city" / "1").members:
        columns = f"{member.score_begin}:{member.score_begin + member.score_size}" if member.tl in CATEGORICAL else "-"
        assert re.search(rf"{member.tl} +1 +\d+:\d+ +\d+:\d+ +{columns} +{member.contract.action.kind}", out)


def test_fleet_without_categorical_members_has_no_scores(mixed_models, tmp_path):
    assert build_of(mixed_models, ["SA104"], tmp_path) == 0
    assert list(run(tmp_path / "city" / "1", "serving_default", observation=np.zeros((1, 9)))) == ["action"]


@pytest.mark.parametrize("wrong", [("SA101", "probabilities"), ("SA103", "q_values")])
def test_fleet_with_other_scores_than_its_models_is_not_published(mixed_models, tmp_path, monkeypatch, capsys, wrong):
    tl, kind = wrong
    scores = fleet_graph._scores

    def changed(actors, logits):
        row = next(k for k, actor in enumerate(actors) if actor.outputs == ACTORS[tl].outputs)
        return scores(actors, logits) + np.eye(len(actors), dtype=np.float32)[row][:, None, None] * 1e-4

    monkeypatch.setattr(fleet_graph, "_scores", changed)
    assert build_of(mixed_models, ["SA101", "SA103", "SA104"], tmp_path) == 1
    assert f"not published: its {kind} for {tl} differ" in capsys.readouterr().err
    assert not (tmp_path / "city").exists()


@pytest.mark.parametrize("model", ["SA101", "city"])
def test_warm_up_requests_the_action_with_and_without_scores(mixed_models, model):
    """TensorFlow prunes the graph at the first run for the requested outputs."""
    records = tf.compat.v1.io.tf_record_iterator(str(mixed_models / model / "1" / write.WARMUP_FILE))
    requests = [prediction_log_pb.PredictionLog.FromString(record).predict_log.request for record in records]
    assert [(r.model_spec.signature_name, list(r.output_filter)) for r in requests] == [
        ("serving_default", []),
        ("serving_default", ["action"]),
        ("policy", []),
    ]


def test_contract_whose_scores_do_not_fit_its_members_is_refused(mixed_models):
    check_fleet(from_saved_model(mixed_models / "city" / "1"))
    for tl, field, value in (("SA101", "score_size", 0), ("SA102", "score_begin", 1), ("SA104", "score_size", 2)):
        wrong = from_saved_model(mixed_models / "city" / "1")
        (member,) = (member for member in wrong.members if member.tl == tl)
        setattr(member, field, value)
        with pytest.raises(ContractError, match=f"the scores of {tl} are"):
            check_fleet(wrong)


def test_run_for_the_action_alone_computes_no_scores(mixed_models, tmp_path):
    assert build_of(mixed_models, ["SA101", "SA102", "SA104"], tmp_path) == 0
    meta = read.meta_graph(tmp_path / "city" / "1")
    outputs = {key: info.name for key, info in meta.signature_def["serving_default"].outputs.items()}
    softmax = {
        key: any(node.op == "Softmax" for node in extract(meta.graph_def, [name]).node) for key, name in outputs.items()
    }
    assert softmax == {"action": False, "scores": True}
