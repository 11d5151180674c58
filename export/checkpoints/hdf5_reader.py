"""Read HDF5 in a helper process.

The HDF5 library may loop forever or crash on a corrupt file. Therefore a helper
process reads the file, within a time and a memory limit, and sends plain arrays;
after the time limit the exporter ends the helper and refuses the file. One
helper reads all files of a run.
"""

import atexit
import io
import os
import resource
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from city.errors import InputError, first_line

READ_TIMEOUT_S = 20
"""A weights file is read in milliseconds."""
START_TIMEOUT_S = 60.0
"""For the helper's start on a machine under load."""
MAX_MEMORY_BYTES = 6 << 30
MAX_BYTES = 2 << 30
"""Size of all arrays of a file."""


@dataclass(frozen=True)
class Contents:
    """What a file holds."""

    arrays: Mapping[str, NDArray[Any]]
    """By path, in the file's own order."""
    layers: tuple[tuple[str, tuple[str, ...]], ...] | None
    """Keras 2: every layer with the names of its weights, in the model's order. None: Keras 3."""
    whole_model: bool
    """Whether the model's architecture is there too."""


class Helper:
    """Helper process that reads HDF5 files; it starts with the first read."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def read(self, path: Path) -> Contents:
        """The contents of a file. Raises InputError if it cannot be read."""
        try:
            connection = self._started()
            connection.send((str(path), READ_TIMEOUT_S))
            if not connection.poll(2 * READ_TIMEOUT_S):
                raise EOFError
            answer = connection.recv()
        except (OSError, EOFError):
            # the helper crashed, or its alarm ended it
            self.close()
            reason = f"the HDF5 library crashes on it, or does not finish within {READ_TIMEOUT_S} s; the file is corrupt"
            raise InputError(f"{path}: cannot be read as HDF5 weights: {reason}") from None
        except BaseException:
            self.close()  # after an interrupt, a late reply must not be read as the next one
            raise
        if isinstance(answer, str):
            raise InputError(f"{path}: cannot be read as HDF5 weights: {answer}")
        assert isinstance(answer, Contents)
        return answer

    def close(self) -> None:
        """End the helper, whatever it is doing."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _started(self) -> Connection:
        if self._process is None or self._connection is None:
            parent_end, child_end = Pipe()
            root = str(Path(__file__).resolve().parents[2])
            path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
            # a new interpreter: a fork would copy TensorFlow's threads and locks
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"from {__name__} import serve; serve({child_end.fileno()})"],
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
            )
            child_end.close()
            self._connection = parent_end
            atexit.register(self.close)
            if not parent_end.poll(START_TIMEOUT_S):
                raise EOFError
            parent_end.recv()
        return self._connection


def serve(descriptor: int) -> None:
    """The helper's loop: (path, seconds) in, Contents or an error's text out; ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the exporter handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import h5py  # noqa: F401 - before the first file, so that its time is the file's own

    connection = Connection(descriptor)
    connection.send("ready")
    while True:
        try:
            path, limit_s = connection.recv()
        except EOFError:
            return
        # an alarm without a handler ends the process even inside the library
        signal.alarm(limit_s)
        try:
            answer: Contents | str = contents(Path(path))
        except Exception as error:  # noqa: BLE001 - h5py raises many kinds for one cause: the file
            answer = first_line(error)
        signal.alarm(0)
        connection.send(answer)


def contents(path: Path) -> Contents:
    """Read a file in this process. Raises what h5py raises, ValueError for arrays that are too large."""
    import h5py

    source: Any = path
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo("model.weights.h5").file_size > MAX_BYTES:
                raise ValueError("its model.weights.h5 is larger than any actor's")
            source = io.BytesIO(archive.read("model.weights.h5"))
    with h5py.File(source, "r") as file:
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
    return Contents(arrays, layers, whole)


def _datasets(group: Any) -> list[str]:
    import h5py

    names: list[str] = []
    group.visititems(lambda name, node: names.append(name) if isinstance(node, h5py.Dataset) else None)
    return names


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
