"""The variables of a checkpoint of any format."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401 - NumPy finds bfloat16 by its name from here on
import numpy as np
from numpy.typing import NDArray

from city.errors import InputError

PARTS = {
    "kernel": "kernel",
    "_kernel": "kernel",
    "w": "kernel",
    "weights": "kernel",
    "weight": "kernel",
    "bias": "bias",
    "_bias": "bias",
    "b": "bias",
    "biases": "bias",
    "gamma": "gamma",
    "beta": "beta",
    "moving_mean": "mean",
    "moving_variance": "variance",
}
"""Last part of a variable's name -> the part of its layer."""
MAX_ELEMENTS = 1 << 28
"""An actor's variables are smaller (this is 1 GiB of float32): a corrupt shape must not allocate unlimited memory."""


@dataclass(frozen=True)
class StoredVariable:
    """A variable as a checkpoint lists it."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Checkpoint:
    """The variables of a checkpoint, by readable names."""

    stored: Mapping[str, StoredVariable]
    load: Callable[[str], NDArray[Any]]
    """Reads the values of a variable, by its readable name."""
    ordered: bool
    """True if `stored` is in the model's order. If not, the numbers in the names determine the order."""
    keys: Mapping[str, str] | None = None
    """Name -> key in the file, for formats in which a variable may have several names. `None` if each has one."""

    def value(self, name: str) -> NDArray[Any]:
        """A variable's values. Raises InputError if they cannot be read."""
        shape = self.stored[name].shape
        # Python's integers do not overflow, unlike NumPy's product
        if math.prod(shape) > MAX_ELEMENTS:
            raise InputError(f"{name} has shape {list(shape)}, more than any actor's; the file is corrupt")
        return self.load(name)


def float32_weights(name: str, values: NDArray[Any]) -> NDArray[np.float32]:
    """A variable's values as float32. Raises InputError if they are not floats, or not finite in float32."""
    if not is_float(values.dtype):
        # NumPy's files have no name for bfloat16
        cause = "bytes of no type that NumPy knows (bfloat16?)" if values.dtype.kind == "V" else str(values.dtype)
        raise InputError(f"{name} holds {cause}, not weights; save it as float32: values.astype(numpy.float32)")
    with np.errstate(over="ignore"):
        weights = np.asarray(values, np.float32)
    if not np.isfinite(weights).all():
        raise InputError(f"{name} has non-finite values; the training has diverged")
    return weights


def is_float(dtype: np.dtype[Any]) -> bool:
    """Tell whether a dtype is one of floats. TensorFlow's and ONNX's bfloat16 is none of NumPy's own."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def split_name(name: str) -> tuple[str, str]:
    """(layer, part) of a variable's name: `a/dense/kernel` is (a/dense, kernel), `a/w/0` of a list of kernels (a/0,
    w)."""
    layer, _, part = name.rpartition("/")
    if part.isdigit() and layer.rpartition("/")[2] in PARTS:
        parent, _, list_name = layer.rpartition("/")
        return f"{parent}/{part}", list_name
    return layer, part


def natural(name: str) -> list[int | str]:
    """Key of natural order: dense before dense_1, dense_2 before dense_10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def unread_variables(checkpoint: Checkpoint, read_names: Iterable[str]) -> tuple[str, ...]:
    """Names of the variables that were not read, one name for each variable."""
    keys = checkpoint.keys or {name: name for name in checkpoint.stored}
    read_keys = {keys[name] for name in read_names}
    first_names = {keys[name]: name for name in reversed(list(checkpoint.stored))}
    return tuple(sorted(name for key, name in first_names.items() if key not in read_keys))
