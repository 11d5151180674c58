"""Read HDF5 weights. A helper process calls `contents`: the HDF5 library may loop forever or crash on a corrupt
file."""

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.checkpoints.checkpoint import elements
from export.checkpoints.regular_files import MAX_BYTES

MAX_TEXT_BYTES = 16 << 20
"""Limit for a model's architecture."""


@dataclass(frozen=True)
class KerasModel:
    """A Keras model with its architecture, which Keras can load if its classes are Keras's own."""

    config: str
    """The model's architecture as JSON, or ""."""
    version: str
    """Version of the Keras that wrote it, such as 2.15.0, or ""."""


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
        with zipfile.ZipFile(path) as archive:
            config = _member(archive, "config.json")
            version = str(json.loads(_member(archive, "metadata.json")).get("keras_version", ""))
            if archive.getinfo("model.weights.h5").file_size > MAX_BYTES:
                raise ValueError("its model.weights.h5 is larger than any actor's")
            source = io.BytesIO(archive.read("model.weights.h5"))
    with h5py.File(source, "r") as file:
        config = config or _text(file.attrs.get("model_config", ""))
        version = version or _text(file.attrs.get("keras_version", ""))
        is_whole = path.suffix == ".keras" or "model_config" in file.attrs
        _refuse_other_files(file)
        # a whole model in HDF5 has its weights in this group
        group = file.get("model_weights", file)
        names: list[str] = []
        group.visititems(lambda name, node: names.append(name) if isinstance(node, h5py.Dataset) else None)
        arrays: dict[str, NDArray[Any]] = {}
        size = 0
        for name in names:
            dataset = group[name]
            size += elements(dataset.shape) * dataset.dtype.itemsize
            if size > MAX_BYTES:
                raise ValueError(f"{name} has shape {list(dataset.shape)}, more than any actor's; the file is corrupt")
            values = np.asarray(dataset)
            if values.dtype.str == "|V2" and dataset.attrs.get("dtype") == "bfloat16":
                values = values.view("bfloat16")
            arrays[name] = values
        layers = None
        if "layer_names" in group.attrs:
            layers = tuple(
                (name, tuple(map(_text, group[name].attrs["weight_names"])))
                for name in map(_text, group.attrs["layer_names"])
            )
    return Contents(arrays, layers, KerasModel(config, version) if is_whole else None)


def _refuse_other_files(group: Any, path: str = "", seen: set[int] | None = None) -> None:
    """Raise ValueError if a link or a dataset refers to another file, which an export must not read."""
    import h5py

    seen = set() if seen is None else seen
    address = h5py.h5o.get_info(group.id).addr
    if address in seen:
        return  # hard links may form a cycle
    seen.add(address)
    for name in group:
        where = f"{path}{name}"
        if isinstance(group.get(name, getlink=True), h5py.ExternalLink):
            raise ValueError(f"{where} is a link to another file; save the weights inside")
        node = group.get(name)
        if isinstance(node, h5py.Dataset) and (node.external or node.is_virtual):
            raise ValueError(f"{where} is stored in another file; save the weights inside")
        if isinstance(node, h5py.Group):
            _refuse_other_files(node, f"{where}/", seen)


def _member(archive: zipfile.ZipFile, name: str) -> str:
    """Read a member as text. Raises ValueError if it is too large, KeyError if it is missing."""
    if archive.getinfo(name).file_size > MAX_TEXT_BYTES:
        raise ValueError(f"its {name} is larger than any model's")
    return archive.read(name).decode()


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
