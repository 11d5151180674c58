"""Messages beyond protobuf's limit of 2 GiB, without their memory."""

import logging
from types import SimpleNamespace
from unittest.mock import Mock

import grpc
import numpy as np
import pytest
from google.protobuf.message import EncodeError

from protos import predict_pb2 as wire
from serving.client import channel
from serving.embedded.config import ServerConfig
from serving.embedded.flags import parse
from serving.embedded.rpc.grpc_method import GrpcMethod
from serving.embedded.rpc.predict import run_request
from serving.embedded.status import StatusError
from serving.errors import BadRequest
from tests.serving.conftest import connected


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


def status_of(function):
    """(code, details) with which a method aborts."""
    aborted = []
    context = SimpleNamespace(time_remaining=lambda: None, abort=lambda *status: aborted.append(status))
    GrpcMethod("Predict", function, wire.PredictRequest, None, lambda model: False)(b"", context)
    (status,) = aborted
    return status


@pytest.mark.parametrize("error", [EncodeError("Failed to serialize proto"), SystemError("Negative size")])
def test_response_that_cannot_be_encoded_is_one_line(error, caplog):
    caplog.set_level(logging.WARNING)  # whatever earlier tests have left
    code, details = status_of(lambda request: Mock(SerializeToString=Mock(side_effect=error)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT and "more than the 2 GiB of a message" in details
    assert not caplog.records


def test_system_error_of_an_rpc_is_not_reported_as_a_large_response(caplog):
    code, details = status_of(Mock(side_effect=SystemError("error return without exception set")))
    assert (code, details) == (grpc.StatusCode.INTERNAL, "SystemError: error return without exception set")
    assert caplog.records


def test_neither_side_receives_more_than_a_message_may_have():
    assert dict(channel._OPTIONS)["grpc.max_receive_message_length"] == (1 << 31) - 1
    assert parse(["--models_dir=.", "--grpc_max_message_mb=2048"]).max_message_bytes == (1 << 31) - 1
    assert parse(["--models_dir=."]).max_message_bytes == 64 << 20


def test_request_beyond_the_servers_limit_is_a_wrong_request(grid_models):
    with connected(ServerConfig(grid_models, port=0, poll_s=3600, max_message_bytes=1 << 20)) as (_, client):
        with pytest.raises(BadRequest, match="larger than max"):
            client.run("SA103", {"observation": np.zeros((20_000, 17), np.float32)})
        assert client.run("SA103", {"observation": np.zeros((1_000, 17), np.float32)})
