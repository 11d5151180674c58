"""JSON responses of the REST API; keys and values are those of tensorflow/serving's json_tensor.cc."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from grpc import StatusCode
from numpy.typing import NDArray

from protos import predict_pb2 as wire
from serving.embedded.rest.json_request import BLOCK_SIZE, COLUMNAR, INTEGERS
from serving.embedded.status import StatusError
from serving.tensors import DT_BOOL, DT_STRING, type_name

_MAX_DIGITS = {1: 9, 2: 17}
"""dtype -> number of significant digits that represents every value exactly."""


def from_tensors(arrays: Mapping[str, NDArray[Any]], dtypes: Mapping[str, int], layout: str) -> str:
    """The JSON of a predict response. Raises StatusError.

    `layout`: ROW or COLUMNAR, the format of the request.
    """
    if not arrays:
        raise StatusError(StatusCode.INVALID_ARGUMENT, "the signature has no outputs")
    values = {key: _values(key, array, dtypes[key]) for key, array in arrays.items()}
    count = sum(array.size for array in arrays.values())
    if layout == COLUMNAR:
        if len(values) == 1:
            (key,) = values
            return f'{{"outputs": {_dumps_in_blocks(values[key], count)}}}'
        outputs = ", ".join(f"{dumps(key)}: {_dumps_in_blocks(values[key], arrays[key].size)}" for key in values)
        return f'{{"outputs": {{{outputs}}}}}'
    batch_sizes = {array.shape[:1] for array in arrays.values()}
    if len(batch_sizes) > 1 or () in batch_sizes:
        raise StatusError(
            StatusCode.INVALID_ARGUMENT, "the outputs do not have a row for each instance; send 'inputs' instead"
        )
    if len(values) == 1:
        predictions = next(iter(values.values()))
    else:
        predictions = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    return f'{{"predictions": {_dumps_in_blocks(predictions, count)}}}'


def from_status(response: wire.GetModelStatusResponse) -> str:
    """The JSON of a model's versions and their states."""
    return dumps(_fields(response))


def from_metadata(response: wire.GetModelMetadataResponse) -> str:
    """The JSON of a model's signatures."""
    signatures = wire.SignatureDefMap.FromString(response.metadata["signature_def"].value)
    return dumps({"model_spec": _fields(response.model_spec), "metadata": {"signature_def": _fields(signatures)}})


def _fields(message: Message) -> Any:
    """A message in protobuf's JSON format, with all fields and their names in the .proto file."""
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def dumps(value: Any) -> str:
    """JSON with all letters as they are."""
    return json.dumps(value, ensure_ascii=False)


def _dumps_in_blocks(values: Any, count: int) -> str:
    """The JSON of nested lists with `count` values in all."""
    if not isinstance(values, list):
        return dumps(values)
    size = max(1, BLOCK_SIZE * len(values) // max(count, 1))
    return "[" + ", ".join(dumps(values[k : k + size])[1:-1] for k in range(0, len(values), size)) + "]"


def _values(key: str, array: NDArray[Any], dtype: int) -> Any:
    """Convert a tensor to nested lists. Raises StatusError for a dtype that JSON cannot represent."""
    if dtype == DT_STRING:
        as_bytes = key.endswith("_bytes")
        strings = [
            {"b64": base64.b64encode(text).decode()} if as_bytes else text.decode("utf-8", "replace")
            for text in array.reshape(-1).tolist()
        ]
        nested = np.empty(len(strings), object)
        nested[:] = strings
        return nested.reshape(array.shape).tolist()
    if dtype in _MAX_DIGITS:
        return _decimals(array, _MAX_DIGITS[dtype]).tolist()
    if dtype == DT_BOOL or dtype in INTEGERS:
        return array.tolist()
    raise StatusError(StatusCode.INVALID_ARGUMENT, f"output {key}: JSON cannot hold {type_name(dtype)}")


def _decimals(array: NDArray[Any], max_digits: int) -> NDArray[np.float64]:
    """Round to the decimals that TensorFlow Serving writes: 6 digits if they represent the value exactly, else
    `max_digits`.

    So the float32 nearest to 0.1 becomes 0.1, not 0.10000000149011612.
    """
    flat = array.reshape(-1)
    decimals = _round(flat, 6)
    with np.errstate(over="ignore"):
        is_inexact = decimals.astype(array.dtype) != flat
    decimals[is_inexact] = _round(flat[is_inexact], max_digits)
    return decimals.reshape(array.shape)


def _round(values: NDArray[Any], digits: int) -> NDArray[np.float64]:
    blocks = [np.zeros(0)]
    for k in range(0, len(values), BLOCK_SIZE):
        block = values[k : k + BLOCK_SIZE].tolist()
        blocks.append(np.fromstring(f"%.{digits}g " * len(block) % tuple(block), np.float64, sep=" "))
    return np.concatenate(blocks)
