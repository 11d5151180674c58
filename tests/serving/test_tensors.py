"""Our tensors, messages and records without TensorFlow: the same values, fields and bytes as TensorFlow's."""

import io

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
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
from serving import tensors, tf_record
from serving.tensors import TensorError, to_array, to_proto, typed_proto

DTYPES = [np.dtype(name) for name in tensors.NUMPY_DTYPES.values()]
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)


@given(ARRAYS)
def test_an_array_survives_the_round_trip(array):
    np.testing.assert_array_equal(to_array(to_proto(array)), array)
    message = wire.Tensor()
    typed_proto(array, message)
    np.testing.assert_array_equal(to_array(message), array)


@given(ARRAYS)
def test_tensorflow_reads_our_tensors_and_we_read_its_tensors(array):
    import tensorflow as tf
    from tensorflow.core.framework.tensor_pb2 import TensorProto

    np.testing.assert_array_equal(tf.make_ndarray(TensorProto.FromString(to_proto(array).SerializeToString())), array)
    theirs = tf.make_tensor_proto(array)
    np.testing.assert_array_equal(to_array(wire.Tensor.FromString(theirs.SerializeToString())), array)


def test_missing_typed_values_repeat_the_last_value():
    assert to_array(shaped(4, dtype=1, float_val=[1, 2])).tolist() == [1, 2, 2, 2]
    assert to_array(shaped(3, dtype=1)).tolist() == [0, 0, 0], "without typed values it is zeros"


def test_a_tiny_message_cannot_take_a_large_array():
    for message in (
        shaped(2**26, dtype=1),
        shaped(2**26, dtype=9, int64_val=[7]),
        shaped(2**17, dtype=2, double_val=[1, 2]),
    ):
        with pytest.raises(TensorError, match="values are too few for shape"):
            to_array(message)
    assert to_array(shaped(2**16, dtype=1, float_val=[3])).sum() == 3 * 2**16
    assert to_array(shaped(2**17, dtype=1, float_val=[1] * 2**14)).shape == (2**17,)


def shaped(*sizes, **fields):
    message = wire.Tensor(**fields)
    for size in sizes:
        message.tensor_shape.dim.add(size=size)
    return message


@pytest.mark.parametrize(
    "message",
    [
        # no elements, but the product of the other sizes overflows
        *(shaped(0, 1 << 62, 1 << 62, dtype=1, tensor_content=content) for content in (b"", b"1234")),
        shaped(-1, dtype=1), shaped(2**40, dtype=1), shaped(2**20, 2**20, 2**30, dtype=1),
        shaped(1, dtype=1, tensor_content=b"abc"), shaped(1, dtype=1, float_val=[1, 2]), shaped(1, dtype=99),
        shaped(1, dtype=0), shaped(2, dtype=7, string_val=[b"a"]), shaped(1, dtype=4, int_val=[300]),
        wire.Tensor(dtype=1, tensor_shape=wire.TensorShape(unknown_rank=True)), shaped(*[1] * 40, dtype=1,
        float_val=[1]),
    ],
)  # fmt: skip
def test_an_invalid_tensor_is_refused(message):
    with pytest.raises(TensorError):
        to_array(message)


@given(st.binary(max_size=64))
def test_random_bytes_are_refused_or_an_array(data):
    try:
        to_array(wire.Tensor.FromString(data))
    except (TensorError, DecodeError):
        return


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


def test_checksum_of_the_standards_example():
    # RFC 3720, B.4: 32 bytes of zeros have the CRC 8a9136aa
    crc = 0x8A9136AA
    assert tf_record.masked_crc32c(bytes(32)) == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@pytest.mark.parametrize("sizes", [[0], [1, 3, 4, 5], [255, 256, 257, 65_536, 70_000]])
def test_tensorflow_reads_the_records_and_writes_the_same_bytes(tmp_path, sizes):
    records = [bytes(k * 7 % 256 for k in range(size)) for size in sizes]
    file = io.BytesIO()
    for record in records:
        tf_record.write(file, record)
    (tmp_path / "ours").write_bytes(file.getvalue())
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as writer:
        for record in records:
            writer.write(record)
    assert list(tf.compat.v1.io.tf_record_iterator(str(tmp_path / "ours"))) == records
    assert (tmp_path / "theirs").read_bytes() == file.getvalue()
