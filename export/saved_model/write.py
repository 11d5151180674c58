"""Write an actor's SavedModel: its steps, or its trainer's graph, as inference operations."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from export.actors import (
    PROBABILITIES,
    Q_VALUES,
    Activation,
    Actor,
    BatchNorm,
    Branch,
    Clip,
    Dense,
    FirstChoice,
    Join,
    Pad,
    weight_name,
)
from export.graphs.graph_actor import OBSERVATION, PROBABILITIES_OUTPUT, GraphActor
from export.saved_model import actor_file, meta_graph
from export.saved_model.meta_graph import Variables
from protos import policy_pb2 as pb
from serving.contract import ACTION, CATEGORICAL

TF_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": tf.nn.relu,
    "elu": tf.nn.elu,
    "selu": tf.nn.selu,
    "tanh": tf.tanh,
    "leaky_relu": tf.nn.leaky_relu,
    "gelu": tf.nn.gelu,
    "silu": tf.nn.silu,
    "sigmoid": tf.sigmoid,
    "softplus": tf.nn.softplus,
    "linear": tf.identity,
}

Outline = tuple[tuple[Any, ...], ...]
"""An actor's steps without their weights; actors with the same outline have the same graph."""


def write(folder: Path, actor: Actor | GraphActor, contract: pb.PolicyContract) -> None:
    """Write the SavedModel of an actor into an empty folder, without manifest and warm-up records."""
    categorical = contract.action.kind == CATEGORICAL
    if isinstance(actor, GraphActor):
        weights = tuple((weight.name, weight.values.shape, str(weight.values.dtype)) for weight in actor.weights)
        template = _graph_template(
            actor.graph, actor.output, actor.output_kind, weights, actor.inputs, actor.outputs, categorical
        )
    else:
        template = _steps_template(outline(actor), actor.inputs, categorical, actor.scores)
    meta_graph.write(folder, template, contract, actor.weights)
    if isinstance(actor, Actor):
        actor_file.write(folder, actor)


def outline(actor: Actor) -> Outline:
    """Kinds, shapes and order of an actor's steps, which determine its graph."""
    parts: list[tuple[Any, ...]] = []
    for step in actor.steps:
        match step:
            case Dense():
                parts.append(("dense", step.kernel.shape, step.bias is not None))
            case BatchNorm():
                parts.append(("norm", step.mean.shape, step.gamma is not None, step.beta is not None, step.epsilon))
            case Activation():
                parts.append(("activation", step.kind))
            case Branch():
                parts.append(("branch",))
            case Join():
                parts.append(("join",))
            case Clip():
                parts.append(("clip", step.low, step.high))
            case Pad():
                parts.append(("pad", step.own, step.size))
            case FirstChoice():
                parts.append(("first_choice", step.own))
    return tuple(parts)


def _outputs(x: Any, are_probabilities: bool, categorical: bool, scores: str = PROBABILITIES) -> dict[str, Any]:
    if not categorical:
        return {ACTION: x}
    chosen = tf.argmax(x, axis=1, output_type=tf.int64)
    if scores == Q_VALUES:
        return {ACTION: chosen, Q_VALUES: tf.identity(x)}
    return {ACTION: chosen, PROBABILITIES: x if are_probabilities else tf.nn.softmax(x)}


@functools.lru_cache(maxsize=128)
def _steps_template(steps: Outline, inputs: int, categorical: bool, scores: str) -> bytes:
    """The MetaGraphDef of all actors of one outline."""

    def build(observation: Any, variables: Variables) -> dict[str, Any]:
        return _outputs(_apply(steps, observation, variables), False, categorical, scores)

    return meta_graph.assemble(inputs, build)


@functools.lru_cache(maxsize=16)
def _graph_template(
    graph: bytes, output: str, output_kind: str, weights: tuple[Any, ...], inputs: int, outputs: int, categorical: bool
) -> bytes:
    """The MetaGraphDef of all actors extracted from the same graph."""

    def build(observation: Any, variables: Variables) -> dict[str, Any]:
        x = import_graph(graph, output, weights, observation, variables)
        return _outputs(tf.reshape(x, [-1, outputs]), output_kind == PROBABILITIES_OUTPUT, categorical)

    return meta_graph.assemble(inputs, build)


def import_graph(graph: bytes, output: str, weights: tuple[Any, ...], observation: Any, variables: Variables) -> Any:
    """The output of an extracted graph for the observation, float32; its weights become new variables."""
    extracted = graph_pb2.GraphDef.FromString(graph)
    dtype = next(node.attr["dtype"].type for node in extracted.node if node.name == OBSERVATION)
    inputs = {f"{OBSERVATION}:0": tf.cast(observation, dtype)}
    for k, (name, shape, weight_dtype) in enumerate(weights):
        inputs[f"weight_{k}:0"] = variables.read(name, shape, tf.as_dtype(weight_dtype))
    # the inputs replace these placeholders
    kept = [node for node in extracted.node if f"{node.name}:0" not in inputs]
    del extracted.node[:]
    extracted.node.extend(kept)
    (x,) = tf.import_graph_def(extracted, input_map=inputs, return_elements=[output], name="actor/graph")
    return tf.cast(x, tf.float32)


def _apply(steps: Outline, x: Any, variables: Variables) -> Any:
    branches = []
    for k, (kind, *details) in enumerate(steps):
        match kind:
            case "dense":
                x = tf.linalg.matmul(x, variables.read(weight_name(k, "kernel"), details[0]))
                x = tf.nn.bias_add(x, variables.read(weight_name(k, "bias"), details[0][1:])) if details[1] else x
            case "norm":
                shape, has_gamma, has_beta, epsilon = details
                gamma = variables.read(weight_name(k, "gamma"), shape) if has_gamma else None
                beta = variables.read(weight_name(k, "beta"), shape) if has_beta else None
                mean = variables.read(weight_name(k, "mean"), shape)
                variance = variables.read(weight_name(k, "variance"), shape)
                x = tf.nn.batch_normalization(x, mean, variance, beta, gamma, epsilon)
            case "activation":
                x = TF_ACTIVATIONS[details[0]](x)
            case "branch":
                branches.append(x)
            case "join":
                x = x + branches.pop()
            case "clip":
                low, high = details
                x = tf.clip_by_value(x, tf.constant(low, tf.float32), tf.constant(high, tf.float32))
            case "pad":
                own, size = details
                x = tf.pad(x, [[0, 0], [0, size - own]])
            case "first_choice":
                x = first_choice(x, details[0])
    return x


def first_choice(logits: Any, own: int) -> Any:
    """[..., own] logits of a TL's own choices; the first takes the greatest of those beyond (`FirstChoice`)."""
    if logits.shape[-1] == own:
        return logits
    first = tf.reduce_max(tf.concat([logits[..., :1], logits[..., own:]], axis=-1), axis=-1, keepdims=True)
    return tf.concat([first, logits[..., 1:own]], axis=-1)
