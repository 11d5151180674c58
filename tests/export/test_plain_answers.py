"""Answers of helper processes: plain values come back equal, and an answer never runs code."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from city.errors import InputError, errors_about
from export.actors import Actor
from export.actors.steps import Activation, Dense
from export.checkpoints import helper_process, plain_answers
from export.checkpoints.plain_answers import decode, encode
from tests.export import writers
from tests.export.exporting import exported, same
from tests.export.writers import actions, keras3


@pytest.mark.parametrize(
    "value",
    [
        None,
        {None: [1, 2.5, "a", True], "b": (b"\x00\xff", Path("a/b")), 3: {}},
        (float("inf"), -1, 1 << 70),
        Actor("mlp", (Activation("relu"),), ("a",)),
    ],
)
def test_plain_values_come_back_equal(value):
    assert decode(encode(value)) == value


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3), np.zeros((0, 4), np.int8), np.array(True)])
def test_arrays_come_back_equal_and_may_be_written_to(array):
    found = decode(encode({"a": array}))["a"]
    assert found.dtype == array.dtype and found.flags.writeable
    np.testing.assert_array_equal(found, array)


def test_errors_keep_their_subject():
    with pytest.raises(InputError) as caught, errors_about("file.h5"):
        raise InputError("is damaged")
    error = decode(encode(caught.value))
    assert (str(error), error.subject) == ("file.h5: is damaged", "file.h5")
    assert decode(encode(FileNotFoundError(2, "No such file"))).strerror == "No such file"


def test_only_plain_values_are_sent():
    for value in (print, object(), {1, 2}, Dense):
        with pytest.raises(TypeError, match="no plain value"):
            encode(value)


def answer(value):
    text = json.dumps(value).encode()
    return len(text).to_bytes(plain_answers.LENGTH_BYTES, "big") + text


@pytest.mark.parametrize(
    "value",
    [
        ["class", "export.actors", "Actor", ["dict", ["tuple", "unknown", 1]]],
        ["array", "O", [1], 0, 8],
        ["array", "<f4", [3], 0, 8],
        ["error", "SystemExit", ""],
        ["unknown", 1],
        {"unknown": 1},
        [1, 2],
    ],
)
def test_an_answer_that_names_other_things_is_refused(value):
    with pytest.raises(ValueError, match=r"answer of the helper process|cannot reshape"):
        decode(answer(value))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("subprocess", "Popen"),
        ("city.config", "Network"),  # a dataclass of another package
        ("export.checkpoints.helper_process", "Helper"),
        ("export.checkpoints.helper_process", "subprocess"),
        ("export.actors", "Dense"),  # of another module
    ],
)
def test_an_answer_makes_only_dataclasses_of_the_exporter(module, name):
    with pytest.raises(ValueError, match="which it must not"):
        decode(answer(["class", module, name, ["dict"]]))


def hostile(path):
    raise AssertionError


def test_a_pickle_in_the_place_of_an_answer_is_not_run(tmp_path, monkeypatch):
    class Touch:
        def __reduce__(self):
            return Path.touch, (tmp_path / "was_run",)

    class Connection:
        def send(self, value):
            pass

        def poll(self, timeout):
            return True

        def recv_bytes(self):
            return pickle.dumps((Touch(), None))

    helper = helper_process.Helper(hostile, "weights")
    monkeypatch.setattr(helper, "_connect", Connection)
    with pytest.raises(InputError, match="cannot be read as weights"):
        helper.call(tmp_path)
    assert not (tmp_path / "was_run").exists()


def test_tensorflow_checkpoints_are_opened_in_the_helper_process(checkpoints, monkeypatch):
    import tensorflow as tf

    model = writers.sequential(keras3)
    tf.train.Checkpoint(actor=model).write(str(checkpoints / "SA101-1"))
    monkeypatch.setattr(tf.train, "load_checkpoint", lambda prefix: pytest.fail("was opened in this process"))
    same(exported(checkpoints), actions(model))
