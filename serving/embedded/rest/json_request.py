"""JSON requests of the REST API as messages, with the formats and error texts of tensorflow/serving's json_tensor.cc."""

import base64
import binascii
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from protos import predict_pb2 as wire
from serving.embedded.rpc.predict import TYPE_NAMES
from serving.embedded.status import StatusError, invalid_argument, unimplemented

ROW, COLUMNAR = "row", "columnar"
_INTEGERS: dict[int, tuple[str, int, int]] = {
    3: ("int_val", -(2**31), 2**31 - 1), 4: ("int_val", -(2**31), 2**31 - 1), 5: ("int_val", -(2**31), 2**31 - 1),
    6: ("int_val", -(2**31), 2**31 - 1), 9: ("int64_val", -(2**63), 2**63 - 1), 22: ("uint32_val", 0, 2**32 - 1),
    23: ("uint64_val", 0, 2**64 - 1),
}  # fmt: skip
"""dtype -> (field, smallest value, largest value that the JSON may have)."""
_FLOATS: dict[int, tuple[str, Any, str, int]] = {
    1: ("float_val", np.float32, "float", 24),
    2: ("double_val", np.float64, "double", 53),
}
DT_STRING, DT_BOOL = 7, 10
MAX_DEPTH = 64
"""Of nested lists."""
MAX_TEXT_CHARS = 500
"""Of a JSON value in an error."""


def parse(body: bytes) -> dict[str, Any]:
    """The JSON object of a request. Raises StatusError."""
    if not body:
        raise invalid_argument("JSON Parse error: The document is empty")
    try:
        document = json.loads(body)
    except UnicodeDecodeError as error:
        raise invalid_argument(f"JSON Parse error: Invalid encoding in string. at offset: {error.start}") from None
    except json.JSONDecodeError as error:
        raise invalid_argument(f"JSON Parse error: {error.msg} at offset: {error.pos}") from None
    except RecursionError:
        raise invalid_argument("JSON Parse error: nested too deeply") from None
    except ValueError as error:
        raise invalid_argument(f"JSON Parse error: {error}") from None
    if not isinstance(document, dict):
        raise _format_error(document, "Is not object")
    return document


def signature_name(doc: Mapping[str, Any]) -> str:
    """The signature's name in a request; empty: the default. Raises StatusError."""
    name = doc.get("signature_name", "")
    if not isinstance(name, str):
        raise _format_error(doc, "not formatted correctly. 'signature_name' key must be a string value.")
    return name


def fill_predict_request(doc: Mapping[str, Any], inputs: Mapping[str, int], request: wire.PredictRequest) -> str:
    """Fill a message with a request's tensors and return the layout, ROW or COLUMNAR. Raises StatusError.

    `inputs`: input key -> dtype.
    """
    if "instances" in doc:
        if "inputs" in doc:
            raise _format_error(doc, "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist ")
        instances = doc["instances"]
        if not isinstance(instances, list):
            raise _format_error(doc, "Excepting 'instances' to be an list/array")
        if not instances:
            raise _format_error(doc, "No values in 'instances' array")
        _fill_rows(instances, inputs, request)
        return ROW
    if "inputs" not in doc:
        raise invalid_argument("Missing 'inputs' or 'instances' key")
    value = doc["inputs"]
    if not isinstance(value, dict) or _is_base64(value):
        if len(inputs) > 1:
            raise invalid_argument(
                "inputs is a plain value/list, but expecting an object as multiple input tensors required as per tensorinfo_map"
            )
        value = {next(iter(inputs)): value}
    for key, dtype in inputs.items():
        if key not in value:
            raise invalid_argument(f"Missing named input: {key} in 'inputs' object.")
        shape = _shape(value[key])
        tensor = request.inputs[key]
        _fill(value[key], 0, shape, dtype, tensor)
        _set_dtype_and_shape(tensor, dtype, shape)
    return COLUMNAR


def _fill_rows(instances: list[Any], inputs: Mapping[str, int], request: wire.PredictRequest) -> None:
    are_objects = isinstance(instances[0], dict) and not _is_base64(instances[0])
    if not are_objects and len(inputs) > 1:
        raise invalid_argument(
            "instances is a plain list, but expecting list of objects as multiple input tensors required as per tensorinfo_map"
        )
    shapes: dict[str, list[int]] = {}
    only = next(iter(inputs))
    for number, element in enumerate(instances):
        if (isinstance(element, dict) and not _is_base64(element)) != are_objects:
            expected = "object but got list" if are_objects else "value/list but got object"
            raise invalid_argument(f"Expecting {expected} at item {number} of input list")
        items = element if are_objects else {only: element}
        for key, item in items.items():
            try:
                if key not in inputs:
                    raise invalid_argument(f"JSON object: does not have named input: {key}")
                shape = _shape(item)
                _fill(item, 0, shape, inputs[key], request.inputs[key])
                if shapes.setdefault(key, shape) != shape:
                    raise _shape_error(shapes[key], shape)
            except StatusError as error:
                named = f" key: {key}" if are_objects else ""
                raise invalid_argument(
                    f"Failed to process element: {number}{named} of 'instances' list. Error: {error.code.name}: {error}"
                ) from None
        if items.keys() != inputs.keys():
            raise invalid_argument(
                f"Failed to process element: {number} of 'instances' list. JSON object: {_text(element)} "
                f"keys must be equal to: {','.join(sorted(inputs))}"
            )
    for key, shape in shapes.items():
        _set_dtype_and_shape(request.inputs[key], inputs[key], [len(instances), *shape])


def _shape_error(expected: list[int], shape: list[int]) -> StatusError:
    if math.prod(expected) != math.prod(shape):
        return invalid_argument(f"Expecting tensor size: {math.prod(expected)} but got: {math.prod(shape)}")
    return invalid_argument(f"Expecting shape [{_join(expected)}] but got: [{_join(shape)}]")


def _shape(value: Any) -> list[int]:
    """The shape of nested lists, taken from the first element of each. Raises StatusError."""
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        if len(shape) > MAX_DEPTH:
            raise invalid_argument(f"a list is nested more than {MAX_DEPTH} deep")
        if not value:
            break
        value = value[0]
    return shape


def _fill(value: Any, level: int, shape: list[int], dtype: int, tensor: wire.Tensor) -> None:
    if not isinstance(value, list):
        if level != len(shape):
            raise invalid_argument(
                f"JSON Value: {_text(value)} found at incorrect level: {level + 1} in the JSON DOM. "
                f"Expected at level: {len(shape)}"
            )
        _add(value, dtype, tensor)
        return
    if level >= len(shape):
        raise invalid_argument(f"Encountered list at unexpected level: {level} expected < {len(shape)}")
    if len(value) != shape[level]:
        raise invalid_argument(
            f"Encountered list at unexpected size: {len(value)} at level: {level} expected size: {shape[level]}"
        )
    for element in value:
        _fill(element, level + 1, shape, dtype, tensor)


def _add(value: Any, dtype: int, tensor: wire.Tensor) -> None:
    if dtype == DT_STRING:
        if isinstance(value, dict):
            tensor.string_val.append(_from_base64(value))
        elif isinstance(value, str):
            tensor.string_val.append(_utf8(value))
        else:
            raise _type_error(value, dtype)
    elif dtype == DT_BOOL:
        if not isinstance(value, bool):
            raise _type_error(value, dtype)
        tensor.bool_val.append(value)
    elif dtype in _INTEGERS:
        field, smallest, largest = _INTEGERS[dtype]
        if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= largest:
            raise _type_error(value, dtype)
        getattr(tensor, field).append(value)
    elif dtype in _FLOATS:
        field, kind, name, digits = _FLOATS[dtype]
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise _type_error(value, dtype)
        if isinstance(value, int) and abs(value) >= 1 << digits:
            raise invalid_argument(f"Cannot convert JSON value: {_text(value)} to {name} without loss of precision.")
        if math.isfinite(value) and abs(value) > float(np.finfo(kind).max):
            raise invalid_argument(f"Cannot convert JSON value: {_text(value)} to {name} without loss of precision.")
        getattr(tensor, field).append(value)
    else:
        raise unimplemented(f"Conversion of JSON Value: {_text(value)} to type: {TYPE_NAMES.get(dtype, dtype)}")


def _set_dtype_and_shape(tensor: wire.Tensor, dtype: int, shape: list[int]) -> None:
    tensor.dtype = dtype
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)


def _is_base64(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("b64"), str)


def _from_base64(value: Any) -> bytes:
    if not _is_base64(value):
        raise invalid_argument(f"JSON Value: {_text(value)} not formatted correctly for base64 data")
    text = value["b64"].rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise invalid_argument("Unable to base64 decode") from None


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise invalid_argument(f"JSON Value: {_text(text)} is not valid text: it holds half of a surrogate pair") from None


def _type_error(value: Any, dtype: int) -> StatusError:
    return invalid_argument(
        f"JSON Value: {_text(value)} Type: {_json_type(value)} is not of expected type: {TYPE_NAMES.get(dtype, dtype)}"
    )


def _format_error(value: Any, problem: str) -> StatusError:
    return invalid_argument(f"JSON Value: {_text(value)} {problem}")


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return str(value)
    kinds = {type(None): "Null", dict: "Object", list: "Array", str: "String", int: "Number", float: "Number"}
    return kinds[type(value)]


def _text(value: Any) -> str:
    """JSON for an error text, truncated to MAX_TEXT_CHARS."""
    try:
        text = json.dumps(value)
    except RecursionError:
        return "..."
    return text if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + "..."


def _join(sizes: list[int]) -> str:
    return ",".join(map(str, sizes))
