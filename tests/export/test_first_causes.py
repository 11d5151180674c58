"""Files that cannot be exported: the message names the cause, not the last check that failed."""

import zipfile

import numpy as np
import pytest
import tensorflow as tf

from tests.export import writers
from tests.export.exporting import export, refuses
from tests.export.writers import keras3


def saver(folder, name="SA101-1"):
    tf.train.Checkpoint(actor=writers.sequential(keras3)).write(str(folder / name))


def old_rllib(folder):
    path = folder / "SA101" / "checkpoint_000010" / "policies" / "default_policy" / "policy_state.pkl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\x80\x04}.")


def zip_of(*members):
    def write(folder):
        with zipfile.ZipFile(folder / "SA101.zip", "w") as archive:
            for name in members:
                archive.writestr(name, "{}")

    return write


def whole_model(*layers, shape):
    return lambda folder: keras3.Sequential([keras3.Input(shape), *layers]).save(folder / "SA101.keras")


def arrays(**shapes):
    def write(folder):
        np.savez(folder / "SA101.npz", **{name: np.ones(shape, np.float32) for name, shape in shapes.items()})

    return write


def weights_only(*layers, shape):
    return lambda folder: keras3.Sequential([keras3.Input(shape), *layers]).save_weights(folder / "SA101.weights.h5")


DENSE = {"actor/dense/kernel": (9, 4), "actor/dense/bias": (4,)}


@pytest.mark.parametrize(
    ("write", "parts"),
    [
        (lambda folder: (saver(folder), (folder / "SA101-1.index").unlink()), ["SA101-1.index is missing"]),
        (
            lambda folder: (saver(folder), (folder / "SA101-1.data-00000-of-00001").unlink()),
            ["SA101-1.data-00000-of-00001 is missing"],
        ),
        (
            lambda folder: (
                saver(folder),
                (folder / "SA101-1.data-00000-of-00001").rename(folder / "SA101-1.data-00000-of-00002"),
            ),
            ["SA101-1.data-00001-of-00002 is missing"],
        ),
        (lambda folder: (folder / "SA101.ckpt").write_bytes(b"PK"), ["SA101.ckpt", "name it .pt"]),
        (lambda folder: (folder / "agent.pkl").write_bytes(b"\x80\x04N."), ["agent.pkl", "save its weights"]),
        (lambda folder: (folder / "a.txt").write_text(""), ["kinds that are not read (a.txt)", "checkpoints.md"]),
        (old_rllib, ["default_policy/policy_state.pkl: was written by RLlib's old API stack"]),
        (zip_of("data", "parameters", "parameter_list"), ["written by stable-baselines 2", "get_parameters"]),
        (zip_of("SA101/data.pkl", "SA101/data/0"), ["written by policy.save"]),
        (zip_of("metadata.json", "config.json", "model.weights.h5"), ["name it .keras"]),
        (
            whole_model(keras3.layers.LSTM(4), keras3.layers.Dense(2, "tanh"), shape=(5, 9)),
            ["the model takes (5, 9), not one row"],
        ),
        (
            whole_model(keras3.layers.Flatten(), keras3.layers.Dense(2, "tanh"), shape=(6, 6, 3)),
            ["the model takes (6, 6, 3), not one row"],
        ),
        (
            lambda folder: keras3.Sequential(
                [keras3.Input((6, 6, 3)), keras3.layers.Flatten(), keras3.layers.Dense(2)]
            ).export(folder / "SA101", verbose=False),
            ["takes", "(6, 6, 3), not one row"],
        ),
        (
            whole_model(keras3.layers.Dense(2, "tanh"), keras3.layers.Lambda(lambda x: x * 0.5), shape=(9,)),
            ["it has a Lambda layer, whose code would be run"],
        ),
        (
            weights_only(keras3.layers.LSTM(4), keras3.layers.Dense(2), shape=(5, 9)),
            ["lstm", "depend on earlier observations"],
        ),
        (
            weights_only(keras3.layers.Conv2D(4, 3), keras3.layers.Flatten(), keras3.layers.Dense(2), shape=(6, 6, 3)),
            ["conv2d is a convolution"],
        ),
        (
            weights_only(keras3.layers.Embedding(4, 3), keras3.layers.Flatten(), keras3.layers.Dense(2), shape=(1,)),
            ["embedding is an embedding"],
        ),
        (arrays(**DENSE, **{"phase_emb/weight": (4, 6)}), ["phase_emb is an embedding"]),
        (arrays(**{"actor.0.weight": (4, 9), "actor.0.bias": (4,), "phase_emb.weight": (4, 6)}), ["is an embedding"]),
        (arrays(**DENSE, **{"actor/gru/weight_ih_l0": (12, 4)}), ["actor/gru is a recurrent layer"]),
        (arrays(**DENSE, **{"encoder/conv/weight": (8, 3, 3, 3)}), ["encoder/conv is a convolution"]),
        (arrays(**DENSE, **{"actor/attn/in_proj_weight": (12, 4)}), ["actor/attn is an attention layer"]),
    ],
)
def test_messages_name_the_first_cause(write, parts, checkpoints, capsys):
    write(checkpoints)
    refuses(capsys, checkpoints, *parts)


@pytest.mark.parametrize(
    "others",
    [
        {"critic/conv/weight": (8, 3, 3, 3), "critic/phase_emb/weight": (4, 6)},
        {"SA102/actor/gru/weight_ih_l0": (12, 4), "SA102/actor/dense/kernel": (9, 4)},
    ],
)
def test_other_kinds_of_layers_of_critics_and_other_agents_do_not_stop_an_export(others, checkpoints):
    arrays(**{f"SA101/{name}": shape for name, shape in DENSE.items()}, **others)(checkpoints)
    assert export(checkpoints) == 0
