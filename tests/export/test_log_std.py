"""The log_std of off-policy actors (sappo): stored without a name of its own, and not part of the actor."""

import h5py
import numpy as np
import pytest
import tensorflow as tf

from tests.export import writers
from tests.export.batch_norm_actors import bn_tanh_bottleneck, legacy_h5
from tests.export.exporting import exported, manifest, refuses, same
from tests.export.writers import X, keras3

v1 = tf.compat.v1
OUTPUTS = 3


@pytest.fixture
def actor():
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
def test_an_unnamed_log_std_in_hdf5_is_left_out(name, actor, checkpoints):
    path = checkpoints / "x_trial_3_SA_101_actor.h5"
    legacy_h5(path, actor)
    add_to_h5(path, name, np.zeros(OUTPUTS, np.float64))
    same(exported(checkpoints), actor(X, training=False).numpy())
    assert manifest(checkpoints)["left_unread"] == {"training only": [f"{name.split('/')[0]}/{name}"]}


@pytest.mark.parametrize("values", [np.zeros(9, np.float64), np.zeros(OUTPUTS, np.float32)], ids=["size", "dtype"])
def test_a_variable_unlike_a_log_std_is_refused(values, actor, checkpoints, capsys):
    path = checkpoints / "x_trial_3_SA_101_actor.h5"
    legacy_h5(path, actor)
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


def test_a_log_std_attribute_of_a_keras_model_is_left_out(checkpoints):
    model = writers.sequential(keras3)
    checkpoint = tf.train.Checkpoint(actor=model, log_std=tf.Variable(np.zeros(2, np.float64)))
    checkpoint.write(str(checkpoints / "SA101-1"))
    same(exported(checkpoints), writers.actions(model))
