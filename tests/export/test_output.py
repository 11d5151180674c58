"""The exporter's output: inspect, kinds of actions, a progress bar and a summary, nothing of TensorFlow's."""

import contextlib
import fcntl
import os
import struct
import subprocess
import sys
import termios

import numpy as np
import pytest
import tensorflow as tf

from export.__main__ import main
from export.actors import VALUES, ReferenceModel
from export.saved_model import read, verify
from export.saved_model.verify import ParityError
from tests.conftest import GRID, ROOT
from tests.export import writers
from tests.export.exporting import export, exported, manifest, outputs_of, refused, same, version
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


def test_the_action_flag_applies_without_a_city(checkpoints, capsys):
    model = writers.sequential(keras3, head="softmax", outputs=4)
    model.save(checkpoints / "SA101_trial_3.keras")
    outputs = outputs_of(checkpoints, "--action", "categorical")
    np.testing.assert_array_equal(outputs["action"], actions(model).argmax(axis=1))
    same(outputs["probabilities"], actions(model))
    assert outputs["action"].dtype == np.int64


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


@pytest.mark.slow
def test_many_tls_show_a_progress_bar_and_a_summary(checkpoints, tmp_path):
    for k in range(3):
        writers.sequential(keras3).save_weights(checkpoints / f"SA10{k}_trial_1.weights.h5")
    (checkpoints / "SA103_trial_1.weights.h5").write_bytes(b"broken")
    flags = ["--model-path", str(checkpoints), "--tl", "all", "--models-dir", str(tmp_path / "m")]
    command = [sys.executable, "-m", "export", *flags]
    master, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=terminal, text=True)
    os.close(terminal)
    shown = b""
    with contextlib.suppress(OSError):  # the other end of a terminal is closed: all was read
        while chunk := os.read(master, 65536):
            shown += chunk
    os.close(master)
    assert done.returncode == 2
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["SA100", "SA101", "SA102"]
    assert b"TL/s" in shown or b"s/TL" in shown
    assert b"3 of 4 TLs exported" in shown and b"failed: SA103" in shown


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
