"""REST predict requests: statuses and numbers of TensorFlow Serving 2.20's own JSON code."""

import json
import math

import pytest
import tensorflow as tf

from serving.embedded.config import RestConfig, ServerConfig
from tests.serving import saved_models
from tests.serving.conftest import running
from tests.serving.http_calls import call

MODELS = {"float32": (tf.float32, "default"), "int32": (tf.int32, "default"), "two_float32": (tf.float32, "a", "b")}


@pytest.fixture(scope="module")
def vectors(shared):
    lines = (shared / "vectors" / "rest_predict.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def answers(vectors, tmp_path_factory):
    folder = tmp_path_factory.mktemp("echo")
    for name, (dtype, *keys) in MODELS.items():
        saved_models.write_echo(folder / name / "1", dtype, *keys)
    with running(ServerConfig(folder, port=0, poll_s=0, rest=RestConfig(0))) as server:
        port = server.rest_port
        return [(v, *call(port, "POST", f"/v1/models/{v['inputs']}:predict", v["body"].encode())) for v in vectors]


def same(value, expected):
    if isinstance(value, float) and math.isnan(value):
        return isinstance(expected, float) and math.isnan(expected)
    if isinstance(value, list):
        return isinstance(expected, list) and len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(value, dict):
        return (
            isinstance(expected, dict)
            and value.keys() == expected.keys()
            and all(same(value[k], expected[k]) for k in value)
        )
    return type(value) is type(expected) and value == expected and str(value) == str(expected)


def test_statuses_are_tensorflow_servings(answers):
    assert len(answers) > 800
    assert [(v["body"], status) for v, status, _ in answers if status != v["status"]] == []


def test_numbers_are_tensorflow_servings(answers):
    assert [v for v, status, body in answers if status == 200 and not same(body, json.loads(v["response"]))] == []


def test_every_error_is_one_short_line(answers):
    errors = [body["error"] for _, status, body in answers if status != 200]
    assert errors and all(0 < len(error) < 200 and error.isprintable() for error in errors)
