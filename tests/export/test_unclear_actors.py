"""Actors that resemble known architectures: exported exactly, or refused; never published as another actor."""

import numpy as np
import pytest
import tensorflow as tf

from tests.export import writers
from tests.export.exporting import export, exported, manifest, refused, same
from tests.export.test_sources import run
from tests.export.writers import X, dense, keras3

v1 = tf.compat.v1


def trained(folder, build, name="SA101_trial_1", shape=(None, 9), feed=None, placeholder="observation", dtype=tf.float32):
    """A TF1 training graph around `build(observation) -> mean`, with sampling and a loss. Returns the means for X."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(1)
        observation = v1.placeholder(dtype, shape, placeholder)
        action = v1.placeholder(tf.float32, [None, None], "action")
        with v1.variable_scope("actor"):
            mean = build(observation)
            log_std = v1.get_variable("log_std", [mean.shape[-1]], initializer=v1.zeros_initializer())
            tf.identity(mean + tf.exp(log_std) * tf.random.normal(tf.shape(mean)), name="sampled")
        loss = tf.reduce_mean((action - mean) ** 2) + 1e-3 * tf.reduce_mean(mean**2)
        v1.train.AdamOptimizer().minimize(loss)
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(folder / name), write_state=False)
        return session.run(mean, feed(observation) if feed else {observation: X})


def body(x, hidden=tf.tanh):
    return dense(dense(x, 8, "dense", hidden), 8, "dense_1", hidden)


def last(x, units=2):
    return dense(body(x), units, "dense_2", None)


MEANS = {
    "tanh": lambda x: tf.tanh(last(x)),
    "sigmoid": lambda x: tf.sigmoid(last(x)),
    "softsign": lambda x: tf.nn.softsign(last(x)),
    "a scale before the tanh": lambda x: tf.tanh(last(x) / 5),
    "a clip": lambda x: tf.clip_by_value(last(x), -0.2, 0.2),
    "a sine": lambda x: tf.sin(last(x)),
    "a scale after the tanh": lambda x: 2 * tf.tanh(last(x)),
    "a scale that is a variable": lambda x: 3 * tf.tanh(last(x)) * v1.get_variable("action_scale", initializer=[1.0, 2.0]),
    "a clipped observation": lambda x: tf.tanh(last(tf.clip_by_value(x, -0.5, 0.5))),
    "a clip far out": lambda x: tf.tanh(last(tf.clip_by_value(x, -5.0, 5.0)) / 50),
    "relu6": lambda x: tf.tanh(dense(body(x, tf.nn.relu6), 2, "dense_2", None)),
}  # fmt: skip


@pytest.mark.parametrize("how", MEANS)
def test_the_exported_mean_is_the_one_that_training_samples(how, checkpoints):
    expected = trained(checkpoints, MEANS[how])
    assert export(checkpoints) == 0
    version = next((checkpoints.parent / "models" / "SA101").iterdir())
    same(run(version, "serving_default", observation=X)["action"], expected)


@pytest.mark.parametrize("loss", ["power", "square", "product", "mean"])
def test_a_loss_of_the_mean_is_not_exported_as_the_mean(loss, checkpoints):
    """A graph that neither samples nor compares with an action."""
    losses = {"power": lambda m: m**2, "square": tf.square, "product": lambda m: m * m, "mean": lambda m: m}
    with tf.Graph().as_default(), v1.Session() as session:
        observation = v1.placeholder(tf.float32, [None, 9], "observation")
        with v1.variable_scope("actor"):
            mean = tf.tanh(last(observation))
        v1.train.AdamOptimizer().minimize(tf.reduce_mean(losses[loss](mean)))
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(checkpoints / "SA101_trial_1"), write_state=False)
        expected = session.run(mean, {observation: X})
    same(exported(checkpoints), expected)


def layer_norm(x):
    mean, variance = tf.nn.moments(x, [1], keepdims=True)
    gamma = v1.get_variable("ln/gamma", [x.shape[1]], initializer=v1.ones_initializer())
    beta = v1.get_variable("ln/beta", [x.shape[1]], initializer=v1.zeros_initializer())
    return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-6)


def convolution(x):
    kernel = v1.get_variable("conv/kernel", [3, 1, 4])
    return tf.reshape(tf.nn.relu(tf.nn.conv1d(x[:, :, None], kernel, 1, "VALID")), [-1, 28])


@pytest.mark.parametrize("layer", [layer_norm, convolution])
def test_layers_of_an_unknown_kind_are_exported_as_a_graph(layer, checkpoints, capsys):
    expected = trained(checkpoints, lambda x: tf.tanh(last(layer(x))))
    same(exported(checkpoints), expected)
    kept = {entry["from"] for entry in manifest(checkpoints)["variables"]}
    assert any("/ln/" in name or "/conv/" in name for name in kept) and not any("log_std" in name for name in kept)
    (checkpoints / "SA101_trial_1.meta").unlink()
    assert export(checkpoints, "--overwrite") == 2, "weights do not define what such a layer does"
    refused(capsys, "is missing" if layer is layer_norm else "is not a dense layer")


@pytest.mark.parametrize("kind", ["clip", "relu6"])
def test_an_actor_that_differs_far_from_zero_is_not_an_mlp(kind, checkpoints):
    """relu6 and relu are equal in the range of training's observations."""
    build = MEANS["a clip far out"] if kind == "clip" else MEANS["relu6"]
    trained(checkpoints, build)
    assert export(checkpoints) == 0
    assert manifest(checkpoints)["actor"]["architecture"] == "graph"


def two_heads(x, extra):
    h = body(x)
    mean, std = dense(h, 2, "mean", tf.tanh), dense(h, 2, "std", tf.nn.softplus)
    extra(mean, std)
    return mean


@pytest.mark.parametrize(
    "extra",
    [
        lambda mean, std: tf.identity(mean + 2 * std, "upper"),
        lambda mean, std: tf.identity(mean / std, "ratio"),
        lambda mean, std: tf.concat([mean, std], axis=1, name="both"),
        lambda mean, std: tf.reduce_sum(mean * std, name="diagnostic"),
    ],
)
def test_functions_of_mean_and_deviation_are_not_the_mean(extra, checkpoints):
    expected = trained(checkpoints, lambda x: two_heads(x, extra))
    same(exported(checkpoints), expected)


def test_a_split_last_layer_needs_the_output_tensor_flag(checkpoints, capsys):
    def build(x):
        mean, _ = tf.split(last(x, 4), 2, axis=1)
        return tf.tanh(mean, name="mean")

    expected = trained(checkpoints, build)
    assert export(checkpoints) == 2
    refused(capsys, "is split after", "--output-tensor")
    same(exported(checkpoints, "--output-tensor", "actor/mean"), expected)


def test_a_mask_and_a_temperature_are_part_of_a_categorical_actor(checkpoints):
    mask = np.array([0, -1e9, 0, 0], np.float32)
    with tf.Graph().as_default(), v1.Session() as session:
        observation = v1.placeholder(tf.float32, [None, 9], "observation")
        with v1.variable_scope("actor"):
            logits = (last(observation, 4) + mask) / 3
            probabilities = tf.nn.softmax(logits)
        v1.multinomial(logits, 1)
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(checkpoints / "SA101_trial_1"), write_state=False)
        expected = session.run(probabilities, {observation: X})
    assert export(checkpoints, "--action", "categorical") == 0
    version = next((checkpoints.parent / "models" / "SA101").iterdir())
    outputs = run(version, "serving_default", observation=X)
    same(outputs["probabilities"], expected)
    assert 1 not in outputs["action"]


OBSERVATIONS = {
    "two observations": (
        {"placeholder": "observation"},
        lambda x: tf.concat([x, v1.placeholder(tf.float32, [None, 3], "more")], 1),
    ),
    "whole numbers": ({"dtype": tf.int32}, lambda x: tf.cast(x, tf.float32)),
    "one per run": ({"shape": (9,)}, lambda x: x[None]),
    "a noisy observation": ({}, lambda x: x + 0.0 * tf.random.normal(tf.shape(x))),
}


@pytest.mark.parametrize("what", OBSERVATIONS)
def test_observations_that_cannot_be_served_are_refused(what, checkpoints, capsys):
    options, prepare = OBSERVATIONS[what]

    def feed(observation):
        values = {observation: X[0] if what == "one per run" else X}
        for node in tf.compat.v1.get_default_graph().get_operations():
            if node.name == "actor/more":
                values[node.outputs[0]] = X[:, :3]
        return values

    trained(checkpoints, lambda x: tf.tanh(last(prepare(x))), feed=feed, **options)
    assert export(checkpoints) == 2
    refused(capsys, "SA101_trial_1.meta")


@pytest.mark.parametrize("name", ["train_obs", "flow_rate", "keep_state"])
def test_an_observation_may_have_the_name_of_a_training_switch(name, checkpoints):
    expected = trained(checkpoints, lambda x: tf.tanh(last(x)), placeholder=name)
    same(exported(checkpoints), expected)


class Outputs(tf.Module):
    def __init__(self, give):
        super().__init__()
        self.actor, self.critic, self.give = writers.sequential(keras3), writers.sequential(keras3, outputs=1), give

    @tf.function(input_signature=[tf.TensorSpec([None, 9], tf.float32)])
    def act(self, observation):
        mean = self.actor(observation)
        return self.give(mean, mean + tf.random.normal(tf.shape(mean)), self.critic(observation))


@pytest.mark.parametrize(
    "give",
    [
        lambda mean, sample, value: {"action": sample, "value": value},
        lambda mean, sample, value: {"action": tf.argmax(mean, 1), "value": value},
        lambda mean, sample, value: {"value": value},
        lambda mean, sample, value: {"x": mean, "y": value},
    ],
)
def test_an_output_is_never_chosen_by_elimination(give, checkpoints, capsys):
    module = Outputs(give)
    tf.saved_model.save(module, str(checkpoints / "SA101_trial_1"), signatures={"serving_default": module.act})
    assert export(checkpoints) == 2
    refused(capsys, "--output-tensor")
