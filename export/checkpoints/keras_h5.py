"""Keras weights in HDF5: `save_weights` of Keras 2 (.h5) and 3 (.weights.h5), and whole models (.h5, .keras)."""

import contextlib
import io
import re
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from city.errors import InputError
from export.actors.architectures import Layers
from export.checkpoints import PARTS, Found, StoredVariable, check_numbers, layers, natural

_NUMBERED = re.compile(r"(_layer_checkpoint_dependencies|layers)/")
_KERAS3_DENSE = {"0": "kernel", "1": "bias"}
_KERAS3_NORM = {"0": "gamma", "1": "beta", "2": "mean", "3": "variance"}


def read(path: Path) -> Layers:
    """The actor's layers of a weights file. Raises InputError where it is corrupt or no such file."""
    with _opened(path) as file:
        found, order = _keras2(file) if "layer_names" in file.attrs else _keras3(path, file)
        taken = {name for parts in found.values() for name, _ in parts.values()}
        unread = tuple(sorted(set(_datasets(file)) - taken))
        numbered = "layer_names" in file.attrs or all(_NUMBERED.match(layer) for layer in order)
    whole = layers(path, found, order, unread)
    if numbered:
        return whole
    groups: dict[str, list[str]] = {}
    for layer in order:
        groups.setdefault(layer.split("/")[0], []).append(layer)
    parts = tuple(replace(layers(path, found, names, ()), name=group) for group, names in groups.items())
    return replace(whole, groups=parts)


def stored(path: Path) -> list[StoredVariable]:
    """Every variable of a weights file, in natural order. Raises InputError."""
    with _opened(path) as file:
        return [StoredVariable(name, file[name].shape, str(file[name].dtype)) for name in sorted(_datasets(file), key=natural)]


def _weights_inside(path: Path) -> Any:
    """The HDF5 file itself, or the one that a .keras archive holds."""
    if path.suffix != ".keras":
        return path
    with zipfile.ZipFile(path) as archive:
        return io.BytesIO(archive.read("model.weights.h5"))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with h5py.File(_weights_inside(path), "r") as file:
            # a whole model in HDF5 keeps its weights in a group of their own
            yield file.get("model_weights", file)
    except InputError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: cannot be read as HDF5 weights: {str(error).splitlines()[0][:300]}") from None


def _keras2(file: Any) -> tuple[Found, list[str]]:
    """Layers stand in layer_names in the model's order; their counters mean nothing."""
    found: Found = {}
    for name in map(_text, file.attrs["layer_names"]):
        for weight in map(_text, file[name].attrs["weight_names"]):
            layer, _, part = weight.split(":")[0].rpartition("/")
            if part in PARTS:
                # a block of several layers is one entry of layer_names: its weights' names tell them apart
                values = np.asarray(file[name][weight], np.float32)
                found.setdefault(f"{name}/{layer}", {})[PARTS[part]] = f"{name}/{weight}", values
    return found, list(found)


def _keras3(path: Path, file: Any) -> tuple[Found, list[str]]:
    """layers/<name>/vars/<0 kernel, 1 bias | 0 gamma, 1 beta, 2 mean, 3 variance>; names count up in the model's order."""
    found: Found = {}
    for name in _datasets(file):
        layer, _, part = name.rpartition("/vars/")
        if layer and part.isdigit():
            found.setdefault(layer, {})[part] = name, np.asarray(file[name], np.float32)
    for layer, numbered in found.items():
        names = _KERAS3_NORM if len(numbered) == 4 else _KERAS3_DENSE
        found[layer] = {names[part]: values for part, values in numbered.items() if part in names}
    order = sorted(found, key=natural)
    check_numbers(path, [layer for layer in order if "kernel" in found[layer] and _NUMBERED.match(layer)])
    return found, order


def _datasets(file: Any) -> list[str]:
    names: list[str] = []
    file.visititems(lambda name, node: names.append(name) if isinstance(node, h5py.Dataset) else None)
    return names


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
