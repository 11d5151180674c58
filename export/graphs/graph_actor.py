"""Actors as graphs: the inference part of a trainer's own graph.

For checkpoints that contain a graph (a MetaGraph, a SavedModel, a Keras model);
the architecture need not be known. Functions are inlined, placeholders
other than the observation are replaced by their value at inference, constants
are folded, and each variable becomes an input that the exporter fills in.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2
from tensorflow.python.grappler import tf_optimizer

from city.errors import InputError, library_errors
from export import quiet
from export.actors import Arrays, GraphActor, ReferenceModel, Weight
from export.checkpoints.checkpoint import Checkpoint, unread_variables

OBSERVATION = "observation"

RANDOM_MEAN = {
    "RandomUniform": 0.5, "RandomStandardNormal": 0.0, "TruncatedNormal": 0.0, "StatelessRandomUniform": 0.5,
    "StatelessRandomUniformV2": 0.5, "StatelessRandomNormal": 0.0, "StatelessRandomNormalV2": 0.0,
}  # fmt: skip
"""Random operations that a deterministic output may depend on (an inactive dropout) -> their mean."""
REFERENCES = ("VariableV2", "Variable")
"""Variables of TF1 whose node has the values themselves, not a handle."""
VARIABLES = (*REFERENCES, "VarHandleOp")
_PASSES = ("Identity", "StopGradient", "Enter", "Exit", "Switch", "Merge", "NextIteration")
"""Operations that pass a variable on, in functions, branches and loops."""


@dataclass(frozen=True)
class TrainedGraph:
    """A trainer's graph with the observation and the output of its actor."""

    graph: graph_pb2.GraphDef
    observation: str
    """Name of the observation's placeholder."""
    output: str
    """Name of the output tensor."""
    constants: Mapping[str, Any]
    """Other placeholder nodes -> their values at inference."""
    variables: Mapping[str, tuple[str, Arrays]]
    """Node of a variable (or placeholder of its resource) -> (name in the checkpoint, values)."""
    scores_tensor: str = ""
    """Name of the tensor of an exported model's second output, if it is categorical."""

    @property
    def outputs(self) -> list[str]:
        return [self.output, self.scores_tensor] if self.scores_tensor else [self.output]


@dataclass(frozen=True)
class TrainedActor:
    """An actor's graph, its reference model and the checkpoint with its variables."""

    graph: TrainedGraph
    reference_model: ReferenceModel
    checkpoint: Checkpoint


def extract_actor(trained: TrainedActor) -> GraphActor:
    """Extract the inference-only actor of a trainer's model, with the variables that it does not use.

    Raises InputError.
    """
    reference = trained.reference_model
    actor = extract_from_graph(trained.graph, reference.inputs, reference.outputs, reference.output_kind)
    used = {weight.stored_as for weight in actor.weights}
    if not used <= set(trained.checkpoint.stored):
        return actor  # a model that Keras loaded may have other names than its file
    return replace(actor, unread=unread_variables(trained.checkpoint, used))


def extract_from_graph(trained: TrainedGraph, inputs: int, outputs: int, output_kind: str) -> GraphActor:
    """Extract the inference-only actor of a graph. Raises InputError."""
    graph = extract(trained.graph, trained.outputs)
    for node in graph.node:
        if node.name == trained.observation:
            _replace(node, "Placeholder", node.attr["dtype"].type)
        elif node.name in trained.constants:
            dtype, value = tf.as_dtype(node.attr["dtype"].type), trained.constants[node.name]
            _replace(node, "Const", dtype.as_datatype_enum)
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype, np.shape(value)))
        elif node.op == "PlaceholderWithDefault":
            node.op = "Identity"
            node.attr["T"].type = node.attr["dtype"].type
            for name in ("dtype", "shape"):
                node.attr.pop(name, None)
    graph = _optimised(graph, trained.outputs)
    _without_randomness(graph)
    if not any(node.op == "Merge" for node in graph.node):
        # control inputs only order side effects (assertions, updates), which inference does not have
        _without_control_inputs(graph, {node.name for node in graph.node})
    weights = _weights_as_inputs(trained, graph)
    graph = _optimised(graph, trained.outputs)
    # the exporter's inputs replace these placeholders, and a control input cannot name them
    _without_control_inputs(graph, {trained.observation, *weights})
    graph = extract(graph, trained.outputs)
    remaining = {node.name for node in graph.node}
    weights = {node: weight for node, weight in weights.items() if node in remaining}
    if not weights:
        raise InputError("its output does not depend on the checkpoint's variables; it is not an actor")
    _rename(graph, trained.observation, list(weights))
    graph.versions.CopyFrom(trained.graph.versions)
    named_weights = tuple(replace(weight, name=f"actor/{k:03d}") for k, weight in enumerate(weights.values()))
    graph_def = graph.SerializeToString(deterministic=True)
    return GraphActor(
        graph_def, trained.output, output_kind, named_weights, inputs, outputs, scores_tensor=trained.scores_tensor
    )


def extract(
    graph: graph_pb2.GraphDef, tensors: list[str], nodes: Mapping[str, Any] | None = None
) -> graph_pb2.GraphDef:
    """The part of a graph that the tensors depend on. `nodes`: its nodes by name, if the caller has them."""
    nodes = nodes or {node.name: node for node in graph.node}
    needed: dict[str, None] = {}  # an ordered set
    stack = [node_of(name) for name in tensors]
    while stack:
        name = stack.pop()
        if name not in needed and name in nodes:
            needed[name] = None
            stack += [node_of(source) for source in nodes[name].input]
    part = graph_pb2.GraphDef(node=[nodes[name] for name in reversed(needed)], library=graph.library)
    part.versions.CopyFrom(graph.versions)
    # the trainer's device placement (a second GPU, colocation) does not apply to serving
    for node in part.node:
        node.device = ""
        node.attr.pop("_class", None)
    return part


def node_of(name: str) -> str:
    """The node of an input or tensor: a/b for `a/b:1` and `^a/b`."""
    return name.removeprefix("^").split(":")[0]


def _replace(node: Any, op: str, dtype: int) -> None:
    """Turn a node into a placeholder or constant of a dtype and unknown shape."""
    node.op = op
    del node.input[:]
    node.attr.clear()
    node.attr["dtype"].type = dtype
    if op == "Placeholder":
        node.attr["shape"].shape.unknown_rank = True


def _optimised(graph: graph_pb2.GraphDef, outputs: list[str]) -> graph_pb2.GraphDef:
    """The graph with functions inlined, constants folded and the rest pruned."""
    meta = meta_graph_pb2.MetaGraphDef(graph_def=graph)
    meta.collection_def["train_op"].node_list.value.extend(outputs)
    options = config_pb2.ConfigProto()
    rewrite = options.graph_options.rewrite_options
    rewrite.min_graph_nodes = -1
    rewrite.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.TWO
    rewrite.optimizers.extend(["function", "constfold", "loop", "pruning"])
    rewrite.fail_on_optimizer_errors = True
    with library_errors("its graph cannot be reduced to inference"), quiet.suppress_startup_log():
        optimised = tf_optimizer.OptimizeGraph(options, meta, verbose=False)
    return extract(optimised, outputs)


def _without_randomness(graph: graph_pb2.GraphDef) -> None:
    """Replace random operations by their mean.

    A deterministic output may depend on a dropout with a keep probability of 1,
    where any value gives the same output. In other cases the parity check against
    the reference model fails.
    """
    for node in [node for node in graph.node if node.op in RANDOM_MEAN]:
        dtype = node.attr["dtype"].type
        value = graph.node.add(name=f"{node.name}/mean", op="Const")
        value.attr["dtype"].type = dtype
        value.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(RANDOM_MEAN[node.op], tf.as_dtype(dtype), ()))
        shape, index_type = node.input[0], node.attr["T"].type or tf.int32.as_datatype_enum
        node.op = "Fill"
        del node.input[:]
        node.input.extend([shape, value.name])
        node.attr.clear()
        node.attr["T"].type = dtype
        node.attr["index_type"].type = index_type


def _without_control_inputs(graph: graph_pb2.GraphDef, names: Collection[str]) -> None:
    for node in graph.node:
        sources = [source for source in node.input if not (source.startswith("^") and node_of(source) in names)]
        del node.input[:]
        node.input.extend(sources)


def _weights_as_inputs(trained: TrainedGraph, graph: graph_pb2.GraphDef) -> dict[str, Weight]:
    """Turn each variable into a placeholder of its values. Return node -> weight in graph order. Raises InputError."""
    consumers: dict[str, list[Any]] = {}
    for node in graph.node:
        for source in node.input:
            if not source.startswith("^"):
                consumers.setdefault(node_of(source), []).append(node)
    weights: dict[str, Weight] = {}
    for node in graph.node:
        if node.name not in trained.variables:
            if node.op in VARIABLES:
                raise InputError(f"variable {node.name} is missing")
            continue
        stored_as, values = trained.variables[node.name]
        dtype = tf.as_dtype(node.attr["dtype"].type)
        if dtype == tf.resource:
            dtype = tf.as_dtype(values.dtype)
        if node.op not in REFERENCES:
            _pass_values(node.name, stored_as, dtype, consumers)
        _replace(node, "Placeholder", dtype.as_datatype_enum)
        for size in values.shape:
            node.attr["shape"].shape.dim.add(size=size)
        node.attr["shape"].shape.unknown_rank = False
        weights[node.name] = Weight("", stored_as, values.astype(dtype.as_numpy_dtype))
    return weights


def _pass_values(handle: str, stored_as: str, dtype: tf.DType, consumers: Mapping[str, list[Any]]) -> None:
    """Let the operations that pass a variable's handle on pass its values on, so that a loop's body reads its own
    frame's tensor. Raises InputError for other operations than reads."""
    pending = [handle]
    while pending:
        for node in consumers.get(pending.pop(), ()):
            if node.op == "ReadVariableOp":
                node.op = "Identity"
                node.attr.clear()
            elif node.op not in _PASSES:
                raise InputError(
                    f"operation {node.op} ({node.name}) uses variable {stored_as} other than by reading it whole; it "
                    "cannot be exported"
                )
            elif node.attr["T"].type != tf.resource.as_datatype_enum:
                continue  # a loop leads back to it
            else:
                pending.append(node.name)
            node.attr["T"].type = dtype.as_datatype_enum


def _rename(graph: graph_pb2.GraphDef, observation: str, weights: list[str]) -> None:
    """Give observation and weights the exporter's names, and drop what only the trainer uses."""
    names = {observation: OBSERVATION, **{name: f"weight_{k}" for k, name in enumerate(weights)}}
    taken = {node.name for node in graph.node}.difference(names).intersection(names.values())
    names |= {name: f"{name}_of_the_trainer" for name in taken}
    for node in graph.node:
        node.name = names.get(node.name, node.name)
        node.ClearField("experimental_debug_info")
        for key in [key for key in node.attr if key.startswith("_")]:
            del node.attr[key]
        sources = [
            source.replace(node_of(source), names.get(node_of(source), node_of(source)), 1) for source in node.input
        ]
        del node.input[:]
        node.input.extend(sources)
    if not any(value.HasField("func") or value.list.func for node in graph.node for value in node.attr.values()):
        graph.ClearField("library")
