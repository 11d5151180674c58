"""JSON responses of the REST API, with the keys and values of tensorflow/serving's json_tensor.cc and http_rest_api_util.cc."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from protos import predict_pb2 as wire
from serving.embedded.rest.json_request import COLUMNAR
from serving.embedded.rpc.predict import TYPE_NAMES
from serving.embedded.status import invalid_argument

DT_STRING, DT_BOOL = 7, 10
_INTEGERS, _FLOATS = (3, 4, 5, 6, 9, 17, 22, 23), (1, 2, 19)
_CODE_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


def from_tensors(arrays: Mapping[str, NDArray[Any]], dtypes: Mapping[str, int], layout: str) -> str:
    """The JSON of a predict response. Raises StatusError."""
    if not arrays:
        raise invalid_argument("Cannot convert empty tensor map to JSON")
    values = {key: _values(key, array, dtypes[key]) for key, array in arrays.items()}
    if layout == COLUMNAR:
        return json.dumps({"outputs": values if len(values) > 1 else next(iter(values.values()))}, ensure_ascii=False)
    rows = None
    for key, array in arrays.items():
        if array.ndim == 0:
            raise invalid_argument(f"Tensor name: {key} has no shape information ")
        if rows is not None and rows != array.shape[0]:
            raise invalid_argument(f"Tensor name: {key} has inconsistent batch size: {array.shape[0]} expecting: {rows}")
        rows = array.shape[0]
    if len(values) == 1:
        return json.dumps({"predictions": next(iter(values.values()))}, ensure_ascii=False)
    predictions = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    return json.dumps({"predictions": predictions}, ensure_ascii=False)


def from_error(message: str) -> str:
    """The JSON of an error."""
    return json.dumps({"error": message})


def _values(key: str, array: NDArray[Any], dtype: int) -> Any:
    """A tensor's values as nested lists. Raises StatusError for a dtype that JSON cannot hold."""
    if dtype == DT_STRING:
        as_bytes = key.endswith("_bytes")
        return _map_nested(array.tolist(), lambda text: _string(text, as_bytes))
    if dtype == DT_BOOL or dtype in _INTEGERS:
        return array.tolist()
    if dtype in _FLOATS:
        # the shortest decimal that reads back as the same number of its own precision: 0.1, not 0.10000000149011612
        return array.tolist() if array.dtype == np.float64 else array.astype("U32").astype(np.float64).tolist()
    raise invalid_argument(f"Failed to write JSON value for tensor type: {TYPE_NAMES.get(dtype, dtype)}")


def _map_nested(values: Any, function: Any) -> Any:
    return [_map_nested(value, function) for value in values] if isinstance(values, list) else function(values)


def _string(text: bytes, as_bytes: bool) -> Any:
    return {"b64": base64.b64encode(text).decode()} if as_bytes else text.decode("utf-8", "replace")


def from_status(states: Sequence[wire.ModelVersionStatus]) -> str:
    """The JSON of a model's versions and their states."""
    versions = [
        {
            "version": str(status.version),
            "state": wire.ModelVersionStatus.State.Name(status.state),
            "status": {"error_code": _CODE_NAMES[status.status.error_code], "error_message": status.status.error_message},
        }
        for status in states
    ]
    return json.dumps({"model_version_status": versions})


def from_metadata(model: str, version: int, signatures: wire.SignatureDefMap) -> str:
    """The JSON of a model's signatures, with protobuf's field names."""
    definitions = {
        name: {
            "inputs": {key: _tensor_info(info) for key, info in sorted(definition.inputs.items())},
            "outputs": {key: _tensor_info(info) for key, info in sorted(definition.outputs.items())},
            "method_name": definition.method_name,
        }
        for name, definition in sorted(signatures.signature_def.items())
    }
    spec = {"name": model, "signature_name": "", "version": str(version)}
    return json.dumps({"model_spec": spec, "metadata": {"signature_def": {"signature_def": definitions}}})


def _tensor_info(info: wire.TensorInfo) -> dict[str, Any]:
    sizes = [{"size": str(dim.size), "name": dim.name} for dim in info.tensor_shape.dim]
    return {
        "dtype": f"DT_{TYPE_NAMES.get(info.dtype, str(info.dtype)).upper()}",
        "tensor_shape": {"dim": sizes, "unknown_rank": info.tensor_shape.unknown_rank},
        "name": info.name,
    }
