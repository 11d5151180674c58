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
NUMPY: dict[int, str] = {
    1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 8: "<c8", 9: "<i8", 10: "?",
    17: "<u2", 18: "<c16", 19: "<f2", 22: "<u4", 23: "<u8",
}  # fmt: skip
"""TensorFlow dtype number -> NumPy dtype."""
BITS: dict[int, str] = {
    **NUMPY, 11: "i1", 12: "u1", 13: "<i4", 14: "<u2", 15: "<i2", 16: "<u2",
    24: "u1", 25: "u1", 29: "i1", 30: "u1",
}  # fmt: skip
"""The same, and for dtypes that NumPy does not have (quantized, bfloat16, float8, int4) the integers that hold them."""
_DTYPES = {number: np.dtype(name) for number, name in BITS.items()}
_NUMERIC_DTYPES = {number: kind for number, kind in _DTYPES.items() if number < 24}
_NUMBER = {np.dtype(name): number for number, name in NUMPY.items()}
_FIELD = {
    1: "float_val", 2: "double_val", 3: "int_val", 4: "int_val", 5: "int_val", 6: "int_val", 8: "scomplex_val",
    9: "int64_val", 10: "bool_val", 11: "int_val", 12: "int_val", 13: "int_val", 14: "half_val", 15: "int_val",
    16: "int_val", 17: "int_val", 18: "dcomplex_val", 19: "half_val", 22: "uint32_val", 23: "uint64_val",
    24: "float8_val", 25: "float8_val", 29: "int_val", 30: "int_val",
}  # fmt: skip
_SAME_TYPE_FIELDS = frozenset((1, 2, 3, 9, 22, 23))
"""Numeric dtypes whose typed field has the dtype itself: float, double, int32, int64, uint32, uint64."""
MAX_ELEMENTS = 1 << 26


def type_name(dtype: int) -> str:
    """TensorFlow's name of a dtype in error texts, such as float of DT_FLOAT."""
    try:
        return pb.DataType.Name(dtype).removeprefix("DT_").lower()
    except ValueError:
        return str(dtype)


class TensorError(ValueError):
    """A tensor message or an array that cannot be converted; the text is the reason."""


def to_proto(array: Any, out: Any = None) -> Any:
    """Write an array into a tensor message: numbers as tensor_content, strings as string_val. Raises TensorError."""
    array = np.asarray(array)
    message = pb.Tensor() if out is None else out
    if array.dtype.kind in "SUO":
        message.dtype = DT_STRING
        message.string_val.extend(x.encode() if isinstance(x, str) else bytes(x) for x in array.reshape(-1).tolist())
    else:
        try:
            message.dtype = _NUMBER[array.dtype.newbyteorder("<")]
        except KeyError:
            raise TensorError(f"arrays of {array.dtype} have no TensorFlow dtype") from None
        message.tensor_content = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    for size in array.shape:
        message.tensor_shape.dim.add(size=size)
    return message


def to_array(message: Any, bits: bool = False) -> NDArray[Any]:
    """Read the array of a tensor message. Raises TensorError if it is invalid.

    Numbers are tensor_content or typed values. As in TensorFlow, fewer typed
    values than elements repeat the last one, and no typed values are zeros.
    NumPy has no bfloat16: it becomes float32 of the same value, quantized numbers
    become their integers. With `bits` every dtype that NumPy does not have becomes the
    integers that hold it (`BITS`).
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
        return _strings(list(message.string_val), shape, count)
    kind = (_DTYPES if bits else _NUMERIC_DTYPES).get(dtype)
    if kind is None:
        raise TensorError(f"dtype {dtype} is not supported")
    content = message.tensor_content
    if content:
        if len(content) != count * kind.itemsize:
            raise TensorError(f"tensor_content of {len(content)} bytes for shape {shape}, which takes {count * kind.itemsize}")
        array = _reshape(np.frombuffer(content, kind), shape)
    else:
        values = getattr(message, _FIELD[dtype])
        # fields of the very same type are copied as a block; others are converted number by number, which checks their range
        array = _typed(values if dtype in _SAME_TYPE_FIELDS else list(values), dtype, kind, shape, count)
    if dtype == _BFLOAT16 and not bits:
        # a bfloat16 is the upper half of a float32
        return (array.astype("<u4") << 16).view("<f4")
    return array


def _strings(values: list[bytes], shape: list[int], count: int) -> NDArray[Any]:
    if len(values) != count:
        raise TensorError(f"{len(values)} strings for shape {shape}")
    array = np.empty(count, object)
    array[:] = values
    return _reshape(array, shape)


def _reshape(array: NDArray[Any], shape: list[int]) -> NDArray[Any]:
    try:
        return array.reshape(shape)
    except ValueError as error:
        # no elements, but the product of the other sizes overflows
        raise TensorError(f"shape {shape}: {error}") from None


def _typed(values: Any, dtype: int, kind: np.dtype[Any], shape: list[int], count: int) -> NDArray[Any]:
    if kind.kind == "c":
        values = [complex(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
    if len(values) > count:
        raise TensorError(f"{len(values)} values for shape {shape}")
    try:
        array = np.array(values, np.uint16).view(kind) if dtype == _HALF else np.array(values, kind)
    except (OverflowError, ValueError) as error:
        raise TensorError(f"a value does not fit {kind}: {error}") from None
    if count and not len(array):
        array = np.zeros(count, array.dtype)
    if len(array) < count:
        array = np.concatenate([array, np.full(count - len(array), array[-1], kind)])
    return _reshape(array, shape)


def typed_proto(array: NDArray[Any], message: Any, dtype: int | None = None) -> None:
    """Fill a tensor message with typed values, as TensorFlow's AsProtoField does.

    `dtype`: TensorFlow's number, if the array holds the integers of a dtype that NumPy does not have.
    """
    number = _dtype_number(array, dtype)
    if number == DT_STRING:
        to_proto(array, message)
        return
    message.dtype = number
    flat = array.reshape(-1)
    if number == _HALF:
        flat = flat.view(np.uint16)
    elif array.dtype.kind == "c":
        flat = flat.view(flat.real.dtype)
    if _FIELD[number] == "float8_val":
        message.float8_val = flat.tobytes()
    else:
        getattr(message, _FIELD[number]).extend(flat.tolist())
    for size in array.shape:
        message.tensor_shape.dim.add(size=size)


def _dtype_number(array: NDArray[Any], dtype: int | None) -> int:
    if dtype is not None:
        return dtype
    if array.dtype.kind in "SUO":
        return DT_STRING
    try:
        return _NUMBER[array.dtype.newbyteorder("<")]
    except KeyError:
        raise TensorError(f"arrays of {array.dtype} have no TensorFlow dtype") from None
