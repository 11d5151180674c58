"""TensorFlow checkpoints: TF1 Saver files (by name) and tf.train.Checkpoint or save_weights (by object)."""

import functools
import glob
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from city.errors import InputError, library_errors
from export.checkpoints import regular_files
from export.checkpoints.checkpoint import Checkpoint, StoredVariable, natural
from export.checkpoints.helper_process import run_in_helper
from export.checkpoints.source import ActorRequest, Graph, Source

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
MAX_BYTES = 64 << 30
"""Limit for an index or a shard of data, of which only the actor's variables are read."""
Stamp = tuple[tuple[str, int, int], ...]
"""Name, time and size of each file of a checkpoint, so that a changed one is read again."""
_SHARD = re.compile(r"\.data-\d{5}-of-(\d{5})$")
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def files(prefix: Path) -> list[Path]:
    """The index and the data shards of a checkpoint prefix."""
    return sorted(
        path
        for path in prefix.parent.glob(f"{glob.escape(prefix.name)}.*")
        if path.name == f"{prefix.name}.index" or _SHARD.sub("", path.name) == prefix.name != path.name
    )


def open_checkpoint(prefix: Path, run: Callable[..., Any] = run_in_helper) -> Checkpoint:
    """Open a checkpoint. Raises InputError if it is corrupt or not a checkpoint.

    `run`: calls a function that reads the files, by default in the helper process.
    """
    statuses = {path.name: regular_files.check(path, MAX_BYTES) for path in files(prefix)}
    _check_complete(prefix.name, statuses)
    stamp = tuple((name, status.st_mtime_ns, status.st_size) for name, status in statuses.items())
    stored, keys, by_object = _listing(prefix, stamp, run)

    def load(name: str) -> NDArray[Any]:
        return np.asarray(run(read_variable, prefix, stamp, keys[name]))

    return Checkpoint(stored, load, by_object, keys)


def _check_complete(prefix: str, names: Iterable[str]) -> None:
    counts = {match[1] for name in names if (match := _SHARD.search(name))}
    shards = {f"{prefix}.data-{k:05d}-of-{count}" for count in counts or ["00001"] for k in range(int(count))}
    if missing := sorted({f"{prefix}.index", *shards}.difference(names)):
        raise InputError(
            f"its file {missing[0]} is missing; copy all files of the checkpoint: "
            f"{prefix}.index, {prefix}.data-..., and {prefix}.meta if there is one"
        )


Listing = tuple[Mapping[str, StoredVariable], Mapping[str, str], bool]
"""The variables of a checkpoint by readable names, their keys, and whether it is by object."""


@functools.lru_cache(maxsize=1)
def _listing(prefix: Path, stamp: Stamp, run: Callable[..., Listing]) -> Listing:
    return run(read_listing, prefix, stamp)


@functools.lru_cache(maxsize=1)
def _opened(prefix: Path, _stamp: Stamp) -> tuple[Any, Mapping[str, Any], Mapping[str, Any]]:
    """(TensorFlow's reader, shapes and dtypes by key), cached: a checkpoint may hold many TLs' actors. Raises
    InputError."""
    import tensorflow as tf  # takes seconds to import, and locating checkpoints does not need it

    with library_errors(
        "cannot be read as a TensorFlow checkpoint", remedy="; copy its files again, or pass another one"
    ):
        reader = tf.train.load_checkpoint(str(prefix))
        return reader, reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()


def read_variable(prefix: Path, stamp: Stamp, key: str) -> Any:
    """Read a variable's values; called in the helper process. Raises InputError."""
    reader, shapes, dtypes = _opened(prefix, stamp)
    with library_errors(f"{key.removesuffix(_VALUE)} cannot be read"):
        # the shape comes from the index: a corrupt index must not allocate unlimited memory
        shape, data_size = shapes[key], sum(size for name, _, size in stamp if not name.endswith(".index"))
        if dtypes[key].name != "string" and math.prod(shape) * dtypes[key].size > data_size:
            raise ValueError(f"shape {list(shape)}, more than the {data_size} bytes of the data files")
        return reader.get_tensor(key)


def read_listing(prefix: Path, stamp: Stamp) -> Listing:
    """List a checkpoint's variables; called in the helper process. Raises InputError."""
    _, shapes, dtypes = _opened(prefix, stamp)
    names = {key: key for key in sorted(shapes, key=natural)}
    if _OBJECT_GRAPH in shapes:
        with library_errors("its object graph cannot be read", (DecodeError, IndexError, TypeError)):
            names = _object_names(read_variable(prefix, stamp, _OBJECT_GRAPH))
        if missing := sorted(set(names.values()) - set(shapes)):
            raise InputError(f"variable {missing[0].removesuffix(_VALUE)} is missing from its index")
    stored = {name: StoredVariable(name, tuple(map(int, shapes[key])), dtypes[key].name) for name, key in names.items()}
    return stored, names, _OBJECT_GRAPH in shapes


def _object_names(graph: bytes) -> dict[str, str]:
    """Name -> key of every variable in an object-based checkpoint, from its object graph.

    A variable that optimizer and actor share is stored once, and its key is often the
    optimizer's; so the keys alone do not show the actor's variables. The search is depth
    first, so that a model's layers are in the order of its attributes.
    """
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    nodes = trackable_object_graph_pb2.TrackableObjectGraph.FromString(graph).nodes
    names: dict[str, str] = {}
    for top in nodes[0].children:
        seen = {0}
        stack = [(top.local_name, top.node_id)]
        while stack:
            path, node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            for attribute in nodes[node].attributes:
                if attribute.checkpoint_key:
                    names.setdefault(path, attribute.checkpoint_key)
            # items of a list by their number, then other children in stored order
            children = sorted(
                nodes[node].children,
                key=lambda child: int(child.local_name) if child.local_name.isdecimal() else math.inf,
            )
            stack += [(f"{path}/{child.local_name}", child.node_id) for child in reversed(children)]
    return names


def meta_graph_path(prefix: Path) -> Path:
    """The MetaGraph that a TF1 Saver writes beside a checkpoint."""
    return prefix.with_name(prefix.name + ".meta")


class TensorFlowCheckpoint(Source):
    """A TensorFlow checkpoint; its path is the prefix of its files."""

    format = "tensorflow"

    def checkpoint_of(self, file: Path) -> Path | None:
        if file.suffix == ".index":
            return file.with_name(file.name.removesuffix(".index"))
        if not _SHARD.search(file.name):
            return None
        # a shard without its index is a copy that is not complete
        prefix = file.with_name(_SHARD.sub("", file.name))
        return None if prefix.with_name(f"{prefix.name}.index").exists() else prefix

    def files(self, path: Path) -> list[Path]:
        meta = meta_graph_path(path)
        return [*files(path), *([meta] if meta.is_file() else [])]

    def open(self, path: Path) -> Checkpoint:
        return open_checkpoint(path)

    def graph(self, path: Path, request: ActorRequest) -> Graph | None:
        return "meta graph" if request.output_tensor is not None or meta_graph_path(path).exists() else None


SOURCE = TensorFlowCheckpoint()
