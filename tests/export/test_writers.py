"""Every kind of training output, written by its real writer, exported and compared with the trainer's own model."""

import hashlib
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from export.__main__ import main
from export.checkpoints import keras_h5
from export.saved_model import verify
from protos import policy_pb2 as pb
from tests.conftest import GRID
from tests.export import writers
from tests.export.exporting import bytes_without_time, export, exported, manifest, refuses, run, same, version
from tests.export.writers import WHOLE, X, actions, keras2, keras3

v1 = tf.compat.v1


WEIGHT_PARTS = {
    "keras 2, TF format": (keras2, lambda model, at: model.save_weights(str(at / "x-trial_3_SA_101_actor"))),
    "keras 2, HDF5": (keras2, lambda model, at: model.save_weights(str(at / "x-trial_3_SA_101_actor.h5"))),
    "keras 3": (keras3, lambda model, at: model.save_weights(at / "x-trial_3_SA_101_actor.weights.h5")),
    "checkpoint of keras 2": (keras2, lambda model, at: tf.train.Checkpoint(actor=model).write(str(at / "SA101-3"))),
    "checkpoint of keras 3": (keras3, lambda model, at: tf.train.Checkpoint(actor=model).write(str(at / "SA101-3"))),
    "npz": (keras3, lambda model, at: np.savez(at / "SA101_trial_3.npz", **{w.path: w.numpy() for w in model.weights})),
    "npz with dots": (
        keras3,
        lambda model, at: np.savez(
            at / "SA101_trial_3.npz", **{w.path.replace("/", ".") + ":0": w.numpy() for w in reversed(model.weights)}
        ),
    ),
}


MLPS = [(kind, how) for kind in ("sequential", "subclassed") for how in WEIGHT_PARTS]
MLPS.remove(("subclassed", "npz with dots"))  # names that are not counted must stand in their order


@pytest.mark.parametrize(("kind", "how"), MLPS)
def test_weights_of_an_mlp_are_read_from_every_writer(kind, how, checkpoints):
    keras, write = WEIGHT_PARTS[how]
    model = getattr(writers, kind)(keras)
    write(model, checkpoints)
    same(exported(checkpoints), actions(model))
    assert version(checkpoints).name == "3"


@pytest.mark.parametrize("how", WHOLE)
@pytest.mark.filterwarnings("ignore")
def test_whole_models_need_no_architecture(how, checkpoints):
    keras, write = WHOLE[how]
    model = writers.functional(keras)
    write(model, checkpoints)
    same(exported(checkpoints), actions(model))
    recorded = manifest(checkpoints)
    assert recorded["actor"]["architecture"] == "graph" and "trainer's own graph" in recorded["parity"]["reference"]
    assert len(recorded["variables"]) == 10, "three dense layers and a norm; no optimizer, no counters"
    names = {entry["from"].rsplit("/", 1)[-1] for entry in recorded["variables"]}
    assert names == {"kernel", "bias", "gamma", "beta", "moving_mean", "moving_variance"}


DAILY = ("keras 2 SavedModel", "keras 2 .h5", "keras 3 .keras")


@pytest.mark.parametrize(
    "how", [*DAILY, *(pytest.param(how, marks=pytest.mark.slow) for how in WHOLE if how not in DAILY)]
)
@pytest.mark.filterwarnings("ignore")
def test_whole_models_define_their_activations(how, checkpoints, capsys):
    keras, write = WHOLE[how]
    model = writers.sequential(keras, hidden="elu")
    write(model, checkpoints)
    same(exported(checkpoints), actions(model))
    assert "(mlp elu tanh" in capsys.readouterr().out


@pytest.mark.parametrize("keras", [keras2, keras3])
def test_subclassed_saved_models_without_defined_inputs_are_exported(keras, checkpoints):
    model = writers.subclassed(keras)
    tf.saved_model.save(model, str(checkpoints / "SA101_trial_3"))
    same(exported(checkpoints), actions(model))


def test_weights_of_a_model_of_unknown_classes_can_be_used(checkpoints, capsys):
    model = writers.subclassed(keras3)
    model.save(checkpoints / "SA101_trial_3.keras")
    refuses(capsys, checkpoints, "its wiring is unknown", "--actor NAME to take only its weights")
    same(exported(checkpoints, "--actor", "mlp"), actions(model))


def test_weights_of_an_unknown_architecture_are_refused(checkpoints, capsys):
    writers.functional(keras3).save_weights(checkpoints / "SA101_trial_3.weights.h5")
    refuses(
        capsys, checkpoints, "SA101_trial_3.weights.h5", "3 dense layers and 1 batch norms", "--actor MODULE:FUNCTION"
    )


@pytest.mark.parametrize(
    "write",
    [tf.saved_model.save, lambda agent, path: tf.train.Checkpoint(agent=agent, step=tf.Variable(1)).write(path)],
    ids=["SavedModel without signatures", "lists of plain variables"],
)
def test_modules_with_a_function_or_lists_of_variables_are_exported(write, checkpoints):
    agent = writers.Agent()
    write(agent, str(checkpoints / "SA101_trial_2"))
    same(exported(checkpoints), agent(X).numpy())


FOLDERS = {
    "tf1_multi_agent_saver": [(f"SA10{k}", f"Actor_{k}", 7, f"x{k}", f"y{k}") for k in range(3)],
    "tf2_checkpoint_manager": [("SA101", None, 5, "x", "y")],
    "keras_h5_weights": [("SA101", None, 3, "SA_101_x", "SA_101_y"), ("SA104", None, 3, "SA_104_x", "SA_104_y")],
}
CASES = [(folder, *case) for folder, cases in FOLDERS.items() for case in cases]


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
    output = capsys.readouterr().out
    assert "largest difference" in output and str(version) in output
    contract = run(version, "policy", rows=np.arange(2, dtype=np.int32))["policy"]
    assert {pb.PolicyContract.FromString(text).tl for text in contract} == {tl} and len(contract) == 2
    assert json.loads((version / "assets.extra" / "policy.json").read_text())["tl"] == tl


def test_the_checkpoint_state_file_determines_the_newest(shared, tmp_path):
    source = tmp_path / "checkpoints"
    shutil.copytree(shared / "checkpoints" / "tf2_checkpoint_manager", source)
    (source / "checkpoint").write_text('model_checkpoint_path: "SA101-3"\n')
    assert export(source) == 0
    assert version(source).name == "3"


def test_only_inference_remains_in_the_graph(grid_models):
    for tl in ("SA101", "SA103"):
        ops = verify.count_operations(grid_models / tl / "1")
        assert ops["MatMul"] == ops["BiasAdd"] == 3 and ops["Relu"] == 2 and ops.keys() <= verify.INFERENCE
        names = [name for name, _ in tf.train.list_variables(str(grid_models / tl / "1" / "variables" / "variables"))]
        assert len(names) == 6 and all(name.startswith("actor/") for name in names)


def test_a_graph_with_a_random_operation_is_refused(tmp_path):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None, 2])
        y = x + tf.random.normal([2])
        tf.compat.v1.saved_model.simple_save(session, str(tmp_path / "m"), {"x": x}, {"y": y})
    with pytest.raises(verify.NotInferenceOnly, match="RandomStandardNormal"):
        verify.count_operations(tmp_path / "m")


def test_the_manifest_records_the_source_of_every_variable(grid_models):
    output = json.loads((grid_models / "SA101" / "1" / "assets.extra" / "export.json").read_text())
    assert output["variables"][1]["from"] == "actor/dense/kernel" and output["variables"][1]["shape"] == [21, 64]
    assert output["left_unread"]["counter"] == ["global_step"] and "critic/* (6)" in output["left_unread"]["critic"]
    for name, digest in {entry["name"]: entry["sha256"] for entry in output["source"]["files"]}.items():
        assert hashlib.sha256((GRID / "checkpoints" / name).read_bytes()).hexdigest() == digest
    assert output["parity"]["observations"] == 256 and output["parity"]["largest_absolute_difference"] <= 1e-5


def test_the_same_input_gives_the_same_bytes(grid_models, tmp_path, monkeypatch):
    assert main(["--city", str(GRID / "city.toml"), "--tl", "SA108,SA101", "--models-dir", str(tmp_path)]) == 0
    for tl in ("SA101", "SA108"):
        for name in ("variables/variables.index", "variables/variables.data-00000-of-00001"):
            assert (tmp_path / tl / "1" / name).read_bytes() == (grid_models / tl / "1" / name).read_bytes()
        assert bytes_without_time(tmp_path / tl / "1") == bytes_without_time(grid_models / tl / "1")


def test_describe_prints_the_contract_and_the_signatures(grid_models, capsys):
    assert main(["describe", str(grid_models / "SA108" / "1")]) == 0
    output = capsys.readouterr().out
    for part in (
        "SA108 1",
        "sappo vd",
        "kc, 2 values",
        "signal     C1",
        "density",
        "observation float [-1, 34]",
        "decides every 8 s",
        "parity",
    ):
        assert part in output, output


def test_describe_has_the_longest_reds_of_the_city(grid_models, tmp_path, capsys):
    city = tmp_path / "city.toml"
    bounds = (
        '[tl.SA108]\nsignals = ["C1", "C2"]\ndialect = "sappo"\nmax_red_s = { left = 90, "protected left" = 150 }\n'
    )
    city.write_text(f'[network]\nsumocfg = "{GRID}/grid.sumocfg"\n{bounds}')
    assert main(["describe", str(grid_models / "SA108" / "1"), "--city", str(city)]) == 0
    assert capsys.readouterr().out.count("    max red  left 90 s, protected left 150 s\n") == 2


def test_describe_refuses_a_folder_without_a_model(tmp_path, capsys):
    assert main(["describe", str(tmp_path)]) == 2
    assert "has no saved_model.pb; pass the folder of a version" in capsys.readouterr().err


def test_ten_layers_are_read_in_numerical_order(tmp_path):
    sizes = [5, *range(16, 4, -1)]
    model = tf.keras.Sequential([tf.keras.Input((5,)), *(tf.keras.layers.Dense(n) for n in sizes[1:])])
    path = tmp_path / "SA101_trial_1.weights.h5"
    model.save_weights(path)
    layers = keras_h5.SOURCE.layers(path, keras_h5.SOURCE.open(path), "")
    assert [layer.kernel.shape[0] for layer in layers.dense] == sizes[:-1]
