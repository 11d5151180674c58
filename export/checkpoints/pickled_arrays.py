"""Rebuild NumPy arrays in pickles from their bytes: our functions for the names in NumPy's pickles."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.checkpoints.pickled_values import Function, PickleRefused

MAX_DIMENSIONS = 32


class Dtype:
    """A dtype as a pickle builds it: from a code such as `f4`, then a state with the byte order."""

    __slots__ = ("byte_order", "code")

    def __init__(self, code: str) -> None:
        self.code, self.byte_order = code, "="

    def __setstate__(self, state: Any) -> None:
        if not (isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">", "|", "=")):
            raise PickleRefused("a dtype in its pickle is damaged")
        self.byte_order = state[1]

    def numpy(self) -> np.dtype[Any] | None:
        """NumPy's dtype; `None` unless it is one of numbers."""
        if not isinstance(self.code, str) or self.code[:1] not in "fiub" or self.code[1:] not in ("1", "2", "4", "8"):
            return None
        return np.dtype(self.byte_order.replace("=", "<") + self.code)


class Array:
    """An array as older pickles build it: empty, then a state with shape, dtype and bytes."""

    __slots__ = ("_values",)

    def __init__(self, values: NDArray[Any] | None = None) -> None:
        self._values = values

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise PickleRefused("an array in its pickle is damaged")
        _, shape, dtype, is_fortran, data = state
        self._values = from_bytes(data, dtype, shape, "F" if is_fortran else "C")

    @property
    def values(self) -> NDArray[Any] | None:
        """The numbers. `None` if it holds text, objects or nothing."""
        return self._values


def numbers(value: Any) -> NDArray[Any] | None:
    """The numbers of an array in a pickle. `None` for any other value."""
    return value.values if isinstance(value, Array) else None


def from_bytes(data: Any, dtype: Any, shape: Any, order: Any = "C") -> NDArray[Any] | None:
    """Build an array from its bytes; `None` unless it holds numbers. Raises PickleRefused if the bytes do not fit the
    shape and dtype."""
    if not isinstance(dtype, Dtype) or not isinstance(shape, tuple):
        raise PickleRefused("an array in its pickle is damaged")
    numpy_dtype = dtype.numpy()
    if numpy_dtype is None or not isinstance(data, bytes | bytearray):
        return None
    if len(shape) > MAX_DIMENSIONS or not all(type(size) is int and size >= 0 for size in shape):
        raise PickleRefused("an array in its pickle has an invalid shape")
    if math.prod(shape) * numpy_dtype.itemsize != len(data):
        raise PickleRefused(f"an array in its pickle has shape {list(shape)}, but {len(data)} bytes")
    return np.frombuffer(bytes(data), numpy_dtype).reshape(shape, order="F" if order == "F" else "C")


def _latin1(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding != "latin1":
        raise PickleRefused("bytes in its pickle are damaged")
    return text.encode(encoding)


def _scalar(dtype: Any, data: Any) -> Any:
    values = from_bytes(data, dtype, ())
    return None if values is None else values[()]


def _rebuilders() -> dict[tuple[str, str], Any]:
    dtype = Function(lambda code, *_: Dtype(code))
    from_buffer = Function(lambda data, dtype, shape, order="C", *_: Array(from_bytes(data, dtype, shape, order)))
    empty = Function(lambda *_: Array())
    scalar = Function(_scalar)
    rebuilders = {
        ("numpy", "dtype"): dtype,
        ("numpy", "ndarray"): Function(lambda *_: Array()),
        # pickle protocol 2, torch's, writes bytes as text
        ("_codecs", "encode"): Function(_latin1),
    }
    # NumPy 2 renamed numpy.core
    for core in ("numpy.core", "numpy._core"):
        rebuilders[f"{core}.numeric", "_frombuffer"] = from_buffer
        rebuilders[f"{core}.multiarray", "_reconstruct"] = empty
        rebuilders[f"{core}.multiarray", "scalar"] = scalar
    return rebuilders


REBUILDERS = _rebuilders()
"""(module, name) in NumPy's pickles -> our function that rebuilds an array, a dtype or a scalar."""
