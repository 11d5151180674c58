"""RPCs of the embedded server: deadlines, queue bounds, sizes, reflection, logs, malformed requests, UNIMPLEMENTED."""

import io
import logging
import shutil
import signal
from collections import Counter
from concurrent import futures
from types import SimpleNamespace
from unittest.mock import Mock

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pool, wrappers_pb2
from google.protobuf.message import EncodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow_serving.apis import classification_pb2, inference_pb2, model_pb2, regression_pb2

from city.logs import TextFormatter
from protos import predict_pb2 as wire
from serving.client import Client, messages
from serving.embedded.config import ServerConfig
from serving.embedded.flags import parse
from serving.embedded.rpc.grpc_method import GrpcMethod
from serving.embedded.rpc.predict import run_request
from serving.embedded.status import StatusError
from serving.embedded.telemetry import event, log
from serving.errors import BadRequest, DeadlineExceeded, ModelNotFound, Overloaded
from tests.end_to_end.programs import program
from tests.serving.conftest import connected, requests, running
from tests.serving.gates import Gate
from tests.serving.saved_models import write_garbage

SPEC = model_pb2.ModelSpec(name="SA103", version=wrappers_pb2.Int64Value(value=200))
PREDICT = "/tensorflow.serving.PredictionService/Predict"
X = np.zeros(17, np.float32)


def test_calls_beyond_max_queued_calls_are_refused_at_once(grid_models, monkeypatch):
    with running(ServerConfig(grid_models, port=0, poll_s=0, threads=1, max_queued_calls=2)) as server:
        predict = Gate(monkeypatch, server.manager, "find")
        with (
            Client(f"127.0.0.1:{server.port}", retries=0, max_in_flight=9) as client,
            futures.ThreadPoolExecutor(9) as pool,
        ):
            calls = [pool.submit(client.predict, "SA103", X, timeout_s=30) for _ in range(9)]
            refused = 0
            for call in futures.as_completed(calls, timeout=25):
                if call.exception() is None:
                    break
                assert isinstance(call.exception(), Overloaded)
                refused += 1
                if refused == 6:
                    predict.go.set()  # one call runs and two are queued
            assert refused == 6
            assert sum(call.exception() is None for call in calls) == 3


def test_a_burst_of_calls_beyond_the_queue_is_refused_and_not_cancelled(grid_models):
    count = 5000
    with (
        program("serving", "--models_dir", str(grid_models), "--port=0", "--max_queued_calls=10") as process,
        grpc.insecure_channel(process.stdout.readline().removeprefix("ready at ").strip()) as opened,
    ):
        predict = opened.unary_unary(PREDICT)
        request = messages.predict_request("SA103", None, X).SerializeToString()
        predict(request, timeout=20)
        # all calls arrive before the server reads the first
        process.send_signal(signal.SIGSTOP)
        try:
            calls = [predict.future(request, timeout=100) for _ in range(count)]
        finally:
            process.send_signal(signal.SIGCONT)
        codes = Counter(call.code() for call in calls)
    assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}, codes


def test_details_of_a_status_have_no_blank_at_their_ends(raw):
    for label in (" ", "a "):
        request = wire.PredictRequest(model_spec=wire.ModelSpec(name="SA103", version_label=label))
        _, details = code_of(raw["PredictionService/Predict"], request.SerializeToString())
        assert details.startswith("Unrecognized servable version label:") and details == details.strip()


def test_a_queued_call_whose_deadline_passed_is_not_run(grid_models, monkeypatch):
    with connected(ServerConfig(grid_models, port=0, poll_s=0, threads=1)) as (server, client):
        predict = Gate(monkeypatch, server.manager, "find")
        with futures.ThreadPoolExecutor(4) as pool:
            first = pool.submit(client.predict, "SA103", X, timeout_s=30)
            assert predict.began.wait(20)
            for call in [pool.submit(client.predict, "SA103", X, timeout_s=0.2) for _ in range(3)]:
                assert isinstance(call.exception(timeout=20), DeadlineExceeded)
            predict.go.set()
            assert first.result(timeout=20)
            client.predict("SA103", X, timeout_s=20)
            assert requests(server) == 2, "the calls whose deadline passed in the queue were not run"


def test_a_message_of_12_mb_is_accepted(non_policy_server):
    with Client(f"127.0.0.1:{non_policy_server.port}") as client:
        x = np.ones((1, 3_000_000), np.float32)
        assert client.run("dtypes", {"x": x}, "float32", timeout_s=20)["y"].shape == x.shape


def test_reflection_lists_tensorflow_servings_services_and_messages(non_policy_server):
    with grpc.insecure_channel(f"127.0.0.1:{non_policy_server.port}") as opened:
        database = ProtoReflectionDescriptorDatabase(opened)
        assert {
            "tensorflow.serving.PredictionService",
            "tensorflow.serving.ModelService",
            "grpc.health.v1.Health",
        } <= set(database.get_services())
        pool = descriptor_pool.DescriptorPool(database)
        predict = pool.FindServiceByName("tensorflow.serving.PredictionService").methods_by_name["Predict"]
        assert predict.input_type.full_name == "tensorflow.serving.PredictRequest"
        tensor = predict.input_type.fields_by_name["inputs"].message_type.fields_by_name["value"].message_type
        assert (
            tensor.full_name == "tensorflow.TensorProto"
            and "DT_BFLOAT16" in tensor.fields_by_name["dtype"].enum_type.values_by_name
        )


def test_health_can_be_disabled(grid_models):
    with (
        running(ServerConfig(grid_models, port=0, poll_s=0, health=False)) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.port}") as opened,
        pytest.raises(grpc.RpcError) as refused,
    ):
        health_pb2_grpc.HealthStub(opened).Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_loads_and_unloads_are_logged_and_failed_requests_are_not(grid_models, tmp_path, caplog):
    caplog.set_level(logging.INFO, "serving")
    folder = tmp_path / "m" / "SA103"
    shutil.copytree(grid_models / "SA103", folder)
    with connected(ServerConfig(tmp_path / "m", port=0, poll_s=3600)) as (server, client):
        client.status("SA103")
        client.signatures("SA103")
        assert requests(server) == 0, "only inference is counted"
        client.predict("SA103", X, timeout_s=20)
        assert requests(server) == 1
        with pytest.raises(ModelNotFound, match="unknown-model"):
            client.predict("unknown-model", X)
        assert "unknown-model" not in server.metrics.text().decode(), "clients cannot add labels"
        shutil.copytree(folder / "1", folder / "2")
        server.poll_once()
        write_garbage(folder / "3")
        server.poll_once()
        failed = {"model_name": "SA103", "status": "fail"}
        assert server.metrics.registry.get_sample_value("serving_model_loads_total", failed) == 1
    lines = [TextFormatter("server").format(record).partition(" INFO ")[2] for record in caplog.records]
    events = [line.split(" ms=")[0] for line in lines]
    assert events[0] == "loaded model=SA103 version=1" and "unloaded model=SA103 version=1" in events
    lines = [TextFormatter("server").format(record) for record in caplog.records]
    assert any(' ERROR load_failed model=SA103 version=3 tries=1 error="' in line for line in lines)
    assert not any("unknown-model" in line for line in lines)


@given(st.text())
def test_an_event_gives_one_line_for_any_value(text):
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(TextFormatter("server"))
    log.addHandler(handler)
    try:
        event("event", logging.ERROR, key=text)
    finally:
        log.removeHandler(handler)
    assert " ERROR event key=" in lines.getvalue() and len(lines.getvalue().splitlines()) == 1


shapes = st.lists(st.one_of(st.integers(-3, 40), st.sampled_from([2**31, 2**50, 2**63 - 1, -(2**63)])), max_size=4)


@st.composite
def malformed(draw):
    message = wire.PredictRequest()
    message.model_spec.name = draw(st.sampled_from(["SA103", "SA101", "unknown", "", "\x00", "é" * 50]))
    message.model_spec.signature_name = draw(st.sampled_from(["", "serving_default", "policy", "none"]))
    if draw(st.booleans()):
        message.model_spec.version.value = draw(st.integers(-(2**63), 2**63 - 1))
    for key in draw(st.lists(st.sampled_from(["observation", "rows", "other", ""]), max_size=3)):
        tensor = message.inputs[key]
        tensor.dtype = draw(st.integers(-2, 140))
        tensor.tensor_shape.unknown_rank = draw(st.booleans())
        for size in draw(shapes):
            tensor.tensor_shape.dim.add(size=size)
        tensor.tensor_content = draw(st.binary(max_size=80))
        tensor.float_val.extend(draw(st.lists(st.floats(width=32), max_size=3)))
        tensor.int_val.extend(draw(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3)))
        tensor.string_val.extend(draw(st.lists(st.binary(max_size=9), max_size=3)))
    message.output_filter.extend(draw(st.lists(st.sampled_from(["action", "", "x"]), max_size=3)))
    return message.SerializeToString()


@pytest.fixture(scope="module")
def raw(grid_server):
    with grpc.insecure_channel(grid_server) as opened:
        yield {
            name: opened.unary_unary(f"/tensorflow.serving.{name}")
            for name in (
                "PredictionService/Predict", "PredictionService/Classify", "PredictionService/Regress",
                "PredictionService/MultiInference", "PredictionService/GetModelMetadata", "ModelService/GetModelStatus",
                "ModelService/HandleReloadConfigRequest",
            )
        }  # fmt: skip


ALLOWED = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "UNIMPLEMENTED"}


def code_of(call, data):
    try:
        call(data, timeout=20)
    except grpc.RpcError as error:
        return error.code().name, error.details()
    return "OK", ""


@given(malformed())
@settings(max_examples=400, deadline=None)
def test_a_malformed_request_is_answered_with_a_client_error(raw, request_bytes):
    code, details = code_of(raw["PredictionService/Predict"], request_bytes)
    assert code in ALLOWED, (code, details)


@given(st.sampled_from(["Predict", "GetModelMetadata"]), st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_random_bytes_are_answered_with_a_client_error(raw, name, data):
    code, details = code_of(raw[f"PredictionService/{name}"], data)
    assert code in ALLOWED or (code == "INTERNAL" and "cannot be parsed" in details), (code, details)


@given(st.binary(max_size=60))
@settings(max_examples=100, deadline=None)
def test_random_bytes_never_reload_the_configuration(raw, grid_server, data):
    for name in ("GetModelStatus", "HandleReloadConfigRequest"):
        code, details = code_of(raw[f"ModelService/{name}"], data)
        assert code != "OK", (name, data)
        assert code in ALLOWED or (code == "INTERNAL" and "cannot be parsed" in details), (code, details)


def test_long_details_are_truncated_as_in_tensorflow_serving(raw):
    request = wire.PredictRequest(model_spec=wire.ModelSpec(name="SA103"))
    request.inputs["x" * 20_000].dtype = 1
    code, details = code_of(raw["PredictionService/Predict"], request.SerializeToString())
    assert code == "INVALID_ARGUMENT" and details.endswith("x...TRUNCATED") and len(details) == 1024 + 12


@pytest.mark.parametrize(
    ("name", "request_message"),
    [
        ("Classify", classification_pb2.ClassificationRequest(model_spec=SPEC)),
        ("Regress", regression_pb2.RegressionRequest(model_spec=SPEC)),
        ("MultiInference", inference_pb2.MultiInferenceRequest(tasks=[inference_pb2.InferenceTask(model_spec=SPEC)])),
    ],
)
def test_rpcs_for_tf_examples_are_unimplemented(name, request_message, raw):
    code, details = code_of(raw[f"PredictionService/{name}"], request_message.SerializeToString())
    assert code == "UNIMPLEMENTED"
    assert details == f"{name} is not implemented by this server; host the model with TensorFlow Serving to use it"


def test_outputs_over_2_gib_are_refused_before_they_are_converted():
    huge = np.broadcast_to(np.float32(1), (1 << 20, 1 << 10))
    signature = SimpleNamespace(inputs={}, outputs={"action": 1}, defaults={})
    definitions = SimpleNamespace(signature_def={"serving_default": wire.SignatureDef()})
    servable = SimpleNamespace(
        signatures={"serving_default": signature}, definitions=definitions, run=lambda *_: [huge]
    )
    with pytest.raises(
        StatusError, match="the outputs take 4294967296 bytes, more than the 2 GiB of a message"
    ) as refused:
        run_request(servable, wire.PredictRequest())
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT


def status_of(function, time_left_s=None):
    """(code, details) with which a method aborts."""
    context = Mock(time_remaining=Mock(return_value=time_left_s))
    GrpcMethod("Predict", function, wire.PredictRequest, None, lambda model: False)(b"", context)
    return context.abort.call_args.args


def test_a_method_does_not_run_after_the_deadline():
    function = Mock()
    assert status_of(function, 0.0)[0] is grpc.StatusCode.DEADLINE_EXCEEDED and not function.called


def unencodable(error):
    return lambda request: Mock(SerializeToString=Mock(side_effect=error))


@pytest.mark.parametrize(
    ("function", "code", "part", "is_logged"),
    [
        (
            unencodable(EncodeError("Failed to serialize proto")),
            "INVALID_ARGUMENT",
            "than the 2 GiB of a message",
            False,
        ),
        (unencodable(SystemError("Negative size")), "INVALID_ARGUMENT", "more than the 2 GiB of a message", False),
        (Mock(side_effect=SystemError("no exception set")), "INTERNAL", "SystemError: no exception set", True),
    ],
)
def test_response_that_cannot_be_encoded_is_one_line_and_a_bug_has_a_traceback(function, code, part, is_logged, caplog):
    caplog.set_level(logging.WARNING)  # whatever earlier tests have left
    found, details = status_of(function)
    assert found.name == code and part in details and bool(caplog.records) == is_logged


def test_server_receives_at_most_what_a_message_may_have():
    assert parse(["--models_dir=.", "--grpc_max_message_mb=2048"]).max_message_bytes == (1 << 31) - 1
    assert parse(["--models_dir=."]).max_message_bytes == 64 << 20


def test_request_beyond_the_servers_limit_is_a_wrong_request(grid_models):
    with connected(ServerConfig(grid_models, port=0, poll_s=3600, max_message_bytes=1 << 20)) as (_, client):
        with pytest.raises(BadRequest, match="larger than max"):
            client.run("SA103", {"observation": np.zeros((20_000, 17), np.float32)})
        assert client.run("SA103", {"observation": np.zeros((1_000, 17), np.float32)})
