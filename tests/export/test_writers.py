"""Every kind of training output, written by its real writer, exported and compared with the trainer's own answers."""

import contextlib
import fcntl
import json
import os
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from export.__main__ import main
from tests.export import writers
from tests.export.test_sources import run
from tests.export.writers import X, answers, keras2, keras3

v1 = tf.compat.v1


@pytest.fixture
def checkpoints(tmp_path):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    return folder


def export(checkpoints, *flags, tl="SA101"):
    return main(["--model-path", str(checkpoints), "--tl", tl, "--models-dir", str(checkpoints.parent / "models"), *flags])


def exported(checkpoints, *flags, tl="SA101"):
    """The exported model's answers to X."""
    assert export(checkpoints, *flags, tl=tl) == 0
    return run(version(checkpoints, tl), "serving_default", observation=X)["action"]


def version(checkpoints, tl="SA101"):
    return next((checkpoints.parent / "models" / tl).iterdir())


def certificate(checkpoints, tl="SA101"):
    return json.loads((version(checkpoints, tl) / "assets.extra" / "export.json").read_text())


def refused(capsys, *told):
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    for words in told:
        assert words in lines[0], lines[0]


def same(found, expected):
    assert found.shape == expected.shape and np.abs(found - expected).max() <= 1e-5


WEIGHTS = {
    "keras 2, TF format": (keras2, lambda model, at: model.save_weights(str(at / "x-trial_3_SA_101_actor"))),
    "keras 2, HDF5": (keras2, lambda model, at: model.save_weights(str(at / "x-trial_3_SA_101_actor.h5"))),
    "keras 3": (keras3, lambda model, at: model.save_weights(at / "x-trial_3_SA_101_actor.weights.h5")),
    "checkpoint of keras 2": (keras2, lambda model, at: tf.train.Checkpoint(actor=model).write(str(at / "SA101-3"))),
    "checkpoint of keras 3": (keras3, lambda model, at: tf.train.Checkpoint(actor=model).write(str(at / "SA101-3"))),
    "npz": (keras3, lambda model, at: np.savez(at / "SA101_trial_3.npz", **{w.path: w.numpy() for w in model.weights})),
    "npz with dots": (
        keras3,
        lambda model, at: np.savez(
            at / "SA101_trial_3.npz", **{w.path.replace("/", ".") + ":0": w.numpy() for w in reversed(model.weights)}
        ),
    ),
}


MLPS = [(kind, how) for kind in ("sequential", "subclassed") for how in WEIGHTS]
MLPS.remove(("subclassed", "npz with dots"))  # names that are not counted must stand in their order


@pytest.mark.parametrize(("kind", "how"), MLPS)
def test_weights_of_an_mlp_are_read_whoever_wrote_them(kind, how, checkpoints):
    keras, write = WEIGHTS[how]
    model = getattr(writers, kind)(keras)
    write(model, checkpoints)
    same(exported(checkpoints), answers(model))
    assert version(checkpoints).name == "3"


WHOLE = {
    "keras 2 SavedModel": (keras2, lambda model, at: model.save(str(at / "SA101_trial_3"))),
    "keras 2 .keras": (keras2, lambda model, at: model.save(str(at / "SA101_trial_3.keras"))),
    "keras 2 .h5": (keras2, lambda model, at: model.save(str(at / "SA101_trial_3.h5"))),
    "keras 3 export": (keras3, lambda model, at: model.export(str(at / "SA101" / "3"), verbose=False)),
    "keras 3 tf.saved_model.save": (keras3, lambda model, at: tf.saved_model.save(model, str(at / "SA101" / "3"))),
    "keras 3 .keras": (keras3, lambda model, at: model.save(at / "SA101_trial_3.keras")),
    "keras 3 .h5": (keras3, lambda model, at: model.save(at / "SA101_trial_3.h5")),
}


@pytest.mark.parametrize("how", WHOLE)
@pytest.mark.filterwarnings("ignore")
def test_whole_models_need_no_architecture(how, checkpoints):
    keras, write = WHOLE[how]
    model = writers.functional(keras)
    write(model, checkpoints)
    same(exported(checkpoints), answers(model))
    told = certificate(checkpoints)
    assert told["actor"]["architecture"] == "graph" and "trainer's own graph" in told["parity"]["reference"]
    assert len(told["variables"]) == 10, "three dense layers and a norm; no optimizer, no counters"
    names = {entry["from"].rsplit("/", 1)[-1] for entry in told["variables"]}
    assert names == {"kernel", "bias", "gamma", "beta", "moving_mean", "moving_variance"}


@pytest.mark.parametrize("how", WHOLE)
@pytest.mark.filterwarnings("ignore")
def test_whole_models_tell_their_activations(how, checkpoints, capsys):
    keras, write = WHOLE[how]
    model = writers.sequential(keras, hidden="elu")
    write(model, checkpoints)
    same(exported(checkpoints), answers(model))
    assert "(mlp elu tanh" in capsys.readouterr().out


@pytest.mark.parametrize("keras", [keras2, keras3])
def test_subclassed_saved_models_without_defined_inputs_are_exported(keras, checkpoints):
    model = writers.subclassed(keras)
    tf.saved_model.save(model, str(checkpoints / "SA101_trial_3"))
    same(exported(checkpoints), answers(model))


def test_a_whole_model_of_unknown_classes_still_has_its_weights(checkpoints, capsys):
    model = writers.subclassed(keras3)
    model.save(checkpoints / "SA101_trial_3.keras")
    assert export(checkpoints) == 2
    refused(capsys, "its own wiring is not known", "--actor NAME to take its weights alone")
    same(exported(checkpoints, "--actor", "mlp"), answers(model))


def test_weights_alone_of_an_unknown_wiring_are_refused(checkpoints, capsys):
    writers.functional(keras3).save_weights(checkpoints / "SA101_trial_3.weights.h5")
    assert export(checkpoints) == 2
    refused(capsys, "SA101_trial_3.weights.h5", "3 dense layers and 1 batch norms", "--actor MODULE:FUNCTION")


def test_a_saved_model_without_signatures_is_exported_by_its_function(checkpoints):
    agent = writers.Agent()
    tf.saved_model.save(agent, str(checkpoints / "SA101_trial_2"))
    same(exported(checkpoints), agent(X).numpy())


def test_lists_of_plain_variables_are_layers_in_their_order(checkpoints):
    agent = writers.Agent()
    tf.train.Checkpoint(agent=agent, step=tf.Variable(1)).write(str(checkpoints / "SA101_trial_2"))
    same(exported(checkpoints), agent(X).numpy())


class Heads(tf.Module):
    """What trainers export: mean, value, a sampled action and its log-probability."""

    def __init__(self):
        super().__init__()
        self.actor = writers.sequential(keras3)
        self.critic = writers.sequential(keras3, head="linear", outputs=1)

    @tf.function(input_signature=[tf.TensorSpec([None, 9], tf.float32, "observation"), tf.TensorSpec([], tf.bool, "training")])
    def act(self, observation, training):
        mean = self.actor(observation)
        noise = tf.random.normal(tf.shape(mean))
        return {
            "action": mean + noise,
            "mean": mean,
            "value": self.critic(observation),
            "log_prob": -tf.reduce_sum(noise**2, axis=1, keepdims=True),
        }


def test_of_several_outputs_the_mean_is_taken_and_the_critic_left_out(checkpoints, capsys):
    agent = Heads()
    tf.saved_model.save(agent, str(checkpoints / "SA101_trial_2"), signatures={"act": agent.act})
    same(exported(checkpoints), answers(agent.actor))
    assert len(certificate(checkpoints)["variables"]) == 6
    capsys.readouterr()
    assert export(checkpoints, "--overwrite", "--output-tensor", "action") == 2
    refused(capsys, "is random", "--output-tensor")
    assert export(checkpoints, "--overwrite", "--output-tensor", "nothing") == 2
    refused(capsys, "has no output nothing; there are action, log_prob, mean, value")
    same(exported(checkpoints, "--overwrite", "--output-tensor", "act:mean"), answers(agent.actor))


# TensorFlow 1


def test_one_agent_of_a_session_is_found_and_compared_with_its_graph(checkpoints, capsys):
    held = writers.tf1_agents(checkpoints, "x_SA101_trial_0", ["actor"])
    same(exported(checkpoints), held["actor"])
    told = certificate(checkpoints)
    assert told["parity"]["reference"] == "the trainer's own graph, tensor actor/Tanh:0" or "Tanh" in told["parity"]["reference"]
    assert set(told["left_unread"]) == {"counter", "critic", "optimizer", "training only"}
    assert {entry["name"].rsplit(".", 1)[-1] for entry in told["source"]["files"]} == {"index", "meta", "data-00000-of-00001"}
    assert "optimizer" in capsys.readouterr().out


def test_the_graph_tells_the_hidden_activation(checkpoints, capsys):
    held = writers.tf1_agents(checkpoints, "x_SA101_trial_0", ["actor"], hidden=tf.nn.elu)
    same(exported(checkpoints), held["actor"])
    assert "(mlp elu tanh" in capsys.readouterr().out
    assert export(checkpoints, "--overwrite", "--actor", "mlp-res") == 2
    refused(capsys, "mlp-res has 5 dense layers at least; found 3")


def strange(x):
    return x * tf.sigmoid(1.7 * x)


def switched(x):
    training = v1.placeholder(tf.bool, (), "training")
    return v1.cond(training, lambda: x * tf.random.uniform(tf.shape(x)), lambda: x * 1.5)


CUT = {
    "an activation of its own": {},
    "a dropout that is off": {"before_mean": lambda x: v1.nn.dropout(x, keep_prob=v1.placeholder(tf.float32, (), "keep_prob"))},
    "a branch of training": {"before_mean": switched},
}


@pytest.mark.parametrize("what", CUT)
@pytest.mark.parametrize("resource", [False, True])
def test_an_actor_is_cut_out_of_its_training_graph(what, resource, checkpoints):
    (v1.enable_resource_variables if resource else v1.disable_resource_variables)()
    try:
        held = writers.tf1_agents(checkpoints, "x_SA101_trial_0", ["Actor_0"], hidden=strange, **CUT[what])
    finally:
        v1.enable_resource_variables()
    same(exported(checkpoints), held["Actor_0"])
    told = certificate(checkpoints)
    assert told["actor"]["architecture"] == "graph"
    assert [entry["from"] for entry in told["variables"]] == [
        f"Actor_0/{layer}/{part}" for layer in ("dense", "dense_1", "dense_2") for part in ("kernel", "bias")
    ]
    assert not any("Random" in op or op in ("Switch", "Merge") for op in told["operations"])
    assert told["operations"]["Placeholder"] == 2, "observation and rows"


@pytest.mark.parametrize("how", ["tf1", *WHOLE])
@pytest.mark.filterwarnings("ignore")
def test_a_cut_graph_has_the_same_bytes_whatever_came_before(how, checkpoints, tmp_path):
    if how == "tf1":
        writers.tf1_agents(checkpoints, "x_SA101_trial_0", ["actor"], hidden=strange)
    else:
        keras, write = WHOLE[how]
        write(writers.functional(keras), checkpoints)
    graphs = []
    for k in range(2):
        assert main(["--model-path", str(checkpoints), "--tl", "SA101", "--models-dir", str(tmp_path / f"m{k}")]) == 0
        folder = next((tmp_path / f"m{k}" / "SA101").iterdir())
        data = (folder / "variables" / "variables.data-00000-of-00001").read_bytes()
        graphs.append((_without_time((folder / "saved_model.pb").read_bytes()), data))
    assert graphs[0] == graphs[1]


def _without_time(data):
    from tensorflow.core.protobuf import saved_model_pb2

    from protos import policy_pb2 as pb

    model = saved_model_pb2.SavedModel.FromString(data)
    for node in model.meta_graphs[0].graph_def.node:
        if node.name == "contract":
            policy = pb.Policy.FromString(node.attr["value"].tensor.string_val[0])
            policy.origin.ClearField("exported_at")
            node.attr["value"].tensor.string_val[0] = policy.SerializeToString(deterministic=True)
    return model.SerializeToString(deterministic=True)


def test_the_output_tensor_may_be_said_and_must_be_the_mean(checkpoints, capsys):
    held = writers.tf1_agents(checkpoints, "x_SA101_trial_0", ["actor"])
    same(exported(checkpoints, "--output-tensor", "actor/Tanh"), held["actor"])
    capsys.readouterr()
    for tensor, why in {
        "actor/sampled": "is random",
        "actor/no": "has no tensor actor/no",
        "observation_0": "needs no variable",
        "Mean": "needs the placeholders",
    }.items():
        assert export(checkpoints, "--overwrite", "--output-tensor", tensor) == 2, tensor
        refused(capsys, why)
    assert (version(checkpoints) / "saved_model.pb").is_file()


def test_an_output_tensor_needs_a_graph(checkpoints, capsys):
    writers.sequential(keras3).save_weights(checkpoints / "SA101_trial_3.weights.h5")
    assert export(checkpoints, "--output-tensor", "x") == 2
    refused(capsys, "--output-tensor needs a graph")


def test_agents_of_one_session_go_by_the_order_of_the_target_tls(checkpoints, capsys):
    scopes = ["Actor_0", "Actor_1", "Actor_2"]
    held = writers.tf1_agents(checkpoints, "x-trial_7", scopes, sharded=True)
    assert len(list(checkpoints.glob("*.data-*"))) > 1, "more than one shard"
    order = "SA107,SA 101,SA_104"
    assert export(checkpoints, "--target-tls", order, tl="all") == 0
    for tl, scope in zip(("SA107", "SA101", "SA104"), scopes, strict=True):
        same(run(version(checkpoints, tl), "serving_default", observation=X)["action"], held[scope])
        assert certificate(checkpoints, tl)["scope"] == scope
    capsys.readouterr()
    assert export(checkpoints, "--overwrite", "--target-tls", "SA101,SA104") == 2
    refused(capsys, "holds 3 actors (Actor_0, Actor_1, Actor_2)", "target TLs are 2 (SA101, SA104)")
    next(checkpoints.glob("*.data-00001-of-*")).unlink()
    assert export(checkpoints, "--overwrite", "--target-tls", order, tl="all") == 2
    assert "cannot be read" in capsys.readouterr().err


def test_city_toml_may_tell_the_order_of_the_target_tls(checkpoints, tmp_path):
    held = writers.tf1_agents(checkpoints, "x-trial_7", ["Actor_0", "Actor_1"])
    (tmp_path / "city.toml").write_text(
        '[training]\ntarget_tls = ["SA 104", "SA 101"]\n'
        '[tl.SA101]\nsignals = ["a"]\ndialect = "sappo"\nstate = "d"\naction = "kc"\n'
    )
    same(exported(checkpoints, "--city", str(tmp_path / "city.toml")), held["Actor_1"])


def test_scopes_that_carry_the_tls_name_need_no_order(checkpoints):
    held = writers.tf1_agents(checkpoints, "x-trial_7", ["SA_1010", "SA_101", "SA_104"])
    same(exported(checkpoints), held["SA_101"])
    left = certificate(checkpoints)["left_unread"]
    assert left["another agent"] == ["SA_1010/* (6)", "SA_104/* (6)"]


def test_an_estimators_checkpoint_is_read_by_its_names(checkpoints, capsys):
    expected = writers.estimator(checkpoints)
    assert export(checkpoints, "--model-number", "2") == 0
    told = certificate(checkpoints)
    assert told["source"]["name"] == "model.ckpt-2" and "counter" in told["left_unread"]
    same(run(version(checkpoints), "serving_default", observation=X)["action"], expected)
    assert "the trainer's graph was not used" in capsys.readouterr().out, "its input is no placeholder"


def test_a_meta_graph_that_cannot_be_read_is_told(checkpoints, capsys):
    held = writers.tf1_agents(checkpoints, "x_SA101_trial_0", ["actor"])
    meta = checkpoints / "x_SA101_trial_0.meta"
    whole = meta.read_bytes()
    meta.write_bytes(whole[: len(whole) // 2])
    for flags in ((), ("--output-tensor", "actor/Tanh")):
        assert export(checkpoints, *flags) == 2
        refused(capsys, "x_SA101_trial_0.meta: cannot be read as a MetaGraph")
    same(exported(checkpoints, "--actor", "mlp"), held["actor"])
    assert "the trainer's graph was not used" in capsys.readouterr().out


def normalised(inside, folder, name):
    """An actor whose observation is normalised by statistics of its own scope, or of another."""
    with tf.Graph().as_default(), v1.Session() as session:
        observation = v1.placeholder(tf.float32, [None, 9], "observation")
        mean = v1.get_variable("actor/statistics" if inside else "running/mean", [9], initializer=v1.ones_initializer())
        with v1.variable_scope("actor"):
            x = writers.dense((observation - mean) * 2, 8, "dense", tf.nn.relu)
            action = writers.dense(x, 2, "dense_1", tf.tanh)
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(folder / name), write_state=False)
        return session.run(action, {observation: X}), action.name


def test_statistics_of_the_observation_are_part_of_the_actor(checkpoints):
    expected, _ = normalised(True, checkpoints, "SA101_trial_1")
    same(exported(checkpoints), expected)
    assert "actor/statistics" in {entry["from"] for entry in certificate(checkpoints)["variables"]}


def test_statistics_of_another_scope_are_never_left_out_in_silence(checkpoints, capsys):
    expected, tensor = normalised(False, checkpoints, "SA101_trial_1")
    assert export(checkpoints) == 2
    refused(capsys, "needs variables of others too (running/mean)", "--output-tensor")
    same(exported(checkpoints, "--output-tensor", tensor), expected)


def test_numbers_of_an_actor_that_no_layer_takes_are_refused_where_there_is_no_graph(checkpoints, capsys):
    normalised(True, checkpoints, "SA101_trial_1")
    (checkpoints / "SA101_trial_1.meta").unlink()
    assert export(checkpoints) == 2
    refused(capsys, "actor/statistics [9] is no layer's, but may be the actor's")
    assert export(checkpoints, "--actor", "mlp") == 0, "who says so may leave it out"


def test_a_normalisation_layer_is_exported_with_its_model_and_refused_without(checkpoints, capsys):
    layer = keras3.layers.Normalization()
    layer.adapt(X)
    model = keras3.Sequential([keras3.Input((9,)), layer, keras3.layers.Dense(2, "tanh")])
    model.save_weights(checkpoints / "SA101_trial_2.weights.h5")
    assert export(checkpoints) == 2
    refused(capsys, "layers/normalization")
    model.save(checkpoints / "SA101_trial_3.keras")
    same(exported(checkpoints), answers(model))


def test_of_two_heads_the_mean_is_taken_not_the_deviation(checkpoints):
    """A deviation that depends on the state, and actor and critic on one trunk."""
    with tf.Graph().as_default(), v1.Session() as session:
        observation = v1.placeholder(tf.float32, [None, 9], "observation")
        with v1.variable_scope("actor"):
            x = writers.dense(observation, 8, "dense", tf.nn.relu)
            mu = writers.dense(x, 2, "mu", tf.tanh)
            sigma = writers.dense(x, 2, "sigma", tf.nn.softplus)
        with v1.variable_scope("critic"):
            writers.dense(x, 1, "dense", None)
        tf.identity(mu + sigma * tf.random.normal(tf.shape(mu)), name="sampled")
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(checkpoints / "SA101_trial_1"), write_state=False)
        expected = session.run(mu, {observation: X})
    same(exported(checkpoints), expected)
    assert not any("sigma" in entry["from"] for entry in certificate(checkpoints)["variables"])


# tf.distribute


@pytest.fixture(scope="module")
def distributed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributed")
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, str(Path(__file__).with_name("write_distributed.py")), str(folder)]
    done = subprocess.run(command, cwd=root, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("what", ["checkpoint", "weights_tf", "weights_h5", "saved_model", "whole", "tf1"])
def test_what_was_trained_on_two_replicas_is_exported_without_the_strategy(what, distributed, tmp_path):
    shutil.copytree(distributed / what, tmp_path / "checkpoints")
    assert export(tmp_path / "checkpoints", tl="all") == 0
    expected = np.load(distributed / "expected.npz")
    exported_tls = [path.name for path in (tmp_path / "models").iterdir()]
    assert exported_tls
    for tl in exported_tls:
        same(run(version(tmp_path / "checkpoints", tl), "serving_default", observation=X)["action"], expected[tl])


# a user's own builder


@pytest.fixture
def my_actors(tmp_path, monkeypatch):
    (tmp_path / "my_actors.py").write_text(
        "import keras, tensorflow as tf\n"
        "def model(sizes):\n"
        "    x = observation = keras.Input((sizes.inputs,))\n"
        "    x = y = keras.layers.Dense(8, 'elu')(x)\n"
        "    x = keras.layers.BatchNormalization()(x)\n"
        "    x = keras.layers.Dropout(0.5)(x)\n"
        "    x = keras.layers.Dense(8, 'relu')(x)\n"
        "    x = keras.layers.Add()([x, y])\n"
        "    return keras.Model(observation, keras.layers.Dense(sizes.outputs, 'tanh')(x))\n"
        "def wider(sizes):\n"
        "    return keras.Sequential([keras.Input((sizes.inputs,)), keras.layers.Dense(99), keras.layers.Dense(2)])\n"
        "def on_variables(sizes):\n"
        "    def actor(observation, variables):\n"
        "        x = observation\n"
        "        for layer in ('dense', 'dense_1', 'dense_2'):\n"
        "            x = tf.tanh(x @ variables[layer + '/kernel'] + variables[layer + '/bias'])\n"
        "        return x\n"
        "    return actor\n"
        "def nothing(sizes):\n"
        "    return 3\n"
        "def broken(sizes):\n"
        "    raise RuntimeError('of mine')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("my_actors", None)


BUILT = {
    "HDF5": lambda model, at: model.save_weights(at / "SA101_trial_3.weights.h5"),
    "checkpoint": lambda model, at: tf.train.Checkpoint(actor=model, step=tf.Variable(2)).write(str(at / "SA101-3")),
    "npz": lambda model, at: np.savez(at / "SA101_trial_3.npz", **{w.path: w.numpy() for w in model.weights}),
}


@pytest.mark.parametrize("how", BUILT)
def test_a_users_keras_model_takes_the_checkpoints_weights(how, checkpoints, my_actors):
    model = writers.functional(keras3)
    BUILT[how](model, checkpoints)
    same(exported(checkpoints, "--actor", "my_actors:model"), answers(model))


def test_a_users_callable_gets_the_actors_variables(checkpoints, my_actors):
    held = writers.tf1_agents(checkpoints, "x-trial_7", ["Actor_0", "Actor_1"], hidden=tf.tanh)
    same(exported(checkpoints, "--actor", "my_actors:on_variables", "--scope", "Actor_1"), held["Actor_1"])
    told = certificate(checkpoints)
    assert "Actor_1/dense/kernel" in {entry["from"] for entry in told["variables"]} and "another agent" in told["left_unread"]


def test_a_users_model_that_does_not_fit_the_checkpoint_is_refused(checkpoints, my_actors, capsys):
    BUILT["checkpoint"](writers.functional(keras3), checkpoints)
    for builder, why in {
        "my_actors:wider": "does not fit the model of --actor my_actors:wider",
        "my_actors:nothing": "returned int",
        "my_actors:broken": "raised RuntimeError: of mine",
        "my_actors:missing": "cannot be imported",
        "no_such_module:x": "cannot be imported: ModuleNotFoundError",
        "my_actors:on_variables": "variable 'dense/kernel' is not in",
    }.items():
        assert export(checkpoints, "--actor", builder) == 2
        refused(capsys, why)
    assert not (checkpoints.parent / "models" / "SA101").exists()


# what an export tells


def test_inspect_tells_what_every_kind_of_checkpoint_holds(checkpoints, capsys):
    model = writers.functional(keras3)
    model.save(checkpoints / "a.keras")
    tf.saved_model.save(model, str(checkpoints / "b"))
    np.savez(checkpoints / "c.npz", **{w.path: w.numpy() for w in writers.sequential(keras3).weights})
    writers.tf1_agents(checkpoints, "d", ["Actor_0", "Actor_1"])
    for words, told in {
        ("a.keras",): ["batch_normalization/vars/3  (8,)           float32  weight of the graph", "would make it graph"],
        ("b",): ["weight of the graph", "an export would make it graph"],
        ("c.npz",): ["dense 2 bias", "mlp relu tanh, 9 -> 8 -> 7 -> 2"],
        ("d.index", "--tl", "SA104", "--target-tls", "SA101,SA 104"): [
            "dense 0 kernel", "- (another agent)", "- (counter)", "compared with the trainer's own graph",
        ],
        ("d",): ["nothing would be exported", "say with --scope"],
    }.items():  # fmt: skip
        assert main(["inspect", str(checkpoints / words[0]), *words[1:]]) == 0
        out = capsys.readouterr().out
        for words_told in told:
            assert words_told in out, out
    assert main(["inspect", str(checkpoints / "nothing.npz")]) == 2
    refused(capsys, "nothing.npz: cannot be read as an .npz archive")


def test_the_kind_of_action_may_be_said_where_no_city_tells_it(checkpoints, capsys):
    model = writers.sequential(keras3, head="softmax", outputs=4)
    model.save(checkpoints / "SA101_trial_3.keras")
    assert export(checkpoints, "--action", "categorical") == 0
    answers_ = run(version(checkpoints), "serving_default", observation=X)
    np.testing.assert_array_equal(answers_["action"], answers(model).argmax(axis=1))
    same(answers_["probabilities"], answers(model))
    assert answers_["action"].dtype == np.int64


def test_a_softmax_in_a_training_graph_is_known_for_one(checkpoints):
    with tf.Graph().as_default(), v1.Session() as session:
        observation = v1.placeholder(tf.float32, [None, 9], "state")
        with v1.variable_scope("pi"):
            probabilities = tf.nn.softmax(writers.dense(writers.dense(observation, 8, "dense", strange), 4, "dense_1", None))
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(checkpoints / "SA101_trial_3"), write_state=False)
        expected = session.run(probabilities, {observation: X})
    for flags in ([], ["--output-tensor", probabilities.name, "--overwrite"]):
        assert export(checkpoints, "--action", "categorical", *flags) == 0
        same(run(version(checkpoints), "serving_default", observation=X)["probabilities"], expected)


def test_many_tls_show_a_bar_to_who_looks_at_it_and_a_summary_to_all(checkpoints, tmp_path):
    for k in range(3):
        writers.sequential(keras3).save_weights(checkpoints / f"SA10{k}_trial_1.weights.h5")
    (checkpoints / "SA103_trial_1.weights.h5").write_bytes(b"broken")
    command = [
        sys.executable,
        "-m",
        "export",
        "--model-path",
        str(checkpoints),
        "--tl",
        "all",
        "--models-dir",
        str(tmp_path / "m"),
    ]
    master, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    done = subprocess.run(command, cwd=Path(__file__).resolve().parents[2], stdout=subprocess.PIPE, stderr=terminal, text=True)
    os.close(terminal)
    shown = b""
    with contextlib.suppress(OSError):  # the other end of a terminal is closed: all was read
        while chunk := os.read(master, 65536):
            shown += chunk
    os.close(master)
    assert done.returncode == 2
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["SA100", "SA101", "SA102"]
    assert b"TL/s" in shown or b"s/TL" in shown
    assert b"3 of 4 TLs exported" in shown and b"not: SA103" in shown
