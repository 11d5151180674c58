"""TensorFlow Serving's gRPC API as its clients see it, through tensorflow-serving-api.

Runs against the embedded server on the sample city's models, or against any
server that serves them: `make contract-tests SERVER=127.0.0.1:8500` (and
REST=127.0.0.1:8501 for its REST API). TensorFlow Serving serves them with

    python -m export --city examples/grid/city.toml --tl all --models-dir /tmp/models
    python -m serving.tf_serving ...        (docs/operations.md)
"""

import http.client
import json

import grpc
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import wrappers_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

MODEL, INPUTS = "SA103", 17
WRONG_KEY = (
    "Signature input alias: observation(feed name: observation:0) not found in request and no default value provided. "
    "Inputs expected to be in the request {observations}, or default input alias set: "
)


@pytest.fixture(scope="module", params=["grid_server", "grid_unix"], ids=["TCP", "Unix socket"])
def channel(request):
    address = request.config.getoption("--server")
    if address and request.param == "grid_unix":
        pytest.skip("one address is told: SERVER=unix:PATH is another run")
    address = address or request.getfixturevalue(request.param)
    with grpc.insecure_channel(address) as channel:
        yield channel


@pytest.fixture(scope="module")
def ask_rest(request):
    """A function of (method, path, body) -> (status, JSON)."""
    address = request.config.getoption("--rest") or (
        None if request.config.getoption("--server") else request.getfixturevalue("grid_rest")
    )
    if address is None:
        pytest.skip("REST=HOST:PORT is not told")

    def ask(method, path, body=None):
        connection = http.client.HTTPConnection(address, timeout=10)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    return ask


@pytest.fixture(scope="module")
def prediction(channel):
    return prediction_service_pb2_grpc.PredictionServiceStub(channel)


@pytest.fixture(scope="module")
def models(channel):
    return model_service_pb2_grpc.ModelServiceStub(channel)


def request(model=MODEL, rows=1, size=INPUTS, dtype=np.float32, key="observation", **spec):
    made = predict_pb2.PredictRequest()
    made.model_spec.name = model
    for name, value in spec.items():
        if name == "version":
            made.model_spec.version.CopyFrom(wrappers_pb2.Int64Value(value=value))
        else:
            setattr(made.model_spec, name, value)
    made.inputs[key].CopyFrom(tf.make_tensor_proto(np.zeros((rows, size), dtype)))
    return made


def refused(call, *args):
    with pytest.raises(grpc.RpcError) as caught:
        call(*args, timeout=10)
    return caught.value.code().name, caught.value.details()


def test_predict_answers_with_the_version_and_typed_values(prediction):
    answer = prediction.Predict(request(), timeout=10)
    assert answer.model_spec.name == MODEL and answer.model_spec.version.value == 1
    assert answer.model_spec.signature_name == "serving_default"
    assert list(answer.outputs) == ["action"] and len(answer.outputs["action"].float_val) == 1
    assert tf.make_ndarray(answer.outputs["action"]).shape == (1, 1)


def test_batches_have_a_row_for_each_row(prediction):
    answer = prediction.Predict(request(rows=5), timeout=10)
    assert tf.make_ndarray(answer.outputs["action"]).shape == (5, 1)


def test_a_categorical_policy_gives_an_index_and_probabilities(prediction):
    answer = prediction.Predict(request("SA101", size=21), timeout=10)
    assert answer.outputs["action"].dtype == tf.int64.as_datatype_enum
    assert tf.make_ndarray(answer.outputs["probabilities"]).sum() == pytest.approx(1.0)


def test_output_filter_chooses_outputs(prediction):
    made = request("SA101", size=21)
    made.output_filter.append("action")
    assert list(prediction.Predict(made, timeout=10).outputs) == ["action"]


def test_a_pinned_version_is_served(prediction):
    assert prediction.Predict(request(version=1), timeout=10).model_spec.version.value == 1


def test_the_policy_signature_tells_the_contract_in_every_row(prediction):
    made = predict_pb2.PredictRequest()
    made.model_spec.name, made.model_spec.signature_name = MODEL, "policy"
    made.inputs["rows"].CopyFrom(tf.make_tensor_proto(np.arange(3, dtype=np.int32)))
    told = tf.make_ndarray(prediction.Predict(made, timeout=10).outputs["policy"])
    assert len(told) == 3 and len(set(told)) == 1 and b"SA103" in told[0]


@pytest.mark.parametrize(
    ("made", "code", "words"),
    [
        (predict_pb2.PredictRequest(), "INVALID_ARGUMENT", "Missing ModelSpec"),
        (request("nobody"), "NOT_FOUND", "Servable not found for request: Latest(nobody)"),
        (request(version=42), "NOT_FOUND", "Servable not found for request: Specific(SA103, 42)"),
        (request(version_label="gold"), "INVALID_ARGUMENT", "label: gold"),
        (request(signature_name="other"), "FAILED_PRECONDITION", 'Serving signature key "other" not found.'),
        (request(key="observations"), "INVALID_ARGUMENT", WRONG_KEY),
        (request(dtype=np.int64), "INVALID_ARGUMENT", "Expects arg[0] to be float but int64 is provided"),
        (request(size=INPUTS + 1), "INVALID_ARGUMENT", "Matrix size-incompatible"),
    ],
)
def test_wrong_requests_get_tensorflow_servings_status_and_words(prediction, made, code, words):
    found, details = refused(prediction.Predict, made)
    assert found == code and words in details


def test_wrong_counts_of_inputs_are_told_apart(prediction):
    made = request()
    made.inputs["more"].CopyFrom(tf.make_tensor_proto([1.0]))
    code, details = refused(prediction.Predict, made)
    assert code == "INVALID_ARGUMENT"
    assert "input size does not match signature: 2!=1" in details and "Sent extra: {more}" in details


def test_an_unknown_or_repeated_output_is_refused(prediction):
    made = request()
    made.output_filter.append("other")
    assert "output tensor alias not found in signature: other" in refused(prediction.Predict, made)[1]
    made = request()
    made.output_filter.extend(["action", "action"])
    assert "duplicate output tensor alias: action" in refused(prediction.Predict, made)[1]


def test_malformed_tensors_are_refused_not_crashed(prediction):
    made = request()
    made.inputs["observation"].tensor_shape.dim[0].size = -5
    assert refused(prediction.Predict, made)[0] == "INVALID_ARGUMENT"
    made.inputs["observation"].tensor_shape.dim[0].size = 2**50
    assert refused(prediction.Predict, made)[0] == "INVALID_ARGUMENT"
    assert prediction.Predict(request(), timeout=10)


def test_garbage_bytes_get_a_status(channel, prediction):
    raw = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
    assert refused(raw, b"\xff\xff\xff\xff")[0] in ("INTERNAL", "INVALID_ARGUMENT", "UNKNOWN")
    assert prediction.Predict(request(), timeout=10)


def test_metadata_has_the_signatures(prediction):
    made = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    made.model_spec.name = MODEL
    answer = prediction.GetModelMetadata(made, timeout=10)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert answer.metadata["signature_def"].Unpack(signatures)
    assert {"serving_default", "policy"} <= set(signatures.signature_def)
    default = signatures.signature_def["serving_default"]
    assert default.method_name == "tensorflow/serving/predict"
    assert [dim.size for dim in default.inputs["observation"].tensor_shape.dim] == [-1, INPUTS]
    assert answer.model_spec.version.value == 1


def test_metadata_requests_are_checked(prediction):
    made = get_model_metadata_pb2.GetModelMetadataRequest()
    assert refused(prediction.GetModelMetadata, made) == ("INVALID_ARGUMENT", "Missing ModelSpec")
    made.model_spec.name = MODEL
    assert "at least one metadata_field" in refused(prediction.GetModelMetadata, made)[1]
    made.metadata_field.append("other")
    assert "other is not supported" in refused(prediction.GetModelMetadata, made)[1]


def test_status_lists_versions_and_unknown_ones_are_not_found(models):
    made = get_model_status_pb2.GetModelStatusRequest()
    assert refused(models.GetModelStatus, made) == ("INVALID_ARGUMENT", "Missing ModelSpec")
    made.model_spec.name = MODEL
    (status,) = models.GetModelStatus(made, timeout=10).model_version_status
    assert status.version == 1 and status.state == get_model_status_pb2.ModelVersionStatus.AVAILABLE
    made.model_spec.version.value = 9
    assert refused(models.GetModelStatus, made) == ("NOT_FOUND", "Could not find version 9 of model SA103")
    made.model_spec.name = "nobody"
    made.model_spec.ClearField("version")
    assert refused(models.GetModelStatus, made) == ("NOT_FOUND", "Could not find any versions of model nobody")


def test_health_is_serving(channel):
    health = health_pb2_grpc.HealthStub(channel)
    try:
        answer = health.Check(health_pb2.HealthCheckRequest(), timeout=10)
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNIMPLEMENTED:
            pytest.skip("the server has no gRPC health (tensorflow_model_server: --enable_grpc_healthcheck_service)")
        raise
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_rest_answers_rows_and_columns_as_grpc_does(ask_rest, prediction):
    row = np.linspace(0, 1, INPUTS, dtype=np.float32)
    made = request()
    made.inputs["observation"].CopyFrom(tf.make_tensor_proto(row[None]))
    expected = tf.make_ndarray(prediction.Predict(made, timeout=10).outputs["action"]).tolist()
    status, found = ask_rest("POST", f"/v1/models/{MODEL}:predict", {"instances": [row.tolist()]})
    assert status == 200 and np.allclose(found["predictions"], expected)
    status, found = ask_rest("POST", f"/v1/models/{MODEL}/versions/1:predict", {"inputs": {"observation": [row.tolist()]}})
    assert status == 200 and np.allclose(found["outputs"], expected)
    status, found = ask_rest("POST", "/v1/models/SA101:predict", {"instances": [{"observation": [0.0] * 21}]})
    assert status == 200 and set(found["predictions"][0]) == {"action", "probabilities"}


def test_rest_tells_status_and_metadata(ask_rest):
    status, found = ask_rest("GET", f"/v1/models/{MODEL}")
    (version,) = found["model_version_status"]
    assert status == 200
    assert version == {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    status, found = ask_rest("GET", f"/v1/models/{MODEL}/metadata")
    assert status == 200 and found["model_spec"]["name"] == MODEL and found["model_spec"]["version"] == "1"
    info = found["metadata"]["signature_def"]["signature_def"]["serving_default"]["inputs"]["observation"]
    assert info["dtype"] == "DT_FLOAT" and [dim["size"] for dim in info["tensor_shape"]["dim"]] == ["-1", str(INPUTS)]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", "/v1/models/nobody:predict", {"instances": [1]}, 404, "Servable not found for request: Latest(nobody)"),
        ("POST", f"/v1/models/{MODEL}:predict", {"instances": []}, 400, "No values in 'instances' array"),
        ("POST", f"/v1/models/{MODEL}:predict", {"x": 1}, 400, "Missing 'inputs' or 'instances' key"),
        ("POST", f"/v1/models/{MODEL}:predict", {"instances": [["a"]]}, 400, "is not of expected type: float"),
        ("GET", "/v1/models/nobody", None, 404, "Could not find any versions of model nobody"),
        ("GET", "/v1/nonsense", None, 400, "Malformed request: GET /v1/nonsense"),
    ],
)
def test_rest_errors_are_tensorflow_servings(method, path, body, status, words, ask_rest):
    found, error = ask_rest(method, path, body)
    assert found == status and words in error["error"]
