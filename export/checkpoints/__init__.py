"""Reading an actor's weights out of the files a trainer wrote.

Each reader gives an `Actor`: the dense layers in order, and what was left
unread. None of them builds a graph.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from city.errors import InputError

Weights = NDArray[np.float32]


@dataclass(frozen=True)
class Dense:
    """One dense layer: y = x @ kernel + bias."""

    name: str
    kernel: Weights
    """[inputs, units]"""
    bias: Weights | None
    """[units]; None: the layer has no bias."""


@dataclass(frozen=True)
class Actor:
    layers: tuple[Dense, ...]
    unread: tuple[str, ...]
    """Variables of the checkpoint that do not belong to the actor."""

    @property
    def inputs(self) -> int:
        return int(self.layers[0].kernel.shape[0])

    @property
    def outputs(self) -> int:
        return int(self.layers[-1].kernel.shape[1])


_SLOTS = re.compile(
    r"/(Adam|Adagrad|RMSProp|Momentum|Ftrl|Adadelta|ExponentialMovingAverage)(_\d+)?$|(^|/)(log_std|logstd)$", re.I
)


def is_training_only(name: str) -> bool:
    """Whether a variable of an actor's scope only serves training (slots, log_std)."""
    return bool(_SLOTS.search(name))


def natural(name: str) -> list[int | str]:
    """Sort key that counts: dense_2 before dense_10, dense before dense_1."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def chain(where: Path, found: dict[str, dict[str, Weights]], order: list[str]) -> tuple[Dense, ...]:
    """The dense layers in order, once they are known to be whole and to fit each other.

    Raises InputError that names the variables which are missing or wrong.
    """
    if not order:
        raise InputError(f"{where}: holds no dense layer of an actor")
    layers = []
    for k, name in enumerate(order):
        parts = found[name]
        missing = [part for part in ("kernel", "bias") if part not in parts]
        # only the output layer may go without a bias
        if missing and not (missing == ["bias"] and k == len(order) - 1):
            raise InputError(f"{where}: variable {name}/{missing[0]} is missing")
        kernel, bias = parts["kernel"], parts.get("bias")
        if kernel.ndim != 2 or (bias is not None and bias.shape != kernel.shape[1:]):
            told = "none" if bias is None else list(bias.shape)
            raise InputError(f"{where}: {name} is no dense layer: kernel {list(kernel.shape)}, bias {told}")
        if layers and layers[-1].kernel.shape[1] != kernel.shape[0]:
            raise InputError(
                f"{where}: {layers[-1].name}/kernel gives {layers[-1].kernel.shape[1]} values and {name}/kernel takes "
                f"{kernel.shape[0]}: a layer between them is missing, or this is no plain dense actor"
            )
        for part, values in parts.items():
            if not np.isfinite(values).all():
                raise InputError(f"{where}: {name}/{part} has values that are not finite; the training has diverged")
        layers.append(Dense(name, kernel, bias))
    return tuple(layers)
