"""Warm-up records, which TensorFlow Serving replays before a version becomes available."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from export.saved_model.meta_graph import write_errors_as_os_errors
from protos import policy_pb2 as pb
from protos import predict_pb2 as wire
from protos import prediction_log_pb2 as prediction_log_pb
from serving.contract import ACTION, CATEGORICAL, DEFAULT_SIGNATURE, INPUT, POLICY_INPUT, POLICY_SIGNATURE
from serving.tensors import to_array, to_proto

FILE_NAME = "assets.extra/tf_serving_warmup_requests"


def requests(contract: pb.PolicyContract, number: int) -> Iterator[wire.PredictRequest]:
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
        request.model_spec.version.value = number
        to_proto(array, request.inputs[key])
        yield request


def write(folder: Path, contract: pb.PolicyContract, number: int) -> None:
    """Write the warm-up records of a SavedModel."""
    with write_errors_as_os_errors(), tf.io.TFRecordWriter(str(folder / FILE_NAME)) as file:
        for request in requests(contract, number):
            log = prediction_log_pb.PredictionLog(predict_log=prediction_log_pb.PredictLog(request=request))
            file.write(log.SerializeToString(deterministic=True))


def read(folder: Path) -> list[tuple[str, dict[str, np.ndarray]]]:
    """(signature, inputs) of every warm-up record of a SavedModel."""
    records = []
    for record in tf.compat.v1.io.tf_record_iterator(str(folder / FILE_NAME)):
        request = prediction_log_pb.PredictionLog.FromString(record).predict_log.request
        inputs = {key: to_array(tensor) for key, tensor in request.inputs.items()}
        records.append((request.model_spec.signature_name, inputs))
    return records
