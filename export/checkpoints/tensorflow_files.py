"""TensorFlow checkpoints: TF1 Saver files (by name) and tf.train.Checkpoint or save_weights (by object)."""

import functools
import glob
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from city.errors import InputError, library_errors
from export.checkpoints import regular_files
from export.checkpoints.checkpoint import Checkpoint, StoredVariable, elements, natural
from export.checkpoints.source import ActorRequest, MetaGraph, Source

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
MAX_BYTES = 64 << 30
"""Limit for an index or a shard of data, of which only the actor's variables are read."""
_SHARD = re.compile(r"\.data-\d{5}-of-(\d{5})$")
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def files(prefix: Path) -> list[Path]:
    """The index and the data shards of a checkpoint prefix."""
    return sorted(
        path
        for path in prefix.parent.glob(f"{glob.escape(prefix.name)}.*")
        if path.name == f"{prefix.name}.index" or _SHARD.sub("", path.name) == prefix.name != path.name
    )


def open_checkpoint(prefix: Path) -> Checkpoint:
    """Open a checkpoint. Raises InputError if it is corrupt or not a checkpoint."""
    try:
        statuses = {path.name: regular_files.check(path, MAX_BYTES) for path in files(prefix)}
    except OSError as error:
        raise InputError(f"cannot be read as a TensorFlow checkpoint: {error.strerror}") from None
    _check_complete(prefix.name, statuses)
    return _opened(prefix, tuple((name, status.st_mtime_ns, status.st_size) for name, status in statuses.items()))


def _check_complete(prefix: str, names: Iterable[str]) -> None:
    """Raise InputError if the index or a data file of a checkpoint is missing."""
    counts = {match[1] for name in names if (match := _SHARD.search(name))}
    shards = {f"{prefix}.data-{k:05d}-of-{count}" for count in counts or ["00001"] for k in range(int(count))}
    if missing := sorted({f"{prefix}.index", *shards}.difference(names)):
        raise InputError(
            f"its file {missing[0]} is missing; copy all files of the checkpoint: "
            f"{prefix}.index, {prefix}.data-..., and {prefix}.meta if there is one"
        )


@functools.lru_cache(maxsize=1)
def _opened(prefix: Path, stamp: tuple[tuple[str, int, int], ...]) -> Checkpoint:
    """Cached, because a checkpoint may hold the actors of many TLs."""
    import tensorflow as tf  # takes seconds to import, and locating checkpoints does not need it

    with library_errors("cannot be read as a TensorFlow checkpoint"):
        reader = tf.train.load_checkpoint(str(prefix))
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    data_size = sum(size for name, _, size in stamp if not name.endswith(".index"))
    by_object = bool(reader.has_tensor(_OBJECT_GRAPH))

    def load(key: str) -> Any:
        # the shape comes from the index: a corrupt index must not allocate unlimited memory
        shape, dtype = shapes.get(key, ()), dtypes.get(key)
        if dtype is not None and dtype != tf.string and elements(tuple(shape)) * dtype.size > data_size:
            raise InputError(
                f"{key.removesuffix(_VALUE)} cannot be read: "
                f"shape {list(shape)}, more than the {data_size} bytes of the data files"
            )
        with library_errors(f"{key.removesuffix(_VALUE)} cannot be read"):
            return reader.get_tensor(key)

    if by_object:
        with library_errors("its object graph cannot be read", (DecodeError, IndexError, TypeError)):
            names = _object_names(load(_OBJECT_GRAPH))
        missing = sorted(set(names.values()) - set(shapes))
        if missing:
            raise InputError(f"variable {missing[0].removesuffix(_VALUE)} is missing from its index")
    else:
        names = {key: key for key in sorted(shapes, key=natural)}
    listed = {name: StoredVariable(name, tuple(shapes[key]), dtypes[key].name) for name, key in names.items()}
    return Checkpoint(listed, lambda name: np.asarray(load(names[name])), by_object, names)


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

    def graph(self, path: Path, request: ActorRequest) -> MetaGraph | None:
        meta = meta_graph_path(path)
        if meta.exists():
            regular_files.check(meta)
        return MetaGraph() if request.output_tensor is not None or meta.exists() else None


SOURCE = TensorFlowCheckpoint()
