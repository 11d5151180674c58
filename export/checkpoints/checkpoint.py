"""The variables of a checkpoint, whatever file they come from."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
"""A variable of more numbers (1 GiB of float32) cannot be an actor's: a corrupt shape must not allocate unlimited memory."""


@dataclass(frozen=True)
class StoredVariable:
    """A variable as a checkpoint lists it."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Checkpoint:
    """The variables of a checkpoint, by readable names."""

    where: Path
    stored: Mapping[str, StoredVariable]
    load: Callable[[str], NDArray[Any]]
    """Values by readable name."""
    ordered: bool
    """Whether the names are in the model's order; else they are ordered by their numbers."""
    keys: Mapping[str, str] | None = None
    """Name -> stored key, if a variable may have several names. None: every name is a separate variable."""
    first: int | None = 0
    """Number of a model's first layer (`check_numbers`)."""

    def value(self, name: str) -> NDArray[Any]:
        """A variable's values. Raises InputError if they cannot be read."""
        shape = self.stored[name].shape
        if elements(shape) > MAX_ELEMENTS:
            raise InputError(f"{self.where}: {name} has shape {list(shape)}, more than any actor's; the file is corrupt")
        return self.load(name)


def elements(shape: tuple[int, ...]) -> int:
    """Number of values of a shape, exact however large it is."""
    count = 1
    for size in shape:
        count *= int(size)
    return count


def split(name: str) -> tuple[str, str]:
    """(layer, part) of a variable's name: `a/dense/kernel`, or `a/w/0` of a list of variables, layer a/0's."""
    layer, _, part = name.rpartition("/")
    if part.isdigit() and layer.rpartition("/")[2] in PARTS:
        holder, _, listed = layer.rpartition("/")
        return f"{holder}/{part}", listed
    return layer, part


def natural(name: str) -> list[int | str]:
    """Sort key that counts: dense_2 before dense_10, dense before dense_1."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def unread_variables(checkpoint: Checkpoint, taken: Iterable[str]) -> tuple[str, ...]:
    """Names of a checkpoint's variables that were not taken; one name per variable."""
    keys = checkpoint.keys or {name: name for name in checkpoint.stored}
    read = {keys[name] for name in taken}
    names: dict[str, str] = {}
    for name in checkpoint.stored:
        if keys[name] not in read:
            names.setdefault(keys[name], name)
    return tuple(sorted(names.values()))
