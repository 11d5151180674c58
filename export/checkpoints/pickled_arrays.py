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

    def numpy(self) -> np.dtype[Any]:
        """NumPy's dtype. Raises PickleRefused unless it is one of numbers."""
        if not isinstance(self.code, str) or self.code[:1] not in "fiub" or self.code[1:] not in ("1", "2", "4", "8"):
            raise PickleRefused(f"an array in its pickle has dtype {self.code!r}, not numbers")
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

    def values(self) -> NDArray[Any]:
        if self._values is None:
            raise PickleRefused("an array in its pickle has no values")
        return self._values


def from_bytes(data: Any, dtype: Any, shape: Any, order: Any = "C") -> NDArray[Any]:
    """Build an array from its bytes. Raises PickleRefused if they do not fit the shape and dtype."""
    if not (isinstance(dtype, Dtype) and isinstance(data, bytes | bytearray) and isinstance(shape, tuple)):
        raise PickleRefused("an array in its pickle does not hold numbers")
    if len(shape) > MAX_DIMENSIONS or not all(type(size) is int and size >= 0 for size in shape):
        raise PickleRefused("an array in its pickle has an invalid shape")
    numpy_dtype = dtype.numpy()
    if math.prod(shape) * numpy_dtype.itemsize != len(data):
        raise PickleRefused(f"an array in its pickle has shape {list(shape)}, but {len(data)} bytes")
    return np.frombuffer(bytes(data), numpy_dtype).reshape(shape, order="F" if order == "F" else "C")


def _rebuilders() -> dict[tuple[str, str], Any]:
    dtype = Function(lambda code, *_: Dtype(code))
    from_buffer = Function(lambda data, dtype, shape, order="C", *_: Array(from_bytes(data, dtype, shape, order)))
    empty = Function(lambda *_: Array())
    scalar = Function(lambda dtype, data: from_bytes(data, dtype, ())[()])
    rebuilders = {("numpy", "dtype"): dtype, ("numpy", "ndarray"): Function(lambda *_: Array())}
    # NumPy 2 renamed numpy.core
    for core in ("numpy.core", "numpy._core"):
        rebuilders[f"{core}.numeric", "_frombuffer"] = from_buffer
        rebuilders[f"{core}.multiarray", "_reconstruct"] = empty
        rebuilders[f"{core}.multiarray", "scalar"] = scalar
    return rebuilders


REBUILDERS = _rebuilders()
"""(module, name) in NumPy's pickles -> our function that rebuilds an array, a dtype or a scalar."""
