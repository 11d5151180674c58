"""PredictionService.Predict, with the checks and texts of tensorflow/serving's predict_util.cc."""

import functools
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from protos import predict_pb2 as wire
from serving.contract import DEFAULT_SIGNATURE
from serving.embedded.models.servable import Servable, ServableFinder, Signature
from serving.embedded.status import failed_precondition, invalid_argument
from serving.tensors import BITS, DT_STRING, TensorError, to_array, type_name, typed_proto

CountRun = Callable[[str, float], None]
"""Counts a run: (model, seconds)."""


def predict(models: ServableFinder, count_run: CountRun, request: wire.PredictRequest) -> wire.PredictResponse:
    """Run a signature. Raises StatusError."""
    if not request.HasField("model_spec"):
        raise invalid_argument("Missing ModelSpec")
    spec = request.model_spec
    version, servable = models.find(spec)
    name = spec.signature_name or DEFAULT_SIGNATURE
    signature = servable.signatures.get(name)
    if signature is None:
        raise failed_precondition(f'Serving signature key "{name}" not found.')
    arrays = _input_arrays(signature, servable.definitions.signature_def[name], request.inputs)
    keys = _output_keys(signature, request.output_filter)
    outputs = run(servable, name, arrays, keys, functools.partial(count_run, spec.name))
    response = wire.PredictResponse()
    response.model_spec.name = spec.name
    response.model_spec.version.value = version
    response.model_spec.signature_name = name
    for key, array in zip(keys, outputs, strict=True):
        # typed values, not tensor_content: TensorFlow Serving's default
        typed_proto(array, response.outputs[key], signature.outputs[key])
    return response


def run(
    servable: Servable,
    signature: str,
    inputs: Mapping[str, NDArray[Any]],
    outputs: Sequence[str],
    count_s: Callable[[float], None],
) -> list[NDArray[Any]]:
    """Run a signature, and count the seconds that it takes. Raises StatusError."""
    begin = time.perf_counter()
    values = servable.run(signature, inputs, outputs)
    count_s(time.perf_counter() - begin)
    return values


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
            names = (type_name(number) for number in (dtype, tensor.dtype))
            raise invalid_argument("Expects arg[0] to be {} but {} is provided".format(*names))
        if dtype != DT_STRING and dtype not in BITS:
            raise invalid_argument(f"tensor parsing error: {key}: {type_name(dtype)} cannot be sent")
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
                f"Outputs expected to be in the set {{{_join(signature.outputs)}}}."
            )
        if key in chosen:
            raise invalid_argument(f"duplicate output tensor alias: {key}")
        chosen.append(key)
    return chosen


def _join(keys: Iterable[str]) -> str:
    return ",".join(sorted(keys))
