"""Assemble a MetaGraph and write a SavedModel of it, as TensorFlow 1's SavedModelBuilder did.

Variables are resource handles that one operation restores; the graph contains only
inference operations. Therefore the same actor gives the same bytes, independent of
earlier exports in the process, and actors of the same shape share one graph.
"""

import contextlib
import errno
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.core.framework import tensor_shape_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2, saver_pb2

from city.errors import first_line
from export.actors import Weight
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
    to_json,
)
from serving.tensors import to_array, to_proto

CONTRACT = "contract"
"""Name of the constant that holds the contract."""
WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
"""Requests that TensorFlow Serving replays before a version becomes available."""


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


def assemble(inputs: int | None, build: Callable[[Any, Variables], dict[str, Any]]) -> bytes:
    """A serialized MetaGraphDef with an empty contract.

    Args:
        inputs: size of an observation; None for a graph of any size, which `write` replaces by the contract's.
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
    # TensorFlow drops an empty string from a Const; write() replaces the one that is added here
    for node in meta.graph_def.node:
        if node.name == CONTRACT:
            node.attr["value"].tensor.string_val[:] = [b""]
    return bytes(meta.SerializeToString(deterministic=True))


def write(folder: Path, meta_graph: bytes, contract: pb.PolicyContract, weights: Sequence[Weight]) -> None:
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
