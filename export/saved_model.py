"""Writing the inference-only SavedModel: a graph of inference operations, its variables, assets.extra.

The MetaGraph is put together by hand, as TensorFlow 1's builder did: variables
are resource handles, restored by one operation, and there is nothing else in
the graph. So the same actor gives the same bytes, whatever was exported before
it in the same process, and a graph is built once for all actors of one shape.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2, saver_pb2

from export.actors import Activation, Actor, BatchNorm, Branch, Dense, Join
from protos import policy_pb2 as pb
from serving.contract import ACTION, INPUT, POLICY_INPUT, POLICY_OUTPUT, POLICY_SIGNATURE, PROBABILITIES, SIGNATURE, to_json

PARTS = ("kernel", "bias", "gamma", "beta", "mean", "variance")
_CONTRACT = "contract"
_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
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
"""An actor's steps without their weights: what a graph depends on."""


def write(folder: Path, actor: Actor, policy: pb.Policy) -> None:
    """Write the SavedModel of an actor into an empty folder."""
    meta = meta_graph_pb2.MetaGraphDef()
    meta.ParseFromString(_template(_outline(actor), policy.action.kind == "categorical"))
    for node in meta.graph_def.node:
        if node.name == _CONTRACT:
            node.attr["value"].tensor.string_val[0] = policy.SerializeToString(deterministic=True)
    model = saved_model_pb2.SavedModel(saved_model_schema_version=1, meta_graphs=[meta])
    (folder / "saved_model.pb").write_bytes(model.SerializeToString(deterministic=True))
    (folder / "variables").mkdir()
    weights = dict(variables(actor))
    with tf.init_scope():
        tf.raw_ops.SaveV2(
            prefix=str(folder / "variables" / "variables"),
            tensor_names=list(weights),
            shape_and_slices=[""] * len(weights),
            tensors=[tf.constant(values) for values in weights.values()],
        )
    extra = folder / "assets.extra"
    extra.mkdir()
    (extra / "policy.json").write_text(to_json(policy), encoding="utf-8")


def variables(actor: Actor) -> list[tuple[str, Any]]:
    """(name in the SavedModel, values) of every variable, sorted by name."""
    found = [
        (_name(k, part), values)
        for k, step in enumerate(actor.steps)
        for part in PARTS
        if (values := getattr(step, part, None)) is not None
    ]
    return sorted(found)


def _name(step: int, part: str) -> str:
    return f"actor/{step:03d}_{part}"


def _outline(actor: Actor) -> Outline:
    made: list[tuple[Any, ...]] = []
    for step in actor.steps:
        match step:
            case Dense():
                made.append(("dense", step.kernel.shape, step.bias is not None))
            case BatchNorm():
                made.append(("norm", step.mean.shape, step.gamma is not None, step.beta is not None, step.epsilon))
            case Activation():
                made.append(("activation", step.kind))
            case Branch():
                made.append(("branch",))
            case Join():
                made.append(("join",))
    return tuple(made)


@functools.lru_cache(maxsize=128)
def _template(outline: Outline, categorical: bool) -> bytes:
    """The MetaGraphDef of all actors of one outline, with an empty contract."""
    with tf.Graph().as_default() as graph:
        first = next(step for step in outline if step[0] == "dense")
        observation = tf.compat.v1.placeholder(tf.float32, [None, first[1][0]], name=INPUT)
        handles: dict[str, Any] = {}
        x = _apply(outline, observation, handles)
        if categorical:
            outputs = {ACTION: tf.argmax(x, axis=1, output_type=tf.int64), PROBABILITIES: tf.nn.softmax(x)}
        else:
            outputs = {ACTION: x}
        outputs = {key: tf.identity(tensor, name=key) for key, tensor in outputs.items()}
        rows = tf.compat.v1.placeholder(tf.int32, [None], name=POLICY_INPUT)
        told = tf.fill(tf.shape(rows), tf.constant(b"", name=_CONTRACT), name=POLICY_OUTPUT)
        saver = _saver(handles)
        signatures = {
            SIGNATURE: _signature({INPUT: observation}, outputs),
            POLICY_SIGNATURE: _signature({POLICY_INPUT: rows}, {POLICY_OUTPUT: told}),
        }
        meta = meta_graph_pb2.MetaGraphDef(graph_def=graph.as_graph_def(), saver_def=saver, signature_def=signatures)
    meta.meta_info_def.tags.append("serve")
    meta.meta_info_def.tensorflow_version = tf.__version__
    # a Const leaves an empty text out; it must be there to be filled in
    for node in meta.graph_def.node:
        if node.name == _CONTRACT:
            node.attr["value"].tensor.string_val[:] = [b""]
    data: bytes = meta.SerializeToString(deterministic=True)
    return data


def _apply(outline: Outline, x: Any, handles: dict[str, Any]) -> Any:
    branches = []

    def weight(k: int, part: str, shape: tuple[int, ...]) -> Any:
        name = _name(k, part)
        handles[name] = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=shape, shared_name=name, name=name)
        return tf.raw_ops.ReadVariableOp(resource=handles[name], dtype=tf.float32, name=f"{name}/read")

    for k, (kind, *told) in enumerate(outline):
        match kind:
            case "dense":
                x = tf.linalg.matmul(x, weight(k, "kernel", told[0]))
                x = tf.nn.bias_add(x, weight(k, "bias", told[0][1:])) if told[1] else x
            case "norm":
                shape, has_gamma, has_beta, epsilon = told
                gamma = weight(k, "gamma", shape) if has_gamma else None
                beta = weight(k, "beta", shape) if has_beta else None
                mean, variance = weight(k, "mean", shape), weight(k, "variance", shape)
                x = tf.nn.batch_normalization(x, mean, variance, beta, gamma, epsilon)
            case "activation":
                x = _ACTIVATIONS[told[0]](x)
            case "branch":
                branches.append(x)
            case "join":
                x = x + branches.pop()
    return x


def _saver(handles: dict[str, Any]) -> saver_pb2.SaverDef:
    """The operation that restores every variable from the SavedModel's own files."""
    names = sorted(handles)
    prefix = tf.compat.v1.placeholder_with_default("", [], name="restore/prefix")
    values = tf.raw_ops.RestoreV2(
        prefix=prefix,
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        dtypes=[tf.float32] * len(names),
        name="restore/read",
    )
    assigned = [
        tf.raw_ops.AssignVariableOp(resource=handles[name], value=value) for name, value in zip(names, values, strict=True)
    ]
    with tf.control_dependencies(assigned):
        done = tf.no_op(name="restore/all")
    return saver_pb2.SaverDef(
        filename_tensor_name=prefix.name, restore_op_name=done.name, save_tensor_name=prefix.name, version=saver_pb2.SaverDef.V2
    )


def _signature(inputs: dict[str, Any], outputs: dict[str, Any]) -> meta_graph_pb2.SignatureDef:
    made = meta_graph_pb2.SignatureDef(method_name="tensorflow/serving/predict")
    for tensors, infos in ((inputs, made.inputs), (outputs, made.outputs)):
        for key, tensor in tensors.items():
            infos[key].name = tensor.name
            infos[key].dtype = tensor.dtype.as_datatype_enum
            infos[key].tensor_shape.CopyFrom(tensor.shape.as_proto())
    return made
