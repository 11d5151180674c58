"""Find the actor in a TF1 MetaGraph: the `.meta` file beside a checkpoint."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from tensorflow.core.protobuf import meta_graph_pb2

from city.errors import InputError, library_errors
from export.actors import LOGITS, PROBABILITIES_OUTPUT, VALUES, ReferenceModel
from export.checkpoints import regular_files, scopes
from export.checkpoints.checkpoint import Checkpoint, is_float
from export.checkpoints.source import ActorRequest
from export.checkpoints.tensorflow_files import meta_graph_path
from export.graphs import graph_check, output_tensor
from export.graphs.graph_actor import VARIABLES, TrainedActor, TrainedGraph, extract, node_of
from export.graphs.output_tensor import GraphIndex
from serving.contract import PROBABILITIES, Q_VALUES

PROBES = 8
"""Observations on which an output is checked."""
OF_LOGITS = (
    "Softmax",
    "LogSoftmax",
    "Multinomial",
    "SoftmaxCrossEntropyWithLogits",
    "SparseSoftmaxCrossEntropyWithLogits",
)
"""Operations whose input is the logits of probabilities."""
RUN_ERRORS = (tf.errors.OpError, ValueError, TypeError)
"""Errors of an invalid graph that is run."""


@functools.lru_cache(maxsize=1)
def _read(meta: Path, stamp: tuple[int, int]) -> tuple[Any, GraphIndex]:
    """Cached, because a graph may hold the actors of many TLs."""
    with library_errors("cannot be read as a MetaGraph", (OSError, DecodeError)):
        graph = meta_graph_pb2.MetaGraphDef.FromString(meta.read_bytes()).graph_def
    if not graph.node:
        raise InputError("cannot be read as a MetaGraph: it holds no graph")
    return graph, GraphIndex.of(graph)


def read(
    prefix: Path, checkpoint: Checkpoint, scope: str, layers: Sequence[str], request: ActorRequest
) -> TrainedActor:
    """Read the actor's part of the graph beside a checkpoint, and run it.

    Args:
        prefix: the checkpoint's prefix.
        checkpoint: its variables.
        scope: the actor's scope.
        layers: names of the variables of the actor's layers.
        request: the requested actor.

    Raises:
        InputError: the graph is damaged, does more than an actor, or its output is not clear.
        NotInGraph: it does not run the actor.
    """
    trained, is_softmax = _trained_graph(meta_graph_path(prefix), checkpoint, scope, layers, request)
    if is_softmax and request.hints.scores is None:
        request = replace(request, hints=replace(request.hints, scores=PROBABILITIES))
    return TrainedActor(trained, _reference_model(trained, request), checkpoint)


def _trained_graph(
    meta: Path, checkpoint: Checkpoint, scope: str, layers: Sequence[str], request: ActorRequest
) -> tuple[TrainedGraph, bool]:
    """(the actor's part of the graph, whether it has a softmax of the output)."""
    status = regular_files.check(meta)
    graph_def, graph = _read(meta, (status.st_mtime_ns, status.st_size))
    if request.output_tensor is not None:
        output = _named(graph, request.output_tensor, scope)
    else:
        nodes = graph.variables
        own = {node for name, node in nodes.items() if scopes.unread_reason(name, scope) == scopes.UNKNOWN_USE}
        layer_nodes = {nodes[name] for name in layers if name in nodes}
        output = output_tensor.find_output(graph, layer_nodes, own, request.categorical)
    ancestors = graph.ancestors(node_of(output))
    if request.categorical and ancestors[node_of(output)].op == "Softmax":
        # the exported model computes the probabilities from logits
        output = output_tensor.tensor_of(ancestors[node_of(output)].input[0])
    observation = output_tensor.observation(ancestors, output)
    variables: dict[str, tuple[str, NDArray[Any]]] = {}
    for node in ancestors.values():
        if node.op in VARIABLES:
            if (stored := output_tensor.stored_as(node)) not in checkpoint.stored:
                raise InputError(f"tensor {output} depends on variable {stored}, which the checkpoint lacks")
            variables[node.name] = stored, checkpoint.value(stored)
    if not variables:
        raise InputError(f"tensor {output} depends on no variable; name the actor's output with --output-tensor")
    constants = output_tensor.constants(ancestors, observation)
    part = extract(graph_def, [output], graph.nodes)
    graph_check.check_graph(part)
    is_softmax = any(graph.nodes[user].op in OF_LOGITS for user in graph.users(output))
    return TrainedGraph(part, observation, output, constants, variables), is_softmax


def _named(graph: GraphIndex, name: str, scope: str) -> str:
    """The tensor that a user named, in full or within the actor's scope. Raises InputError."""
    for full_name in (name, f"{scope}/{name}"):
        if node_of(full_name) in graph.nodes:
            return output_tensor.tensor_of(full_name)
    last = node_of(name).rsplit("/", 1)[-1]
    similar = [node for node in graph.nodes if node.rsplit("/", 1)[-1] == last][:5]
    raise InputError(f"has no tensor {name}; similar names: {', '.join(similar) or 'none'}")


def _reference_model(trained: TrainedGraph, request: ActorRequest) -> ReferenceModel:
    graph = tf.Graph()
    session = tf.compat.v1.Session(graph=graph)
    with library_errors("its graph cannot be run"), graph.as_default():
        tf.import_graph_def(trained.graph, name="")
        assignments, values = [], {}
        for name, (stored, array) in trained.variables.items():
            assignment, value = _assign(graph.get_operation_by_name(name), stored, array)
            assignments.append(assignment)
            values[value] = array
        session.run(assignments, values)

    def run(observations: NDArray[Any]) -> NDArray[Any]:
        feed = {f"{name}:0": value for name, value in trained.constants.items()}
        with library_errors(f"tensor {trained.output} cannot be run", RUN_ERRORS):
            return np.asarray(session.run(trained.output, {**feed, f"{trained.observation}:0": observations}))

    return validated_reference_model(trained, run, _inputs_of(trained), request, trained.output)


def _inputs_of(trained: TrainedGraph) -> int:
    (dims,) = (node.attr["shape"].shape.dim for node in trained.graph.node if node.name == trained.observation)
    size = int(dims[1].size) if len(dims) == 2 and dims[1].size > 0 else input_size(trained.variables)
    if size is None:
        raise InputError(
            f"placeholder {trained.observation} does not define the size of an observation; "
            "save the graph with a placeholder [None, O]"
        )
    return size


def input_size(variables: Mapping[str, tuple[str, NDArray[Any]]]) -> int | None:
    """Size of an actor's observation: the one input size of a kernel that differs from every kernel's units.

    `variables`: as in a TrainedGraph.
    """
    kernels = [values.shape for _, values in variables.values() if values.ndim == 2]
    input_sizes = {shape[0] for shape in kernels} - {shape[1] for shape in kernels}
    return int(input_sizes.pop()) if len(input_sizes) == 1 else None


def validated_reference_model(
    trained: TrainedGraph, run: Callable[[NDArray[Any]], NDArray[Any]], inputs: int, request: ActorRequest, output: str
) -> ReferenceModel:
    """The reference model, checked on some observations.

    Args:
        trained: the actor's graph.
        run: [n, O] observations -> the output tensor.
        inputs: size of an observation.
        request: the requested actor.
        output: name of the output, for its meaning.

    Raises:
        InputError: the output is not one finite, deterministic row for each observation, or its meaning is not clear.
    """

    def rows(observations: NDArray[Any]) -> NDArray[Any]:
        output = run(observations)
        return output[:, None] if output.ndim == 1 else output

    probe = np.random.default_rng(1).random((PROBES, inputs)).astype(np.float32)
    first, second = rows(probe), rows(probe)
    if first.ndim != 2 or len(first) != PROBES or not is_float(first.dtype):
        raise InputError(
            f"tensor {trained.output} returns {first.dtype} {list(first.shape)} for {PROBES} observations, "
            f"but an actor returns [{PROBES}, A]; name the actor's mean with --output-tensor"
        )
    if not np.isfinite(first).all():
        raise InputError(f"tensor {trained.output} has non-finite values; the training has diverged")
    if not np.array_equal(first, second):
        raise InputError(
            f"tensor {trained.output} is random (two runs on the same observation differ); "
            "name the mean, not the sampled action, with --output-tensor"
        )
    if request.output_tensor is None and (first == first[0]).all():
        raise InputError(
            f"tensor {trained.output} is constant for all observations; name the actor's mean with --output-tensor"
        )
    output_kind = VALUES
    if request.categorical:
        sums_to_one = (first >= 0).all() and np.allclose(first.sum(axis=1), 1, atol=1e-4)
        if sums_to_one:
            output_kind = PROBABILITIES_OUTPUT
        else:
            scores = request.scores([output, *(stored for stored, _ in trained.variables.values())])
            output_kind = Q_VALUES if scores == Q_VALUES else LOGITS
    description = f"the trainer's own graph, tensor {trained.output}"
    return ReferenceModel(description, rows, output_kind, int(first.shape[1]), inputs)


def _assign(operation: Any, stored: str, values: NDArray[Any]) -> tuple[Any, Any]:
    """(the operation that assigns a variable, the placeholder of its value)."""
    shape = [dim.size for dim in operation.get_attr("shape").dim]
    dtype = tf.as_dtype(operation.get_attr("dtype"))
    if shape != list(values.shape):
        raise ValueError(f"variable {stored} has shape {shape} in the graph and {list(values.shape)} in the checkpoint")
    value = tf.compat.v1.placeholder(dtype, values.shape)
    if operation.type == "VarHandleOp":
        return tf.raw_ops.AssignVariableOp(resource=operation.outputs[0], value=value), value
    return tf.raw_ops.Assign(ref=operation.outputs[0], value=value).op, value
