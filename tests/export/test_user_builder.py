"""A user's own architecture: Keras models and callables that take a checkpoint's variables."""

import os
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.export import writers
from tests.export.exporting import exported, manifest, refuses, same
from tests.export.writers import actions, keras3

v1 = tf.compat.v1


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
