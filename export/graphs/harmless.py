"""Whether a stranger's graph may be run: every operation that a run reaches is on the list (`serving.graph_operations`)."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from city.errors import InputError
from serving.graph_operations import RESTORE, Closure

INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op", "table_initializer")
"""TensorFlow runs their operations when it loads a SavedModel, and the operation of INIT_SIGNATURE."""
INIT_SIGNATURE = "__saved_model_init_op"


def check_graph(where: Path, graph: Any, tensors: Iterable[str] | None = None) -> None:
    """Raise InputError if a run could do more than arithmetic.

    Args:
        where: the file, for the message.
        graph: a GraphDef.
        tensors: tensors or nodes that are run. Without them, every node of the graph counts.
    """
    closure = Closure(graph)
    roots = [node.name for node in graph.node] if tensors is None else tensors
    _refuse(where, closure.refused(closure.of_nodes(roots)))


def check_loading(where: Path, meta_graph: Any) -> None:
    """Raise InputError if loading a SavedModel could do more than restore its variables. `meta_graph`: a MetaGraphDef."""
    closure = Closure(meta_graph.graph_def)
    roots = [meta_graph.saver_def.restore_op_name] if meta_graph.saver_def.restore_op_name else []
    for name in INIT_COLLECTIONS:
        roots += meta_graph.collection_def[name].node_list.value if name in meta_graph.collection_def else []
    if INIT_SIGNATURE in meta_graph.signature_def:
        roots += [output.name for output in meta_graph.signature_def[INIT_SIGNATURE].outputs.values()]
    refused = closure.refused(closure.of_nodes(roots), RESTORE)
    # tables and their files: loading creates and fills them
    for node in meta_graph.object_graph_def.nodes:
        if node.HasField("asset") or node.HasField("resource"):
            refused.setdefault("a table or a file", "its object graph")
    _refuse(where, refused)


def _refuse(where: Path, refused: dict[str, str]) -> None:
    if refused:
        operation, node = next(iter(refused.items()))
        more = f" (and {', '.join(list(refused)[1:6])})" if len(refused) > 1 else ""
        raise InputError(
            f"{where}: its graph would run {operation}, at {node}{more}, which an actor does not need; nothing of it was run. "
            "Save the actor alone, as a function of the observation"
        )
