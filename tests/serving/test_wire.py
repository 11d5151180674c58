"""Our wire subset and tensorflow-serving-api: the same bytes both ways, in one process."""

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.descriptor import FieldDescriptor
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_pb2,
    predict_pb2,
    prediction_log_pb2,
    regression_pb2,
)
from tensorflow_serving.config import model_server_config_pb2

from protos import model_server_config_pb2 as config_pb
from protos import predict_pb2 as wire
from protos import prediction_log_pb2 as prediction_log_pb
from protos import tensorflow_pb2 as tensorflow_pb
from serving.client.messages import prefix_of
from serving.tensors import to_proto

X = np.arange(6, dtype=np.float32)


def their_request(version=None):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "SA101"
    request.model_spec.signature_name = "serving_default"
    if version is not None:
        request.model_spec.version.value = version
    request.inputs["observation"].CopyFrom(tf.make_tensor_proto(X[None]))
    return request


@pytest.mark.parametrize("version", [None, 3, 2**40])
def test_an_appended_request_is_the_one_that_tensorflow_would_read(version):
    raw = prefix_of("SA101", version, X.nbytes) + X.tobytes()
    assert predict_pb2.PredictRequest.FromString(raw) == their_request(version)


def test_large_observations_have_the_right_lengths():
    for size in (1, 31, 32, 127, 128, 4000, 70_000):
        x = np.arange(size, dtype=np.float32)
        request = predict_pb2.PredictRequest.FromString(prefix_of("m", 1, x.nbytes) + x.tobytes())
        np.testing.assert_array_equal(tf.make_ndarray(request.inputs["observation"])[0], x)


def pairs():
    ours = wire.PredictRequest(output_filter=["action"])
    ours.model_spec.name, ours.model_spec.version_label = "SA101", "stable"
    to_proto(X, ours.inputs["x"])
    yield ours, predict_pb2.PredictRequest
    answer = wire.PredictResponse()
    to_proto(np.array([b"a"], object), answer.outputs["policy"])
    answer.model_spec.version.value = 7
    yield answer, predict_pb2.PredictResponse
    spec = wire.ModelSpec(name="a", signature_name="b")
    spec.version.value = 0
    yield spec, model_pb2.ModelSpec
    status = wire.GetModelStatusResponse()
    status.model_version_status.add(version=3, state=30).status.error_message = "fine"
    yield status, get_model_status_pb2.GetModelStatusResponse
    metadata = wire.GetModelMetadataResponse()
    metadata.metadata["signature_def"].value = b"abc"
    yield metadata, get_model_metadata_pb2.GetModelMetadataResponse
    yield prediction_log_pb.PredictionLog(predict_log=prediction_log_pb.PredictLog(request=ours)), prediction_log_pb2.PredictionLog


@pytest.mark.parametrize(("ours", "theirs"), list(pairs()), ids=lambda x: getattr(type(x), "__name__", ""))
def test_bytes_are_the_same_both_ways(ours, theirs):
    there = theirs.FromString(ours.SerializeToString(deterministic=True))
    assert there.ListFields()
    assert there.SerializeToString(deterministic=True) == ours.SerializeToString(deterministic=True)
    assert type(ours).FromString(there.SerializeToString()) == ours
    # nothing of ours is unknown to theirs
    assert str(there).count(":") >= str(ours).count(":") - 1


SAME_ON_THE_WIRE = {
    (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_ENUM),  # dtype, error codes: numbers here
    (FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE),  # tf.Examples: bytes here
    (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES),
}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (wire.PredictRequest, predict_pb2.PredictRequest),
        (wire.PredictResponse, predict_pb2.PredictResponse),
        (wire.GetModelMetadataResponse, get_model_metadata_pb2.GetModelMetadataResponse),
        (wire.GetModelStatusResponse, get_model_status_pb2.GetModelStatusResponse),
        (prediction_log_pb.ClassificationRequest, classification_pb2.ClassificationRequest),
        (prediction_log_pb.ClassificationResponse, classification_pb2.ClassificationResponse),
        (prediction_log_pb.RegressionRequest, regression_pb2.RegressionRequest),
        (prediction_log_pb.RegressionResponse, regression_pb2.RegressionResponse),
        (prediction_log_pb.MultiInferenceRequest, inference_pb2.MultiInferenceRequest),
        (prediction_log_pb.MultiInferenceResponse, inference_pb2.MultiInferenceResponse),
        (prediction_log_pb.PredictionLog, prediction_log_pb2.PredictionLog),
        (prediction_log_pb.Example, tf.train.Example),
        (config_pb.ModelServerConfig, model_server_config_pb2.ModelServerConfig),
        (tensorflow_pb.ConfigProto, config_pb2.ConfigProto),
        (tensorflow_pb.MetaGraphDef, meta_graph_pb2.MetaGraphDef),
    ],
)
def test_every_field_of_ours_is_one_of_theirs(ours, theirs):
    seen = set()

    def compare(mine, other):
        if mine.full_name in seen:
            return
        seen.add(mine.full_name)
        for field in mine.fields:
            there = other.fields_by_number.get(field.number)
            assert there is not None, f"{mine.full_name}.{field.name}"
            assert there.name == field.name, f"{mine.full_name}.{field.name}"
            assert field.is_repeated == there.is_repeated
            assert field.type == there.type or (field.type, there.type) in SAME_ON_THE_WIRE, f"{mine.full_name}.{field.name}"
            if field.message_type and field.message_type.file.package == "greenserve.wire":
                compare(field.message_type, there.message_type)

    compare(ours.DESCRIPTOR, theirs.DESCRIPTOR)
    assert seen
