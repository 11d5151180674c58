"""The exporter's output: inspect, kinds of actions and scores, the parity check, a summary, nothing of TensorFlow's."""

import contextlib
import functools
import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file

from export.__main__ import main
from export.actors import PARITY_OBSERVATIONS, VALUES, ReferenceModel
from export.saved_model import read, verify
from export.saved_model.verify import ParityError
from tests.conftest import GRID, ROOT
from tests.export import writers
from tests.export.exporting import export, exported, manifest, outputs_of, refused, refuses, same, version
from tests.export.torch_files import FIVE, linear_layers, outputs_of_layers, relu, softmax
from tests.export.writers import X, actions, keras3

v1 = tf.compat.v1


def test_inspect_lists_the_variables_of_every_source(checkpoints, capsys):
    model = writers.functional(keras3)
    model.save(checkpoints / "a.keras")
    tf.saved_model.save(model, str(checkpoints / "b"))
    np.savez(checkpoints / "c.npz", **{w.path: w.numpy() for w in writers.sequential(keras3).weights})
    writers.tf1_agents(checkpoints, "d", ["Actor_0", "Actor_1"])
    for arguments, parts in {
        ("a.keras",): ["batch_normalization/vars/3  (8,)           float32  weight of the graph",
        "would be exported as graph"],
        ("b",): ["weight of the graph", "would be exported as graph"],
        ("c.npz",): ["dense 2 bias", "mlp relu tanh, 9 -> 8 -> 7 -> 2"],
        ("c.npz", "--action", "categorical", "--scores", "q_values"): ["would be exported as mlp relu, 9 -> 8 -> 7 -> 2"],
        ("d.index", "--tl", "SA104", "--target-tls", "SA101,SA 104"): [
            "dense 0 kernel", "- (another agent)", "- (counter)", "compared with the trainer's own graph",
        ],
    }.items():  # fmt: skip
        assert main(["inspect", str(checkpoints / arguments[0]), *arguments[1:]]) == 0
        out = capsys.readouterr().out
        for part in parts:
            assert part in out, out
    assert main(["inspect", str(checkpoints / "d")]) == 2
    refused(capsys, "nothing would be exported", "pass --scope")
    assert main(["inspect", str(checkpoints / "nothing.npz")]) == 2
    refused(capsys, "nothing.npz: no such file")


def test_other_choices_than_the_checkpoints_are_refused(checkpoints, monkeypatch):
    writers.sequential(keras3, head="softmax", outputs=4).save(checkpoints / "SA101_trial_3.keras")
    assert export(checkpoints, "--action", "categorical") == 0
    contract, actor = read.read(version(checkpoints))
    verify.compare_with_checkpoint(version(checkpoints), actor, contract, None)
    session = verify.session

    @contextlib.contextmanager
    def of_the_next_action(folder):
        with session(folder) as run:

            def shifted(signature, inputs):
                outputs = run(signature, inputs)
                return {**outputs, "action": (outputs["action"] + 1) % 4} if "action" in outputs else outputs

            yield shifted

    monkeypatch.setattr(verify, "session", of_the_next_action)
    with pytest.raises(ParityError, match="chosen actions are not the checkpoint's"):
        verify.compare_with_checkpoint(version(checkpoints), actor, contract, None)


def test_a_softmax_in_a_training_graph_is_recognised(checkpoints):
    with tf.Graph().as_default(), v1.Session():
        observation = v1.placeholder(tf.float32, [None, 9], "state")
        with v1.variable_scope("pi"):
            probabilities = tf.nn.softmax(
                writers.dense(writers.dense(observation, 8, "dense", tf.sin), 4, "dense_1", None)
            )
        expected = writers.saved(checkpoints, probabilities, {observation: X}, name="SA101_trial_3")
    for flags in ([], ["--output-tensor", probabilities.name, "--overwrite"]):
        same(outputs_of(checkpoints, "--action", "categorical", *flags)["probabilities"], expected)


def test_many_tls_show_a_progress_bar_and_a_summary(checkpoints, monkeypatch, capsys):
    for k in range(3):
        writers.sequential(keras3).save_weights(checkpoints / f"SA10{k}_trial_1.weights.h5")
    (checkpoints / "SA103_trial_1.weights.h5").write_bytes(b"broken")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert export(checkpoints, tl="all") == 2
    printed = capsys.readouterr()
    assert [line.split(":")[0] for line in printed.out.splitlines()] == ["SA100", "SA101", "SA102"]
    assert "TL/s" in printed.err or "s/TL" in printed.err
    assert "3 of 4 TLs exported" in printed.err and "failed: SA103" in printed.err


@pytest.mark.slow
def test_a_fresh_process_prints_only_its_own_lines(tmp_path):
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("TF_", "GLOG", "PYTHONWARNINGS"))
    }

    def run_export(*arguments):
        command = [sys.executable, "-m", "export", *arguments]
        environment["PYTHONPATH"] = str(ROOT)
        done = subprocess.run(command, cwd=GRID, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    lines = run_export("--tl", "SA101,SA104", "--models-dir", str(tmp_path))
    assert [line.split(":")[0] for line in lines[:-1]] == ["SA101", "SA104"] and lines[-1].startswith(
        "2 of 2 TLs exported in "
    )
    (line,) = run_export("fleet", "grid", "--tl", "SA101,SA104", "--models-dir", str(tmp_path))
    assert line.startswith("grid: 2 TLs -> ")
    assert run_export("describe", str(tmp_path / "SA101" / "1"))[0].startswith("SA101 1 ")
    assert run_export("inspect", "checkpoints/PPO-_SA101_trial_1")[0].startswith("actor/dense/bias ")


def test_parity_tolerance_follows_the_scale_of_the_outputs(checkpoints):
    model = writers.sequential(keras3, head="linear")
    model.layers[-1].set_weights([3e3 * weights for weights in model.layers[-1].get_weights()])
    model.save(checkpoints / "SA101_trial_3.keras")
    np.testing.assert_allclose(exported(checkpoints), actions(model), atol=1e-5 * 1e4)
    permitted = manifest(checkpoints)["parity"]["largest_permitted_difference"]
    assert 1e-5 * 100 < permitted < 1e-5 * 1e5
    contract, actor = read.read(version(checkpoints))
    for rounding, is_permitted in ((0.5 * permitted, True), (2 * permitted, False)):
        rounded = ReferenceModel(
            "rounded", lambda x, by=rounding: model(x).numpy() + by, VALUES, actor.outputs, actor.inputs
        )
        refusal = pytest.raises(ParityError, match="differ from the checkpoint")
        with contextlib.nullcontext() if is_permitted else refusal:
            verify.compare_with_checkpoint(version(checkpoints), actor, contract, rounded)


ACTIONS = {"categorical": ("--action", "categorical"), "continuous": ()}


def save(checkpoints, seed, gain):
    """An actor 9 -> 64 -> 64 -> 3 with logits of about `gain`."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for k, (inputs, units) in enumerate([(9, 64), (64, 64), (64, 3)]):
        layer = f"actor/dense_{k}" if k else "actor/dense"
        scale = gain if k == 2 else 1.0
        arrays[f"{layer}/kernel"] = (scale * rng.normal(size=(inputs, units)) / np.sqrt(inputs / 2)).astype(np.float32)
        arrays[f"{layer}/bias"] = (0.1 * scale * rng.normal(size=units)).astype(np.float32)
    np.savez(checkpoints / "SA101_trial_1.npz", **arrays)


def with_last_layer(actor, change):
    last = actor.dense[-1]
    return replace(actor, steps=tuple(change(step) if step is last else step for step in actor.steps))


@pytest.fixture(scope="module")
def exported_once(tmp_path_factory):
    """A function of the gain and the kind of action: the version of such an actor, which is exported once."""

    @functools.cache
    def exported_once(gain, action):
        checkpoints = tmp_path_factory.mktemp("parity") / "checkpoints"
        checkpoints.mkdir()
        save(checkpoints, 0, gain)
        assert export(checkpoints, *ACTIONS[action]) == 0
        return version(checkpoints)

    return exported_once


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("seed", range(1, 4))
def test_actor_with_large_logits_is_exported(checkpoints, seed, action):
    save(checkpoints, seed, 100.0)
    assert export(checkpoints, *ACTIONS[action]) == 0


def permuted(kernel):
    return kernel[:, [1, 0, 2]]


def one_percent_off(kernel):
    changed = kernel.copy()
    changed[5, 1] *= 1.01
    return changed


def largest_weight_missing(kernel):
    changed = kernel.copy()
    changed[np.unravel_index(np.abs(kernel).argmax(), kernel.shape)] = 0
    return changed


WRONG = [
    *((permuted, gain) for gain in (1.0, 100.0, 1e4)),
    *((largest_weight_missing, gain) for gain in (1.0, 100.0, 1e4)),
    *((one_percent_off, gain) for gain in (1.0, 100.0)),
]


@pytest.mark.parametrize(("wrong", "gain"), WRONG, ids=lambda value: getattr(value, "__name__", value))
@pytest.mark.parametrize("action", ACTIONS)
def test_wrong_weight_behind_large_logits_is_refused(exported_once, wrong, gain, action):
    folder = exported_once(gain, action)
    contract, actor = read.read(folder)
    verify.compare_with_checkpoint(folder, actor, contract, None)
    with pytest.raises(ParityError):
        other = with_last_layer(actor, lambda layer: replace(layer, kernel=wrong(layer.kernel)))
        verify.compare_with_checkpoint(folder, other, contract, None)


def test_difference_behind_saturated_probabilities_is_reported_in_logarithms(checkpoints):
    save(checkpoints, 0, 1.0)
    path = checkpoints / "SA101_trial_1.npz"
    np.savez(path, **{**np.load(path), "actor/dense_2/bias": np.float32([0, 60, 0])})
    assert export(checkpoints, "--action", "categorical") == 0
    folder = version(checkpoints)
    contract, actor = read.read(folder)
    other = with_last_layer(actor, lambda layer: replace(layer, bias=np.float32([0, 40, 0])))
    with pytest.raises(
        ParityError, match=r"logarithms of its probabilities differ .* by up to 20, more than rounding \(0\.0008"
    ):
        verify.compare_with_checkpoint(folder, other, contract, None)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "observations"
    folder.mkdir()
    np.save(folder / "SA101.npy", np.random.default_rng(1).random((7, 21), np.float32))
    return folder


def export_with(tmp_path, folder, tl="SA101"):
    return main(
        [
            "--city",
            str(GRID / "city.toml"),
            "--tl",
            tl,
            "--models-dir",
            str(tmp_path / "models"),
            "--observations",
            str(folder),
        ]
    )


def test_recorded_observations_are_compared_too(tmp_path, folder):
    assert export_with(tmp_path, folder) == 0
    (manifest,) = (tmp_path / "models" / "SA101").glob("*/assets.extra/export.json")
    assert json.loads(manifest.read_text())["parity"]["observations"] == PARITY_OBSERVATIONS + 7


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((3, 4), np.float32), "they have 4 values each, and the actor takes"),
        (np.zeros((3, 21)), "is not an array float32 [n, O]"),
        (np.full((3, 21), np.nan, np.float32), "holds values that are not finite"),
        (np.zeros((0, 21), np.float32), "holds 0 observations"),
        (np.array([object()]), "is not an array of NumPy"),
    ],
    ids=["other size", "float64", "nan", "none", "objects"],
)
def test_observations_that_do_not_fit_are_refused_in_one_line(tmp_path, folder, values, message, capsys):
    np.save(folder / "SA101.npy", values, allow_pickle=True)
    assert export_with(tmp_path, folder) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("models/SA101/*"))


def test_folder_without_observations_of_the_tls_is_refused(tmp_path, folder, capsys):
    assert export_with(tmp_path, folder, "SA102") == 2
    assert "holds no observations of SA102" in capsys.readouterr().err


RELU = ("--action", "categorical", "--hidden-activation", "relu")
NETWORK = linear_layers(("network.0", 8, 5), ("network.2", 3, 8))
LOGITS = outputs_of_layers(NETWORK, "network.0", "network.2", hidden=relu)
Q, PROBABILITIES = "q_values", "probabilities"


@pytest.mark.parametrize(
    ("name", "flags", "scores"),
    [
        ("traffic_dqn.safetensors", (), Q),
        ("ddqn_SA101.safetensors", (), Q),
        ("q_net.safetensors", (), Q),
        ("actor_0.safetensors", (), PROBABILITIES),
        ("mappo_policy.safetensors", (), PROBABILITIES),
        ("SA101.safetensors", ("--scores", Q), Q),
        ("SA101.safetensors", ("--scores", PROBABILITIES), PROBABILITIES),
        ("traffic_dqn.safetensors", ("--scores", PROBABILITIES), PROBABILITIES),
    ],
)
def test_the_meaning_of_outputs_is_a_flags_or_the_files_names(checkpoints, name, flags, scores):
    save_file(NETWORK, checkpoints / name)
    outputs = outputs_of(checkpoints, *RELU, *flags, x=FIVE)
    assert sorted(outputs) == sorted(["action", scores])
    same(outputs[scores], LOGITS if scores == Q else softmax(LOGITS))


@pytest.mark.parametrize("name", ["SA101", "policy_net", "dqn_and_ppo"])
def test_outputs_of_unknown_meaning_get_no_invented_probabilities(checkpoints, name, capsys):
    save_file(NETWORK, checkpoints / f"{name}.safetensors")
    outputs = outputs_of(checkpoints, *RELU, x=FIVE)
    assert "pass --scores probabilities if they are logits" in capsys.readouterr().out
    same(outputs[Q], LOGITS)


def test_names_of_modules_take_precedence_over_the_files(checkpoints):
    save_file(linear_layers(("actor.0", 8, 5), ("actor.2", 3, 8)), checkpoints / "dqn.safetensors")
    assert PROBABILITIES in outputs_of(checkpoints, *RELU, x=FIVE)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("name", "scores"), [("dqn", Q), ("SA101_actor", PROBABILITIES)])
def test_a_keras_models_outputs_mean_what_its_file_is_called(whole, name, scores, checkpoints):
    model = writers.sequential(keras3, head="linear", outputs=3)
    if whole:
        model.save(checkpoints / f"{name}.keras")
    else:
        model.save_weights(checkpoints / f"{name}.weights.h5")
    outputs = outputs_of(checkpoints, "--action", "categorical")
    expected = actions(model) if scores == Q else softmax(actions(model))
    same(outputs[scores], expected)
    np.testing.assert_array_equal(outputs["action"], expected.argmax(axis=1))


def test_a_softmax_proves_probabilities(checkpoints, capsys):
    model = writers.sequential(keras3, head="softmax", outputs=3)
    model.save(checkpoints / "SA101.keras")
    refuses(capsys, checkpoints, "gives probabilities, but", flags=("--action", "categorical", "--scores", Q))
    outputs = outputs_of(checkpoints, "--action", "categorical")
    same(outputs["probabilities"], actions(model))
    np.testing.assert_array_equal(outputs["action"], actions(model).argmax(axis=1))
    assert outputs["action"].dtype == np.int64


def test_scores_of_city_toml_are_those_of_the_model(checkpoints, tmp_path, capsys):
    (tmp_path / "city.toml").write_text(
        '[tl.SA101]\nsignals = ["SA101"]\ndialect = "sumo-rl"\nscores = "q_values"\nhidden_activation = "relu"\n'
    )
    writers.sequential(keras3, head="linear", outputs=3).save_weights(checkpoints / "SA101.weights.h5")
    flags = ("--city", tmp_path / "city.toml")
    assert "q_values" in outputs_of(checkpoints, *flags)
    (tmp_path / "city.toml").write_text('[tl.SA101]\nsignals = ["SA101"]\ndialect = "sumo-rl"\nscores = "q"\n')
    refuses(capsys, checkpoints, "scores 'q' is neither", flags=(*flags, "--overwrite"))
    assert export(checkpoints, *flags, "--scores", "probabilities", "--overwrite") == 0
