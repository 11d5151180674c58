"""Read HDF5 weights; the HDF5 library may loop forever or crash on a corrupt file, so a helper process calls `contents`."""

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_BYTES = 2 << 30
"""Size of all arrays of a file."""
MAX_TEXT_BYTES = 16 << 20
"""Of a model's architecture."""


@dataclass(frozen=True)
class Contents:
    """What a file holds."""

    arrays: Mapping[str, NDArray[Any]]
    """By path, in the file's own order."""
    layers: tuple[tuple[str, tuple[str, ...]], ...] | None
    """Keras 2: every layer with the names of its weights, in the model's order. None: Keras 3."""
    whole_model: bool
    """Whether the model's architecture is there too."""
    model_config: str = ""
    """The architecture as JSON; "" if it is not there."""
    keras_version: str = ""
    """Of the Keras that wrote a whole model, such as 2.15.0; "" if the file does not tell."""


def contents(path: Path) -> Contents:
    """Read a file in this process. Raises what h5py raises, ValueError for arrays that are too large."""
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
        whole = path.suffix == ".keras" or "model_config" in file.attrs
        # a whole model in HDF5 keeps its weights in a group of their own
        group = file.get("model_weights", file)
        arrays: dict[str, NDArray[Any]] = {}
        size = 0
        for name in _datasets(group):
            dataset = group[name]
            count = 1
            for length in dataset.shape:
                count *= int(length)
            size += count * dataset.dtype.itemsize
            if size > MAX_BYTES:
                raise ValueError(f"{name} has shape {list(dataset.shape)}, more than any actor's; the file is corrupt")
            arrays[name] = np.asarray(dataset)
        layers = None
        if "layer_names" in group.attrs:
            layers = tuple(
                (name, tuple(map(_text, group[name].attrs["weight_names"]))) for name in map(_text, group.attrs["layer_names"])
            )
    return Contents(arrays, layers, whole, config, version)


def _member(archive: zipfile.ZipFile, name: str) -> str:
    """A member as text. Raises ValueError if it is too large, KeyError if it is missing."""
    if archive.getinfo(name).file_size > MAX_TEXT_BYTES:
        raise ValueError(f"its {name} is larger than any model's")
    return archive.read(name).decode()


def _datasets(group: Any) -> list[str]:
    import h5py

    names: list[str] = []
    group.visititems(lambda name, node: names.append(name) if isinstance(node, h5py.Dataset) else None)
    return names


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
