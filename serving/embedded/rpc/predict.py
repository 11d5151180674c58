"""PredictionService.Predict, with the checks and texts of tensorflow/serving's predict_util.cc."""

import functools
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from grpc import StatusCode
from numpy.typing import NDArray

from protos import predict_pb2 as wire
from serving.client.channel import MAX_MESSAGE_BYTES
from serving.contract import DEFAULT_SIGNATURE
from serving.embedded.models.manager import ModelManager
from serving.embedded.models.servable import Servable, Signature
from serving.embedded.status import TOO_LARGE, StatusError, refuse
from serving.embedded.telemetry import ServerMetrics
from serving.tensors import TensorError, to_array, type_name, typed_proto


def predict(manager: ModelManager, metrics: ServerMetrics, request: wire.PredictRequest) -> wire.PredictResponse:
    """Run a signature of the version that a request names. Raises StatusError."""
    refuse((not request.HasField("model_spec"), "Missing ModelSpec"))
    name = request.model_spec.name
    version, servable = manager.find(request.model_spec)
    response = run_request(servable, request, functools.partial(metrics.count_run, name))
    response.model_spec.name, response.model_spec.version.value = name, version
    return response


def run_request(
    servable: Servable, request: wire.PredictRequest, count_s: Callable[[float], None] = lambda _: None
) -> wire.PredictResponse:
    """The outputs that a request asks a loaded version for; `count_s` receives the run's duration.

    Raises StatusError.
    """
    name = request.model_spec.signature_name or DEFAULT_SIGNATURE
    signature = servable.signatures.get(name)
    if signature is None:
        raise StatusError(StatusCode.FAILED_PRECONDITION, f'Serving signature key "{name}" not found.')
    arrays = _input_arrays(signature, servable.definitions.signature_def[name], request.inputs)
    keys = _output_keys(signature, request.output_filter)
    outputs = run(servable, name, arrays, keys, count_s)
    size = sum(array.nbytes for array in outputs)
    # before it is converted, which takes several times this memory
    refuse((size > MAX_MESSAGE_BYTES, f"the outputs take {size} bytes, {TOO_LARGE}"))
    response = wire.PredictResponse(model_spec=wire.ModelSpec(signature_name=name))
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
        raise StatusError(
            StatusCode.INVALID_ARGUMENT,
            f"input size does not match signature: {len(tensors)}!={len(expected)} len({{{_join(tensors)}}}) != "
            f"len({{{_join(expected)}}}). Sent extra: {{{_join(extra)}}}. Missing but required: {{{_join(missing)}}}.",
        )
    arrays = {}
    for key, dtype in expected.items():
        if key not in tensors:
            if key not in signature.defaults:
                raise StatusError(
                    StatusCode.INVALID_ARGUMENT,
                    f"Signature input alias: {key}(feed name: {definition.inputs[key].name}) not found in request and "
                    f"no default value provided. Inputs expected to be in the request {{{_join(tensors)}}}, or default "
                    f"input alias set: {_join(signature.defaults)}",
                )
            arrays[key] = signature.defaults[key]
            continue
        tensor = tensors[key]
        if tensor.dtype != dtype:
            raise StatusError(
                StatusCode.INVALID_ARGUMENT,
                f"Expects arg[0] to be {type_name(dtype)} but {type_name(tensor.dtype)} is provided",
            )
        try:
            arrays[key] = to_array(tensor, raw=True)
        except TensorError as error:
            raise StatusError(StatusCode.INVALID_ARGUMENT, f"tensor parsing error: {key}: {error}") from None
    return arrays


def _output_keys(signature: Signature, output_filter: Collection[str]) -> list[str]:
    if not output_filter:
        return list(signature.outputs)
    keys: list[str] = []
    for key in output_filter:
        if key not in signature.outputs:
            raise StatusError(
                StatusCode.INVALID_ARGUMENT,
                f"output tensor alias not found in signature: {key} "
                f"Outputs expected to be in the set {{{_join(signature.outputs)}}}.",
            )
        refuse((key in keys, f"duplicate output tensor alias: {key}"))
        keys.append(key)
    return keys


def _join(keys: Iterable[str]) -> str:
    return ",".join(sorted(keys))
