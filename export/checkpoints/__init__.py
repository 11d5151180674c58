"""Reading an actor's weights out of the files a trainer wrote.

Each reader gives `Layers`: dense layers and batch norms, each in order, and
what was left unread. None of them builds a graph.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from city.errors import InputError
from export.actors import BatchNorm, Dense, Weights
from export.actors.architectures import Layers

PARTS = {
    "kernel": "kernel",
    "_kernel": "kernel",
    "bias": "bias",
    "_bias": "bias",
    "gamma": "gamma",
    "beta": "beta",
    "moving_mean": "mean",
    "moving_variance": "variance",
}
"""Last part of a variable's name -> what it is of its layer."""
Found = dict[str, dict[str, tuple[str, Weights]]]
"""Layer -> part -> (the variable's name in the checkpoint, its values)."""


@dataclass(frozen=True)
class StoredVariable:
    """A variable as a checkpoint lists it."""

    name: str
    shape: tuple[int, ...]
    dtype: str


BATCH_NORM_EPSILON = 1e-5
"""The seed system's; weights files do not tell it."""

_SLOTS = re.compile(
    r"/(Adam|Adagrad|RMSProp|Momentum|Ftrl|Adadelta|ExponentialMovingAverage)(_\d+)?$|(^|/)(log_std|logstd)$", re.I
)


def is_training_only(name: str) -> bool:
    """Whether a variable of an actor's scope only serves training (slots, log_std)."""
    return bool(_SLOTS.search(name))


def natural(name: str) -> list[int | str]:
    """Sort key that counts: dense_2 before dense_10, dense before dense_1."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def check_numbers(where: Path, order: list[str]) -> None:
    """TF1 and Keras 3 number a model's layers dense, dense_1, ...: a gap is a layer that is missing."""
    for k, name in enumerate(order):
        match = re.fullmatch(r"(.*/dense)(?:_(\d+))?", name)
        if not match:
            return
        if int(match[2] or 0) != k:
            wanted = f"{match[1]}_{k}" if k else match[1]
            raise InputError(f"{where}: variable {wanted}/kernel is missing")


def layers(where: Path, found: Found, order: list[str], unread: tuple[str, ...]) -> Layers:
    """The layers in order, each once it is known to be whole.

    Raises InputError that names the variables which are missing or wrong.
    """
    dense, norms = [], []
    for name in order:
        parts = {part: values for part, (_, values) in found[name].items()}
        stored_as = {part: stored for part, (stored, _) in found[name].items()}
        for part, values in parts.items():
            if not np.isfinite(values).all():
                raise InputError(f"{where}: {name}/{part} has values that are not finite; the training has diverged")
        if "mean" in parts or "variance" in parts:
            norms.append(_batch_norm(where, name, parts, stored_as))
        else:
            dense.append(_dense(where, name, parts, stored_as))
    # the output may go without a bias, and so may all the layers between first and last where norms shift them
    bare = [layer.name for layer in dense[:-1] if layer.bias is None]
    if bare and not (norms and len(bare) == len(dense) - 2 and dense[0].bias is not None):
        raise InputError(f"{where}: variable {bare[0]}/bias is missing")
    return Layers(tuple(dense), tuple(norms), unread)


def _dense(where: Path, name: str, parts: dict[str, Weights], stored_as: dict[str, str]) -> Dense:
    if "kernel" not in parts:
        raise InputError(f"{where}: variable {name}/kernel is missing")
    kernel, bias = parts["kernel"], parts.get("bias")
    if kernel.ndim != 2 or 0 in kernel.shape or (bias is not None and bias.shape != kernel.shape[1:]):
        told = "none" if bias is None else list(bias.shape)
        raise InputError(f"{where}: {name} is no dense layer: kernel {list(kernel.shape)}, bias {told}")
    return Dense(name, kernel, bias, stored_as)


def _batch_norm(where: Path, name: str, parts: dict[str, Weights], stored_as: dict[str, str]) -> BatchNorm:
    for part, told in (("mean", "moving_mean"), ("variance", "moving_variance")):
        if part not in parts:
            raise InputError(f"{where}: variable {name}/{told} is missing")
    shapes = {values.shape for values in parts.values()}
    if len(shapes) > 1 or len(parts["mean"].shape) != 1:
        raise InputError(f"{where}: {name} is no batch norm: its variables have shapes {sorted(map(list, shapes))}")
    if (parts["variance"] < 0).any():
        raise InputError(f"{where}: {name}/moving_variance is negative")
    return BatchNorm(name, parts.get("gamma"), parts.get("beta"), parts["mean"], parts["variance"], BATCH_NORM_EPSILON, stored_as)
