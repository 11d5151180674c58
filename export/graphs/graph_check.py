"""Checks of untrusted graphs: every operation that loading or running one reaches is on the list
(`serving.graph_operations`)."""

from typing import Any

from tensorflow.core.framework import variable_pb2

from city.errors import InputError
from serving.graph_operations import RESTORE, Closure, run_by_loading

LOCAL_COLLECTIONS = ("local_variables", "local_resources")
"""Collections of variables that TensorFlow initializes when it loads a SavedModel without an init operation."""
CONSTANT = "tf.TrackableConstant"
"""TensorFlow's class of a number that a function captures, such as the mean of a Normalization layer."""
LOADER_METHODS = (
    *("_create_resource", "_initialize", "_destroy_resource", "_restore_from_tensors", "_serialize_to_tensors"),
    "_gather_saveables_for_checkpoint",
)
"""Methods that TensorFlow's loader calls itself."""


def check_graph(graph: Any) -> None:
    """Raise InputError if a run could do more than arithmetic. `graph`: a
    GraphDef."""
    closure = Closure(graph)
    _refuse(closure.refused(closure.of_nodes(node.name for node in graph.node)))


def check_loading(meta_graph: Any) -> None:
    """Raise InputError if loading a SavedModel could do more than restore its variables. `meta_graph`: a
    MetaGraphDef."""
    closure = Closure(meta_graph.graph_def)
    roots = run_by_loading(meta_graph)
    for name in LOCAL_COLLECTIONS:
        for value in meta_graph.collection_def[name].bytes_list.value if name in meta_graph.collection_def else ():
            roots.append(variable_pb2.VariableDef.FromString(value).initializer_name)
    refused = closure.refused(closure.of_nodes(roots), RESTORE)
    refused |= closure.refused(closure.of_functions(_called_by_loader(meta_graph.object_graph_def), set()), RESTORE)
    for node in meta_graph.object_graph_def.nodes:
        # tables and their files, which loading creates and fills, and classes that TensorFlow finds by their names
        is_constant = node.HasField("constant") and node.registered_name == CONSTANT
        if node.HasField("asset") or node.HasField("resource") or (node.registered_name and not is_constant):
            refused.setdefault(f"a table, a file or a class ({node.registered_name or 'unnamed'})", "its object graph")
    _refuse(refused)


def _called_by_loader(objects: Any) -> list[str]:
    """The functions that TensorFlow may call while it loads a SavedModel: of saveables, and private ones of objects."""
    functions = []
    for node in objects.nodes:
        numbers = [child.node_id for child in node.children if child.local_name in LOADER_METHODS]
        numbers += [n for each in node.saveable_objects.values() for n in (each.save_function, each.restore_function)]
        for number in numbers:
            if 0 <= number < len(objects.nodes):
                functions += objects.nodes[number].function.concrete_functions
                functions.append(objects.nodes[number].bare_concrete_function.concrete_function_name)
    return functions


def _refuse(refused: dict[str, str]) -> None:
    if refused:
        operation, node = next(iter(refused.items()))
        more = f" (and {', '.join(list(refused)[1:6])})" if len(refused) > 1 else ""
        raise InputError(
            f"its graph would run {operation}, at {node}{more}, which an actor does not need; nothing of it "
            "was run. Save the actor alone, as a function of the observation"
        )
