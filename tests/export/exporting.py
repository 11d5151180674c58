"""Helpers of the exporter's tests: export a folder of checkpoints, run the model, compare."""

import json

import numpy as np
import tensorflow as tf

from export.__main__ import main
from tests.export.writers import X


def run(folder, signature, **inputs):
    """Through the TF1-style session loader, as TensorFlow Serving."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(folder)).signature_def[signature]
        feed = {loaded.inputs[key].name: value for key, value in inputs.items()}
        return session.run({key: info.name for key, info in loaded.outputs.items()}, feed)


def export(checkpoints, *flags, tl="SA101"):
    return main(
        ["--model-path", str(checkpoints), "--tl", tl, "--models-dir", str(checkpoints.parent / "models"), *flags]
    )


def exported(checkpoints, *flags, tl="SA101"):
    """The exported model's actions for X."""
    assert export(checkpoints, *flags, tl=tl) == 0
    return run(version(checkpoints, tl), "serving_default", observation=X)["action"]


def version(checkpoints, tl="SA101"):
    return next((checkpoints.parent / "models" / tl).iterdir())


def manifest(checkpoints, tl="SA101"):
    return json.loads((version(checkpoints, tl) / "assets.extra" / "export.json").read_text())


def refused(capsys, *parts):
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    for part in parts:
        assert part in lines[0], lines[0]


def same(actual, expected):
    assert actual.shape == expected.shape and np.abs(actual - expected).max() <= 1e-5
