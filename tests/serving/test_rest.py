"""The REST API over a real socket: TensorFlow Serving's paths, JSON, HTTP statuses and numbers."""

import base64
import contextlib
import functools
import gzip
import json
import math
import socket

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.embedded.config import RestConfig, ServerConfig
from serving.embedded.models.model_config import ModelConfig
from serving.embedded.rest import json_request, json_response
from tests.serving import http_calls, saved_models
from tests.serving.conftest import non_policy_config, running
from tests.serving.http_calls import send
from tests.waiting import wait_until

DTYPES = "/v1/models/dtypes:predict"


@pytest.fixture(scope="module")
def call(non_policy_server):
    """A function of (HTTP method, path, body) -> (status, JSON or text)."""
    return functools.partial(http_calls.call, non_policy_server.rest_port)


def body(signature, **document):
    return {"signature_name": signature, **document}


RAW = [{"b64": base64.b64encode(b"\xff\x00").decode()}, {"b64": ""}]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (body("float32", instances=[[1.0, 2], [3, 4.5]]), {"predictions": [[1.0, 2.0], [3.0, 4.5]]}),
        (
            body("sum", instances=[{"a": [1], "b": [2]}, {"a": [5], "b": [-1]}]),
            {"predictions": [{"sum": [3.0], "difference": [-1.0]}, {"sum": [4.0], "difference": [6.0]}]},
        ),
        (
            body("sum", inputs={"a": [[1], [5]], "b": [[2], [-1]]}),
            {"outputs": {"sum": [[3.0], [4.0]], "difference": [[-1.0], [6.0]]}},
        ),
        (
            body("flat", inputs=1.5),
            {"outputs": {"y": 2.5, "z_bytes": {"b64": base64.b64encode(b"1.500000").decode()}}},
        ),
        *(
            (body(dtype, instances=values), {"predictions": values})
            for dtype, values in {
                "float64": [0.1, 1e300, -5], "int32": [1, -(2**31)], "int64": [2**62, -1], "uint8": [0, 255],
                "bool": [True, False], "uint32": [2**32 - 1], "uint64": [2**64 - 1], "string": ["grün", "", "x"],
                "int16": [-5], "int8": [7],
            }.items()
        ),
        # outputs named bytes are base64, in which white space and missing padding are permitted
        (
            body("strings", instances=RAW),
            {"predictions": [{"y_bytes": RAW[0], "y": "\ufffd\x00"}, {"y_bytes": RAW[1], "y": ""}]},
        ),
        *(
            (body("string", instances=[{"b64": text}]), {"predictions": ["abcd"]})
            for text in ("YWJjZA==", "YWJjZA", "YWJj\nZA==\n", "YWJjZA..", " Y W J j Z A ")
        ),
    ],
)  # fmt: skip
def test_predict_is_answered_in_the_format_of_its_request(body, expected, call):
    assert call("POST", "/v1/models/dtypes/versions/1:predict", body) == (200, expected)


def test_nan_and_infinity_survive_the_round_trip(call):
    body = b'{"signature_name": "float32", "instances": [NaN, Infinity, -Infinity]}'
    status, document = call("POST", DTYPES, body)
    assert (
        status == 200
        and math.isnan(document["predictions"][0])
        and document["predictions"][1:] == [math.inf, -math.inf]
    )


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        ({"instances": [1]}, 400, "dtypes has no signature 'serving_default' with inputs"),
        (b"", 400, "the body is not JSON"),
        (b"{", 400, "the body is not JSON"),
        (b"\xff", 400, "the body is not JSON"),
        (b"[" * 100_000, 400, "the body is not JSON"),
        (b'{"x": 1' + b"0" * 5000 + b"}", 400, "the body is not JSON"),
        (b'{"signature_name": "string", "instances": ["\\ud800"]}', 400, "surrogate"),
        ([1], 400, "must be an object"),
        ({"signature_name": 3}, 400, "'signature_name' must be a string"),
        ({"signature_name": "sum"}, 400, "either 'instances'"),
        ({"signature_name": "sum", "instances": [], "inputs": 1}, 400, "either 'instances'"),
        ({"signature_name": "sum", "instances": []}, 400, "at least one row"),
        ({"signature_name": "sum", "instances": [[1]]}, 400, "keys a, b"),
        ({"signature_name": "sum", "instances": [{"a": [1]}]}, 400, "row 0 of 'instances' must be an object with"),
        ({"signature_name": "sum", "instances": [{"a": [1], "b": [1]}, 7]}, 400, "row 1 of 'instances'"),
        ({"signature_name": "sum", "inputs": {"a": [[1]]}}, 400, "'inputs' lacks 'b'"),
        ({"signature_name": "sum", "inputs": {"a": [[1]], "b": [["x"]]}}, 400, "input b: 'x' is not of type float"),
        ({"signature_name": "int32", "instances": [1.5]}, 400, "1.5 is not of type int32"),
        ({"signature_name": "int32", "instances": [2**31]}, 400, "out of bounds for int32"),
        ({"signature_name": "uint8", "instances": [300]}, 400, "out of bounds for uint8"),
        ({"signature_name": "float32", "instances": [True]}, 400, "True is not of type float"),
        ({"signature_name": "float32", "instances": ["x" * 9999]}, 400, "xxx... is not of type float"),
        ({"signature_name": "float32", "instances": [[1], [1, 2]]}, 400, "differ in length at depth 1"),
        ({"signature_name": "float32", "instances": [[1, [2]]]}, 400, "differ in length at depth 2"),
        (
            b'{"signature_name": "float32", "instances": ' + b"[" * 65 + b"1" + b"]" * 65 + b"}",
            400,
            "more than 64 deep",
        ),
        ({"signature_name": "string", "instances": [{"b64": "?"}]}, 400, "'?' is not base64"),
        ({"signature_name": "string", "instances": [{"b64": "YWJj===="}]}, 400, "is not base64"),
        ({"signature_name": "string", "inputs": [{"b64": 1}]}, 400, "object with the one key b64"),
        ({"signature_name": "float16", "inputs": [1]}, 501, "JSON cannot hold half; send it over gRPC"),
        ({"signature_name": "complex64", "inputs": [{}]}, 501, "JSON cannot hold complex64"),
    ],
)
def test_an_invalid_predict_request_gets_a_status_and_one_line(body, status, part, call):
    code, error = call("POST", DTYPES, body)
    assert code == status and part in error["error"] and "\n" not in error["error"], error


@pytest.mark.parametrize(
    ("method", "path", "status", "part"),
    [
        ("POST", "/v1/models/unknown:predict", 404, "Latest(unknown)"),
        ("POST", "/v1/models/dtypes/versions/9:predict", 404, "Specific(dtypes, 9)"),
        ("POST", "/v1/models/dtypes/labels/gold:predict", 400, "label: gold"),
        ("POST", "/v1/models/dtypes:Predict", 400, "there is no request POST /v1/models/dtypes:Predict"),
        ("POST", "/v1/models/dtypes:classify", 501, "Classify is not implemented by this server"),
        ("POST", "/v1/models/dtypes:regress", 501, "Regress is not implemented by this server"),
        ("GET", "/v1/models/unknown", 404, "any versions of model unknown"),
        ("GET", "/v1/models", 400, "the path names no model"),
        ("GET", "/v1/models/versions/3", 400, "the path names no model"),
        ("GET", "/v1/models/dtypes/versions/99999999999999999999", 400, "beyond 64 bits"),
        ("GET", DTYPES, 400, "there is no request GET"),
        ("DELETE", "/v1/models/dtypes", 400, "there is no request DELETE"),
        ("GET", "/favicon.ico", 404, ""),
    ],
)
def test_a_wrong_path_gets_a_status_and_one_line(method, path, status, part, call):
    code, error = call(method, path, {"instances": [1]} if method == "POST" else None)
    assert code == status and part in (error and error["error"]), error


@given(
    st.binary(max_size=60)
    | st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=6)
)
@settings(max_examples=150, deadline=None)
def test_no_request_body_causes_a_server_error(call, body):
    for signature in ("float32", "string", "sum"):
        wrapped = body if isinstance(body, bytes) else {"signature_name": signature, "instances": body}
        assert call("POST", DTYPES, wrapped)[0] in (200, 400)


@given(
    st.sampled_from(["GET", "POST", "PUT"]),
    st.lists(
        st.sampled_from([b"dtypes", b"/versions/", b"/labels/", b"/metadata", b":predict", b"1", b"9" * 5000])
        | st.sampled_from([b"%2F", b"%FF", b"%0A", b"?", b"http://x", b"*"])
        | st.binary(min_size=1, max_size=3).filter(
            lambda part: min(part) > 32 and 127 not in part and not set(b"?#") & set(part)
        ),
        max_size=5,
    ),
)
def test_no_path_causes_a_server_error(non_policy_server, method, parts):
    path = b"/v1/models/" + b"".join(parts)
    request = b"%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}" % (method.encode(), path)
    assert send(non_policy_server.rest_port, request)[0] in (200, 400, 404), path


def test_metrics_are_served_at_the_monitoring_configs_path(call):
    call("POST", DTYPES, {"signature_name": "float32", "instances": [1]})
    call("POST", "/v1/models/made-up:predict", {"instances": [1]})
    status, text = call("GET", "/monitoring/prometheus/metrics")
    assert status == 200
    samples = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    counts = {name: float(value) for name, value in samples}
    assert counts[':tensorflow:serving:request_count{model_name="dtypes",status="OK"}'] >= 1
    assert counts[':tensorflow:serving:request_count{model_name="",status="NOT_FOUND"}'] >= 1
    latency = {'model_name="dtypes"', 'API="predict"', 'entrypoint="REST"'}
    run = {'model_name="dtypes"', 'API="Predict"', 'runtime="TF1"'}
    for name, labels in (("request_latency", latency), ("runtime_latency", run)):
        own = {key: n for key, n in counts.items() if f":{name}_" in key and all(label in key for label in labels)}
        bounds = [key.partition('le="')[2].partition('"')[0] for key in own if "_bucket" in key]
        assert (bounds[:4], len(bounds), bounds[-1]) == (["10.0", "18.0", "32.4", "58.32"], 34, "+Inf")
        count, total = (next(own[key] for key in own if f"_{part}{{" in key) for part in ("count", "sum"))
        assert total > 0 and count == max(own[key] for key in own if "_bucket" in key) >= 1
    assert counts['serving_model_loads_total{model_name="dtypes",status="success"}'] == 1
    assert counts['serving_model_versions{state="AVAILABLE"}'] == 1
    assert any(key.startswith("serving_build_info{") and 'tensorflow="2.' in key for key in counts)
    assert counts["process_resident_memory_bytes"] > 1e6
    assert "made-up" not in text, "clients cannot add labels"


@given(st.floats(width=32))
def test_a_float_is_written_with_6_digits_or_else_9_and_reads_back(value):
    text = json_response.from_tensors({"y": np.array([value], np.float32)}, {"y": 1}, json_request.COLUMNAR)
    (number,) = json.loads(text)["outputs"]
    assert isinstance(number, float)
    if math.isnan(value):
        assert math.isnan(number)
    else:
        assert np.float32(number) == value
        is_short = np.float32(float(f"{value:.6g}")) == value
        assert number == float(f"{value:.6g}" if is_short else f"{value:.9g}")


def test_metadata_has_every_field(call):
    status, document = call("GET", "/v1/models/dtypes/metadata")
    signatures = document["metadata"]["signature_def"]["signature_def"]
    assert status == 200
    assert all(
        signature.keys() == {"inputs", "outputs", "method_name", "defaults"} for signature in signatures.values()
    )
    assert signatures["bfloat16"]["inputs"]["x"]["dtype"] == "DT_BFLOAT16"
    assert signatures["sum"]["inputs"]["a"]["tensor_shape"] == {
        "dim": [{"size": "-1", "name": ""}] * 2, "unknown_rank": False,
    }  # fmt: skip


def test_slash_and_colon_of_names_and_labels_are_percent_encoded(non_policy_models):
    config = {"a/b:c": ModelConfig("a/b:c", non_policy_models / "dtypes", labels={"x/y": 1})}
    with running(non_policy_config(None, models=config, rest=RestConfig(0, timeout_s=math.inf))) as server:
        call = functools.partial(http_calls.call, server.rest_port)
        body = {"signature_name": "float32", "instances": [2.0]}
        for path in ("/v1/models/a%2Fb%3Ac:predict", "/v1/models/a%2fb%3ac/labels/x%2Fy:predict"):
            assert call("POST", path, body) == (200, {"predictions": [2.0]})
        assert call("GET", "/v1/models/a/b:c")[0] == 400


def test_body_in_gzip(call):
    body = gzip.compress(json.dumps({"signature_name": "float32", "instances": [2.0]}).encode())
    assert call("POST", DTYPES, body, {"Content-Encoding": "gzip"}) == (200, {"predictions": [2.0]})


@pytest.mark.parametrize(
    ("origin", "status"), [({"Origin": "https://example.org"}, 200), ({}, 400), ({"Origin": "x"}, 400)]
)
def test_options_is_answered_without_a_body(origin, status, call):
    assert call("OPTIONS", DTYPES, headers=origin) == (status, "")


def test_200_requests_at_once_beside_600_idle_connections(non_policy_server):
    port = non_policy_server.rest_port
    body = json.dumps({"signature_name": "float32", "instances": [2.0]})
    with contextlib.ExitStack() as idle:
        for _ in range(400):
            idle.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
        for _ in range(200):
            connection = idle.enter_context(http_calls.connected(port))
            connection.request("GET", "/v1/models/dtypes")
            connection.getresponse().read()  # kept alive
        connections = [idle.enter_context(http_calls.connected(port, timeout_s=60)) for _ in range(200)]
        for connection in connections:
            connection.request("POST", DTYPES, body)
        assert [json.loads(each.getresponse().read()) for each in connections] == [{"predictions": [2.0]}] * 200


def post(body, length):
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (DTYPES.encode(), length, body)


def test_request_whose_body_does_not_arrive_in_time_is_answered_504(non_policy_models):
    with running(non_policy_config(non_policy_models, rest=RestConfig(0, timeout_s=0.05))) as server:
        answer = send(server.rest_port, post(b"{", 2))
    assert answer == (504, {"error": "the request took longer than --rest_api_timeout_in_ms 50"})


def test_client_that_goes_in_the_middle_of_its_body_is_counted_and_not_logged(non_policy_models, caplog):
    with running(non_policy_config(non_policy_models)) as server:
        for path in ("/v1/models/dtypes", "/v1/models/dtypes/versions/9"):
            http_calls.call(server.rest_port, "GET", path)
        counters = ["/tensorflow/serving/request_count", ":tensorflow:serving:request_latency_count"]
        assert list(server.metrics.totals(counters).values()) == [2, 1], "the latency is of requests that succeed"
        with socket.create_connection(("127.0.0.1", server.rest_port), timeout=10) as connection:
            connection.sendall(post(b"{", 9))
        wait_until(
            lambda: 'request_count{model_name="dtypes",status="CANCELLED"} 1.0' in server.metrics.text().decode()
        )
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /v1/models/dtypes:predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n" % (b"x" * 9000),
        b"GET /v1/models/\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/models/dtypes:predict HTTP/1.1\r\nHost: x\r\nContent-Encoding: br\r\nContent-Length: 1\r\n\r\nx",
        b"nonsense\r\n\r\n",
    ],
)
def test_malformed_http_is_answered_400_and_not_logged(non_policy_server, sent, caplog, capfd):
    assert send(non_policy_server.rest_port, sent)[0] == 400
    assert "Traceback" not in caplog.text + "".join(capfd.readouterr())


def test_whole_url_in_the_request_line_is_its_path(non_policy_server):
    assert send(non_policy_server.rest_port, b"GET http://x/v1/models/dtypes HTTP/1.1\r\nHost: x\r\n\r\n")[0] == 200


def test_large_list_is_written_block_by_block_as_one_piece():
    for shape in ((25_000,), (3, 9000), (9000, 3), (1, 25_000), (0,), (3, 0)):
        array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        for layout in (json_request.ROW, json_request.COLUMNAR):
            document = json.loads(json_response.from_tensors({"y": array}, {"y": 1}, layout))
            assert document == {"predictions" if layout == json_request.ROW else "outputs": array.tolist()}
    both = {"a": np.arange(25_000, dtype=np.int32), "b": np.ones((25_000, 2), np.float32)}
    document = json.loads(json_response.from_tensors(both, {"a": 3, "b": 1}, json_request.ROW))
    assert document["predictions"][24_999] == {"a": 24_999, "b": [1.0, 1.0]} and len(document["predictions"]) == 25_000


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
        return [
            (v, *http_calls.call(port, "POST", f"/v1/models/{v['inputs']}:predict", v["body"].encode()))
            for v in vectors
        ]


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
