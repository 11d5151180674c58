"""Keras weights in HDF5: `save_weights` of Keras 2 (.h5) and 3 (.weights.h5), and whole models (.h5, .keras)."""

import re
from pathlib import Path

from city.errors import InputError
from export.actors.architectures import Layers
from export.checkpoints.checkpoint import PARTS, Checkpoint, float32_weights, natural
from export.checkpoints.hdf5_reader import Contents, KerasModel, contents
from export.checkpoints.helper_process import Helper
from export.checkpoints.layers import (
    LayerParts,
    build_layers,
    check_numbers,
    grouped,
    output_sizes,
    refuse_other_layers,
    refuse_unknown_variables,
)
from export.checkpoints.linear_layers import checkpoint_of
from export.checkpoints.scopes import is_training
from export.checkpoints.source import ActorRequest, Source

_NUMBERED = re.compile(r"(_layer_checkpoint_dependencies|layers)/")
_KERAS3_DENSE = {"0": "kernel", "1": "bias"}
_KERAS3_NORM = {"0": "gamma", "1": "beta", "2": "mean", "3": "variance"}
_HELPER = Helper(contents, "HDF5 weights", libraries=["h5py"])


def _layers(file: Contents, strict: bool) -> Layers:
    parts_of, order = _keras3(file) if file.layers is None else _keras2(file)
    read_names = {name for parts in parts_of.values() for name, _ in parts.values()}
    unread = tuple(sorted(set(file.arrays) - read_names))
    checkpoint = checkpoint_of(file.arrays, ordered=False)
    if strict:
        refuse_other_layers(checkpoint.stored.values(), "")
        refuse_unknown_variables([checkpoint.stored[name] for name in unread], "", output_sizes(parts_of, order))
    layers = build_layers(parts_of, order, unread)
    if file.layers is not None or all(_NUMBERED.match(layer) for layer in order):
        return layers
    # a subclassed model: its attributes are listed alphabetically, not in the order of calls
    return grouped(checkpoint, layers, order, "")


def _keras2(file: Contents) -> tuple[LayerParts, list[str]]:
    """Read the layers in the order of `layer_names`, which is the model's; the numbers in the names have no meaning."""
    parts_of: LayerParts = {}
    for name, weights in file.layers or ():
        if is_training(name):
            continue
        for weight in weights:
            layer, _, part = weight.split(":")[0].rpartition("/")
            if part in PARTS:
                # one entry of layer_names may be a block of several layers; the weights' names distinguish them
                stored = f"{name}/{weight}"
                if stored not in file.arrays:
                    raise InputError(f"variable {stored} is missing")
                values = float32_weights(stored, file.arrays[stored])
                parts_of.setdefault(f"{name}/{layer}", {})[PARTS[part]] = stored, values
    return parts_of, list(parts_of)


def _keras3(file: Contents) -> tuple[LayerParts, list[str]]:
    """Read the layers in the order of their numbers, which is the model's.

    Datasets are layers/<name>/vars/<0 kernel, 1 bias | 0 gamma, 1 beta, 2 mean, 3 variance>.
    """
    parts_of: LayerParts = {}
    for name, values in file.arrays.items():
        layer, _, part = name.rpartition("/vars/")
        if layer and part.isdigit() and not any(map(is_training, layer.split("/"))):
            parts_of.setdefault(layer, {})[part] = name, float32_weights(name, values)
    for layer, numbered in parts_of.items():
        names = _KERAS3_NORM if len(numbered) == 4 else _KERAS3_DENSE
        parts_of[layer] = {names[part]: stored for part, stored in numbered.items() if part in names}
    order = sorted(parts_of, key=natural)
    if all(map(_NUMBERED.match, order)):
        # a subclassed model keeps its attributes outside the numbered layers, which may then begin at any number
        check_numbers([layer for layer in order if "kernel" in parts_of[layer]], first=0)
    return parts_of, order


class KerasHdf5(Source):
    format = "keras-h5"
    suffixes = (".h5", ".hdf5", ".keras")
    has_scopes = False

    def open(self, path: Path) -> Checkpoint:
        arrays = _HELPER.read(path).arrays
        return checkpoint_of({name: arrays[name] for name in sorted(arrays, key=natural)}, ordered=False)

    def layers(self, path: Path, checkpoint: Checkpoint, scope: str, strict: bool = False) -> Layers:
        return _layers(_HELPER.read(path), strict)

    def graph(self, path: Path, request: ActorRequest) -> KerasModel | None:
        return _HELPER.read(path).model


SOURCE = KerasHdf5()
