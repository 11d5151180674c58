"""Read HDF5 weights. A helper process calls `contents`: the HDF5 library may loop forever or crash on a corrupt
file."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.checkpoints.checkpoint import elements
from export.checkpoints.regular_files import MAX_BYTES
from export.checkpoints.torch_tensors import member_bytes, members_of, open_archive

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
            size += elements(dataset.shape) * dataset.dtype.itemsize
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
