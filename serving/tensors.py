"""Conversion between NumPy arrays and TensorFlow's TensorProto, without TensorFlow.

Our wire messages and tensorflow-serving-api's have the same fields, so both work.
dtype numbers are TensorFlow's (tensorflow/core/framework/types.proto).
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protos import predict_pb2 as pb

DT_STRING, DT_BOOL = 7, 10
_HALF, _BFLOAT16 = 19, 14
NUMPY_DTYPES: dict[int, str] = {
    1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 8: "<c8", 9: "<i8", 10: "?",
    17: "<u2", 18: "<c16", 19: "<f2", 22: "<u4", 23: "<u8",
}  # fmt: skip
"""TensorFlow dtype number -> NumPy dtype."""
STORAGE_DTYPES = {number: np.dtype(name) for number, name in {**NUMPY_DTYPES, _BFLOAT16: "<u2"}.items()}
"""TensorFlow dtype number -> NumPy dtype of its values, or of the integers that store bfloat16."""
_DTYPE_NUMBER = {np.dtype(name): number for number, name in NUMPY_DTYPES.items()}
_FIELD = {
    1: "float_val", 2: "double_val", 3: "int_val", 4: "int_val", 5: "int_val", 6: "int_val", 8: "scomplex_val",
    9: "int64_val", 10: "bool_val", 14: "half_val", 17: "int_val", 18: "dcomplex_val", 19: "half_val",
    22: "uint32_val", 23: "uint64_val",
}  # fmt: skip
_SAME_TYPE_FIELDS = frozenset((1, 2, 3, 9, 22, 23))
"""Numeric dtypes with a typed field of the same type: float, double, int32, int64, uint32, uint64."""
MAX_ELEMENTS = 1 << 26
MAX_FILLED_ELEMENTS = 1 << 16
"""Elements of a tensor whose message has fewer values; with many values, MAX_FILL_FACTOR elements per value."""
MAX_FILL_FACTOR = 16


def type_name(dtype: int) -> str:
    """TensorFlow's name of a dtype in error texts, such as float of DT_FLOAT."""
    try:
        return pb.DataType.Name(dtype).removeprefix("DT_").lower()
    except ValueError:
        return str(dtype)


class TensorError(ValueError):
    """A tensor message or an array cannot be converted."""


def to_proto(array: Any, out: Any = None) -> Any:
    """Write an array into a tensor message, a new one without `out`. Raises TensorError.

    Numeric values become tensor_content, strings string_val.
    """
    array = np.asarray(array)
    message = pb.Tensor() if out is None else out
    message.dtype = _dtype_number(array)
    if message.dtype == DT_STRING:
        message.string_val.extend(x.encode() if isinstance(x, str) else bytes(x) for x in array.reshape(-1).tolist())
    else:
        message.tensor_content = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    for size in array.shape:
        message.tensor_shape.dim.add(size=size)
    return message


def to_array(message: Any, raw: bool = False) -> NDArray[Any]:
    """Read the array of a tensor message. Raises TensorError if it is invalid.

    Numeric values are in tensor_content or in the dtype's typed field. As in TensorFlow,
    the last typed value is repeated for missing elements, and a tensor without typed
    values is all zeros, but only up to MAX_FILLED_ELEMENTS or MAX_FILL_FACTOR elements
    per value. bfloat16 becomes float32 of the same value, or with `raw` the integers
    that store it.
    """
    dtype, tensor_shape = message.dtype, message.tensor_shape
    if tensor_shape.unknown_rank:
        raise TensorError("a tensor of unknown rank")
    shape = [dim.size for dim in tensor_shape.dim]
    if len(shape) > 32 or (shape and min(shape) < 0):
        raise TensorError(f"shape {shape} is not a valid tensor shape")
    count = math.prod(shape)
    if count > MAX_ELEMENTS:
        raise TensorError(f"shape {shape} has more than {MAX_ELEMENTS} elements")
    if dtype == DT_STRING:
        if len(message.string_val) != count:
            raise TensorError(f"{len(message.string_val)} strings for shape {shape}")
        array = np.empty(count, object)
        array[:] = list(message.string_val)
        return _reshape(array, shape)
    numpy_dtype = STORAGE_DTYPES.get(dtype)
    if numpy_dtype is None:
        raise TensorError(f"dtype {type_name(dtype)} is not supported")
    content = message.tensor_content
    if content:
        size = count * numpy_dtype.itemsize
        if len(content) != size:
            raise TensorError(f"tensor_content of {len(content)} bytes for shape {shape}, which takes {size}")
        array = _reshape(np.frombuffer(content, numpy_dtype), shape)
    else:
        values = getattr(message, _FIELD[dtype])
        # a field of the same type is copied as a block; other values are converted one by one, which checks their range
        array = _from_typed(values if dtype in _SAME_TYPE_FIELDS else list(values), dtype, numpy_dtype, shape, count)
    if dtype == _BFLOAT16 and not raw:
        # a bfloat16 is the upper half of a float32
        return (array.astype("<u4") << 16).view("<f4")
    return array


def _reshape(array: NDArray[Any], shape: list[int]) -> NDArray[Any]:
    try:
        return array.reshape(shape)
    except ValueError as error:
        # no elements, but the product of the other sizes overflows
        raise TensorError(f"shape {shape}: {error}") from None


def _from_typed(values: Any, dtype: int, numpy_dtype: np.dtype[Any], shape: list[int], count: int) -> NDArray[Any]:
    if numpy_dtype.kind == "c":
        values = [complex(real, imag) for real, imag in zip(values[::2], values[1::2], strict=False)]
    if len(values) > count:
        raise TensorError(f"{len(values)} values for shape {shape}")
    try:
        array = np.array(values, np.uint16).view(numpy_dtype) if dtype == _HALF else np.array(values, numpy_dtype)
    except (OverflowError, ValueError) as error:
        raise TensorError(f"a value does not fit {numpy_dtype}: {error}") from None
    if count > max(MAX_FILLED_ELEMENTS, MAX_FILL_FACTOR * len(array)):
        # a few bytes must not take hundreds of MB
        raise TensorError(f"{len(array)} values are too few for shape {shape}; send every value in tensor_content")
    if count and not len(array):
        array = np.zeros(count, array.dtype)
    if len(array) < count:
        array = np.concatenate([array, np.full(count - len(array), array[-1], numpy_dtype)])
    return _reshape(array, shape)


def typed_proto(array: NDArray[Any], message: Any, dtype: int | None = None) -> None:
    """Fill a tensor message with typed values, as TensorFlow's AsProtoField does.

    `dtype`: TensorFlow's number; needed if the array holds the integers that store bfloat16.
    """
    number = _dtype_number(array) if dtype is None else dtype
    if number == DT_STRING:
        to_proto(array, message)
        return
    message.dtype = number
    flat = array.reshape(-1)
    if number == _HALF:
        flat = flat.view(np.uint16)
    elif array.dtype.kind == "c":
        flat = flat.view(flat.real.dtype)
    getattr(message, _FIELD[number]).extend(flat.tolist())
    for size in array.shape:
        message.tensor_shape.dim.add(size=size)


def _dtype_number(array: NDArray[Any]) -> int:
    """TensorFlow's number of an array's dtype. Raises TensorError."""
    if array.dtype.kind in "SUO":
        return DT_STRING
    try:
        return _DTYPE_NUMBER[array.dtype.newbyteorder("<")]
    except KeyError:
        raise TensorError(f"arrays of {array.dtype} have no TensorFlow dtype") from None
