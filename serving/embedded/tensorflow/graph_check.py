"""Check the graph of a SavedModel before TensorFlow loads it: loading and Predict run only allowed operations."""

from pathlib import Path

from google.protobuf.message import DecodeError

from protos import tensorflow_pb2 as tf
from serving.embedded.models.servable import LoadError
from serving.graph_operations import RESTORE, Closure, run_by_loading

MAX_NAME_CHARS, MAX_NAMED_OPERATIONS = 100, 5
"""Limits for the operations of a graph that an error names."""


def check(path: Path) -> None:
    """Raise LoadError if loading a version or a run of one of its signatures reaches an operation that is not allowed.

    The C API loads the meta graph whose only tag is `serve`; if there is none, its own error says so.
    """
    file = path / "saved_model.pb"
    try:
        model = tf.SavedModel.FromString(file.read_bytes())
    except (DecodeError, OSError) as error:
        raise LoadError(f"{file}: cannot be read as a SavedModel: {error}") from None
    for meta_graph in model.meta_graphs:
        if set(meta_graph.meta_info_def.tags) == {"serve"}:
            _check(meta_graph)


def _check(meta_graph: tf.MetaGraphDef) -> None:
    closure = Closure(meta_graph.graph_def)
    outputs = [output.name for signature in meta_graph.signature_def.values() for output in signature.outputs.values()]
    refused = closure.refused(closure.of_nodes(outputs)) | closure.refused(closure.of_nodes(run_by_loading(meta_graph)), RESTORE)
    if refused:
        names = ", ".join(repr(name[:MAX_NAME_CHARS]) for name in list(refused)[:MAX_NAMED_OPERATIONS])
        more = f" and {len(refused) - MAX_NAMED_OPERATIONS} more" if len(refused) > MAX_NAMED_OPERATIONS else ""
        raise LoadError(
            f"its graph runs {names}{more}, which an actor does not need; nothing of it was run. "
            "Save the actor alone, as a function of the observation, or pass --allow_any_operation if you trust the model"
        )
