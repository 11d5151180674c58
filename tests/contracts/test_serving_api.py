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
    "Inputs expected to be in the request {observations}, or default input alias set:"
)


@pytest.fixture(scope="module", params=["grid_server", "grid_unix"], ids=["TCP", "Unix socket"])
def channel(request):
    address = request.config.getoption("--server")
    if address and request.param == "grid_unix":
        pytest.skip("SERVER names one address; pass SERVER=unix:PATH in another run")
    address = address or request.getfixturevalue(request.param)
    with grpc.insecure_channel(address) as channel:
        yield channel


@pytest.fixture(scope="module")
def rest(request):
    """A function of (method, path, body) -> (status, JSON)."""
    address = request.config.getoption("--rest") or (
        None if request.config.getoption("--server") else request.getfixturevalue("grid_rest")
    )
    if address is None:
        pytest.skip("pass REST=HOST:PORT to test the REST API")

    def call(method, path, body=None):
        connection = http.client.HTTPConnection(address, timeout=10)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    return call


@pytest.fixture(scope="module")
def prediction(channel):
    return prediction_service_pb2_grpc.PredictionServiceStub(channel)


@pytest.fixture(scope="module")
def models(channel):
    return model_service_pb2_grpc.ModelServiceStub(channel)


def request(model=MODEL, rows=1, size=INPUTS, dtype=np.float32, key="observation", outputs=(), **spec):
    message = predict_pb2.PredictRequest(output_filter=outputs)
    message.model_spec.name = model
    for name, value in spec.items():
        if name == "version":
            message.model_spec.version.CopyFrom(wrappers_pb2.Int64Value(value=value))
        else:
            setattr(message.model_spec, name, value)
    message.inputs[key].CopyFrom(tf.make_tensor_proto(np.zeros((rows, size), dtype)))
    return message


def refused(call, *args):
    """(status code's name, details) of a call that fails."""
    with pytest.raises(grpc.RpcError) as caught:
        call(*args, timeout=10)
    return caught.value.code().name, caught.value.details()


def test_predict_returns_the_version_and_typed_values(prediction):
    response = prediction.Predict(request(), timeout=10)
    assert response.model_spec.name == MODEL and response.model_spec.version.value == 1
    assert response.model_spec.signature_name == "serving_default"
    assert list(response.outputs) == ["action"] and len(response.outputs["action"].float_val) == 1
    assert tf.make_ndarray(response.outputs["action"]).shape == (1, 1)


def test_a_batch_has_one_action_per_row(prediction):
    assert tf.make_ndarray(prediction.Predict(request(rows=5), timeout=10).outputs["action"]).shape == (5, 1)


def test_a_categorical_policy_returns_an_index_and_probabilities_unless_they_are_filtered(prediction):
    response = prediction.Predict(request("SA101", size=21), timeout=10)
    assert response.outputs["action"].dtype == tf.int64.as_datatype_enum
    assert tf.make_ndarray(response.outputs["probabilities"]).sum() == pytest.approx(1.0)
    filtered = prediction.Predict(request("SA101", size=21, outputs=["action"]), timeout=10)
    assert list(filtered.outputs) == ["action"]


def test_a_pinned_version_is_served(prediction):
    assert prediction.Predict(request(version=1), timeout=10).model_spec.version.value == 1


def test_the_policy_signature_returns_the_contract_in_every_row(prediction):
    message = predict_pb2.PredictRequest()
    message.model_spec.name, message.model_spec.signature_name = MODEL, "policy"
    message.inputs["rows"].CopyFrom(tf.make_tensor_proto(np.arange(3, dtype=np.int32)))
    contracts = tf.make_ndarray(prediction.Predict(message, timeout=10).outputs["policy"])
    assert len(contracts) == 3 and len(set(contracts)) == 1 and b"SA103" in contracts[0]


@pytest.mark.parametrize(
    ("request_message", "code", "text"),
    [
        (predict_pb2.PredictRequest(), "INVALID_ARGUMENT", "Missing ModelSpec"),
        (request(""), "INVALID_ARGUMENT", "ModelSpec has no name specified."),
        (request("unknown"), "NOT_FOUND", "Servable not found for request: Latest(unknown)"),
        (request(version=42), "NOT_FOUND", "Servable not found for request: Specific(SA103, 42)"),
        (request(version_label="gold"), "INVALID_ARGUMENT", "label: gold"),
        (request(signature_name="other"), "FAILED_PRECONDITION", 'Serving signature key "other" not found.'),
        (request(key="observations"), "INVALID_ARGUMENT", WRONG_KEY),
        (request(dtype=np.int64), "INVALID_ARGUMENT", "Expects arg[0] to be float but int64 is provided"),
        (request(size=INPUTS + 1), "INVALID_ARGUMENT", "Matrix size-incompatible"),
        (
            request(outputs=["other"]),
            "INVALID_ARGUMENT",
            "output tensor alias not found in signature: other Outputs exp",
        ),
        (request(outputs=["action", "action"]), "INVALID_ARGUMENT", "duplicate output tensor alias: action"),
    ],
)
def test_an_invalid_request_gets_tensorflow_servings_status_and_text(prediction, request_message, code, text):
    status, details = refused(prediction.Predict, request_message)
    assert status == code and text in details


def test_an_extra_input_is_named(prediction):
    message = request()
    message.inputs["more"].CopyFrom(tf.make_tensor_proto([1.0]))
    code, details = refused(prediction.Predict, message)
    assert code == "INVALID_ARGUMENT"
    assert "input size does not match signature: 2!=1" in details and "Sent extra: {more}" in details


def test_a_malformed_tensor_is_refused(prediction):
    message = request()
    message.inputs["observation"].tensor_shape.dim[0].size = -5
    assert refused(prediction.Predict, message)[0] == "INVALID_ARGUMENT"
    message.inputs["observation"].tensor_shape.dim[0].size = 2**50
    assert refused(prediction.Predict, message)[0] == "INVALID_ARGUMENT"
    assert prediction.Predict(request(), timeout=10)


def test_bytes_that_cannot_be_parsed_get_a_status(channel, prediction):
    raw = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
    assert refused(raw, b"\xff\xff\xff\xff")[0] in ("INTERNAL", "INVALID_ARGUMENT", "UNKNOWN")
    assert prediction.Predict(request(), timeout=10)


def test_metadata_has_the_signatures(prediction):
    message = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    message.model_spec.name = MODEL
    response = prediction.GetModelMetadata(message, timeout=10)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    assert {"serving_default", "policy"} <= set(signatures.signature_def)
    default = signatures.signature_def["serving_default"]
    assert default.method_name == "tensorflow/serving/predict"
    assert [dim.size for dim in default.inputs["observation"].tensor_shape.dim] == [-1, INPUTS]
    assert response.model_spec.version.value == 1


def test_metadata_requests_are_checked(prediction):
    message = get_model_metadata_pb2.GetModelMetadataRequest()
    assert refused(prediction.GetModelMetadata, message) == ("INVALID_ARGUMENT", "Missing ModelSpec")
    message.model_spec.name = MODEL
    assert "at least one metadata_field" in refused(prediction.GetModelMetadata, message)[1]
    message.metadata_field.append("other")
    assert "other is not supported" in refused(prediction.GetModelMetadata, message)[1]


def test_status_lists_versions_and_unknown_versions_are_not_found(models):
    message = get_model_status_pb2.GetModelStatusRequest()
    assert refused(models.GetModelStatus, message) == ("INVALID_ARGUMENT", "Missing ModelSpec")
    message.model_spec.name = MODEL
    (status,) = models.GetModelStatus(message, timeout=10).model_version_status
    assert status.version == 1 and status.state == get_model_status_pb2.ModelVersionStatus.AVAILABLE
    message.model_spec.version.value = 9
    assert refused(models.GetModelStatus, message) == ("NOT_FOUND", "Could not find version 9 of model SA103")
    message.model_spec.name = "unknown"
    message.model_spec.ClearField("version")
    assert refused(models.GetModelStatus, message) == ("NOT_FOUND", "Could not find any versions of model unknown")


@pytest.mark.parametrize("service", ["", "PredictionService", "ModelService"])
def test_health_is_serving(channel, service):
    health = health_pb2_grpc.HealthStub(channel)
    try:
        response = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNIMPLEMENTED:
            pytest.skip("the server has no gRPC health (tensorflow_model_server: --enable_grpc_healthcheck_service)")
        raise
    assert response.status == health_pb2.HealthCheckResponse.SERVING


def test_rest_rows_and_columns_agree_with_grpc(rest, prediction):
    row = np.linspace(0, 1, INPUTS, dtype=np.float32)
    message = request()
    message.inputs["observation"].CopyFrom(tf.make_tensor_proto(row[None]))
    expected = tf.make_ndarray(prediction.Predict(message, timeout=10).outputs["action"]).tolist()
    status, document = rest("POST", f"/v1/models/{MODEL}:predict", {"instances": [row.tolist()]})
    assert status == 200 and np.allclose(document["predictions"], expected)
    status, document = rest(
        "POST", f"/v1/models/{MODEL}/versions/1:predict", {"inputs": {"observation": [row.tolist()]}}
    )
    assert status == 200 and np.allclose(document["outputs"], expected)
    status, document = rest("POST", "/v1/models/SA101:predict", {"instances": [{"observation": [0.0] * 21}]})
    assert status == 200 and set(document["predictions"][0]) == {"action", "probabilities"}


def test_rest_returns_status_and_metadata(rest):
    status, document = rest("GET", f"/v1/models/{MODEL}")
    (version,) = document["model_version_status"]
    assert status == 200
    assert version == {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    status, document = rest("GET", f"/v1/models/{MODEL}/metadata")
    assert status == 200 and document["model_spec"]["name"] == MODEL and document["model_spec"]["version"] == "1"
    signature = document["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["defaults"] == {}
    info = signature["inputs"]["observation"]
    assert info["dtype"] == "DT_FLOAT" and [dim["size"] for dim in info["tensor_shape"]["dim"]] == ["-1", str(INPUTS)]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/models/unknown:predict", {"instances": [1]}, 404),
        ("POST", f"/v1/models/{MODEL}:predict", {"instances": []}, 400),
        ("POST", f"/v1/models/{MODEL}:predict", {"x": 1}, 400),
        ("POST", f"/v1/models/{MODEL}:predict", {"instances": [["a"]]}, 400),
        ("GET", "/v1/models/unknown", None, 404),
        ("GET", "/v1/nonsense", None, 400),
    ],
)
def test_rest_errors_have_a_status_and_a_text(method, path, body, status, rest):
    code, document = rest(method, path, body)
    assert code == status and document["error"]
