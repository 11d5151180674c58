"""Keras weights in HDF5: Keras 2's `save_weights` (.h5) and Keras 3's `.weights.h5`."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from city.errors import InputError
from export.checkpoints import Actor, Weights, chain, natural

_KERAS3_PART = {"0": "kernel", "1": "bias"}


def read(path: Path) -> Actor:
    """The actor of a weights file. Raises InputError where it is corrupt or no such file."""
    with _opened(path) as file:
        found, order = _keras2(file) if "layer_names" in file.attrs else _keras3(file)
        unread = tuple(sorted(name for name in _datasets(file) if not any(name.startswith(layer) for layer in order)))
    return Actor(chain(path, found, order), unread)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with h5py.File(path, "r") as file:
            yield file
    except InputError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError) as error:
        raise InputError(f"{path}: cannot be read as HDF5 weights: {str(error).splitlines()[0][:300]}") from None


def _keras2(file: Any) -> tuple[dict[str, dict[str, Weights]], list[str]]:
    """Layers stand in layer_names in the model's order; their counters mean nothing."""
    found: dict[str, dict[str, Weights]] = {}
    for name in map(_text, file.attrs["layer_names"]):
        for weight in map(_text, file[name].attrs["weight_names"]):
            part = weight.rsplit("/", 1)[-1].split(":")[0]
            if part in ("kernel", "bias"):
                found.setdefault(name, {})[part] = np.asarray(file[name][weight], np.float32)
    return found, list(found)


def _keras3(file: Any) -> tuple[dict[str, dict[str, Weights]], list[str]]:
    """layers/<name>/vars/<0 kernel, 1 bias>; names count up in the model's order."""
    found: dict[str, dict[str, Weights]] = {}
    for name in _datasets(file):
        layer, _, part = name.rpartition("/vars/")
        if layer.startswith(("layers/", "_layer_checkpoint_dependencies/")) and part in _KERAS3_PART:
            found.setdefault(layer, {})[_KERAS3_PART[part]] = np.asarray(file[name], np.float32)
    return found, sorted(found, key=natural)


def _datasets(file: Any) -> list[str]:
    names: list[str] = []
    file.visititems(lambda name, node: names.append(name) if isinstance(node, h5py.Dataset) else None)
    return names


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
