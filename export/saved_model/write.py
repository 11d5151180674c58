"""Write an actor's SavedModel: the inference operations of its steps or of its trainer's graph."""

import json
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from export.actors import PROBABILITIES_OUTPUT, Actor, GraphActor
from export.graphs.graph_actor import OBSERVATION
from export.saved_model import meta_graph
from export.saved_model.meta_graph import Variables
from protos import policy_pb2 as pb
from serving.contract import ACTION, CATEGORICAL, PROBABILITIES, Q_VALUES

ACTOR_FILE = "assets.extra/actor.json"
"""An actor's steps without their weights, from which a fleet stacks actors. The weights are the model's variables, by
step (`weight_name`). A model whose actor is a trainer's graph has no such file."""
MAX_TEMPLATES = 128
_templates: dict[Hashable, bytes] = {}
"""Serialized MetaGraphDefs; actors with the same operations and shapes share one."""


def write(folder: Path, actor: Actor | GraphActor, contract: pb.PolicyContract) -> None:
    """Write the SavedModel of an actor into an empty folder, without its manifest."""
    template = _template(actor, contract.action.kind == CATEGORICAL)
    meta_graph.write(folder, template, contract, actor.weights)
    if isinstance(actor, Actor):
        steps = {"steps": [step.to_json() for step in actor.steps], "scores": actor.scores}
        (folder / ACTOR_FILE).write_text(json.dumps(steps, indent=1) + "\n", encoding="utf-8")


def _template(actor: Actor | GraphActor, categorical: bool) -> bytes:
    """The MetaGraphDef of all actors with the same steps except for the weights' values, or with the same extracted
    graph."""
    if isinstance(actor, GraphActor):
        weights = tuple((weight.name, weight.values.shape, str(weight.values.dtype)) for weight in actor.weights)
        inputs: int | None = actor.inputs
        key: Hashable = (replace(actor, weights=(), unread=()), weights, categorical)

        def build(observation: Any, variables: Variables) -> dict[str, Any]:
            (x,) = import_graph(actor.graph, [actor.output], weights, observation, variables)
            are_probabilities = actor.output_kind == PROBABILITIES_OUTPUT
            return _outputs(tf.reshape(x, [-1, actor.outputs]), are_probabilities, categorical, actor.scores)

    else:
        inputs = actor.graph_inputs
        key = (tuple(step.outline for step in actor.steps), inputs, categorical, actor.scores)

        def build(observation: Any, variables: Variables) -> dict[str, Any]:
            return _outputs(actor.build(observation, variables.read), False, categorical, actor.scores)

    if key not in _templates:
        if len(_templates) >= MAX_TEMPLATES:
            _templates.clear()
        _templates[key] = meta_graph.assemble(inputs, build)
    return _templates[key]


def _outputs(x: Any, are_probabilities: bool, categorical: bool, scores: str) -> dict[str, Any]:
    if not categorical:
        return {ACTION: x}
    choice = tf.argmax(x, axis=1, output_type=tf.int64)
    if scores == Q_VALUES:
        return {ACTION: choice, Q_VALUES: tf.identity(x)}
    return {ACTION: choice, PROBABILITIES: x if are_probabilities else tf.nn.softmax(x)}


def import_graph(
    graph: bytes, outputs: Sequence[str], weights: tuple[Any, ...], observation: Any, variables: Variables
) -> list[Any]:
    """Import an extracted graph and return its outputs, float32; its weights become new variables.

    Args:
        graph: the serialized GraphDef.
        outputs: names of its output tensors.
        weights: name, shape and dtype of every variable, in the order of the graph's placeholders.
        observation: [B, inputs] tensor.
        variables: the variables of the graph under construction.
    """
    extracted = graph_pb2.GraphDef.FromString(graph)
    dtype = next(node.attr["dtype"].type for node in extracted.node if node.name == OBSERVATION)
    inputs = {f"{OBSERVATION}:0": tf.cast(observation, dtype)}
    for k, (name, shape, weight_dtype) in enumerate(weights):
        inputs[f"weight_{k}:0"] = variables.read(name, shape, tf.as_dtype(weight_dtype))
    # the inputs replace these placeholders
    remaining = [node for node in extracted.node if f"{node.name}:0" not in inputs]
    del extracted.node[:]
    extracted.node.extend(remaining)
    tensors = tf.import_graph_def(extracted, input_map=inputs, return_elements=outputs, name="actor/graph")
    return [tf.cast(x, tf.float32) for x in tensors]
