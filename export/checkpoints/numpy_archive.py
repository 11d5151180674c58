"""Arrays in .npz, with the variables' names: `numpy.savez(path, **{"actor/dense/kernel": ..., ...})`."""

import math
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from city.errors import InputError, library_errors
from export.checkpoints import regular_files
from export.checkpoints.checkpoint import Checkpoint, StoredVariable
from export.checkpoints.source import Source


def open_checkpoint(path: Path) -> Checkpoint:
    """Open an archive; the parts of a name are separated by `/` or `.`, and `:0` at its end is dropped. Raises
    InputError."""
    stored, keys, size = {}, {}, 0
    with library_errors("cannot be read as an .npz archive", remedy="; copy the file again, or pass another one"):
        regular_files.check(path)
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                size += entry.file_size
                if size > regular_files.MAX_BYTES:  # a compressed file may be much smaller
                    raise InputError(
                        f"its arrays have more than {regular_files.MAX_BYTES} bytes; save the actor's weights alone"
                    )
                key = entry.filename.removesuffix(".npy")
                with archive.open(entry) as file:
                    shape, dtype = _header(file)
                if math.prod(shape) * dtype.itemsize > entry.file_size:
                    raise ValueError(f"{key} has shape {list(shape)}, more than its {entry.file_size} bytes")
                name = re.sub(r":\d+$", "", key)
                name = name if "/" in name else name.replace(".", "/")
                stored[name] = StoredVariable(name, shape, dtype.name)
                keys[name] = entry.filename
    if any(re.fullmatch(r"arr_\d+", name) for name in stored):
        raise InputError(
            f"its arrays have no names ({', '.join(list(stored)[:3])}, ...); "
            "write them with their variables' names: numpy.savez(path, **{variable.path: variable.numpy(), ...})"
        )

    def load(name: str) -> NDArray[Any]:
        with library_errors(f"{name} cannot be read"), np.load(path, allow_pickle=False) as archive:
            return np.asarray(archive[keys[name]])

    # layers of one name are ordered by their numbers, others by their position in the archive
    stems = {re.sub(r"_?\d+$", "", name.rpartition("/")[0]) for name in stored}
    return Checkpoint(stored, load, ordered=len(stems) > 1)


def _header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = npy.read_magic(file)
    read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read_header is None:
        raise ValueError(f"format version {version} is not supported")
    shape, _, dtype = read_header(file)
    return shape, dtype


class NumpyArchive(Source):
    format = "npz"
    suffixes = (".npz",)

    def open(self, path: Path) -> Checkpoint:
        return open_checkpoint(path)


SOURCE = NumpyArchive()
