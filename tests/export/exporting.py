"""Helpers of the exporter's tests: export a folder of checkpoints, run the model, compare."""

import json

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from export.__main__ import main
from protos import policy_pb2 as pb
from tests.error_lines import assert_refused as refused
from tests.export.writers import X


def run(folder, signature, **inputs):
    """Through the TF1-style session loader, as TensorFlow Serving."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(folder)).signature_def[signature]
        feed = {loaded.inputs[key].name: value for key, value in inputs.items()}
        return session.run({key: info.name for key, info in loaded.outputs.items()}, feed)


def export(checkpoints, *flags, tl="SA101"):
    models = str(checkpoints.parent / "models")
    return main(["--model-path", str(checkpoints), "--tl", tl, "--models-dir", models, *map(str, flags)])


def export_city(folder, *flags):
    return main(["--city", str(folder / "city.toml"), *flags])


def city_with(folder, setting="", before=""):
    """The path of a city.toml with one TL of dialect sappo. `setting`: of the TL; `before`: further tables."""
    tl = '[tl.SA101]\nsignals = ["a"]\ndialect = "sappo"\nstate = "d"\naction = "kc"\n'
    (folder / "city.toml").write_text(f"{before}\n{tl}{setting}\n")
    return folder / "city.toml"


def outputs_of(checkpoints, *flags, tl="SA101", x=X):
    assert export(checkpoints, *flags, tl=tl) == 0
    return run(version(checkpoints, tl), "serving_default", observation=x)


def exported(checkpoints, *flags, tl="SA101", x=X):
    return outputs_of(checkpoints, *flags, tl=tl, x=x)["action"]


def version(checkpoints, tl="SA101"):
    return next((checkpoints.parent / "models" / tl).iterdir())


def manifest(checkpoints, tl="SA101"):
    return json.loads((version(checkpoints, tl) / "assets.extra" / "export.json").read_text())


def bytes_without_time(folder):
    """A version's SavedModel without the time of its export."""
    model = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    for node in model.meta_graphs[0].graph_def.node:
        if node.name == "contract":
            policy = pb.PolicyContract.FromString(node.attr["value"].tensor.string_val[0])
            policy.origin.ClearField("exported_at")
            node.attr["value"].tensor.string_val[0] = policy.SerializeToString(deterministic=True)
    return model.SerializeToString(deterministic=True)


def refuses(capsys, checkpoints, *parts, flags=(), tl="SA101"):
    """True if an export fails in one line with these parts, and publishes nothing."""
    before = sorted((checkpoints.parent / "models").glob("*/*"))
    assert export(checkpoints, *flags, tl=tl) == 2
    refused(capsys, *parts)
    assert sorted((checkpoints.parent / "models").glob("*/*")) == before


def same(a, b, scale=1.0):
    assert a.shape == b.shape and np.abs(a - b).max() <= 1e-5 * scale
