"""Keras weights in HDF5: `save_weights` of Keras 2 (.h5) and 3 (.weights.h5), and whole models (.h5, .keras).

A helper process calls `contents`: the HDF5 library may loop forever or crash on a corrupt file.
"""

import io
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from city.errors import InputError
from export.actors.architectures import Layers
from export.checkpoints.checkpoint import PARTS, Checkpoint, float32_weights, natural
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
from export.checkpoints.regular_files import MAX_BYTES
from export.checkpoints.scopes import is_training
from export.checkpoints.source import ActorRequest, KerasModel, Source
from export.checkpoints.torch_tensors import member_bytes, members_of, open_archive

MAX_TEXT_BYTES = 16 << 20
"""Limit for a model's architecture."""
_NUMBERED = re.compile(r"(_layer_checkpoint_dependencies|layers)/")
_KERAS3_DENSE = {"0": "kernel", "1": "bias"}
_KERAS3_NORM = {"0": "gamma", "1": "beta", "2": "mean", "3": "variance"}


@dataclass(frozen=True)
class Contents:
    """The contents of a weights file or of a whole model."""

    arrays: Mapping[str, NDArray[Any]]
    """By path, in the file's own order."""
    layers: tuple[tuple[str, tuple[str, ...]], ...] | None
    """Every layer with the names of its weights, in the model's order. `None` for Keras 3, which does not list them."""
    model: KerasModel | None
    """`None` if the file contains only weights."""


def contents(path: Path) -> Contents:
    """Read a file in this process. Raises h5py's exceptions, and ValueError for arrays that are too large."""
    import h5py

    source: Any = path
    config, version = "", ""
    if path.suffix == ".keras":
        with open_archive(path.read_bytes()) as archive:
            members = members_of(archive)
            config, metadata = (
                member_bytes(archive, members[name], MAX_TEXT_BYTES).decode()
                for name in ("config.json", "metadata.json")
            )
            version = str(json.loads(metadata).get("keras_version", ""))
            source = io.BytesIO(member_bytes(archive, members["model.weights.h5"]))
    with h5py.File(source, "r") as file:
        if name := file.visititems_links(lambda name, link: name if isinstance(link, h5py.ExternalLink) else None):
            raise ValueError(f"{name} is a link to another file; save the weights inside")
        config = config or _text(file.attrs.get("model_config", ""))
        version = version or _text(file.attrs.get("keras_version", ""))
        is_whole = path.suffix == ".keras" or "model_config" in file.attrs
        # a whole model in HDF5 has its weights in this group
        group = file.get("model_weights", file)
        datasets: dict[str, Any] = {}
        group.visititems(lambda name, node: datasets.update({name: node}) if isinstance(node, h5py.Dataset) else None)
        arrays: dict[str, NDArray[Any]] = {}
        size = 0
        for name, dataset in datasets.items():
            if dataset.external or dataset.is_virtual:
                raise ValueError(f"{name} is stored in another file; save the weights inside")
            size += math.prod(dataset.shape) * dataset.dtype.itemsize
            if size > MAX_BYTES:
                raise ValueError(f"{name} has shape {list(dataset.shape)}, more than any actor's; the file is corrupt")
            values = np.asarray(dataset)
            is_bfloat16 = values.dtype.str == "|V2" and dataset.attrs.get("dtype") == "bfloat16"
            arrays[name] = values.view("bfloat16") if is_bfloat16 else values
        layers = None
        if "layer_names" in group.attrs:
            layers = tuple(
                (name, tuple(map(_text, group[name].attrs["weight_names"])))
                for name in map(_text, group.attrs["layer_names"])
            )
    return Contents(arrays, layers, KerasModel(config, version) if is_whole else None)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


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
