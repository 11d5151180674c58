"""Architectures against the real thing: Keras models, TF1 graphs and a user's own with random weights."""

import os
import sys

import h5py
import numpy as np
import pytest
import tensorflow as tf

from city.errors import InputError
from export.actors import activations, architectures
from export.actors.activations import ACTIVATIONS
from export.actors.architectures import ArchitectureHints, Layers
from export.actors.steps import Dense
from tests.export import writers
from tests.export.batch_norm_actors import Subclassed, bn_elu_res, bn_tanh_bottleneck, legacy_h5
from tests.export.exporting import city_with, exported, manifest, refuses, same
from tests.export.writers import X, actions, dense, keras3, randomise, saved

v1 = tf.compat.v1
MODELS = {
    "bn-elu-res": lambda: bn_elu_res(9, (8, 12, 12, 12), 3),
    "bn-tanh-bottleneck": lambda: bn_tanh_bottleneck(9, (8, 12, 12), 3),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("how", ["weights.h5", "h5", "checkpoint"])
def test_batch_norm_actors_are_recognised_and_reproduced(checkpoints, name, how, capsys):
    model = randomise(MODELS[name]())
    if how == "checkpoint":
        tf.train.Checkpoint(actor=model, step=tf.Variable(3)).write(str(checkpoints / "SA101-3"))
    elif how == "h5":
        legacy_h5(checkpoints / "x_trial_3_SA_101_actor.h5", model)
    else:
        model.save_weights(checkpoints / "x_trial_3_SA_101_actor.weights.h5")
    same(exported(checkpoints), actions(model))
    assert f"({name} " in capsys.readouterr().out


@pytest.fixture
def subclassed():
    model = Subclassed((8, 12, 12), 3)
    model(X)
    return randomise(model)


def test_a_subclassed_checkpoint_is_read_in_attribute_order(checkpoints, subclassed):
    tf.train.Checkpoint(actor=subclassed).write(str(checkpoints / "SA101-3"))
    same(exported(checkpoints), actions(subclassed))


def test_a_subclassed_weights_file_has_the_only_order_that_keeps_its_numbers(checkpoints, subclassed, tmp_path):
    """Its attributes are layers, first, body_0, ..., body_5, end, and are stored alphabetically."""
    subclassed.save_weights(checkpoints / "SA101_trial_3.weights.h5")
    same(exported(checkpoints), actions(subclassed))
    order = ["layers", "first", *(f"body_{k}" for k in range(6)), "end"]
    same(exported(checkpoints, "--overwrite", "--city", city_with(tmp_path, f"layers = {order}")), actions(subclassed))


def tf1_mlp_res(folder, name):
    """The TF1 actor of the sappo dialect's trainer, written by its own kind of session and Saver."""
    with tf.Graph().as_default(), tf.compat.v1.Session():
        tf.compat.v1.set_random_seed(1)
        observation = tf.compat.v1.placeholder(tf.float32, [None, 9])
        with tf.compat.v1.variable_scope("SA101"):
            h0 = x = dense(observation, 16, "dense", tf.nn.relu)
            for k in (1, 2):
                x = dense(x, 8, f"dense_{k}", tf.nn.relu)
            x = dense(x, 16, "dense_3", tf.nn.relu) + h0
            x = dense(x, 8, "dense_4", tf.nn.relu)
            mean = tf.tanh(x @ tf.compat.v1.get_variable("dense_5/kernel", [8, 2]))
        return saved(folder, mean, {observation: X}, name)


def test_mlp_res_is_recognised_by_the_sizes_in_its_name(checkpoints, capsys):
    same(tf1_mlp_res(checkpoints, "SAPPO-_action_gro_netSz_(16, 8, 8)_x-trial_4_SA101"), exported(checkpoints))
    assert "(mlp-res relu tanh, gro" in capsys.readouterr().out


def test_an_mlp_res_without_sizes_needs_the_actor_flag(checkpoints, capsys):
    expected = tf1_mlp_res(checkpoints, "x_SA101_trial_4")
    refuses(capsys, checkpoints, "mlp, mlp-res, bn-elu-res, bn-tanh-bottleneck", flags=("--actor", "resnet"))
    (checkpoints / "x_SA101_trial_4.meta").unlink()
    refuses(capsys, checkpoints, "pass --actor mlp or --actor mlp-res")
    same(exported(checkpoints, "--actor", "mlp-res"), expected)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations_are_keras_and_tensorflows(kind):
    x = np.linspace(-6, 6, 401)
    slope = activations.slope_of(kind)
    theirs = getattr(tf.keras.activations, kind) if slope is None else lambda x: tf.nn.leaky_relu(x, slope)
    np.testing.assert_allclose(activations.numpy(kind)(x), np.asarray(theirs(x.astype(np.float64))), atol=1e-6)


def test_models_exported_with_leaky_relu_alone_keep_their_slope():
    np.testing.assert_allclose(activations.numpy("leaky_relu")(np.array([-1.0, 1.0])), [-0.2, 1.0])


def leaky(as_layer, sizes=(8, 7)):
    """A Keras actor with leaky_relu as a function, or as a layer with Keras' default."""
    layers = [tf.keras.Input((9,))]
    for size in sizes:
        dense = tf.keras.layers.Dense(size, None if as_layer else "leaky_relu")
        layers += [dense, tf.keras.layers.LeakyReLU()] if as_layer else [dense]
    return randomise(tf.keras.Sequential([*layers, tf.keras.layers.Dense(2, "tanh")]))


@pytest.mark.parametrize(("as_layer", "slope"), [(False, "0.2"), (True, "0.3")])
def test_the_slope_of_keras_weights_is_asked_for(checkpoints, capsys, as_layer, slope):
    model = leaky(as_layer)
    model.save_weights(checkpoints / "SA101_trial_1.weights.h5")
    flag = "--hidden-activation"
    refuses(capsys, checkpoints, "leaky_relu has no slope", "0.3 as a Keras layer", flags=(flag, "leaky_relu"))
    refuses(capsys, checkpoints, "'leaky_relu:2' is not one of relu", flags=(flag, "leaky_relu:2"))
    same(exported(checkpoints, flag, f"leaky_relu:{slope}"), actions(model))


@pytest.mark.parametrize(("as_layer", "slope"), [(False, "0.2"), (True, "0.3")])
def test_the_slope_of_a_whole_model_is_found(checkpoints, capsys, as_layer, slope):
    model = leaky(as_layer)
    model.save(checkpoints / "SA101_trial_1.keras")
    same(exported(checkpoints, "--hidden-activation", "leaky_relu"), actions(model))
    assert f"(mlp leaky_relu:{slope} tanh" in capsys.readouterr().out


def test_the_hidden_activation_of_city_toml_is_used(checkpoints, tmp_path):
    model = writers.sequential(keras3, hidden="gelu")
    model.save_weights(checkpoints / "SA101_trial_1.weights.h5")
    city = city_with(tmp_path, 'hidden_activation = "gelu"')
    same(exported(checkpoints, "--city", city), actions(model))


def layers_of(*units, norms=()):
    shapes = zip((9, *units), units, strict=False)
    dense = tuple(Dense(f"d{k}", np.zeros(s, np.float32), np.zeros(s[1], np.float32)) for k, s in enumerate(shapes))
    return Layers(dense, norms, ())


def test_layers_that_do_not_fit_each_other_are_refused():
    wrong = Layers((layers_of(8, 8, 2).dense[0], *layers_of(5, 2).dense[1:]), (), ())
    for layers, architecture, message in (
        (wrong, None, "d0/kernel has 8 outputs, but d1/kernel takes 5: a layer between them is missing"),
        (layers_of(8, 6, 6, 6, 2), "mlp-res", "has 6 outputs, but a residual adds 8"),
        (Layers((), (), ()), None, "holds no dense layer"),
    ):
        with pytest.raises(InputError, match=message):
            architectures.build(layers, ArchitectureHints(architecture), False)


@pytest.mark.parametrize("categorical", [True, False], ids=["softmax", "tanh"])
def test_actor_with_large_logits_is_matched_although_float32_rounds_them(categorical):
    """Trainers multiply logits; those of 100 to 1,000 differ by more than 1e-5 between two orders of the same
    additions."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        dense = tuple(
            Dense(f"d{k}", rng.normal(0, scale, shape).astype(np.float32), np.zeros(shape[1], np.float32))
            for k, (shape, scale) in enumerate((((12, 64), 0.3), ((64, 64), 0.2), ((64, 4), 30.0)))
        )
        layers, hints = Layers(dense, (), ()), ArchitectureHints(hidden_activation="tanh")
        actor = architectures.build(layers, hints, categorical)

        def in_float32(x, is_categorical, dense=dense):
            for layer in dense:
                x = x.astype(np.float32) @ layer.kernel
                x = x if layer is dense[-1] else np.tanh(x)
            e = np.exp(x - x.max(axis=1, keepdims=True))
            return e / e.sum(axis=1, keepdims=True) if is_categorical else np.tanh(x)

        found = architectures.find_equivalent_actor(layers, ArchitectureHints(), in_float32, 12, categorical)
        assert found is not None and found.architecture == actor.architecture
        assert [step.note for step in found.steps if step.note] == [step.note for step in actor.steps if step.note]


@pytest.fixture
def my_actors(tmp_path, monkeypatch):
    (tmp_path / "my_actors.py").write_text(
        "import os, pathlib, keras, tensorflow as tf\n"
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
        "def crashing(sizes):\n"
        "    os.abort()\n"
        "def of_process(sizes):\n"
        "    pathlib.Path(__file__).with_name('pid').write_text(str(os.getpid()))\n"
        "    return model(sizes)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("my_actors", None)


BUILT = {
    "HDF5": lambda model, at: model.save_weights(at / "SA101_trial_3.weights.h5"),
    "checkpoint": lambda model, at: tf.train.Checkpoint(actor=model, step=tf.Variable(2)).write(str(at / "SA101-3")),
    "npz": lambda model, at: np.savez(at / "SA101_trial_3.npz", **{w.path: w.numpy() for w in model.weights}),
}


def test_a_users_function_and_its_checkpoint_have_a_process_of_their_own(checkpoints, my_actors, tmp_path, capsys):
    BUILT["checkpoint"](writers.functional(keras3), checkpoints)
    exported(checkpoints, "--actor", "my_actors:of_process")
    pid = int((tmp_path / "pid").read_text())
    assert pid not in (0, os.getpid())
    refuses(capsys, checkpoints, "the reader crashed", flags=("--actor", "my_actors:crashing", "--overwrite"))


@pytest.mark.parametrize("how", BUILT)
def test_a_users_keras_model_gets_the_checkpoints_weights(how, checkpoints, my_actors):
    model = writers.functional(keras3)
    BUILT[how](model, checkpoints)
    same(exported(checkpoints, "--actor", "my_actors:model"), actions(model))


def test_a_users_callable_gets_the_actors_variables(checkpoints, my_actors):
    held = writers.tf1_agents(checkpoints, "x-trial_7", ["Actor_0", "Actor_1"], hidden=tf.tanh)
    same(exported(checkpoints, "--actor", "my_actors:on_variables", "--scope", "Actor_1"), held["Actor_1"])
    recorded = manifest(checkpoints)
    assert "Actor_1/dense/kernel" in {entry["from"] for entry in recorded["variables"]}
    assert "another agent" in recorded["left_unread"]


def test_a_users_model_of_other_sizes_is_refused(checkpoints, my_actors, capsys):
    BUILT["checkpoint"](writers.functional(keras3), checkpoints)
    for builder, why in {
        "my_actors:wider": f"--actor my_actors:wider: its model does not fit {checkpoints / 'SA101-3'}",
        "my_actors:nothing": "returned int",
        "my_actors:broken": "raised RuntimeError: of mine",
        "my_actors:missing": "cannot be imported",
        "no_such_module:x": "cannot be imported: ModuleNotFoundError",
        "my_actors:on_variables": "variable 'dense/kernel' is not in",
    }.items():
        refuses(capsys, checkpoints, why, flags=("--actor", builder))


OUTPUTS = 3


@pytest.fixture
def bottleneck():
    return writers.randomise(bn_tanh_bottleneck(9, (8, 12, 12), OUTPUTS))


def add_to_h5(path, name, values):
    """Add a variable as Keras 2 stores it, in a layer without dense weights."""
    layer = name.split("/")[0]
    with h5py.File(path, "a") as file:
        file[f"{layer}/{name}"] = values
        file[layer].attrs["weight_names"] = [name.encode()]
        layers = [entry if isinstance(entry, bytes) else entry.encode() for entry in file.attrs["layer_names"]]
        file.attrs["layer_names"] = [*layers, layer.encode()]


@pytest.mark.parametrize("name", ["actor_output/Variable:0", "actor_output_1/Variable:0"])
def test_an_unnamed_log_std_in_hdf5_is_left_out(name, bottleneck, checkpoints):
    path = checkpoints / "x_trial_3_SA_101_actor.h5"
    legacy_h5(path, bottleneck)
    add_to_h5(path, name, np.zeros(OUTPUTS, np.float64))
    same(exported(checkpoints), bottleneck(X, training=False).numpy())
    assert manifest(checkpoints)["left_unread"] == {"training only": [f"{name.split('/')[0]}/{name}"]}


@pytest.mark.parametrize("values", [np.zeros(9, np.float64), np.zeros(OUTPUTS, np.float32)], ids=["size", "dtype"])
def test_a_variable_unlike_a_log_std_is_refused(values, bottleneck, checkpoints, capsys):
    path = checkpoints / "x_trial_3_SA_101_actor.h5"
    legacy_h5(path, bottleneck)
    add_to_h5(path, "actor_output/Variable:0", values)
    refuses(capsys, checkpoints, "actor_output/Variable:0", "is not part of a layer", "--actor NAME to leave it out")


@pytest.mark.parametrize("scope", ["", "actor/"], ids=["no scope", "scope actor"])
def test_an_unnamed_log_std_in_a_checkpoint_is_left_out(scope, checkpoints):
    rng = np.random.default_rng(0)
    names = {"dense/kernel": (9, 8), "dense/bias": (8,), "dense_1/kernel": (8, 2), "dense_1/bias": (2,)}
    values = {f"{scope}{name}": rng.standard_normal(shape).astype(np.float32) for name, shape in names.items()}
    values[f"{scope}actor_output_1/Variable"] = np.zeros(2, np.float64)
    tf.raw_ops.SaveV2(
        prefix=str(checkpoints / "SA101_trial_1"),
        tensor_names=list(values),
        shape_and_slices=[""] * len(values),
        tensors=list(map(tf.constant, values.values())),
    )
    hidden = np.maximum(X @ values[f"{scope}dense/kernel"] + values[f"{scope}dense/bias"], 0)
    same(exported(checkpoints), np.tanh(hidden @ values[f"{scope}dense_1/kernel"] + values[f"{scope}dense_1/bias"]))
    assert manifest(checkpoints)["left_unread"] == {"training only": [f"{scope}actor_output_1/Variable"]}
