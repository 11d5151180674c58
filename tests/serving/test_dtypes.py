"""Every dtype of a SavedModel's signature, over a real channel."""

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from serving.tensors import to_array
from tests.serving.saved_models import DTYPES, UNSUPPORTED_DTYPES

VALUES = [[0, 1, 1], [1, 0, 1]]


@pytest.fixture(scope="module")
def stub(non_policy_server):
    with grpc.insecure_channel(f"127.0.0.1:{non_policy_server.port}") as channel:
        yield prediction_service_pb2_grpc.PredictionServiceStub(channel)


def request(signature, **tensors):
    message = predict_pb2.PredictRequest()
    message.model_spec.name, message.model_spec.signature_name = "dtypes", signature
    for key, tensor in tensors.items():
        message.inputs[key].CopyFrom(tensor)
    return message


def tensor_of(dtype):
    if dtype == tf.string:
        return tf.make_tensor_proto([[b"", b"\xff\x00", b"x" * 100]])
    return tf.make_tensor_proto(np.array(VALUES).astype(dtype.as_numpy_dtype), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_a_tensor_comes_back_as_typed_values(dtype, stub):
    sent = tensor_of(dtype)
    response = stub.Predict(request(dtype.name, x=sent), timeout=10).outputs["y"]
    assert response.dtype == dtype.as_datatype_enum and not response.tensor_content
    assert np.array_equal(tf.make_ndarray(response), tf.make_ndarray(sent))
    # typed values are accepted like tensor_content
    again = stub.Predict(request(dtype.name, x=response), timeout=10).outputs["y"]
    assert again.SerializeToString(deterministic=True) == response.SerializeToString(deterministic=True)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1, 1, 1)])
def test_scalars_and_empty_tensors_keep_their_shape(shape, stub):
    sent = tf.make_tensor_proto(np.ones(shape, np.float32))
    assert tf.make_ndarray(stub.Predict(request("float32", x=sent), timeout=10).outputs["y"]).shape == shape


def test_the_client_reads_bfloat16_as_float32_of_the_same_value(stub):
    numbers = np.float32([1.5, -2.0, 3.25e10]).astype(tf.bfloat16.as_numpy_dtype)
    response = stub.Predict(request("bfloat16", x=tf.make_tensor_proto(numbers, tf.bfloat16)), timeout=10).outputs["y"]
    assert np.array_equal(to_array(response), numbers.astype(np.float32))


@pytest.mark.parametrize("dtype", UNSUPPORTED_DTYPES, ids=lambda dtype: dtype.name)
def test_a_tensor_of_a_quantized_or_smaller_dtype_is_refused(dtype, stub):
    with pytest.raises(grpc.RpcError) as refused:
        stub.Predict(request(dtype.name, x=tensor_of(dtype)), timeout=10)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT and "is not supported" in refused.value.details()


def test_an_error_of_tensorflow_keeps_its_status_and_text(stub):
    a, b = tf.make_tensor_proto(np.zeros((1, 2), np.float32)), tf.make_tensor_proto(np.zeros((1, 3), np.float32))
    with pytest.raises(grpc.RpcError) as refused:
        stub.Predict(request("sum", a=a, b=b), timeout=10)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT and "Incompatible shapes" in refused.value.details()
