"""Actors that resemble known architectures: exported exactly, or refused; never published as another actor."""

import h5py
import numpy as np
import pytest
import tensorflow as tf

from export.__main__ import main
from tests.export import writers
from tests.export.exporting import city_with, export, exported, manifest, outputs_of, refuses, same
from tests.export.writers import X, dense, keras3

v1 = tf.compat.v1


def trained(folder, build, shape=(None, 9), feed=None, placeholder="observation", dtype=tf.float32):
    """A TF1 training graph around `build(observation) -> mean`, with sampling and a loss. Returns the means."""
    with tf.Graph().as_default(), v1.Session():
        v1.set_random_seed(1)
        observation = v1.placeholder(dtype, shape, placeholder)
        action = v1.placeholder(tf.float32, [None, None], "action")
        with v1.variable_scope("actor"):
            mean = build(observation)
            log_std = v1.get_variable("log_std", [mean.shape[-1]], initializer=v1.zeros_initializer())
            tf.identity(mean + tf.exp(log_std) * tf.random.normal(tf.shape(mean)), name="sampled")
        v1.train.AdamOptimizer().minimize(tf.reduce_mean((action - mean) ** 2) + 1e-3 * tf.reduce_mean(mean**2))
        return writers.saved(folder, mean, feed or {observation: X})


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
    "a scale that is a variable": lambda x: 3 * tf.tanh(last(x)) * v1.get_variable("action_scale", initializer=[1.0,
    2.0]),
    "a clipped observation": lambda x: tf.tanh(last(tf.clip_by_value(x, -0.5, 0.5))),
    "a clip far out": lambda x: tf.tanh(last(tf.clip_by_value(x, -5.0, 5.0)) / 50),
    "relu6": lambda x: tf.tanh(dense(body(x, tf.nn.relu6), 2, "dense_2", None)),
    "the negative": lambda x: -last(x),
    "a relu": lambda x: tf.nn.relu(last(x)),
    "the reverse": lambda x: tf.reverse(last(x), [1]),
    "the absolute value": lambda x: tf.abs(last(x)),
}  # fmt: skip
FAR_FROM_ZERO = ("a clip far out", "relu6")
"""They are equal to an MLP in the range of training's observations."""


@pytest.mark.parametrize("how", MEANS)
def test_the_exported_mean_is_the_one_that_training_samples(how, checkpoints):
    same(trained(checkpoints, MEANS[how]), exported(checkpoints))
    assert how not in FAR_FROM_ZERO or manifest(checkpoints)["actor"]["architecture"] == "graph"


def minimised_by(loss):
    """A mean whose graph neither samples nor compares with an action."""

    def build(observation):
        with v1.variable_scope("actor"):
            mean = tf.tanh(last(observation))
        v1.train.AdamOptimizer().minimize(tf.reduce_mean(loss(mean)))
        return mean

    return build


def split(observation):
    with v1.variable_scope("actor"):
        mean, deviation = tf.split(last(observation, 4), 2, axis=1)
        mean, deviation = tf.tanh(mean, name="mean"), tf.nn.softplus(deviation, name="deviation")
    tf.identity(mean + deviation * tf.random.normal(tf.shape(mean)))
    return mean


def inside_a_critic(observation):
    """The critic takes the observation beside the action, and the actor is trained through the critic alone."""
    with v1.variable_scope("actor"):
        mean = tf.tanh(last(observation))
    with v1.variable_scope("critic"):
        value = dense(tf.concat([observation, mean], 1), 1, "dense", None)
    v1.train.AdamOptimizer().minimize(-tf.reduce_mean(value))
    return mean


def with_two_heads(observation):
    """A deviation that depends on the state, and actor and critic on one trunk."""
    with v1.variable_scope("actor"):
        x = dense(observation, 8, "dense", tf.nn.relu)
        mu, sigma = dense(x, 2, "mu", tf.tanh), dense(x, 2, "sigma", tf.nn.softplus)
    with v1.variable_scope("critic"):
        dense(x, 1, "dense", None)
    tf.identity(mu + sigma * tf.random.normal(tf.shape(mu)), name="sampled")
    return mu


@pytest.mark.parametrize(
    ("build", "part"),
    [
        (minimised_by(lambda mean: mean**2), "or actor/Tanh_2:0; choose"),
        (minimised_by(tf.square), "or actor/Tanh_2:0; choose"),
        (minimised_by(lambda mean: mean * mean), "or actor/Tanh_2:0; choose"),
        (minimised_by(lambda mean: mean), "or actor/Tanh_2:0; choose"),
        (split, "may be actor/mean:0 or actor/deviation:0"),
        (inside_a_critic, "or actor/Tanh_2:0; choose"),
        (with_two_heads, "may be actor/Tanh:0 or actor/Softplus:0; choose its mean"),
    ],
    ids=["power", "square", "product", "mean", "split", "inside a critic", "two heads"],
)
def test_an_unclear_mean_needs_the_output_tensor_flag_or_setting(build, part, checkpoints, tmp_path, capsys):
    with writers.session() as observation:
        mean = build(observation)
        expected = writers.saved(checkpoints, mean, {observation: X})
    refuses(capsys, checkpoints, "actor's output may be", part, "--output-tensor")
    same(exported(checkpoints, "--output-tensor", mean.name), expected)
    assert not any("sigma" in entry["from"] for entry in manifest(checkpoints)["variables"])
    # within the actor's scope
    city = city_with(tmp_path, before=f'[training]\noutput_tensor = "{mean.op.name.removeprefix("actor/")}"')
    same(exported(checkpoints, "--city", city, "--overwrite"), expected)


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
    same(trained(checkpoints, lambda x: tf.tanh(last(layer(x)))), exported(checkpoints))
    kept = {entry["from"] for entry in manifest(checkpoints)["variables"]}
    part = "/ln/" if layer is layer_norm else "/conv/"
    assert any(part in name for name in kept) and not any("log_std" in name for name in kept)
    (checkpoints / "SA101_trial_1.meta").unlink()
    refuses(capsys, checkpoints, "is missing" if layer is layer_norm else "is a convolution", flags=("--overwrite",))


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
    def build(x):
        h = body(x)
        mean, std = dense(h, 2, "mean", tf.tanh), dense(h, 2, "std", tf.nn.softplus)
        extra(mean, std)
        return mean

    same(trained(checkpoints, build), exported(checkpoints))


def test_a_mask_and_a_temperature_are_part_of_a_categorical_actor(checkpoints):
    mask = np.array([0, -1e9, 0, 0], np.float32)
    with writers.session() as observation:
        with v1.variable_scope("actor"):
            logits = (last(observation, 4) + mask) / 3
            probabilities = tf.nn.softmax(logits)
        v1.multinomial(logits, 1)
        expected = writers.saved(checkpoints, probabilities, {observation: X})
    outputs = outputs_of(checkpoints, "--action", "categorical")
    same(outputs["probabilities"], expected)
    assert 1 not in outputs["action"]


OBSERVATIONS = {
    "two observations": (
        {"feed": {"observation:0": X, "actor/more:0": X[:, :3]}},
        lambda x: tf.concat([x, v1.placeholder(tf.float32, [None, 3], "more")], 1),
    ),
    "whole numbers": ({"dtype": tf.int32}, lambda x: tf.cast(x, tf.float32)),
    "one per run": ({"shape": (9,), "feed": {"observation:0": X[0]}}, lambda x: x[None]),
    "a noisy observation": ({}, lambda x: x + 0.0 * tf.random.normal(tf.shape(x))),
}


@pytest.mark.parametrize("what", OBSERVATIONS)
def test_observations_that_cannot_be_served_are_refused(what, checkpoints, capsys):
    options, prepare = OBSERVATIONS[what]
    trained(checkpoints, lambda x: tf.tanh(last(prepare(x))), **options)
    refuses(capsys, checkpoints, "SA101_trial_1.meta")


@pytest.mark.parametrize("name", ["train_obs", "flow_rate", "keep_state"])
def test_an_observation_may_have_the_name_of_a_training_switch(name, checkpoints):
    same(trained(checkpoints, lambda x: tf.tanh(last(x)), placeholder=name), exported(checkpoints))


class Outputs(tf.Module):
    """`give`: the outputs, of a mean, a sampled action and a value."""

    def __init__(self, give):
        super().__init__()
        self.actor, self.critic, self.give = writers.sequential(keras3), writers.sequential(keras3, outputs=1), give

    @tf.function(input_signature=[tf.TensorSpec([None, 9]), tf.TensorSpec([], tf.bool)])
    def act(self, observation, training):
        mean = self.actor(observation)
        return self.give(mean, mean + tf.random.normal(tf.shape(mean)), self.critic(observation))

    def save(self, folder, signature="serving_default"):
        tf.saved_model.save(self, str(folder / "SA101_trial_1"), signatures={signature: self.act})
        return self


def test_of_several_outputs_only_the_mean_is_exported(checkpoints, capsys):
    """Outputs that trainers export: mean, value, a sampled action and its log-probability."""
    give = lambda mean, sample, value: {"action": sample, "mean": mean, "value": value, "log_prob": sample[:, :1]}  # noqa: E731
    expected = writers.actions(Outputs(give).save(checkpoints, "act").actor)
    same(exported(checkpoints), expected)
    assert len(manifest(checkpoints)["variables"]) == 6
    capsys.readouterr()
    named = ("--overwrite", "--output-tensor")
    refuses(capsys, checkpoints, "is random", "--output-tensor", flags=(*named, "action"))
    there = "has no output nothing; there are action, log_prob, mean, value"
    refuses(capsys, checkpoints, there, flags=(*named, "nothing"))
    same(exported(checkpoints, "--overwrite", "--output-tensor", "act:mean"), expected)


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
    Outputs(give).save(checkpoints)
    refuses(capsys, checkpoints, "--output-tensor")


def test_several_parts_of_a_last_layer_need_the_output_tensor_flag(checkpoints, capsys):
    trained(checkpoints, lambda x: tf.concat([(m := last(x))[:, 1:], m[:, :1]], 1))
    refuses(capsys, checkpoints, "--output-tensor")


def switched(folder, name, at_inference):
    """An actor that acts otherwise if a boolean is the opposite of its value at inference. Returns its means for X."""
    with writers.session() as observation:
        action = v1.placeholder(tf.float32, [None, 2], "action")
        switch = v1.placeholder(tf.bool, [], name)
        with v1.variable_scope("actor"):
            x = observation
            x = tf.where(switch, x, 3 * x) if at_inference else tf.where(switch, 3 * x, x)
            mean = tf.tanh(last(x))
        v1.train.AdamOptimizer().minimize(tf.reduce_mean((action - mean) ** 2))
        return writers.saved(folder, mean, {observation: X, switch: at_inference})


@pytest.mark.parametrize(
    ("name", "at_inference"),
    [("is_training", False), ("isTraining", False), ("is_eval", True), ("deterministic", True)],
)
def test_switches_have_their_values_at_inference(name, at_inference, checkpoints):
    same(switched(checkpoints, name, at_inference), exported(checkpoints))


def test_switch_whose_name_does_not_tell_its_value_is_refused(checkpoints, capsys):
    switched(checkpoints, "use_running_stats", True)
    refuses(capsys, checkpoints, "use_running_stats")


@pytest.mark.parametrize("other", ["location", "mutual", "block_time"])
def test_head_is_not_chosen_by_a_part_of_a_word(other, checkpoints, capsys):
    """`loc` is in location, and `mu` in mutual."""
    with writers.session() as observation:
        choice = v1.placeholder(tf.int32, [None], "choice")
        target = v1.placeholder(tf.float32, [None, 4], "target")
        with v1.variable_scope("actor"):
            shared = body(observation)
            logits, auxiliary = dense(shared, 4, "phases", None), dense(shared, 4, other, None)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=choice, logits=logits))
        v1.train.AdamOptimizer().minimize(loss + tf.reduce_mean((auxiliary - target) ** 2))
        writers.saved(checkpoints, logits, {observation: X})
    parts = ("actor/phases/BiasAdd:0", f"actor/{other}/BiasAdd:0", "--output-tensor")
    refuses(capsys, checkpoints, *parts, flags=("--action", "categorical"))


def archive(folder, sizes, **others):
    """An .npz of layers by name, and other variables. `sizes`: name -> (inputs, units)."""
    rng = np.random.default_rng(8)
    arrays = {f"{name}/kernel": rng.standard_normal(shape).astype(np.float32) for name, shape in sizes.items()}
    arrays |= {f"{name}/bias": np.zeros(shape[1], np.float32) for name, shape in sizes.items()}
    np.savez(folder / "SA101_trial_1.npz", **arrays, **others)


OWN = {"SA101/actor/dense": (9, 16), "SA101/actor/dense_1": (16, 2)}


@pytest.mark.parametrize(
    ("sizes", "others", "part"),
    [
        (OWN, {"SA101/obs_mean": np.zeros(9, np.float32)}, "SA101/obs_mean [9] is not part of SA101/actor"),
        (OWN, {"SA101_obs_std": np.ones((1, 9), np.float32)}, "SA101_obs_std [1, 9] is not part of"),
        (OWN, {"SA101/obs_scale": np.float32(3)}, "SA101/obs_scale [] is not part of"),
        (
            {"SA101/trunk/dense": (9, 9), **OWN},
            {},
            "SA101/trunk/dense/kernel [9, 9] is not part of SA101/actor, but may be a layer",
        ),
        ({"actor_critic/dense": (9, 9), "actor/dense": (9, 2)}, {}, "actor_critic/dense/kernel [9, 9]"),
        (
            {"actor/embed": (9, 16), "actor/value_mix": (16, 16), "actor/out": (16, 2)},
            {},
            "actor/value_mix/kernel [16, 16]",
        ),
        (
            {"actor/dense": (9, 16), "actor/dense_1": (16, 2)},
            {"actor/temperature": np.float32(2)},
            "actor/temperature []",
        ),
    ],
)
def test_variables_that_may_belong_to_the_actor_are_named(checkpoints, capsys, sizes, others, part):
    archive(checkpoints, sizes, **others)
    refuses(capsys, checkpoints, part)


def two_agents(own, other):
    layers = {f"{own}/actor/dense": (9, 16), f"{own}/actor/dense_1": (16, 2), f"{own}/critic/dense": (9, 9)}
    return layers | {f"{other}/actor/dense": (9, 9), f"{other}/actor/dense_1": (9, 2)}


# as stable-baselines 2 names them; vf_fc1 would fit between the actor's layers
SB2 = {"model/pi_fc0": (9, 16), "model/pi_fc1": (16, 16), "model/pi": (16, 2)}
SB2 |= {"model/vf_fc0": (9, 16), "model/vf_fc1": (16, 16), "model/vf": (16, 1)}
TRUNK = {"encoder/dense": (9, 9), "actor/dense": (9, 16), "actor/dense_1": (16, 2)}
OF_ANOTHER = np.zeros(9, np.float32)


@pytest.mark.parametrize(
    ("sizes", "others", "flags"),
    [
        (SB2, {}, ("--layers", "pi_fc0,pi_fc1,pi")),
        (TRUNK, {}, ("--scope", ".", "--layers", "encoder/dense,actor/dense,actor/dense_1")),
        (two_agents("SA101", "SA102"), {"SA102/obs_mean": OF_ANOTHER}, ()),
        # the signals of real networks have numbers for names
        (
            two_agents("1863241632", "2330725114"),
            {"2330725114/obs_mean": OF_ANOTHER},
            ("--scope", "1863241632/actor"),
        ),
    ],
    ids=["value network in the scope", "scopes with numbers of their own", "another agent", "agents with numbers"],
)
def test_variables_of_others_do_not_stop_an_export(checkpoints, sizes, others, flags):
    archive(checkpoints, sizes, **others)
    assert export(checkpoints, *flags) == 0


def test_layers_between_numbered_ones_are_not_guessed(checkpoints, capsys):
    """fc1, hidden, fc2, out, in the order of calls: a checkpoint lists them by name."""
    stack = {"fc1": (9, 8), "hidden": (8, 8), "fc2": (8, 8), "out": (8, 2)}
    with tf.Graph().as_default(), v1.Session():
        y = v1.placeholder(tf.float32, [None, 9])
        for name, (_, units) in stack.items():
            y = dense(y, units, f"actor/{name}", tf.nn.relu if name != "out" else tf.tanh)
        expected = writers.saved(checkpoints, y, {y.graph.get_operations()[0].outputs[0]: X}, write_meta_graph=False)
    refuses(capsys, checkpoints, "does not define the order of its layers", "--layers")
    same(exported(checkpoints, "--layers", "fc1,hidden,fc2,out"), expected)


class ActorCritic(keras3.Model):
    def __init__(self):
        super().__init__()
        self.common = keras3.layers.Dense(16, "relu")
        self.actor, self.critic = keras3.layers.Dense(16), keras3.layers.Dense(1)

    def call(self, x, training=False):
        hidden = self.common(x)
        return self.actor(hidden), self.critic(hidden)


class NamedLayers(keras3.Model):
    """Keras 3 stores `out`, which comes after `layers` in the alphabet, as layers/dense_2."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = keras3.layers.Dense(16, "relu"), keras3.layers.Dense(16, "relu")
        self.out = keras3.layers.Dense(2, "tanh")

    def call(self, x, training=False):
        return self.out(self.fc2(self.fc1(x)))


def test_weights_of_a_subclassed_model_are_read(checkpoints):
    model = NamedLayers()
    model(X)
    writers.randomise(model)
    model.save_weights(str(checkpoints / "SA101_trial_1.weights.h5"))
    same(exported(checkpoints), np.asarray(model(X)))


@pytest.mark.parametrize("keras", [writers.keras2, keras3], ids=["keras 2", "keras 3"])
def test_critic_beside_the_actor_is_not_its_last_layer(keras, checkpoints):
    if keras is keras3:
        model = ActorCritic()
        model(X)
    else:
        observation = keras.Input((9,))
        hidden = keras.layers.Dense(16, "relu", name="common")(observation)
        heads = [keras.layers.Dense(units, name=name)(hidden) for name, units in (("actor", 16), ("critic", 1))]
        model = keras.Model(observation, heads)
    writers.randomise(model)
    model.save_weights(str(checkpoints / f"SA101_trial_1{'.weights' if keras is keras3 else ''}.h5"))
    action = exported(checkpoints, "--action", "categorical")
    np.testing.assert_array_equal(action, np.asarray(model(X)[0]).argmax(1))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Lambda", "it has a Lambda layer, whose code would be run"),
        (r"Lambd\u0061", "Keras cannot load it"),
        (r"Custom>Lambda", "Keras cannot load it"),
    ],
)
def test_lambda_of_keras_2_is_never_run(checkpoints, monkeypatch, capsys, name, reason):
    """Keras 2 runs the pickled code of a Lambda in an .h5 file without a question."""
    monkeypatch.chdir(checkpoints.parent)
    code = "lambda x: (__import__('pathlib').Path('ran').touch(), x)[1]"
    layers = [writers.keras2.layers.Dense(2, "tanh"), writers.keras2.layers.Lambda(eval(code))]
    path = checkpoints / "SA101_trial_1.h5"
    writers.keras2.Sequential([writers.keras2.Input((9,)), *layers]).save(str(path))
    (checkpoints.parent / "ran").unlink()
    with h5py.File(path, "r+") as file:
        text = str(file.attrs["model_config"])
        file.attrs["model_config"] = text.replace('"class_name": "Lambda"', f'"class_name": "{name}"')
        assert name in file.attrs["model_config"]
    refuses(capsys, checkpoints, reason)
    assert main(["inspect", str(path)]) == 2 and reason in capsys.readouterr().err
    assert not (checkpoints.parent / "ran").exists()
