"""The exporter on real training output: reproduced to 1e-5, and only the actor's variables read."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from export.__main__ import main
from export.checkpoints import keras_h5, tensorflow_files
from protos import policy_pb2 as pb

FOLDERS = {
    "tf1_multi_agent_saver": [(f"SA10{k}", f"Actor_{k}", 7, f"x{k}", f"y{k}") for k in range(3)],
    "tf2_checkpoint_manager": [("SA101", None, 5, "x", "y")],
    "keras_h5_weights": [("SA101", None, 3, "SA_101_x", "SA_101_y"), ("SA104", None, 3, "SA_104_x", "SA_104_y")],
}
CASES = [(folder, *case) for folder, cases in FOLDERS.items() for case in cases]


def run(folder, signature, **inputs):
    """Through the TF1-style session loader, as TensorFlow Serving."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(folder)).signature_def[signature]
        feed = {loaded.inputs[key].name: value for key, value in inputs.items()}
        return session.run({key: info.name for key, info in loaded.outputs.items()}, feed)


@pytest.mark.parametrize(("folder", "tl", "scope", "number", "x", "y"), CASES)
def test_exported_models_reproduce_the_trainers_outputs(shared, tmp_path, folder, tl, scope, number, x, y, capsys):
    source = shared / "checkpoints" / folder
    flags = ["--scope", scope] if scope else []
    assert main(["--model-path", str(source), "--tl", tl, "--models-dir", str(tmp_path), *flags]) == 0
    expected = np.load(source / "expected.npz")
    version = tmp_path / tl / str(number)
    action = run(version, "serving_default", observation=expected[x])["action"]
    assert action.dtype == np.float32
    assert np.abs(action - expected[y]).max() <= 1e-5
    told = capsys.readouterr().out
    assert "largest difference" in told and str(version) in told
    contract = run(version, "policy", rows=np.arange(2, dtype=np.int32))["policy"]
    policies = {pb.Policy.FromString(text).tl for text in contract}
    assert policies == {tl} and len(contract) == 2
    assert json.loads((version / "assets.extra" / "policy.json").read_text())["tl"] == tl


def test_the_number_asked_for_is_exported_instead_of_the_newest(shared, tmp_path):
    source = shared / "checkpoints" / "tf2_checkpoint_manager"
    assert main(["--model-path", str(source), "--tl", "SA101", "--model-number", "4", "--models-dir", str(tmp_path)]) == 0
    assert [path.name for path in (tmp_path / "SA101").iterdir()] == ["4"]


def test_the_checkpoint_state_file_decides_what_is_newest(shared, tmp_path):
    source = tmp_path / "checkpoints"
    shutil.copytree(shared / "checkpoints" / "tf2_checkpoint_manager", source)
    (source / "checkpoint").write_text('model_checkpoint_path: "SA101-3"\n')
    assert main(["--model-path", str(source), "--tl", "SA101", "--models-dir", str(tmp_path / "m")]) == 0
    assert (tmp_path / "m" / "SA101" / "3").is_dir()


def test_an_actor_whose_variables_are_stored_under_the_optimizers_name_is_found(shared):
    prefix = shared / "checkpoints" / "tf2_checkpoint_manager" / "SA101-5"
    assert not [key for key, _ in tf.train.list_variables(str(prefix)) if key.startswith("actor/")]
    actor = tensorflow_files.read(prefix, "SA101", None)
    assert [layer.kernel.shape for layer in actor.dense] == [(14, 48), (48, 24), (24, 3)]


def test_slots_critics_and_log_std_are_left_unread(shared):
    prefix = shared / "checkpoints" / "tf1_multi_agent_saver" / "SAPPO-_state_vdd_action_gro-trial-7"
    actor = tensorflow_files.read(prefix, "SA101", "Actor_1")
    assert len(actor.dense) == 4 and actor.dense[-1].bias is None
    assert {"Actor_1/log_std", "Actor_1/dense/kernel/Adagrad", "Critic_1/dense/kernel", "Actor_0/dense/kernel"} <= set(
        actor.unread
    )


def test_only_inference_remains_in_the_graph(grid_models):
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    for tl in ("SA101", "SA103"):
        model = SavedModel.FromString((grid_models / tl / "1" / "saved_model.pb").read_bytes())
        graph = model.meta_graphs[0].graph_def
        served = [f for f in graph.library.function if "_act" in f.signature.name or "signature_wrapper" in f.signature.name]
        ops = {node.op for function in served for node in function.node_def}
        assert "MatMul" in ops
        assert not [op for op in ops if "Random" in op or "Dropout" in op or "Grad" in op or "Normal" in op]
        names = {name for name, _ in tf.train.list_variables(str(grid_models / tl / "1" / "variables" / "variables"))}
        assert not [name for name in names if "critic" in name or "Adam" in name or "std" in name]


def test_keras_3_weights_of_the_real_writer_are_read(tmp_path):
    model = tf.keras.Sequential([tf.keras.Input((5,)), *(tf.keras.layers.Dense(n) for n in (4, 3, 2))])
    path = tmp_path / "SA101_trial_1.weights.h5"
    model.save_weights(path)
    actor = keras_h5.read(path)
    for layer, kernel, bias in zip(actor.dense, model.get_weights()[::2], model.get_weights()[1::2], strict=True):
        np.testing.assert_array_equal(layer.kernel, kernel)
        np.testing.assert_array_equal(layer.bias, bias)


def test_ten_layers_come_in_order_not_alphabetically(tmp_path):
    sizes = [5, *range(16, 4, -1)]
    model = tf.keras.Sequential([tf.keras.Input((5,)), *(tf.keras.layers.Dense(n) for n in sizes[1:])])
    path = tmp_path / "SA101_trial_1.weights.h5"
    model.save_weights(path)
    assert [layer.kernel.shape[0] for layer in keras_h5.read(path).dense] == sizes[:-1]
