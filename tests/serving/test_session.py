"""TensorFlow sessions: the memory of inputs, outputs and threads, default inputs, and the bound on cached arguments."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from serving.client import Client
from serving.embedded.config import ServerConfig
from serving.embedded.tensorflow import graph_check, session
from serving.embedded.tensorflow.library import library
from tests.serving import saved_models
from tests.serving.conftest import running

tf1 = tf.compat.v1


@pytest.fixture(scope="module")
def stateful(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stateful")
    saved_models.write_memory(folder / "MEMORY" / "1")
    saved_models.write_defaults(folder / "DEFAULTS" / "1")
    saved_models.write_reference(folder / "REFERENCE" / "1")
    with (
        running(ServerConfig(folder, port=0, poll_s=3600, allow_any_operation=True)) as server,
        Client(f"127.0.0.1:{server.port}") as client,
    ):
        yield client


def test_a_variable_keeps_the_values_of_its_own_call(stateful):
    values = [stateful.run("MEMORY", {"x": np.full(4, n, np.float32)})["before"][0] for n in range(1, 8)]
    assert values == [0, 1, 2, 3, 4, 5, 6]
    strings = [b"%d" % n * 60 for n in range(6)]
    values = [stateful.run("MEMORY", {"x": np.array([string])}, signature="strings")["before"][0] for string in strings]
    assert values == [b"first", *strings[:-1]]


@pytest.mark.parametrize("signature", ["serving_default", "soft"])
def test_a_missing_input_has_the_signatures_default(stateful, signature):
    for b in (1.0, 5.0, 9.0):
        assert stateful.run("DEFAULTS", {"b": np.float32([b])}, signature=signature)["y"] == [70 + b]


def test_a_tf1_variable_can_be_an_output(stateful):
    outputs = stateful.run("REFERENCE", {"x": np.float32([4])})
    assert outputs["y"].tolist() == [1, 2] and outputs["y"].dtype == np.float32 and outputs["z"] == [5]


def test_arrays_in_fortran_order_are_copied_by_value(non_policy_models):
    version = session.Session(non_policy_models / "dtypes" / "1", allow_any_operation=True)
    for size in (10, 300):
        array = np.asfortranarray(np.arange(size * size, dtype=np.float32).reshape(size, size))
        (y,) = version.run("float32", {"x": array}, ["y"])
        assert np.array_equal(y, array)


def test_the_strings_and_the_tf_status_of_each_run_are_freed(stateful, monkeypatch):
    kept, freed, made = len(library()._strings), [], []
    for name in ("StringDealloc", "DeleteStatus"):
        free = getattr(library(), name)
        monkeypatch.setattr(library(), name, lambda x, free=free, name=name: (freed.append((name, x)), free(x)))
    new = library().NewStatus
    monkeypatch.setattr(library(), "NewStatus", lambda: made.append(("DeleteStatus", new())) or made[-1][1])
    for n in range(50):
        stateful.run("MEMORY", {"x": np.array([b"%d" % n * 60])}, signature="strings")
    # the variable holds the last string
    assert len(library()._strings) <= kept + 1 and sum(name == "StringDealloc" for name, _ in freed) >= 49
    assert [each for each in freed if each[0] == "DeleteStatus"] == made and len(made) == 50


def test_cached_run_arguments_are_bounded_for_any_order_of_outputs(non_policy_models):
    version = session.Session(non_policy_models / "dtypes" / "1", allow_any_operation=True)
    inputs = {"a": np.float32([[5]]), "b": np.float32([[1]])}
    values = {"sum": 6, "difference": 4}
    for length in range(1, 5):
        for outputs in itertools.product(values, repeat=length):
            assert [array.item() for array in version.run("sum", inputs, outputs)] == [values[key] for key in outputs]
    assert list(version._all_outputs) == ["sum"]
    assert len(version._all_outputs["sum"][1]) == 2


def test_large_graphs_run_in_tensorflows_threads_and_give_the_same_actions(grid_models, tmp_path, monkeypatch):
    def wide(size):
        x = tf1.placeholder(tf.float32, [None, size], "x")
        outputs = {"action": tf.add_n([tf.tanh(x * n) for n in range(9)])}
        return {"serving_default": (saved_models.PREDICT, {"x": x}, outputs)}

    for name, size in (("small", 10), ("large", 1_000_000)):
        saved_models.write(tmp_path / name, lambda size=size: wide(size))
    chosen = {}
    for path in (grid_models / "SA103" / "1", tmp_path / "small", tmp_path / "large"):
        chosen[path.name] = session._config(graph_check.check(path)).inter_op_parallelism_threads
    assert chosen == {"1": -1, "small": -1, "large": 0}, "-1: in the calling thread"
    x = np.random.default_rng(0).normal(size=(1, 1_000_000)).astype(np.float32)
    (threaded,) = session.Session(tmp_path / "large").run("serving_default", {"x": x}, ["action"])
    monkeypatch.setattr(session, "MIN_LARGE_SIZE", math.inf)
    (alone,) = session.Session(tmp_path / "large").run("serving_default", {"x": x}, ["action"])
    assert np.array_equal(threaded, alone)
