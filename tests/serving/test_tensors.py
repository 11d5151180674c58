"""Tensor messages without TensorFlow: the same bytes and values as TensorFlow's."""

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from protos import predict_pb2 as wire
from serving import tensors
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
