"""PredictionService.Predict, with the checks and texts of tensorflow/serving's predict_util.cc."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from numpy.typing import NDArray

from protos import predict_pb2 as wire
from serving.embedded.models.servable import ServableFinder, Signature
from serving.embedded.rpc.grpc_method import RpcResult
from serving.embedded.status import failed_precondition, invalid_argument
from serving.tensors import BITS, DT_STRING, TensorError, to_array, typed_proto

DEFAULT_SIGNATURE = "serving_default"
TYPE_NAMES = {
    1: "float", 2: "double", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 8: "complex64", 9: "int64",
    10: "bool", 11: "qint8", 12: "quint8", 13: "qint32", 14: "bfloat16", 15: "qint16", 16: "quint16", 17: "uint16",
    18: "complex128", 19: "half", 20: "resource", 21: "variant", 22: "uint32", 23: "uint64", 24: "float8_e5m2",
    25: "float8_e4m3fn", 29: "int4", 30: "uint4",
}  # fmt: skip


class PredictResult(NamedTuple):
    """The outputs of a signature's run."""

    version: int
    signature: str
    arrays: dict[str, NDArray[Any]]
    dtypes: Mapping[str, int]


def predict(models: ServableFinder, request: wire.PredictRequest) -> RpcResult:
    """Run a signature. Raises StatusError."""
    outputs = run_predict(models, request)
    response = wire.PredictResponse()
    response.model_spec.name = request.model_spec.name
    response.model_spec.version.value = outputs.version
    response.model_spec.signature_name = outputs.signature
    for key, array in outputs.arrays.items():
        # typed values, not tensor_content: TensorFlow Serving's default
        typed_proto(array, response.outputs[key], outputs.dtypes[key])
    return RpcResult(outputs.version, response)


def run_predict(models: ServableFinder, request: wire.PredictRequest) -> PredictResult:
    """Run a signature and return its outputs as arrays. Raises StatusError."""
    if not request.HasField("model_spec"):
        raise invalid_argument("Missing ModelSpec")
    spec = request.model_spec
    version, servable = models.find(spec)
    name = spec.signature_name or DEFAULT_SIGNATURE
    signature = servable.signatures.get(name)
    if signature is None:
        raise failed_precondition(f'Serving signature key "{name}" not found.')
    inputs = _input_arrays(signature, servable.definitions.signature_def[name], request.inputs)
    outputs = _output_keys(signature, request.output_filter)
    values = servable.run(name, inputs, outputs)
    return PredictResult(version, name, dict(zip(outputs, values, strict=True)), signature.outputs)


def _input_arrays(
    signature: Signature, definition: wire.SignatureDef, sent: Mapping[str, wire.Tensor]
) -> dict[str, NDArray[Any]]:
    expected = signature.inputs
    if len(sent) > len(expected) or (len(sent) < len(expected) and not signature.defaults):
        extra, missing = set(sent) - set(expected), set(expected) - set(sent)
        raise invalid_argument(
            f"input size does not match signature: {len(sent)}!={len(expected)} len({{{_join(sent)}}}) != "
            f"len({{{_join(expected)}}}). Sent extra: {{{_join(extra)}}}. Missing but required: {{{_join(missing)}}}."
        )
    arrays = {}
    for key, dtype in expected.items():
        if key not in sent:
            if key not in signature.defaults:
                raise invalid_argument(
                    f"Signature input alias: {key}(feed name: {definition.inputs[key].name}) not found in request and no default "
                    f"value provided. Inputs expected to be in the request {{{_join(sent)}}}, or default input alias set: "
                    f"{_join(signature.defaults)}"
                )
            arrays[key] = signature.defaults[key]
            continue
        tensor = sent[key]
        if tensor.dtype != dtype:
            names = (TYPE_NAMES.get(number, str(number)) for number in (dtype, tensor.dtype))
            raise invalid_argument("Expects arg[0] to be {} but {} is provided".format(*names))
        if dtype != DT_STRING and dtype not in BITS:
            raise invalid_argument(f"tensor parsing error: {key}: {TYPE_NAMES.get(dtype, dtype)} cannot be sent")
        try:
            arrays[key] = to_array(tensor, bits=True)
        except TensorError as error:
            raise invalid_argument(f"tensor parsing error: {key}: {error}") from None
    return arrays


def _output_keys(signature: Signature, output_filter: Collection[str]) -> list[str]:
    if not output_filter:
        return list(signature.outputs)
    chosen: list[str] = []
    for key in output_filter:
        if key not in signature.outputs:
            raise invalid_argument(
                f"output tensor alias not found in signature: {key} "
                f"PredictResult expected to be in the set {{{_join(signature.outputs)}}}."
            )
        if key in chosen:
            raise invalid_argument(f"duplicate output tensor alias: {key}")
        chosen.append(key)
    return chosen


def _join(keys: Iterable[str]) -> str:
    return ",".join(sorted(keys))
