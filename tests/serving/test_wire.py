"""Our wire messages against tensorflow-serving-api: the same fields, so the same bytes."""

import pytest
from google.protobuf.descriptor import FieldDescriptor
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_management_pb2,
    predict_pb2,
    prediction_log_pb2,
)
from tensorflow_serving.config import model_server_config_pb2

from protos import model_server_config_pb2 as config_pb
from protos import predict_pb2 as wire
from protos import prediction_log_pb2 as prediction_log_pb
from protos import tensorflow_pb2 as tensorflow_pb

SAME_ON_THE_WIRE = {
    (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_ENUM),  # dtype and error_code are numbers in our messages
    (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES),
}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (wire.PredictRequest, predict_pb2.PredictRequest),
        (wire.PredictResponse, predict_pb2.PredictResponse),
        (wire.GetModelMetadataResponse, get_model_metadata_pb2.GetModelMetadataResponse),
        (wire.GetModelStatusResponse, get_model_status_pb2.GetModelStatusResponse),
        (prediction_log_pb.PredictionLog, prediction_log_pb2.PredictionLog),
        (wire.GetModelMetadataRequest, get_model_metadata_pb2.GetModelMetadataRequest),
        (wire.GetModelStatusRequest, get_model_status_pb2.GetModelStatusRequest),
        (wire.SignatureDefMap, get_model_metadata_pb2.SignatureDefMap),
        (config_pb.ReloadConfigRequest, model_management_pb2.ReloadConfigRequest),
        (config_pb.ReloadConfigResponse, model_management_pb2.ReloadConfigResponse),
        (config_pb.ModelServerConfig, model_server_config_pb2.ModelServerConfig),
        (tensorflow_pb.ConfigProto, config_pb2.ConfigProto),
        (tensorflow_pb.MetaGraphDef, meta_graph_pb2.MetaGraphDef),
    ],
)
def test_every_field_has_tensorflow_servings_number_name_and_type(ours, theirs):
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
            assert field.type == there.type or (field.type, there.type) in SAME_ON_THE_WIRE, (
                f"{mine.full_name}.{field.name}"
            )
            if field.message_type and field.message_type.file.package == "greenserve.wire":
                compare(field.message_type, there.message_type)

    compare(ours.DESCRIPTOR, theirs.DESCRIPTOR)
    assert seen
