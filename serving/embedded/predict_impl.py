"""PredictionService.Predict, checked and worded as tensorflow/serving's predict_util.cc."""

from typing import Any

import numpy as np

from protos import predict_pb2 as wire
from serving.embedded.model_manager import ModelManager
from serving.embedded.status import failed_precondition, invalid_argument
from serving.tensors import DT_STRING, NUMPY, TensorError, to_array, typed_proto

_TYPE_NAMES = {
    1: "float", 2: "double", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 8: "complex64", 9: "int64",
    10: "bool", 17: "uint16", 18: "complex128", 19: "half", 22: "uint32", 23: "uint64",
}  # fmt: skip


def predict(manager: ModelManager, request: wire.PredictRequest) -> wire.PredictResponse:
    """Run a signature. Raises StatusError."""
    if not request.HasField("model_spec"):
        raise invalid_argument("Missing ModelSpec")
    version, session = manager.find(request.model_spec)
    name = request.model_spec.signature_name or "serving_default"
    if name not in session.signatures.signature_def:
        raise failed_precondition(f'Serving signature key "{name}" not found.')
    signature = session.signatures.signature_def[name]
    arrays = _inputs(signature, request)
    outputs = _outputs(signature, request)
    values = session.run(name, arrays, outputs)
    response = wire.PredictResponse()
    response.model_spec.name = request.model_spec.name
    response.model_spec.version.value = version
    response.model_spec.signature_name = name
    for key, value in zip(outputs, values, strict=True):
        # typed values, not tensor_content: TensorFlow Serving's own default
        typed_proto(np.asarray(value), response.outputs[key])
    return response


def _inputs(signature: wire.SignatureDef, request: wire.PredictRequest) -> dict[str, Any]:
    sent, wanted = set(request.inputs), set(signature.inputs)
    if len(sent) != len(wanted):
        raise invalid_argument(
            f"input size does not match signature: {len(sent)}!={len(wanted)} "
            f"len({{{_join(sent)}}}) != len({{{_join(wanted)}}}). "
            f"Sent extra: {{{_join(sent - wanted)}}}. Missing but required: {{{_join(wanted - sent)}}}."
        )
    arrays = {}
    for key, tensor in request.inputs.items():
        if key not in wanted:
            raise invalid_argument(
                f"input tensor alias not found in signature: {key}. Inputs expected to be in the set {{{_join(wanted)}}}."
            )
        expected = signature.inputs[key].dtype
        if tensor.dtype != expected:
            told = (_TYPE_NAMES.get(number, str(number)) for number in (expected, tensor.dtype))
            raise invalid_argument("Expects arg[0] to be {} but {} is provided".format(*told))
        if expected != DT_STRING and expected not in NUMPY:
            raise invalid_argument(f"tensor parsing error: {key}: dtype {expected} is not supported")
        try:
            arrays[key] = to_array(tensor)
        except TensorError as error:
            raise invalid_argument(f"tensor parsing error: {key}: {error}") from None
    return arrays


def _outputs(signature: wire.SignatureDef, request: wire.PredictRequest) -> list[str]:
    chosen: list[str] = []
    for key in request.output_filter:
        if key not in signature.outputs:
            raise invalid_argument(
                f"output tensor alias not found in signature: {key} "
                f"Outputs expected to be in the set {{{_join(set(signature.outputs))}}}."
            )
        if key in chosen:
            raise invalid_argument(f"duplicate output tensor alias: {key}")
        chosen.append(key)
    return chosen or sorted(signature.outputs)


def _join(keys: set[str]) -> str:
    return ",".join(sorted(keys))
