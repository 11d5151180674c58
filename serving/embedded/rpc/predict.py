"""PredictionService.Predict, with the checks and texts of tensorflow/serving's predict_util.cc."""

import functools
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from protos import predict_pb2 as wire
from serving.client.channel import MAX_MESSAGE_BYTES
from serving.contract import DEFAULT_SIGNATURE
from serving.embedded.models.servable import Servable, ServableFinder, Signature
from serving.embedded.prediction_log.prediction_log import PredictionLog
from serving.embedded.status import TOO_LARGE, failed_precondition, invalid_argument
from serving.tensors import DT_STRING, STORAGE_DTYPES, TensorError, to_array, type_name, typed_proto

CountRun = Callable[[str, float], None]
"""Counts a run of a model: (model, duration in seconds)."""


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
    size = sum(array.nbytes for array in outputs)
    if size > MAX_MESSAGE_BYTES:
        # before it is converted, which takes several times this memory
        raise invalid_argument(f"the outputs take {size} bytes, {TOO_LARGE}")
    return response_message(
        wire.ModelSpec(name=spec.name, signature_name=name), version, signature, dict(zip(keys, outputs, strict=True))
    )


def response_message(
    spec: wire.ModelSpec, version: int, signature: Signature, outputs: Mapping[str, NDArray[Any]]
) -> wire.PredictResponse:
    """The response with these outputs.

    Args:
        spec: names of the model and the signature.
        version: version that computed them.
        signature: the signature.
        outputs: arrays by output key.
    """
    response = wire.PredictResponse(model_spec=spec)
    response.model_spec.version.value = version
    for key, array in outputs.items():
        # typed values, not tensor_content: TensorFlow Serving's default
        typed_proto(array, response.outputs[key], signature.outputs[key])
    return response


def logged_predict(
    predict: Callable[[wire.PredictRequest], wire.PredictResponse], logs: PredictionLog, request: wire.PredictRequest
) -> wire.PredictResponse:
    """Answer a request, and log it if its model is logged. Raises StatusError."""
    response = predict(request)
    if (config := logs.sample(request.model_spec.name)) is not None:
        logs.add(config, request, response)
    return response


def run(
    servable: Servable,
    signature: str,
    inputs: Mapping[str, NDArray[Any]],
    outputs: Sequence[str],
    count_s: Callable[[float], None],
) -> list[NDArray[Any]]:
    """Run a signature and count its duration. Raises StatusError.

    Args:
        servable: the loaded version.
        signature: name of the signature.
        inputs: arrays by input key.
        outputs: output keys.
        count_s: receives the duration in seconds.
    """
    begin = time.perf_counter()
    values = servable.run(signature, inputs, outputs)
    count_s(time.perf_counter() - begin)
    return values


def _input_arrays(
    signature: Signature, definition: wire.SignatureDef, tensors: Mapping[str, wire.Tensor]
) -> dict[str, NDArray[Any]]:
    expected = signature.inputs
    if len(tensors) > len(expected) or (len(tensors) < len(expected) and not signature.defaults):
        extra, missing = set(tensors) - set(expected), set(expected) - set(tensors)
        raise invalid_argument(
            f"input size does not match signature: {len(tensors)}!={len(expected)} len({{{_join(tensors)}}}) != "
            f"len({{{_join(expected)}}}). Sent extra: {{{_join(extra)}}}. Missing but required: {{{_join(missing)}}}."
        )
    arrays = {}
    for key, dtype in expected.items():
        if key not in tensors:
            if key not in signature.defaults:
                raise invalid_argument(
                    f"Signature input alias: {key}(feed name: {definition.inputs[key].name}) not found in request and "
                    f"no default value provided. Inputs expected to be in the request {{{_join(tensors)}}}, or default "
                    f"input alias set: {_join(signature.defaults)}"
                )
            arrays[key] = signature.defaults[key]
            continue
        tensor = tensors[key]
        if tensor.dtype != dtype:
            raise invalid_argument(f"Expects arg[0] to be {type_name(dtype)} but {type_name(tensor.dtype)} is provided")
        if dtype != DT_STRING and dtype not in STORAGE_DTYPES:
            raise invalid_argument(f"tensor parsing error: {key}: {type_name(dtype)} cannot be sent")
        try:
            arrays[key] = to_array(tensor, raw=True)
        except TensorError as error:
            raise invalid_argument(f"tensor parsing error: {key}: {error}") from None
    return arrays


def _output_keys(signature: Signature, output_filter: Collection[str]) -> list[str]:
    if not output_filter:
        return list(signature.outputs)
    keys: list[str] = []
    for key in output_filter:
        if key not in signature.outputs:
            raise invalid_argument(
                f"output tensor alias not found in signature: {key} "
                f"Outputs expected to be in the set {{{_join(signature.outputs)}}}."
            )
        if key in keys:
            raise invalid_argument(f"duplicate output tensor alias: {key}")
        keys.append(key)
    return keys


def _join(keys: Iterable[str]) -> str:
    return ",".join(sorted(keys))
