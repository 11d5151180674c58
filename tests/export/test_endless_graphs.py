"""Graphs that loop endlessly or allocate all memory: one error line, the other TLs are exported, and signals stop the
run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from export.checkpoints import helper_process
from export.saved_model import verify
from tests.conftest import ROOT
from tests.export import writers
from tests.export.exporting import export, exported, refuses, same
from tests.export.writers import X


def endless(y):
    return tf.while_loop(lambda y: tf.reduce_sum(y) < np.inf, lambda y: [tf.sin(y)], [y])[0]


def endless_for_zeros(y):
    """Of the observations that an export compares, only that of the warm-up is 0."""
    return tf.while_loop(lambda y: tf.reduce_all(tf.equal(y, 0.0)), lambda y: [tf.sin(y)], [tf.sin(y)])[0]


def huge(y):
    size = tf.cast(tf.reduce_sum(tf.abs(y)) * 0, tf.int32) + 200_000
    return y + tf.reduce_sum(tf.ones([size, size]) * y[0, 0]) * 0


def finite(y):
    return tf.while_loop(lambda k, _: k < 3, lambda k, y: (k + 1, tf.tanh(y)), [0, y])[1]


def save(folder, extra):
    agent = writers.Tampered(lambda act: extra(act()))
    agent.save(folder)
    return agent


@pytest.fixture(autouse=True)
def short_limits(monkeypatch):
    monkeypatch.setattr(helper_process, "GRAPH_TIMEOUT_S", 2)
    monkeypatch.setattr(helper_process, "START_TIMEOUT_S", 120)


def test_actor_with_a_loop_that_ends_is_exported(checkpoints, monkeypatch):
    monkeypatch.setattr(helper_process, "GRAPH_TIMEOUT_S", 60)
    agent = save(checkpoints, finite)
    same(exported(checkpoints), agent.act(X).numpy())


def test_endless_graph_is_refused_and_the_other_tls_are_exported(checkpoints, capsys):
    save(checkpoints, endless)
    kernel = np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32)
    for name in ("SA102", "SA103"):
        np.savez(
            checkpoints / f"{name}_trial_1.npz", **{"actor/dense/kernel": kernel, "actor/dense/bias": np.zeros(2, "f4")}
        )
    assert export(checkpoints, tl="all") == 2
    printed = capsys.readouterr().err
    (line,) = (line for line in printed.splitlines() if line.startswith("error: "))
    assert "SA101_trial_1: cannot be read as a graph of training" in line and "did not finish within 2 s" in line
    assert "2 of 3 TLs exported" in printed and "failed: SA101" in printed
    assert sorted(path.name for path in (checkpoints.parent / "models").iterdir()) == ["SA102", "SA103"]


@pytest.mark.slow
def test_endless_training_graph_is_refused(checkpoints, capsys):
    with writers.session() as observation:
        mean = writers.dense(observation, 2, "actor/dense", tf.tanh)
        tf.identity(endless(mean), "mean")
        writers.saved(checkpoints, mean, {observation: X})
    refuses(capsys, checkpoints, "did not finish within 2 s", "loop endlessly", flags=("--output-tensor", "mean"))


@pytest.mark.slow
def test_graph_that_is_endless_only_for_the_warm_up_is_refused(checkpoints, capsys, monkeypatch):
    monkeypatch.setattr(helper_process, "GRAPH_TIMEOUT_S", 5)
    save(checkpoints, endless_for_zeros)
    refuses(capsys, checkpoints, "SA101_trial_1", "did not finish within 5 s")
    assert not (checkpoints.parent / "models" / "SA101").exists()


@pytest.mark.slow
def test_graph_that_takes_all_memory_is_refused(checkpoints, capsys, monkeypatch):
    monkeypatch.setattr(helper_process, "GRAPH_TIMEOUT_S", 30)
    save(checkpoints, huge)
    refuses(capsys, checkpoints, "SA101_trial_1")


def test_session_of_the_parity_check_has_a_time_limit(tmp_path, monkeypatch):
    save(tmp_path, endless)
    monkeypatch.setattr(verify, "RUN_TIMEOUT_S", 0.2)
    with verify.session(tmp_path / "SA101_trial_1") as run, pytest.raises(verify.ParityError, match="serving_default"):
        run("serving_default", {"observation": X})


def cpu_time_s(process):
    try:
        return float(Path(f"/proc/{process}/stat").read_text().split()[13]) / os.sysconf("SC_CLK_TCK")
    except FileNotFoundError:  # it has ended
        return 0.0


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_an_export_of_an_endless_graph(checkpoints, number):
    save(checkpoints, endless)
    flags = ["--model-path", str(checkpoints), "--tl", "SA101", "--models-dir", str(checkpoints.parent / "models")]
    command = [sys.executable, "-m", "export", *flags]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    children = f"/proc/{process.pid}/task/{process.pid}/children"
    # the one that has begun to loop: a library may start a short program at its import
    while not (helpers := [child for child in Path(children).read_text().split() if cpu_time_s(child) >= 4]):
        time.sleep(0.05)
    begin = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1 and time.monotonic() - begin < 5
    assert "error: interrupted" in errors and not Path(f"/proc/{helpers[0]}").exists()
    assert not list((checkpoints.parent).glob("models/*"))
