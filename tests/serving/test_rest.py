"""The REST API over a real socket: TensorFlow Serving's paths, JSON and HTTP statuses."""

import base64
import contextlib
import gzip
import http.client
import json
import math
import socket
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos import predict_pb2 as wire
from serving.embedded.config import RestConfig, ServerConfig
from serving.embedded.models.model_config import ModelConfig
from serving.embedded.rest import json_request, json_response
from serving.embedded.rest import server as rest_server
from tests.serving.conftest import running

DTYPES = "/v1/models/dtypes:predict"


@pytest.fixture(scope="module")
def call(non_policy_server):
    """A function of (HTTP method, path, body) -> (status, JSON or text)."""

    def request(method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", non_policy_server.rest_port, timeout=10)
        try:
            data = body if isinstance(body, (bytes, type(None))) else json.dumps(body)
            connection.request(method, path, data)
            response = connection.getresponse()
            text = response.read()
            content_type = response.getheader("Content-Type") or ""
            return response.status, json.loads(text) if content_type.startswith("application/json") else text.decode()
        finally:
            connection.close()

    return request


def test_instances_are_answered_with_predictions(call):
    status, document = call("POST", DTYPES, {"signature_name": "float32", "instances": [[1.0, 2], [3, 4.5]]})
    assert (status, document) == (200, {"predictions": [[1.0, 2.0], [3.0, 4.5]]})
    rows = {"signature_name": "sum", "instances": [{"a": [1], "b": [2]}, {"a": [5], "b": [-1]}]}
    status, document = call("POST", DTYPES, rows)
    assert document == {"predictions": [{"sum": [3.0], "difference": [-1.0]}, {"sum": [4.0], "difference": [6.0]}]}


def test_inputs_are_answered_with_outputs(call):
    columns = {"signature_name": "sum", "inputs": {"a": [[1], [5]], "b": [[2], [-1]]}}
    assert call("POST", DTYPES, columns) == (
        200,
        {"outputs": {"sum": [[3.0], [4.0]], "difference": [[-1.0], [6.0]]}},
    )
    status, document = call("POST", "/v1/models/dtypes/versions/1:predict", {"signature_name": "flat", "inputs": 1.5})
    assert status == 200 and document["outputs"]["y"] == 2.5
    assert base64.b64decode(document["outputs"]["z_bytes"]["b64"]).startswith(b"1.5")


@pytest.mark.parametrize(
    ("signature", "values"),
    [
        ("float64", [0.1, 1e300, -5]), ("int32", [1, -(2**31)]), ("int64", [2**62, -1]), ("uint8", [0, 255]),
        ("bool", [True, False]),
        ("uint32", [2**32 - 1]), ("uint64", [2**64 - 1]), ("string", ["grün", "", "x"]), ("int16", [-5]), ("int8", [7]),
    ],
)  # fmt: skip
def test_a_value_survives_the_round_trip(signature, values, call):
    assert call("POST", DTYPES, {"signature_name": signature, "instances": values}) == (
        200,
        {"predictions": values},
    )


def test_outputs_named_bytes_are_base64(call):
    raw = [{"b64": base64.b64encode(b"\xff\x00").decode()}, {"b64": ""}]
    status, document = call("POST", DTYPES, {"signature_name": "strings", "instances": raw})
    assert status == 200, document
    assert [row["y_bytes"] for row in document["predictions"]] == raw


@pytest.mark.parametrize("text", ["YWJjZA==", "YWJjZA", "YWJj\nZA==\n", "YWJjZA..", " Y W J j Z A "])
def test_base64_may_have_white_space_and_leave_out_its_padding(text, call):
    status, document = call("POST", DTYPES, {"signature_name": "string", "instances": [{"b64": text}]})
    assert (status, document) == (200, {"predictions": ["abcd"]})


def test_nan_and_infinity_survive_the_round_trip(call):
    body = b'{"signature_name": "float32", "instances": [NaN, Infinity, -Infinity]}'
    status, document = call("POST", DTYPES, body)
    assert (
        status == 200
        and math.isnan(document["predictions"][0])
        and document["predictions"][1:] == [math.inf, -math.inf]
    )


def test_status_and_metadata_are_tensorflow_servings(call):
    state = {"version": "3", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    for path in ("/v1/models/examples", "/v1/models/examples/versions/3"):
        assert call("GET", path) == (200, {"model_version_status": [state]})
    status, document = call("GET", "/v1/models/examples/metadata")
    assert status == 200 and document["model_spec"] == {"name": "examples", "signature_name": "", "version": "3"}
    signature = document["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/regress"
    assert signature["inputs"]["inputs"]["dtype"] == "DT_STRING"
    assert signature["inputs"]["inputs"]["tensor_shape"] == {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "/v1/models/unknown:predict", {"instances": [1]}, 404,
        "Servable not found for request: Latest(unknown)"),
        ("POST", "/v1/models/dtypes/versions/9:predict", {"instances": [1]}, 404, "Specific(dtypes, 9)"),
        ("POST", "/v1/models/dtypes/labels/gold:predict", {"instances": [1]}, 400,
        "Unrecognized servable version label: gold"),
        ("POST", DTYPES, {"instances": [1]}, 400, 'Serving signature name: "serving_default" not found'),
        ("POST", DTYPES, b"", 400, "JSON Parse error: The document is empty"),
        ("POST", DTYPES, b"{", 400, "JSON Parse error"),
        ("POST", DTYPES, b"\xff", 400, "JSON Parse error"),
        ("POST", DTYPES, b"[" * 100_000, 400, "JSON Parse error"),
        ("POST", DTYPES, b'{"x": 1' + b"0" * 5000 + b"}", 400, "JSON Parse error"),
        ("POST", DTYPES, [1], 400, "Is not object"),
        ("POST", DTYPES, {"signature_name": 3}, 400, "'signature_name' key must be a string value"),
        ("POST", DTYPES, {"signature_name": "sum"}, 400, "Missing 'inputs' or 'instances' key"),
        ("POST", DTYPES, {"signature_name": "sum", "instances": [], "inputs": 1}, 400, "only one of"),
        ("POST", DTYPES, {"signature_name": "sum", "instances": []}, 400, "No values in 'instances' array"),
        ("POST", DTYPES, {"signature_name": "sum", "instances": [[1]]}, 400, "expecting list of objects"),
        ("POST", DTYPES, {"signature_name": "sum", "instances": [{"a": [1]}]}, 400, "keys must be equal to: a,b"),
        ("POST", DTYPES, {"signature_name": "sum", "inputs": {"a": [[1]]}}, 400, "Missing named input: b"),
        ("POST", DTYPES, {"signature_name": "int32", "instances": [1.5]}, 400, "is not of expected type: int32"),
        ("POST", DTYPES, {"signature_name": "int32", "instances": [2**31]}, 400, "is not of expected type: int32"),
        ("POST", DTYPES, {"signature_name": "uint8", "instances": [300]}, 400, "tensor parsing error"),
        ("POST", DTYPES, {"signature_name": "float32", "instances": [True]}, 400, "is not of expected type: float"),
        ("POST", DTYPES, {"signature_name": "float32", "instances": [[1], [1, 2]]}, 400,
        "Expecting tensor size: 1 but got: 2"),
        ("POST", DTYPES, {"signature_name": "float32", "instances": [[1, [2]]]}, 400, "unexpected level"),
        ("POST", DTYPES, {"signature_name": "string", "instances": [{"b64": "?"}]}, 400, "Unable to base64 decode"),
        ("POST", DTYPES, {"signature_name": "string", "instances": [{"b64": "YWJj===="}]}, 400,
        "Unable to base64 decode"),
        ("POST", DTYPES, b'{"signature_name": "string", "instances": ["\\ud800"]}', 400, "surrogate"),
        ("POST", DTYPES, {"signature_name": "float16", "inputs": [1]}, 501,
        "Conversion of JSON Value: 1 to type: half"),
        ("POST", DTYPES, {"signature_name": "complex64", "inputs": [1]}, 501, "complex64"),
        ("POST", DTYPES, {"signature_name": "complex64", "inputs": [{}]}, 400,
        "Type: Object is not of expected type: complex64"),
        ("GET", "/v1/models/unknown", None, 404, "Could not find any versions of model unknown"),
        ("GET", "/v1/models", None, 400, "Missing model name in request."),
        ("GET", "/v1/models/versions/3", None, 400, "Missing model name in request."),
        ("GET", DTYPES, None, 400, "Malformed request: GET /v1/models/dtypes:predict"),
        ("POST", "/v1/models/dtypes:Predict", {}, 400, "Malformed request: POST /v1/models/dtypes:Predict"),
        ("DELETE", "/v1/models/dtypes", None, 400, "Malformed request: DELETE /v1/models/dtypes"),
        ("GET", "/v1/models/dtypes/versions/99999999999999999999", None, 400, "to numeric"),
    ],
)  # fmt: skip
def test_an_invalid_request_gets_tensorflow_servings_status_and_text(method, path, body, status, message, call):
    code, error = call(method, path, body)
    assert code == status and message in error["error"], error


def test_other_paths_are_not_found(call):
    assert call("GET", "/favicon.ico")[0] == 404


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
        st.sampled_from(
            [
                b"dtypes",
                b"examples",
                b"/versions/",
                b"/labels/",
                b"/metadata",
                b":predict",
                b"1",
                b"9" * 5000,
                b"%2F",
                b"%FF",
            ]
        )
        | st.sampled_from([b"%0A", b"?", b"http://x", b"*"])
        | st.binary(min_size=1, max_size=3).filter(
            lambda part: min(part) > 32 and 127 not in part and not set(b"?#") & set(part)
        ),
        max_size=5,
    ),
)
def test_no_path_causes_a_server_error(non_policy_server, method, parts):
    with socket.create_connection(("127.0.0.1", non_policy_server.rest_port), timeout=10) as connection:
        path = b"/v1/models/" + b"".join(parts)
        connection.sendall(
            b"%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}" % (method.encode(), path)
        )
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert response.status in (200, 400, 404), path


def test_metrics_are_served_at_the_monitoring_configs_path(call):
    call("POST", DTYPES, {"signature_name": "float32", "instances": [1]})
    call("POST", "/v1/models/made-up:predict", {"instances": [1]})
    status, text = call("GET", "/monitoring/prometheus/metrics")
    assert status == 200
    counts = {
        line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if not line.startswith("#")
    }
    assert counts[':tensorflow:serving:request_count{model_name="dtypes",status="OK"}'] >= 1
    assert counts[':tensorflow:serving:request_count{model_name="",status="NOT_FOUND"}'] >= 1
    latency = {'model_name="dtypes"', 'API="predict"', 'entrypoint="REST"'}
    run = {'model_name="dtypes"', 'API="Predict"', 'runtime="TF1"'}
    for name, labels in (("request_latency", latency), ("runtime_latency", run)):
        samples = {
            key: count for key, count in counts.items() if f":{name}_" in key and all(label in key for label in labels)
        }
        bounds = [key.partition('le="')[2].partition('"')[0] for key in samples if "_bucket" in key]
        assert (bounds[:6], len(bounds), bounds[-1]) == (
            ["10", "18", "32.4", "58.32", "104.976", "188.957"],
            34,
            "+Inf",
        )
        count, total = (
            next(value for key, value in samples.items() if f"_{part}{{" in key) for part in ("count", "sum")
        )
        assert total > 0 and count == max(value for key, value in samples.items() if "_bucket" in key) >= 1
    assert counts['serving_model_loads_total{model_name="dtypes",status="success"}'] == 1
    assert counts['serving_model_versions{state="AVAILABLE"}'] == 2
    assert any(key.startswith("serving_build_info{") and 'tensorflow="2.' in key for key in counts)
    assert counts["process_resident_memory_bytes"] > 1e6
    assert "made-up" not in text, "clients cannot add labels"


def test_only_requests_that_succeed_count_in_the_latency(non_policy_models):
    with running(
        ServerConfig(non_policy_models, allow_any_operation=True, port=0, poll_s=0, rest=RestConfig(0))
    ) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=10)
        for path in ("/v1/models/dtypes", "/v1/models/dtypes/versions/9"):
            connection.request("GET", path)
            connection.getresponse().read()
        connection.close()
        counters = ["/tensorflow/serving/request_count", ":tensorflow:serving:request_latency_count"]
        assert list(server.metrics.totals(counters).values()) == [2, 1]


def test_a_label_names_a_version_in_a_path(non_policy_models, tmp_path, monkeypatch):
    from serving.embedded.flags import parse

    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.config").write_text(
        f'model_config_list {{ config {{ name: "d" base_path: "{non_policy_models / "dtypes"}" model_platform: '
        '"tensorflow" '
        'version_labels { key: "stable" value: 1 } } }'
    )
    config = parse(
        ["--model_config_file=models.config", "--port=0", "--rest_api_port=1", "--rest_api_timeout_in_ms=5000"]
    )
    assert config.rest == RestConfig(1, 8, 5.0, None)
    with running(
        ServerConfig(models=config.models, port=0, poll_s=0, rest=RestConfig(0), allow_any_operation=True)
    ) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=10)
        body = json.dumps({"signature_name": "float32", "instances": [2.0]})
        connection.request("POST", "/v1/models/d/labels/stable:predict", body)
        assert connection.getresponse().read() == b'{"predictions": [2.0]}'
        connection.close()


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


@pytest.mark.parametrize("name", ["classify", "regress"])
def test_classify_and_regress_are_not_implemented(name, call):
    status, document = call("POST", f"/v1/models/examples:{name}", {"examples": [{"x": 1.5}]})
    text = f"{name.capitalize()} is not implemented by this server; host the model with TensorFlow Serving to use it"
    assert (status, document) == (501, {"error": text})


def test_json_has_the_layout_of_json_dumps(non_policy_server):
    requests = (
        ("POST", DTYPES, {"signature_name": "sum", "instances": [{"a": [0.1], "b": [2]}]}),
        ("POST", DTYPES, {"signature_name": "sum", "inputs": {"a": [[0.1]], "b": [[2]]}}),
        ("POST", DTYPES, {}),
        ("GET", "/v1/models/dtypes", None),
        ("GET", "/v1/models/dtypes/metadata", None),
    )
    for method, path, body in requests:
        connection = http.client.HTTPConnection("127.0.0.1", non_policy_server.rest_port, timeout=10)
        connection.request(method, path, None if body is None else json.dumps(body))
        text = connection.getresponse().read().decode()
        connection.close()
        assert text == json.dumps(json.loads(text))


def test_metadata_has_every_field(call, non_policy_server):
    status, document = call("GET", "/v1/models/dtypes/metadata")
    signatures = document["metadata"]["signature_def"]["signature_def"]
    assert status == 200
    assert all(
        signature.keys() == {"inputs", "outputs", "method_name", "defaults"} for signature in signatures.values()
    )
    assert signatures["bfloat16"]["inputs"]["x"]["dtype"] == "DT_BFLOAT16"
    assert signatures["sum"]["defaults"] == {}
    definitions = wire.SignatureDefMap()
    definitions.signature_def["s"].outputs["y"].dtype = 0
    response = wire.GetModelMetadataResponse()
    response.metadata["signature_def"].value = definitions.SerializeToString()
    document = json.loads(json_response.from_metadata(response))
    assert document["metadata"]["signature_def"]["signature_def"]["s"]["outputs"]["y"]["dtype"] == "DT_INVALID"


def test_slash_and_colon_of_names_and_labels_are_percent_encoded(non_policy_models):
    config = {"a/b:c": ModelConfig("a/b:c", non_policy_models / "dtypes", labels={"x/y": 1})}
    with running(
        ServerConfig(models=config, port=0, poll_s=0, rest=RestConfig(0, timeout_s=math.inf), allow_any_operation=True)
    ) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=10)
        body = json.dumps({"signature_name": "float32", "instances": [2.0]})
        for path in ("/v1/models/a%2Fb%3Ac:predict", "/v1/models/a%2fb%3ac/labels/x%2Fy:predict"):
            connection.request("POST", path, body)
            assert json.loads(connection.getresponse().read()) == {"predictions": [2.0]}
        connection.request("GET", "/v1/models/a/b:c")
        assert "Malformed request" in connection.getresponse().read().decode()
        connection.close()


def test_body_in_gzip(non_policy_server):
    body = gzip.compress(json.dumps({"signature_name": "float32", "instances": [2.0]}).encode())
    connection = http.client.HTTPConnection("127.0.0.1", non_policy_server.rest_port, timeout=10)
    connection.request("POST", DTYPES, body, {"Content-Encoding": "gzip"})
    assert json.loads(connection.getresponse().read()) == {"predictions": [2.0]}
    connection.request("POST", DTYPES, b"this is no gzip", {"Content-Encoding": "gzip"})
    assert connection.getresponse().status == 400
    connection.close()


@pytest.mark.parametrize(
    ("origin", "status"), [({"Origin": "https://example.org"}, 200), ({}, 400), ({"Origin": "x"}, 400)]
)
def test_options_is_answered_without_a_body(origin, status, non_policy_server):
    connection = http.client.HTTPConnection("127.0.0.1", non_policy_server.rest_port, timeout=10)
    connection.request("OPTIONS", DTYPES, headers=origin)
    response = connection.getresponse()
    assert (response.status, response.read()) == (status, b"")
    connection.close()


def test_body_beyond_the_bound_is_refused(non_policy_models):
    rest = RestConfig(0, max_body_bytes=1000)
    with running(ServerConfig(non_policy_models, allow_any_operation=True, port=0, poll_s=0, rest=rest)) as server:
        for body, encoding in ((b" " * 1001, {}), (gzip.compress(b" " * 100_000), {"Content-Encoding": "gzip"})):
            connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=10)
            connection.request("POST", DTYPES, body, encoding)
            response = connection.getresponse()
            assert response.status == 400
            assert "larger than 1000 bytes" in json.loads(response.read())["error"]
            connection.close()


def test_200_requests_at_once_beside_600_idle_connections(non_policy_server):
    address = ("127.0.0.1", non_policy_server.rest_port)
    body = json.dumps({"signature_name": "float32", "instances": [2.0]})
    with contextlib.ExitStack() as idle:
        for _ in range(400):
            idle.enter_context(socket.create_connection(address, timeout=30))
        for _ in range(200):
            connection = http.client.HTTPConnection(*address, timeout=30)
            idle.callback(connection.close)
            connection.request("GET", "/v1/models/dtypes")
            connection.getresponse().read()  # kept alive
        connections = [
            idle.enter_context(contextlib.closing(http.client.HTTPConnection(*address, timeout=60))) for _ in range(200)
        ]
        for connection in connections:
            connection.request("POST", DTYPES, body)
        assert [json.loads(each.getresponse().read()) for each in connections] == [{"predictions": [2.0]}] * 200
        connections[0].request("GET", "/monitoring/prometheus/metrics")
        assert connections[0].getresponse().status == 200


def test_request_beyond_the_timeout_is_answered_504(non_policy_models, monkeypatch):
    go = threading.Event()
    monkeypatch.setattr(rest_server.json_document, "parse", lambda *_: go.wait(30) and {})
    with running(
        ServerConfig(non_policy_models, allow_any_operation=True, port=0, poll_s=0, rest=RestConfig(0, timeout_s=0.05))
    ) as server:
        try:
            for sent in (b"{}", b"{"):  # computed for too long; a body that does not arrive
                with socket.create_connection(("127.0.0.1", server.rest_port), timeout=10) as connection:
                    connection.sendall(
                        b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n%s" % (DTYPES.encode(), sent)
                    )
                    response = http.client.HTTPResponse(connection)
                    response.begin()
                    error = json.loads(response.read())["error"]
                assert (response.status, error) == (504, "the request took longer than --rest_api_timeout_in_ms 50")
        finally:
            go.set()


def test_client_that_goes_in_the_middle_of_its_body_is_counted_and_not_logged(non_policy_models, caplog):
    with running(
        ServerConfig(non_policy_models, allow_any_operation=True, port=0, poll_s=0, rest=RestConfig(0))
    ) as server:
        with socket.create_connection(("127.0.0.1", server.rest_port), timeout=10) as connection:
            connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{" % DTYPES.encode())
        limit = time.monotonic() + 20
        while server.metrics.totals(["/tensorflow/serving/request_count"])["/tensorflow/serving/request_count"] == 0:
            assert time.monotonic() < limit
            time.sleep(0.01)
        assert 'request_count{model_name="dtypes",status="CANCELLED"} 1.0' in server.metrics.text().decode()
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
    with socket.create_connection(("127.0.0.1", non_policy_server.rest_port), timeout=10) as connection:
        connection.sendall(sent)
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert response.status == 400
    assert "Traceback" not in caplog.text + "".join(capfd.readouterr())


def test_whole_url_in_the_request_line_is_its_path(non_policy_server):
    with socket.create_connection(("127.0.0.1", non_policy_server.rest_port), timeout=10) as connection:
        connection.sendall(b"GET http://x/v1/models/dtypes HTTP/1.1\r\nHost: x\r\n\r\n")
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert response.status == 200


def test_large_list_is_written_block_by_block_as_one_piece():
    for shape in ((25_000,), (3, 9000), (9000, 3), (1, 25_000), (0,), (3, 0)):
        array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        for layout in (json_request.ROW, json_request.COLUMNAR):
            document = json.loads(json_response.from_tensors({"y": array}, {"y": 1}, layout))
            assert document == {"predictions" if layout == json_request.ROW else "outputs": array.tolist()}
    both = {"a": np.arange(25_000, dtype=np.int32), "b": np.ones((25_000, 2), np.float32)}
    document = json.loads(json_response.from_tensors(both, {"a": 3, "b": 1}, json_request.ROW))
    assert document["predictions"][24_999] == {"a": 24_999, "b": [1.0, 1.0]} and len(document["predictions"]) == 25_000
