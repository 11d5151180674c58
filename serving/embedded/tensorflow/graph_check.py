"""Check a SavedModel before TensorFlow loads it: its size, and that loading and Predict run only allowed operations."""

import graphlib
import os
import stat
from pathlib import Path

from google.protobuf.message import DecodeError

from protos import tensorflow_pb2 as tf
from serving.embedded.models.servable import LoadError
from serving.graph_operations import LOOPS, RESTORE, Closure, run_by_loading

MAX_NAME_CHARS, MAX_NAMED_OPERATIONS = 100, 5
"""Limits for the operations of a graph that an error names."""
MAX_GRAPH_BYTES = 256 << 20
"""Maximum size of saved_model.pb; that of a fleet of 1,000 TLs has some MB."""
MAX_MODEL_BYTES = 2 << 30
"""Maximum size of all files of a version."""
MAX_NODES = 1_000_000
"""Maximum number of a graph's nodes, with every call replaced by the nodes of its function."""
_REMEDY = "Save the actor alone, as a function of the observation, or pass --allow_any_operation if you trust the model"


def check(path: Path) -> bool:
    """Tell whether a run of a version's signatures reaches a loop, so that its time must be limited.

    Raises LoadError if the version is too large, or if loading it or a run reaches an operation that is not allowed.
    The C API loads the meta graph whose only tag is `serve`; if there is none, its own error says so.
    """
    file = path / "saved_model.pb"
    try:
        _check_size(path, file)
        model = tf.SavedModel.FromString(file.read_bytes())
    except (DecodeError, OSError) as error:
        raise LoadError(f"{file}: cannot be read as a SavedModel: {error}") from None
    return any(
        [_check(meta_graph) for meta_graph in model.meta_graphs if set(meta_graph.meta_info_def.tags) == {"serve"}]
    )


def _check_size(path: Path, file: Path) -> None:
    """Raise LoadError if the files of a version are too large or not regular, OSError if their sizes cannot be read."""
    total = 0
    for each in (Path(folder, name) for folder, _, names in os.walk(path) for name in names):
        status = each.stat()
        if not stat.S_ISREG(status.st_mode):
            raise LoadError(f"{each}: is not a regular file; put the file itself there")
        total += status.st_size
    for what, size, limit in ((file, file.stat().st_size, MAX_GRAPH_BYTES), (path, total, MAX_MODEL_BYTES)):
        if size > limit:
            raise LoadError(f"{what} has {size} bytes, more than the {limit} that an actor may have. {_REMEDY}")


def _check(meta_graph: tf.MetaGraphDef) -> bool:
    """Check a meta graph; returns whether a run of a signature reaches a loop. Raises LoadError."""
    closure = Closure(meta_graph.graph_def)
    try:
        size = closure.inlined_size()
    except graphlib.CycleError as error:
        raise LoadError(
            f"its function {error.args[1][0][:MAX_NAME_CHARS]!r} calls itself; nothing of it was run. {_REMEDY}"
        ) from None
    if size > MAX_NODES:
        raise LoadError(f"its graph runs {size} operations, more than {MAX_NODES}; nothing of it was run. {_REMEDY}")
    outputs = [output.name for signature in meta_graph.signature_def.values() for output in signature.outputs.values()]
    run = list(closure.of_nodes(outputs))
    refused = closure.refused(run) | closure.refused(closure.of_nodes(run_by_loading(meta_graph)), RESTORE - LOOPS)
    if refused:
        names = ", ".join(repr(name[:MAX_NAME_CHARS]) for name in list(refused)[:MAX_NAMED_OPERATIONS])
        more = f" and {len(refused) - MAX_NAMED_OPERATIONS} more" if len(refused) > MAX_NAMED_OPERATIONS else ""
        raise LoadError(f"its graph runs {names}{more}, which an actor does not need; nothing of it was run. {_REMEDY}")
    return any(operation in LOOPS for operation, _ in run)
