"""Write SavedModels: the inference operations of an actor's steps or of its trainer's graph, contract, warm-up records.

A MetaGraph is assembled as TensorFlow 1's SavedModelBuilder did: variables are resource handles that one operation
restores, and the graph contains only inference operations. Therefore the same actor gives the same bytes, independent
of earlier exports in the process, and actors of the same shape share one graph.
"""

import contextlib
import errno
import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.framework import graph_pb2, tensor_shape_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2, saver_pb2

from city.errors import first_line
from export.actors import PROBABILITIES_OUTPUT, Actor, GraphActor, Weight
from export.graphs.graph_actor import OBSERVATION
from protos import policy_pb2 as pb
from protos import predict_pb2 as wire
from protos import prediction_log_pb2 as prediction_log_pb
from serving.contract import (
    ACTION,
    CATEGORICAL,
    DEFAULT_SIGNATURE,
    INPUT,
    POLICY_INPUT,
    POLICY_OUTPUT,
    POLICY_SIGNATURE,
    PROBABILITIES,
    Q_VALUES,
    to_json,
)
from serving.tensors import to_array, to_proto

CONTRACT = "contract"
"""Name of the constant that holds the contract."""
WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
"""Requests that TensorFlow Serving replays before a version becomes available."""
ACTOR_FILE = "assets.extra/actor.json"
"""An actor's steps without their weights, from which a fleet stacks actors. The weights are the model's variables, by
step (`weight_name`). A model whose actor is a trainer's graph has no such file."""
MAX_TEMPLATES = 128
_templates: dict[Hashable, bytes] = {}
"""Serialized MetaGraphDefs; actors with the same operations and shapes share one."""


class Variables:
    """The variables of a graph under construction."""

    def __init__(self) -> None:
        self.handles: dict[str, tuple[Any, Any]] = {}
        """Name -> (resource handle, dtype)."""

    def read(self, name: str, shape: Sequence[int | None], dtype: Any = tf.float32) -> Any:
        """Create a variable and read its value."""
        handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=name, name=name)
        self.handles[name] = handle, dtype
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype, name=f"{name}/read")


def write(folder: Path, actor: Actor | GraphActor, contract: pb.PolicyContract) -> None:
    """Write the SavedModel of an actor into an empty folder, without its manifest."""
    template = _template(actor, contract.action.kind == CATEGORICAL)
    write_model(folder, template, contract, actor.weights)
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
        _templates[key] = assemble(inputs, build)
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


def assemble(inputs: int | None, build: Callable[[Any, Variables], dict[str, Any]]) -> bytes:
    """A serialized MetaGraphDef with an empty contract.

    Args:
        inputs: size of an observation; None for a graph of any size, which `write_model` replaces by the contract's.
        build: adds the outputs for an observation [-1, inputs].
    """
    with tf.Graph().as_default() as graph:
        observation = tf.compat.v1.placeholder(tf.float32, [None, inputs], name=INPUT)
        variables = Variables()
        outputs = {key: tf.identity(tensor, name=key) for key, tensor in build(observation, variables).items()}
        rows = tf.compat.v1.placeholder(tf.int32, [None], name=POLICY_INPUT)
        contracts = tf.fill(tf.shape(rows), tf.constant(b"", name=CONTRACT), name=POLICY_OUTPUT)
        saver, signature_of = _saver(variables), tf.compat.v1.saved_model.predict_signature_def
        signatures = {
            DEFAULT_SIGNATURE: signature_of({INPUT: observation}, outputs),
            POLICY_SIGNATURE: signature_of({POLICY_INPUT: rows}, {POLICY_OUTPUT: contracts}),
        }
        meta = meta_graph_pb2.MetaGraphDef(graph_def=graph.as_graph_def(), saver_def=saver, signature_def=signatures)
    meta.meta_info_def.tags.append("serve")
    meta.meta_info_def.tensorflow_version = tf.__version__
    # TensorFlow drops an empty string from a Const; write_model() replaces the one that is added here
    for node in meta.graph_def.node:
        if node.name == CONTRACT:
            node.attr["value"].tensor.string_val[:] = [b""]
    return bytes(meta.SerializeToString(deterministic=True))


def write_model(folder: Path, meta_graph: bytes, contract: pb.PolicyContract, weights: Sequence[Weight]) -> None:
    """Write a SavedModel into an empty folder: an assembled graph, its contract, its variables, its warm-up records."""
    meta = meta_graph_pb2.MetaGraphDef()
    meta.ParseFromString(meta_graph)
    for node in meta.graph_def.node:
        if node.name == CONTRACT:
            node.attr["value"].tensor.string_val[0] = contract.SerializeToString(deterministic=True)
        elif node.name == INPUT:
            _set_size(node.attr["shape"].shape, contract.observation.size)
    signature = meta.signature_def[DEFAULT_SIGNATURE]
    _set_size(signature.inputs[INPUT].tensor_shape, contract.observation.size)
    for output in signature.outputs.values():
        _set_size(output.tensor_shape, contract.action.size)
    model = saved_model_pb2.SavedModel(saved_model_schema_version=1, meta_graphs=[meta])
    (folder / "saved_model.pb").write_bytes(model.SerializeToString(deterministic=True))
    (folder / "variables").mkdir()
    with tf.init_scope(), write_errors_as_os_errors():
        _save(folder / "variables" / "variables", weights)
    extra = folder / "assets.extra"
    extra.mkdir()
    with (extra / "policy.json").open("w", encoding="utf-8") as file:
        file.writelines(to_json(contract))
    write_warmup(folder, contract)


def _set_size(shape: tensor_shape_pb2.TensorShapeProto, size: int) -> None:
    if len(shape.dim) == 2 and shape.dim[1].size == -1:
        shape.dim[1].size = size


def _save(prefix: Path, weights: Sequence[Weight]) -> None:
    """Save variables as a TensorFlow checkpoint: in one file of data, or in two if some of them are shared."""
    parts = [[weight for weight in weights if weight.is_shared is is_shared] for is_shared in (True, False)]
    parts = [part for part in parts if part]
    prefixes = [prefix.with_name(f"part{k}") for k in range(len(parts))] if len(parts) > 1 else [prefix]
    for name, part in zip(prefixes, parts, strict=True):
        tf.raw_ops.SaveV2(
            prefix=str(name),
            tensor_names=[weight.name for weight in part],
            shape_and_slices=[""] * len(part),
            tensors=[tf.constant(weight.values) for weight in part],
        )
    if len(parts) > 1:
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=[str(name) for name in prefixes], destination_prefix=str(prefix), delete_old_dirs=False
        )


@contextlib.contextmanager
def write_errors_as_os_errors() -> Iterator[None]:
    """Turn TensorFlow's write errors, such as a full disk, into OSError."""
    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(errno.EIO, first_line(error)) from None


def _warmup_requests(contract: pb.PolicyContract) -> Iterator[wire.PredictRequest]:
    """The requests that a client would send: of each signature, and for the action without the scores.

    TensorFlow prunes a graph at the first run for the requested outputs, so each choice of outputs has a request.
    """
    observation = np.zeros((1, contract.observation.size), np.float32)
    has_scores = contract.action.kind == CATEGORICAL or any(member.score_size for member in contract.members)
    for signature, outputs, key, array in (
        (DEFAULT_SIGNATURE, (), INPUT, observation),
        *([(DEFAULT_SIGNATURE, (ACTION,), INPUT, observation)] if has_scores else []),
        (POLICY_SIGNATURE, (), POLICY_INPUT, np.zeros(1, np.int32)),
    ):
        request = wire.PredictRequest(
            model_spec=wire.ModelSpec(name=contract.tl, signature_name=signature), output_filter=outputs
        )
        request.model_spec.version.value = contract.origin.model_number
        to_proto(array, request.inputs[key])
        yield request


def write_warmup(folder: Path, contract: pb.PolicyContract) -> None:
    """Write the warm-up records of a SavedModel."""
    with write_errors_as_os_errors(), tf.io.TFRecordWriter(str(folder / WARMUP_FILE)) as file:
        for request in _warmup_requests(contract):
            log = prediction_log_pb.PredictionLog(predict_log=prediction_log_pb.PredictLog(request=request))
            file.write(log.SerializeToString(deterministic=True))


def read_warmup(folder: Path) -> list[tuple[str, dict[str, NDArray[Any]]]]:
    """(signature, inputs) of every warm-up record of a SavedModel."""
    records = []
    for record in tf.compat.v1.io.tf_record_iterator(str(folder / WARMUP_FILE)):
        request = prediction_log_pb.PredictionLog.FromString(record).predict_log.request
        inputs = {key: to_array(tensor) for key, tensor in request.inputs.items()}
        records.append((request.model_spec.signature_name, inputs))
    return records


def _saver(variables: Variables) -> saver_pb2.SaverDef:
    """The operation that restores every variable from the SavedModel's files."""
    names = sorted(variables.handles)
    prefix = tf.compat.v1.placeholder_with_default("", [], name="restore/prefix")
    values = tf.raw_ops.RestoreV2(
        prefix=prefix,
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        dtypes=[variables.handles[name][1] for name in names],
        name="restore/read",
    )
    assignments = [
        tf.raw_ops.AssignVariableOp(resource=variables.handles[name][0], value=value)
        for name, value in zip(names, values, strict=True)
    ]
    with tf.control_dependencies(assignments):
        done = tf.no_op(name="restore/all")
    return saver_pb2.SaverDef(
        filename_tensor_name=prefix.name,
        restore_op_name=done.name,
        save_tensor_name=prefix.name,
        version=saver_pb2.SaverDef.V2,
    )
