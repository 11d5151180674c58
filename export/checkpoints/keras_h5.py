"""Keras weights in HDF5: `save_weights` of Keras 2 (.h5) and 3 (.weights.h5), and whole models (.h5, .keras)."""

import functools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from city.errors import InputError
from export.actors.architectures import Layers
from export.checkpoints.checkpoint import PARTS, Checkpoint, StoredVariable, natural
from export.checkpoints.hdf5_reader import Contents
from export.checkpoints.helper_process import Helper
from export.checkpoints.layers import LayerParts, check_numbers, layers, output_sizes, refuse_unknown_variables
from export.checkpoints.scopes import is_training
from export.checkpoints.source import ActorRequest, KerasModel, Source

_NUMBERED = re.compile(r"(_layer_checkpoint_dependencies|layers)/")
_KERAS3_DENSE = {"0": "kernel", "1": "bias"}
_KERAS3_NORM = {"0": "gamma", "1": "beta", "2": "mean", "3": "variance"}


def read(path: Path, everything: bool = False) -> Layers:
    """The actor's layers of a weights file. Raises InputError if it is corrupt or missing.

    `everything`: whether every variable must belong to a layer or to training.
    """
    file = _contents(path)
    found, order = _keras3(path, file) if file.layers is None else _keras2(path, file)
    taken = {name for parts in found.values() for name, _ in parts.values()}
    unread = tuple(sorted(set(file.arrays) - taken))
    if everything:
        stored = [StoredVariable(name, file.arrays[name].shape, file.arrays[name].dtype.name) for name in unread]
        refuse_unknown_variables(path, stored, "", output_sizes(found, order))
    whole = layers(path, found, order, unread)
    if file.layers is not None or all(_NUMBERED.match(layer) for layer in order):
        return whole
    groups: dict[str, list[str]] = {}
    for layer in order:
        groups.setdefault(layer.split("/")[0], []).append(layer)
    parts = tuple(replace(layers(path, found, names, ()), name=group) for group, names in groups.items())
    return replace(whole, groups=parts)


def open_checkpoint(path: Path) -> Checkpoint:
    """Every variable of a weights file, by the names of its datasets. Raises InputError."""
    arrays = _contents(path).arrays
    listed = {name: StoredVariable(name, arrays[name].shape, arrays[name].dtype.name) for name in sorted(arrays, key=natural)}
    return Checkpoint(path, listed, lambda name: arrays[name], ordered=False)


def _contents(path: Path) -> Contents:
    try:
        stat = path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read as HDF5 weights: {error.strerror}") from None
    return _read(path, stat.st_mtime_ns, stat.st_size)


_HELPER = Helper("export.checkpoints.hdf5_reader", "HDF5 weights", libraries=["h5py"])


@functools.lru_cache(maxsize=1)
def _read(path: Path, _mtime_ns: int, _size: int) -> Contents:
    """Cached, because several functions read the same file."""
    found: Contents = _HELPER.read(path)
    return found


def _keras2(path: Path, file: Contents) -> tuple[LayerParts, list[str]]:
    """layer_names has the layers in the model's order; their numbers have no meaning."""
    found: LayerParts = {}
    for name, weights in file.layers or ():
        if is_training(name):
            continue
        for weight in weights:
            layer, _, part = weight.split(":")[0].rpartition("/")
            if part in PARTS:
                # a block of several layers is one entry of layer_names: its weights' names distinguish them
                stored = f"{name}/{weight}"
                if stored not in file.arrays:
                    raise InputError(f"{path}: variable {stored} is missing")
                found.setdefault(f"{name}/{layer}", {})[PARTS[part]] = stored, _weights(path, stored, file)
    return found, list(found)


def _keras3(path: Path, file: Contents) -> tuple[LayerParts, list[str]]:
    """layers/<name>/vars/<0 kernel, 1 bias | 0 gamma, 1 beta, 2 mean, 3 variance>; names count up in the model's order."""
    found: LayerParts = {}
    for name in file.arrays:
        layer, _, part = name.rpartition("/vars/")
        if layer and part.isdigit() and not any(map(is_training, layer.split("/"))):
            found.setdefault(layer, {})[part] = name, _weights(path, name, file)
    for layer, numbered in found.items():
        names = _KERAS3_NORM if len(numbered) == 4 else _KERAS3_DENSE
        found[layer] = {names[part]: values for part, values in numbered.items() if part in names}
    order = sorted(found, key=natural)
    if all(map(_NUMBERED.match, order)):
        # of a subclassed model, attributes that Keras visits first are not among the numbered layers
        check_numbers(path, [layer for layer in order if "kernel" in found[layer]])
    return found, order


def _weights(path: Path, name: str, file: Contents) -> NDArray[np.float32]:
    values = file.arrays[name]
    if values.dtype.kind != "f":
        raise InputError(f"{path}: {name} holds {values.dtype}, not weights")
    return np.asarray(values, np.float32)


class KerasHdf5(Source):
    format = "keras-h5"
    suffixes = (".h5", ".hdf5", ".keras")
    has_scopes = False

    def open(self, path: Path) -> Checkpoint:
        return open_checkpoint(path)

    def layers(self, path: Path, checkpoint: Checkpoint, scope: str, whole: bool = False) -> Layers:
        return read(path, whole)

    def graph(self, path: Path, wanted: ActorRequest) -> KerasModel | None:
        file = _contents(path)
        return KerasModel(file.model_config, file.keras_version) if file.whole_model else None


SOURCE = KerasHdf5()
