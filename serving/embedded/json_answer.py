"""Answers of the REST API as JSON, in the forms of tensorflow/serving's json_tensor.cc and http_rest_api_util.cc."""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from protos import inference_pb2 as pb
from protos import predict_pb2 as wire
from serving.embedded.json_request import COLUMNAR
from serving.embedded.predict_impl import TYPE_NAMES
from serving.embedded.status import invalid_argument

_STRING, _BOOL, _HALF = 7, 10, 19
_INTEGERS, _FLOATS = (3, 4, 5, 6, 9, 17, 22, 23), (1, 2, _HALF)
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}


def from_tensors(arrays: Mapping[str, NDArray[Any]], dtypes: Mapping[str, int], form: str) -> str:
    """The JSON of a predict answer. Raises StatusError."""
    if not arrays:
        raise invalid_argument("Cannot convert empty tensor map to JSON")
    if form == COLUMNAR:
        values = {key: _values(key, array, dtypes[key]) for key, array in arrays.items()}
        only = next(iter(values.values()))
        return f'{{\n    "outputs": {_object(values) if len(values) > 1 else only}\n}}'
    rows = None
    for key, array in arrays.items():
        if array.ndim == 0:
            raise invalid_argument(f"Tensor name: {key} has no shape information ")
        if rows is not None and rows != array.shape[0]:
            raise invalid_argument(f"Tensor name: {key} has inconsistent batch size: {array.shape[0]} expecting: {rows}")
        rows = array.shape[0]
    lines = []
    for i in range(rows or 0):
        row = {key: _values(key, array[i, ...], dtypes[key]) for key, array in arrays.items()}
        lines.append(_object(row) if len(row) > 1 else next(iter(row.values())))
    return f'{{\n    "predictions": [{", ".join(lines)}\n    ]\n}}'


def from_classifications(result: pb.ClassificationResult) -> str:
    rows = (
        "[" + ", ".join(f"[{json.dumps(one.label)}, {decimal(np.float32(one.score))}]" for one in row.classes) + "]"
        for row in result.classifications
    )
    return f'{{\n    "results": [{", ".join(rows)}\n    ]\n}}'


def from_regressions(result: pb.RegressionResult) -> str:
    return f'{{\n    "results": [{", ".join(decimal(np.float32(one.value)) for one in result.regressions)}]\n}}'


def from_error(message: str) -> str:
    return f'{{\n    "error": {json.dumps(message)}\n}}'


def _object(values: Mapping[str, str]) -> str:
    inner = ",\n".join(f"            {json.dumps(key)}: {value}" for key, value in values.items())
    return f"{{\n{inner}\n        }}"


def _values(key: str, array: Any, dtype: int) -> str:
    """A tensor's values as nested lists."""
    array = np.asarray(array)
    if dtype == _STRING:
        as_bytes = key.endswith("_bytes")
        return _nested(array, lambda text: _text_value(text, as_bytes))
    if dtype == _BOOL:
        return _nested(array, lambda value: "true" if value else "false")
    if dtype in _INTEGERS:
        return _nested(array, str)
    if dtype in _FLOATS:
        return _nested(array, decimal)
    raise invalid_argument(f"Failed to write JSON value for tensor type: {TYPE_NAMES.get(dtype, dtype)}")


def _nested(array: NDArray[Any], one: Any) -> str:
    if array.ndim == 0:
        return str(one(array[()]))
    return "[" + ", ".join(_nested(part, one) for part in array) + "]" if array.ndim > 1 else f"[{', '.join(map(one, array))}]"


def _text_value(text: bytes, as_bytes: bool) -> str:
    if as_bytes:
        return f'{{"b64": "{base64.b64encode(text).decode()}"}}'
    return json.dumps(text.decode("utf-8", "replace"), ensure_ascii=False)


def decimal(value: Any) -> str:
    """A float as short as it can be read back: six digits, else all of its own; never as an integer."""
    number = float(value)
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    text = f"{number:g}"
    if type(value)(text) != value:
        text = f"{number:.{17 if isinstance(value, float) else 9}g}"
    return text if "." in text or "e" in text else text + ".0"


def from_status(states: Sequence[wire.ModelVersionStatus]) -> str:
    """Versions and their states."""
    versions = [
        {
            "version": str(status.version),
            "state": wire.ModelVersionStatus.State.Name(status.state),
            "status": {"error_code": _CODES[status.status.error_code], "error_message": status.status.error_message},
        }
        for status in states
    ]
    return json.dumps({"model_version_status": versions}, indent=1)


def from_metadata(model: str, version: int, signatures: wire.SignatureDefMap) -> str:
    """The signatures of a model, with the names of protobuf's fields."""
    found = {
        name: {
            "inputs": {key: _tensor_info(info) for key, info in sorted(one.inputs.items())},
            "outputs": {key: _tensor_info(info) for key, info in sorted(one.outputs.items())},
            "method_name": one.method_name,
        }
        for name, one in sorted(signatures.signature_def.items())
    }
    spec = {"name": model, "signature_name": "", "version": str(version)}
    return json.dumps({"model_spec": spec, "metadata": {"signature_def": {"signature_def": found}}}, indent=1)


def _tensor_info(info: wire.TensorInfo) -> dict[str, Any]:
    sizes = [{"size": str(dim.size), "name": dim.name} for dim in info.tensor_shape.dim]
    return {
        "dtype": f"DT_{TYPE_NAMES.get(info.dtype, str(info.dtype)).upper()}",
        "tensor_shape": {"dim": sizes, "unknown_rank": info.tensor_shape.unknown_rank},
        "name": info.name,
    }
