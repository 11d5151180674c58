"""PredictionService.Predict, checked and worded as tensorflow/serving's predict_util.cc."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from numpy.typing import NDArray

from protos import predict_pb2 as wire
from serving.embedded.model_manager import ModelManager
from serving.embedded.status import Answer, failed_precondition, invalid_argument
from serving.tensors import BITS, DT_STRING, TensorError, to_array, typed_bytes, varint

DEFAULT_SIGNATURE = "serving_default"
TYPE_NAMES = {
    1: "float", 2: "double", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 8: "complex64", 9: "int64",
    10: "bool", 11: "qint8", 12: "quint8", 13: "qint32", 14: "bfloat16", 15: "qint16", 16: "quint16", 17: "uint16",
    18: "complex128", 19: "half", 20: "resource", 21: "variant", 22: "uint32", 23: "uint64", 24: "float8_e5m2",
    25: "float8_e4m3fn", 29: "int4", 30: "uint4",
}  # fmt: skip


class Outputs(NamedTuple):
    """What a signature gave."""

    version: int
    signature: str
    arrays: dict[str, NDArray[Any]]
    dtypes: Mapping[str, int]
    session: Any


def predict(manager: ModelManager, request: wire.PredictRequest) -> Answer:
    """Run a signature; the answer is a serialized PredictResponse. Raises StatusError."""
    found = run_predict(manager, request)
    return Answer(found.version, response_bytes(request.model_spec.name, found))


def response_bytes(model: str, found: Outputs) -> bytes:
    """A PredictResponse, serialized."""
    return b"".join(response_parts(model, found))


def response_parts(model: str, found: Outputs) -> list[bytes]:
    """The same in parts: each output, which ends with its numbers, then the model spec."""
    # typed values, not tensor_content: TensorFlow Serving's own default
    parts = []
    for key, array in found.arrays.items():
        tensor = typed_bytes(array, found.dtypes[key])
        name = key.encode()
        entry = b"\x0a" + varint(len(name)) + name + b"\x12" + varint(len(tensor)) + tensor
        parts.append(b"\x0a" + varint(len(entry)) + entry)
    parts.append(_model_spec(model, found.version, found.signature))
    return parts


def run_predict(manager: ModelManager, request: wire.PredictRequest) -> Outputs:
    """Run a signature. Raises StatusError."""
    if not request.HasField("model_spec"):
        raise invalid_argument("Missing ModelSpec")
    spec = request.model_spec
    version, session = manager.find(spec)
    name = spec.signature_name or DEFAULT_SIGNATURE
    signature = session.signatures.get(name)
    if signature is None:
        raise failed_precondition(f'Serving signature key "{name}" not found.')
    arrays = _inputs(signature, request.inputs)
    outputs = _outputs(signature, request.output_filter)
    values = session.run(name, arrays, outputs)
    return Outputs(version, name, dict(zip(outputs, values, strict=True)), signature.outputs, session)


@functools.lru_cache(maxsize=4096)
def _model_spec(name: str, version: int, signature: str) -> bytes:
    """Field model_spec of a PredictResponse, serialized."""
    response = wire.PredictResponse()
    response.model_spec.name = name
    response.model_spec.version.value = version
    response.model_spec.signature_name = signature
    return response.SerializeToString()


def _inputs(signature: Any, sent: Any) -> dict[str, Any]:
    wanted = signature.inputs
    if len(sent) > len(wanted) or (len(sent) < len(wanted) and not signature.defaults):
        extra, missing = set(sent) - set(wanted), set(wanted) - set(sent)
        raise invalid_argument(
            f"input size does not match signature: {len(sent)}!={len(wanted)} len({{{_join(sent)}}}) != "
            f"len({{{_join(wanted)}}}). Sent extra: {{{_join(extra)}}}. Missing but required: {{{_join(missing)}}}."
        )
    arrays = {}
    for key, tensor in sent.items():
        dtype = wanted.get(key)
        if dtype is None:
            raise invalid_argument(
                f"input tensor alias not found in signature: {key}. Inputs expected to be in the set {{{_join(wanted)}}}."
            )
        if tensor.dtype != dtype:
            told = (TYPE_NAMES.get(number, str(number)) for number in (dtype, tensor.dtype))
            raise invalid_argument("Expects arg[0] to be {} but {} is provided".format(*told))
        if dtype != DT_STRING and dtype not in BITS:
            raise invalid_argument(f"tensor parsing error: {key}: {TYPE_NAMES.get(dtype, dtype)} cannot be sent")
        try:
            arrays[key] = to_array(tensor, bits=True)
        except TensorError as error:
            raise invalid_argument(f"tensor parsing error: {key}: {error}") from None
    for key in wanted.keys() - arrays.keys():
        if key not in signature.defaults:
            raise invalid_argument(f"input {key} is neither sent nor has it a default in the signature")
        arrays[key] = signature.defaults[key]
    return arrays


def _outputs(signature: Any, output_filter: Any) -> list[str]:
    if not output_filter:
        return list(signature.outputs)
    chosen: list[str] = []
    for key in output_filter:
        if key not in signature.outputs:
            raise invalid_argument(
                f"output tensor alias not found in signature: {key} "
                f"Outputs expected to be in the set {{{_join(signature.outputs)}}}."
            )
        if key in chosen:
            raise invalid_argument(f"duplicate output tensor alias: {key}")
        chosen.append(key)
    return chosen


def _join(keys: Any) -> str:
    return ",".join(sorted(keys))
