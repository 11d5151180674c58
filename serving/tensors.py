"""NumPy arrays and TensorFlow's TensorProto, without TensorFlow.

Works on our wire messages and on tensorflow-serving-api's alike: they have the
same fields. dtype numbers are TensorFlow's (tensorflow/core/framework/types.proto).
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protos import predict_pb2 as pb

DT_STRING = 7
_HALF, _BFLOAT16 = 19, 14
NUMPY: dict[int, str] = {
    1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 8: "<c8", 9: "<i8", 10: "?",
    17: "<u2", 18: "<c16", 19: "<f2", 22: "<u4", 23: "<u8",
}  # fmt: skip
"""TensorFlow dtype number -> NumPy dtype."""
_NUMBER = {np.dtype(name): number for number, name in NUMPY.items()}
_FIELD = {
    1: "float_val", 2: "double_val", 3: "int_val", 4: "int_val", 5: "int_val", 6: "int_val", 8: "scomplex_val",
    9: "int64_val", 10: "bool_val", 17: "int_val", 18: "dcomplex_val", 19: "half_val", 22: "uint32_val", 23: "uint64_val",
}  # fmt: skip
MAX_ELEMENTS = 1 << 26


class TensorError(ValueError):
    """A TensorProto that describes no array; the text says why."""


def to_proto(array: Any, out: Any = None) -> Any:
    """A tensor message of an array (numbers as tensor_content, texts as string_val)."""
    array = np.asarray(array)
    message = pb.Tensor() if out is None else out
    if array.dtype.kind in "SUO":
        message.dtype = DT_STRING
        message.string_val.extend(x.encode() if isinstance(x, str) else bytes(x) for x in array.reshape(-1).tolist())
    else:
        try:
            message.dtype = _NUMBER[array.dtype.newbyteorder("<")]
        except KeyError:
            raise TensorError(f"arrays of {array.dtype} have no tensor type") from None
        message.tensor_content = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    for size in array.shape:
        message.tensor_shape.dim.add(size=size)
    return message


def to_array(message: Any) -> NDArray[Any]:
    """The array of a tensor message. Raises TensorError where it describes none.

    Numbers may come as tensor_content or as typed values; fewer typed values
    than elements repeat the last one, and none at all are zeros, as TensorFlow reads them.
    """
    if message.tensor_shape.unknown_rank:
        raise TensorError("a tensor of unknown rank")
    shape = [dim.size for dim in message.tensor_shape.dim]
    if len(shape) > 32 or any(size < 0 for size in shape):
        raise TensorError(f"shape {shape} is none that a tensor can have")
    count = math.prod(shape)
    if count > MAX_ELEMENTS:
        raise TensorError(f"shape {shape} has more than {MAX_ELEMENTS} elements")
    if message.dtype == DT_STRING:
        return _texts(list(message.string_val), shape, count)
    if message.dtype not in NUMPY:
        raise TensorError(f"dtype {message.dtype} is not supported")
    kind = np.dtype(NUMPY[message.dtype])
    if message.tensor_content:
        if len(message.tensor_content) != count * kind.itemsize:
            raise TensorError(
                f"tensor_content of {len(message.tensor_content)} bytes for shape {shape}, which takes {count * kind.itemsize}"
            )
        return np.frombuffer(message.tensor_content, kind).reshape(shape)
    return _typed(list(getattr(message, _FIELD[message.dtype])), message.dtype, kind, shape, count)


def _texts(values: list[bytes], shape: list[int], count: int) -> NDArray[Any]:
    if len(values) != count:
        raise TensorError(f"{len(values)} texts for shape {shape}")
    out = np.empty(count, object)
    out[:] = values
    return out.reshape(shape)


def _typed(values: list[Any], dtype: int, kind: np.dtype[Any], shape: list[int], count: int) -> NDArray[Any]:
    if kind.kind == "c":
        values = [complex(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
    if len(values) > count:
        raise TensorError(f"{len(values)} values for shape {shape}")
    try:
        found = np.array(values, np.uint16).view(np.float16) if dtype == _HALF else np.array(values, kind)
    except (OverflowError, ValueError) as error:
        raise TensorError(f"a value does not fit {kind}: {error}") from None
    if count and not len(found):
        return np.zeros(shape, found.dtype)
    if len(found) < count:
        found = np.concatenate([found, np.full(count - len(found), found[-1], kind)])
    return found.reshape(shape)


def typed_proto(array: NDArray[Any], message: Any) -> None:
    """Fill a tensor message with typed values, as TensorFlow's AsProtoField does."""
    if array.dtype.kind in "SUO":
        to_proto(array, message)
        return
    try:
        number = _NUMBER[array.dtype.newbyteorder("<")]
    except KeyError:
        raise TensorError(f"arrays of {array.dtype} have no tensor type") from None
    message.dtype = number
    flat = array.reshape(-1)
    if number == _HALF:
        flat = flat.view(np.uint16)
    elif array.dtype.kind == "c":
        flat = flat.view(flat.real.dtype)
    getattr(message, _FIELD[number]).extend(flat.tolist())
    for size in array.shape:
        message.tensor_shape.dim.add(size=size)
