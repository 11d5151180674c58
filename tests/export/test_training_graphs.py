"""TF1 sessions: agents found by name, by order and by their training graph; the actor extracted from it."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from export.__main__ import main
from export.saved_model import read
from tests.export import writers
from tests.export.exporting import (
    bytes_without_time,
    city_with,
    export,
    exported,
    manifest,
    refuses,
    run,
    same,
    version,
)
from tests.export.writers import WHOLE, X, actions, keras3

v1 = tf.compat.v1


def test_an_agent_of_a_session_is_compared_with_its_graph(checkpoints, capsys):
    same(writers.tf1_agents(checkpoints, "x_SA101_trial_0", ["actor"])["actor"], exported(checkpoints))
    recorded = manifest(checkpoints)
    assert recorded["parity"]["reference"] == "the trainer's own graph, tensor actor/Tanh:0"
    assert set(recorded["left_unread"]) == {"counter", "critic", "optimizer", "training only"}
    suffixes = {entry["name"].rsplit(".", 1)[-1] for entry in recorded["source"]["files"]}
    assert suffixes == {"index", "meta", "data-00000-of-00001"}
    assert "optimizer" in capsys.readouterr().out


def test_the_graph_defines_the_hidden_activation(checkpoints, capsys):
    held = writers.tf1_agents(checkpoints, "x_SA101_trial_0", ["actor"], hidden=tf.nn.elu)
    same(exported(checkpoints), held["actor"])
    assert "(mlp elu tanh" in capsys.readouterr().out
    refuses(capsys, checkpoints, "at least 5 dense layers; found 3", flags=("--overwrite", "--actor", "mlp-res"))


def strange(x):
    return x * tf.sigmoid(1.7 * x)


def switched(x):
    training = v1.placeholder(tf.bool, (), "training")
    return v1.cond(training, lambda: x * tf.random.uniform(tf.shape(x)), lambda: x * 1.5)


EXTRACTED = {
    "an unknown activation": {},
    "an inactive dropout": {
        "before_mean": lambda x: v1.nn.dropout(x, keep_prob=v1.placeholder(tf.float32, (), "keep_prob"))
    },
    "a training branch": {"before_mean": switched},
}


@pytest.mark.parametrize("what", EXTRACTED)
@pytest.mark.parametrize("resource", [False, True])
def test_an_actor_is_extracted_from_its_training_graph(what, resource, checkpoints):
    (v1.enable_resource_variables if resource else v1.disable_resource_variables)()
    try:
        held = writers.tf1_agents(checkpoints, "x_SA101_trial_0", ["Actor_0"], hidden=strange, **EXTRACTED[what])
    finally:
        v1.enable_resource_variables()
    same(exported(checkpoints), held["Actor_0"])
    recorded = manifest(checkpoints)
    assert recorded["actor"]["architecture"] == "graph"
    assert [entry["from"] for entry in recorded["variables"]] == [
        f"Actor_0/{layer}/{part}" for layer in ("dense", "dense_1", "dense_2") for part in ("kernel", "bias")
    ]
    assert not any("Random" in op or op in ("Switch", "Merge") for op in recorded["operations"])
    assert recorded["operations"]["Placeholder"] == 2, "observation and rows"


SAME_BYTES_DAILY = ("tf1", "keras 3 .keras", "keras 3 tf.saved_model.save")


@pytest.mark.parametrize(
    "how",
    [*SAME_BYTES_DAILY, *(pytest.param(how, marks=pytest.mark.slow) for how in WHOLE if how not in SAME_BYTES_DAILY)],
)
@pytest.mark.filterwarnings("ignore")
def test_an_extracted_graph_always_has_the_same_bytes(how, checkpoints, tmp_path):
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
        graphs.append((bytes_without_time(folder), data))
    assert graphs[0] == graphs[1]


def test_a_given_output_tensor_must_be_the_mean(checkpoints, capsys):
    held = writers.tf1_agents(checkpoints, "x_SA101_trial_0", ["actor"])
    same(exported(checkpoints, "--output-tensor", "actor/Tanh"), held["actor"])
    capsys.readouterr()
    for tensor, why in {
        "actor/sampled": "is random",
        "actor/no": "has no tensor actor/no",
        "observation_0": "depends on no variable",
        "Mean": "depends on the placeholders",
    }.items():
        refuses(capsys, checkpoints, why, flags=("--overwrite", "--output-tensor", tensor))
    assert (version(checkpoints) / "saved_model.pb").is_file()


def test_an_output_tensor_needs_a_graph(checkpoints, capsys):
    writers.sequential(keras3).save_weights(checkpoints / "SA101_trial_3.weights.h5")
    refuses(capsys, checkpoints, "--output-tensor needs a graph", flags=("--output-tensor", "x"))


def test_agents_are_assigned_in_the_order_of_target_tls(checkpoints, capsys):
    scopes = ["Actor_0", "Actor_1", "Actor_2"]
    held = writers.tf1_agents(checkpoints, "x-trial_7", scopes, sharded=True)
    assert len(list(checkpoints.glob("*.data-*"))) > 1, "more than one shard"
    refuses(capsys, checkpoints, "Actor_0, Actor_1, Actor_2", "--scope")
    order = "SA107,SA 101,SA_104"
    assert export(checkpoints, "--target-tls", order, tl="all") == 0
    for tl, scope in zip(("SA107", "SA101", "SA104"), scopes, strict=True):
        same(run(version(checkpoints, tl), "serving_default", observation=X)["action"], held[scope])
        assert manifest(checkpoints, tl)["scope"] == scope
    capsys.readouterr()
    refuses(
        capsys,
        checkpoints,
        "holds 3 actors (Actor_0, Actor_1, Actor_2)",
        "training has 2 target TLs (SA101, SA104)",
        flags=("--overwrite", "--target-tls", "SA101,SA104"),
    )
    next(checkpoints.glob("*.data-00001-of-*")).unlink()
    assert export(checkpoints, "--overwrite", "--target-tls", order, tl="all") == 2
    assert "is missing; copy all files" in capsys.readouterr().err


def test_city_toml_may_define_the_order_of_target_tls(checkpoints, tmp_path):
    held = writers.tf1_agents(checkpoints, "x-trial_7", ["Actor_0", "Actor_1"])
    city = city_with(tmp_path, before='[training]\ntarget_tls = ["SA 104", "SA 101"]')
    same(exported(checkpoints, "--city", city), held["Actor_1"])


def test_scopes_with_tl_names_need_no_order(checkpoints):
    held = writers.tf1_agents(checkpoints, "x-trial_7", ["SA_1010", "SA_101", "SA_104"])
    same(exported(checkpoints), held["SA_101"])
    assert manifest(checkpoints)["left_unread"]["another agent"] == ["SA_1010/* (6)", "SA_104/* (6)"]


def test_an_estimators_checkpoint_is_read_by_its_names(checkpoints, capsys):
    expected = writers.estimator(checkpoints)
    refuses(
        capsys,
        checkpoints,
        "depends on no placeholder of an observation",
        "use only the weights with --actor NAME",
        flags=("--model-number", "2"),
    )
    same(exported(checkpoints, "--model-number", "2", "--actor", "mlp"), expected)
    recorded = manifest(checkpoints)
    assert recorded["source"]["name"] == "model.ckpt-2" and "counter" in recorded["left_unread"]
    assert "its training graph was not used" in capsys.readouterr().out, "its input is not a placeholder"


def test_a_corrupt_meta_graph_is_refused(checkpoints, capsys):
    held = writers.tf1_agents(checkpoints, "x_SA101_trial_0", ["actor"])
    meta = checkpoints / "x_SA101_trial_0.meta"
    whole = meta.read_bytes()
    meta.write_bytes(whole[: len(whole) // 2])
    for flags in ((), ("--output-tensor", "actor/Tanh")):
        refuses(capsys, checkpoints, "x_SA101_trial_0.meta: cannot be read as a MetaGraph", flags=flags)
    same(exported(checkpoints, "--actor", "mlp"), held["actor"])
    assert "its training graph was not used" in capsys.readouterr().out


def normalised(inside, folder):
    """An actor whose observation is normalised by statistics of its own scope, or of another."""
    with writers.session() as observation:
        mean = v1.get_variable("actor/statistics" if inside else "running/mean", [9], initializer=v1.ones_initializer())
        with v1.variable_scope("actor"):
            x = writers.dense((observation - mean) * 2, 8, "dense", tf.nn.relu)
            action = writers.dense(x, 2, "dense_1", tf.tanh)
        return writers.saved(folder, action, {observation: X}), action.name


def test_statistics_of_the_observation_are_part_of_the_actor(checkpoints):
    expected, _ = normalised(True, checkpoints)
    same(exported(checkpoints), expected)
    assert "actor/statistics" in {entry["from"] for entry in manifest(checkpoints)["variables"]}


def test_statistics_of_another_scope_are_refused(checkpoints, capsys):
    expected, tensor = normalised(False, checkpoints)
    refuses(capsys, checkpoints, "depends on variables outside its scope (running/mean)", "--output-tensor")
    same(exported(checkpoints, "--output-tensor", tensor), expected)


def test_unknown_variables_of_an_actor_without_a_graph_are_refused(checkpoints, capsys):
    normalised(True, checkpoints)
    (checkpoints / "SA101_trial_1.meta").unlink()
    refuses(capsys, checkpoints, "actor/statistics [9] is not part of a layer, but may be part of the actor")
    assert export(checkpoints, "--actor", "mlp") == 0, "--actor leaves it out"


def test_a_normalisation_layer_needs_the_whole_model(checkpoints, capsys):
    layer = keras3.layers.Normalization()
    layer.adapt(X)
    model = keras3.Sequential([keras3.Input((9,)), layer, keras3.layers.Dense(2, "tanh")])
    model.save_weights(checkpoints / "SA101_trial_2.weights.h5")
    refuses(capsys, checkpoints, "layers/normalization")
    model.save(checkpoints / "SA101_trial_3.keras")
    same(exported(checkpoints), actions(model))


@pytest.mark.parametrize(
    ("keras", "layer"),
    [
        (keras3, lambda layers: layers.SimpleRNN(4)),
        (keras3, lambda layers: layers.Bidirectional(layers.LSTM(4))),
        (tf_keras, lambda layers: layers.GRU(4)),
    ],
    ids=["SimpleRNN of Keras 3", "two LSTMs of Keras 3", "GRU of Keras 2, with an implementation for GPUs"],
)
def test_recurrent_layers_over_the_rows_of_an_observation_are_exported(checkpoints, keras, layer):
    layers = [keras.layers.Reshape((3, 3)), layer(keras.layers), keras.layers.Dense(2, "tanh")]
    model = writers.randomise(keras.Sequential([keras.Input((9,)), *layers]))
    model.save(checkpoints / ("SA101_trial_1.keras" if keras is keras3 else "SA101_trial_1.h5"))
    same(exported(checkpoints), model(X).numpy())
    nodes = read.meta_graph(version(checkpoints)).graph_def.node
    used = {source.removeprefix("^").split(":")[0] for node in nodes for source in node.input}
    assert not [node.name for node in nodes if node.op == "Placeholder" and node.name not in used]


def test_a_loop_of_a_session_reads_its_variables_in_its_own_frame(checkpoints):
    v1.disable_control_flow_v2()
    try:
        with writers.session() as observation, v1.variable_scope("actor"):
            kernel = v1.get_variable("rnn/kernel", [9, 9], use_resource=True)
            body = lambda k, x: (k + 1, tf.tanh(tf.matmul(x, kernel)))  # noqa: E731
            _, x = tf.while_loop(lambda k, x: k < 3, body, (0, observation))
            expected = writers.saved(checkpoints, writers.dense(x, 2, "mean", tf.tanh), {observation: X})
    finally:
        v1.enable_control_flow_v2()
    same(exported(checkpoints), expected)


@pytest.mark.parametrize("how", ["checkpoint", "weights.h5", "keras"])
def test_bfloat16_weights_are_exported(checkpoints, how):
    layers = [keras3.layers.Dense(n, a, dtype="bfloat16") for n, a in ((8, "relu"), (2, "tanh"))]
    model = writers.randomise(keras3.Sequential([keras3.Input((9,)), *layers]))
    if how == "checkpoint":
        tf.train.Checkpoint(actor=model).write(str(checkpoints / "SA101-3"))
    elif how == "keras":
        model.save(checkpoints / "SA101_trial_1.keras")
    else:
        model.save_weights(checkpoints / "SA101_trial_1.weights.h5")
    weights = [np.asarray(weight).astype(np.float32) for weight in model.get_weights()]
    expected = np.tanh(np.maximum(X @ weights[0] + weights[1], 0) @ weights[2] + weights[3])
    # a graph of bfloat16 has 8 bits of precision
    same(exported(checkpoints), expected, 1e3 if how == "keras" else 1.0)
