"""Check a SavedModel before TensorFlow loads it: its size, that loading and Predict run only allowed operations, and
that loading gives a value to every variable that a Predict reads."""

import graphlib
import math
import os
import stat
from pathlib import Path
from typing import NamedTuple

from google.protobuf.message import DecodeError

from city import names
from protos import predict_pb2 as wire
from protos import tensorflow_pb2 as tf
from serving.embedded.models.servable import LoadError
from serving.graph_operations import LOOPS, RESTORE, VARIABLE_NODES, Closure, run_by_loading

MAX_NAME_CHARS, MAX_NAMED_OPERATIONS = 100, 5
"""Limits for the operations of a graph that an error names."""
MAX_GRAPH_BYTES = 256 << 20
"""Maximum size of saved_model.pb; that of a fleet of 1,000 TLs has some MB."""
MAX_MODEL_BYTES = 2 << 30
"""Maximum size of all files of a version."""
MAX_NODES = 1_000_000
"""Maximum number of a graph's nodes, with every call replaced by the nodes of its function."""
_REMEDY = "Save the actor alone, as a function of the observation, or pass --allow_any_operation if you trust the model"


class Work(NamedTuple):
    """What runs of a version's signatures do."""

    has_loops: bool = False
    """A run reaches a loop, so that its time must be limited."""
    size: int = 0
    """Operations times numbers of an input's row: about the numbers that a run computes."""


def check(path: Path, allow_any_operation: bool = False) -> Work:
    """Check a version's folder before it is loaded, and return the work of its runs.

    Raises LoadError if a variable has no value after loading and, unless any operation is allowed, if the version is
    too large, or if loading it or a run reaches an operation that is not allowed.
    The C API loads the meta graph whose only tag is `serve`; if there is none, its own error says so.
    """
    file = path / "saved_model.pb"
    try:
        if not allow_any_operation:
            _check_size(path, file)
        model = tf.SavedModel.FromString(file.read_bytes())
    except (DecodeError, OSError) as error:
        raise LoadError(f"{file}: cannot be read as a SavedModel: {error}") from None
    # looked for before TensorFlow does: without this file it loads the version, and every run fails
    restores = (path / "variables" / "variables.index").is_file()
    work = Work()
    for meta_graph in model.meta_graphs:
        if set(meta_graph.meta_info_def.tags) == {"serve"}:
            signatures = meta_graph.signature_def.values()
            closure = Closure(meta_graph.graph_def)
            run = list(closure.of_nodes(output.name for each in signatures for output in each.outputs.values()))
            if not allow_any_operation:
                _check_operations(meta_graph, closure, run)
            _check_variables(meta_graph, closure, {name for _, name in run}, restores, allow_any_operation)
            has_loops = not allow_any_operation and any(operation in LOOPS for operation, _ in run)
            work = Work(has_loops, len(run) * max(map(_row_size, signatures), default=0))
    return work


def _row_size(signature: wire.SignatureDef) -> int:
    """The numbers in one row of all inputs; a size that the signature leaves open counts as 1."""
    shapes = ([dim.size for dim in info.tensor_shape.dim if dim.size > 0] for info in signature.inputs.values())
    return sum(map(math.prod, shapes))


def _check_size(path: Path, file: Path) -> None:
    """Raise LoadError if the files of a version are too large or not regular, OSError if their sizes cannot be read."""
    total = 0
    for each in (Path(folder, name) for folder, _, files in os.walk(path) for name in files):
        status = each.stat()
        if not stat.S_ISREG(status.st_mode):
            raise LoadError(f"{each}: is not a regular file; put the file itself there")
        total += status.st_size
    for what, size, limit in ((file, file.stat().st_size, MAX_GRAPH_BYTES), (path, total, MAX_MODEL_BYTES)):
        if size > limit:
            raise LoadError(f"{what} has {size} bytes, more than the {limit} that an actor may have. {_REMEDY}")


def _check_operations(meta_graph: tf.MetaGraphDef, closure: Closure, run: list[tuple[str, str]]) -> None:
    """Raise LoadError if loading, or what a run of the signatures reaches, has an operation that is not allowed."""
    try:
        size = closure.inlined_size()
    except graphlib.CycleError as error:
        raise LoadError(
            f"its function {error.args[1][0][:MAX_NAME_CHARS]!r} calls itself; nothing of it was run. {_REMEDY}"
        ) from None
    if size > MAX_NODES:
        raise LoadError(f"its graph runs {size} operations, more than {MAX_NODES}; nothing of it was run. {_REMEDY}")
    refused = closure.refused(run) | closure.refused(closure.of_nodes(run_by_loading(meta_graph)), RESTORE - LOOPS)
    if refused:
        named = names.listed([repr(name[:MAX_NAME_CHARS]) for name in refused], MAX_NAMED_OPERATIONS)
        raise LoadError(f"its graph runs {named}, which an actor does not need; nothing of it was run. {_REMEDY}")


def _check_variables(
    meta_graph: tf.MetaGraphDef, closure: Closure, run: set[str], restores: bool, may_assign: bool
) -> None:
    """Raise LoadError if loading gives no value to a variable that a run reads.

    Args:
        meta_graph: of the SavedModel.
        closure: of its graph.
        run: nodes that a run of the signatures reaches.
        restores: TensorFlow reads the values of variables, because the version has variables/variables.index.
        may_assign: a run may give a value to a variable that the SavedModel has no value of.
    """
    variables = {node.name for node in meta_graph.graph_def.node if node.op in VARIABLE_NODES} & run
    if not variables or (restores and may_assign):
        return
    if may_assign:
        variables &= {name for _, name in closure.of_nodes(run_by_loading(meta_graph))}
    empty = variables - {name for _, name in closure.of_nodes(run_by_loading(meta_graph, restores))}
    if empty:
        reason = (
            "the version is saved without them; save all that its signatures read"
            if restores
            else "variables/variables.index is missing; copy the whole version"
        )
        name = min(empty)[:MAX_NAME_CHARS]
        raise LoadError(f"{len(empty)} of its {len(variables)} variables have no value, such as {name!r}: {reason}")
