"""JSON responses of the REST API, with the keys and values of tensorflow/serving's json_tensor.cc and http_rest_api_util.cc."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from numpy.typing import NDArray

from protos import predict_pb2 as wire
from serving.embedded.rest.json_request import COLUMNAR, INTEGERS
from serving.embedded.status import invalid_argument
from serving.tensors import DT_BOOL, DT_STRING, type_name

BLOCK = 10_000
"""Numbers that are written at once: Python runs no other thread meanwhile."""
_MAX_DIGITS = {1: 9, 2: 17}
"""dtype -> decimal digits after which every number reads back as itself."""


def from_tensors(arrays: Mapping[str, NDArray[Any]], dtypes: Mapping[str, int], layout: str) -> str:
    """The JSON of a predict response. Raises StatusError."""
    if not arrays:
        raise invalid_argument("Cannot convert empty tensor map to JSON")
    values = {key: _values(key, array, dtypes[key]) for key, array in arrays.items()}
    count = sum(array.size for array in arrays.values())
    if layout == COLUMNAR:
        if len(values) == 1:
            (key,) = values
            return f'{{"outputs": {_written(values[key], count)}}}'
        return f'{{"outputs": {{{", ".join(f"{_dumps(key)}: {_written(values[key], arrays[key].size)}" for key in values)}}}}}'
    rows = None
    for key, array in arrays.items():
        if array.ndim == 0:
            raise invalid_argument(f"Tensor name: {key} has no shape information ")
        if rows is not None and rows != array.shape[0]:
            raise invalid_argument(f"Tensor name: {key} has inconsistent batch size: {array.shape[0]} expecting: {rows}")
        rows = array.shape[0]
    if len(values) == 1:
        predictions = next(iter(values.values()))
    else:
        predictions = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    return f'{{"predictions": {_written(predictions, count)}}}'


def from_error(message: str) -> str:
    """The JSON of an error."""
    return _dumps({"error": message})


def from_status(response: wire.GetModelStatusResponse) -> str:
    """The JSON of a model's versions and their states."""
    return _dumps(_fields(response))


def from_metadata(response: wire.GetModelMetadataResponse) -> str:
    """The JSON of a model's signatures."""
    signatures = wire.SignatureDefMap.FromString(response.metadata["signature_def"].value)
    return _dumps({"model_spec": _fields(response.model_spec), "metadata": {"signature_def": _fields(signatures)}})


def _fields(message: Message) -> Any:
    """A message in protobuf's JSON format, with all of its fields by their names in the .proto file."""
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _written(values: Any, count: int) -> str:
    """JSON of a value that holds `count` numbers or texts."""
    if not isinstance(values, list):
        return _dumps(values)
    size = max(1, BLOCK * len(values) // max(count, 1))
    return "[" + ", ".join(_dumps(values[k : k + size])[1:-1] for k in range(0, len(values), size)) + "]"


def _values(key: str, array: NDArray[Any], dtype: int) -> Any:
    """A tensor's values as nested lists. Raises StatusError for a dtype that JSON cannot hold."""
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
    raise invalid_argument(f"Failed to write JSON value for tensor type: {type_name(dtype)}")


def _decimals(array: NDArray[Any], max_digits: int) -> NDArray[np.float64]:
    """The decimal numbers that TensorFlow Serving writes: of 6 digits where they read back as the same float, else of all.

    So the float32 nearest to 0.1 is 0.1, not 0.10000000149011612.
    """
    flat = array.reshape(-1)
    decimals = _rounded(flat, 6)
    with np.errstate(over="ignore"):
        is_inexact = decimals.astype(array.dtype) != flat
    decimals[is_inexact] = _rounded(flat[is_inexact], max_digits)
    return decimals.reshape(array.shape)


def _rounded(values: NDArray[Any], digits: int) -> NDArray[np.float64]:
    blocks = [np.zeros(0)]
    for k in range(0, len(values), BLOCK):
        block = values[k : k + BLOCK].tolist()
        blocks.append(np.fromstring(f"%.{digits}g " * len(block) % tuple(block), np.float64, sep=" "))
    return np.concatenate(blocks)
