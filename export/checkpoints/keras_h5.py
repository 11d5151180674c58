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
from numpy.typing import NDArray

from city.errors import InputError
from export.actors.architectures import Layers
from export.checkpoints import MOST_ELEMENTS, PARTS, Checkpoint, Found, StoredVariable, check_numbers, elements, layers, natural

_NUMBERED = re.compile(r"(_layer_checkpoint_dependencies|layers)/")
_KERAS3_DENSE = {"0": "kernel", "1": "bias"}
_KERAS3_NORM = {"0": "gamma", "1": "beta", "2": "mean", "3": "variance"}


def read(path: Path) -> Layers:
    """The actor's layers of a weights file. Raises InputError where it is corrupt or no such file."""
    with _opened(path) as file:
        found, order = _keras2(path, file) if "layer_names" in file.attrs else _keras3(path, file)
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


def open_checkpoint(path: Path) -> Checkpoint:
    """Every variable of a weights file, by the names of its datasets. Raises InputError."""
    with _opened(path) as file:
        names = sorted(_datasets(file), key=natural)
        listed = {name: StoredVariable(name, tuple(file[name].shape), str(file[name].dtype)) for name in names}

    def load(name: str) -> NDArray[Any]:
        with _opened(path) as file:
            return np.asarray(file[name])

    return Checkpoint(path, listed, load, ordered=False)


def is_whole_model(path: Path) -> bool:
    """Whether a file holds a model with its architecture, not weights alone. Raises InputError."""
    if path.suffix == ".keras":
        return True
    try:
        with h5py.File(path, "r") as file:
            return "model_config" in file.attrs
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as HDF5 weights: {_first_line(error)}") from None


def _weights_inside(path: Path) -> Any:
    """The HDF5 file itself, or the one that a .keras archive holds."""
    if path.suffix != ".keras":
        return path
    with zipfile.ZipFile(path) as archive:
        if archive.getinfo("model.weights.h5").file_size > 4 * MOST_ELEMENTS:
            raise ValueError("its model.weights.h5 is larger than any actor's")
        return io.BytesIO(archive.read("model.weights.h5"))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with h5py.File(_weights_inside(path), "r") as file:
            # a whole model in HDF5 keeps its weights in a group of their own
            yield file.get("model_weights", file)
    except InputError:
        raise
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, MemoryError) as error:
        raise InputError(f"{path}: cannot be read as HDF5 weights: {_first_line(error)}") from None
    except (zipfile.BadZipFile, zipfile.zlib.error, NotImplementedError, EOFError) as error:  # type: ignore[attr-defined]
        raise InputError(f"{path}: cannot be read as a .keras archive: {_first_line(error)}") from None


def _keras2(path: Path, file: Any) -> tuple[Found, list[str]]:
    """Layers stand in layer_names in the model's order; their counters mean nothing."""
    found: Found = {}
    for name in map(_text, file.attrs["layer_names"]):
        for weight in map(_text, file[name].attrs["weight_names"]):
            layer, _, part = weight.split(":")[0].rpartition("/")
            if part in PARTS:
                # a block of several layers is one entry of layer_names: its weights' names tell them apart
                values = _values(path, file[name], weight)
                found.setdefault(f"{name}/{layer}", {})[PARTS[part]] = f"{name}/{weight}", values
    return found, list(found)


def _keras3(path: Path, file: Any) -> tuple[Found, list[str]]:
    """layers/<name>/vars/<0 kernel, 1 bias | 0 gamma, 1 beta, 2 mean, 3 variance>; names count up in the model's order."""
    found: Found = {}
    for name in _datasets(file):
        layer, _, part = name.rpartition("/vars/")
        if layer and part.isdigit() and not layer.startswith("optimizer"):
            found.setdefault(layer, {})[part] = name, _values(path, file, name)
    for layer, numbered in found.items():
        names = _KERAS3_NORM if len(numbered) == 4 else _KERAS3_DENSE
        found[layer] = {names[part]: values for part, values in numbered.items() if part in names}
    order = sorted(found, key=natural)
    check_numbers(path, [layer for layer in order if "kernel" in found[layer] and _NUMBERED.match(layer)])
    return found, order


def _values(path: Path, group: Any, name: str) -> NDArray[np.float32]:
    dataset = group[name]
    if not isinstance(dataset, h5py.Dataset):
        raise InputError(f"{path}: {name} is no array")
    if elements(dataset.shape) > MOST_ELEMENTS:
        raise InputError(f"{path}: {name} has shape {list(dataset.shape)}, more than any actor's; the file is corrupt")
    if dataset.dtype.kind != "f":
        raise InputError(f"{path}: {name} holds {dataset.dtype}, no weights")
    return np.asarray(dataset, np.float32)


def _datasets(file: Any) -> list[str]:
    names: list[str] = []
    file.visititems(lambda name, node: names.append(name) if isinstance(node, h5py.Dataset) else None)
    return names


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
