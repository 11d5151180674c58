"""Convert the REST API's Predict requests to arrays, with the formats and error texts of tensorflow/serving's
json_tensor.cc."""

import base64
import binascii
import math
import re
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.embedded.rest.json_document import JsonObject, quote, type_of
from serving.embedded.status import StatusError, invalid_argument, unimplemented
from serving.tensors import DT_BOOL, DT_STRING, type_name

ROW, COLUMNAR = "row", "columnar"
_INT32 = (-(2**31), 2**31 - 1)
INTEGERS: dict[int, tuple[str, int, int]] = {
    3: ("int32", *_INT32), 4: ("uint8", *_INT32), 5: ("int16", *_INT32), 6: ("int8", *_INT32),
    9: ("int64", -(2**63), 2**63 - 1), 22: ("uint32", 0, 2**32 - 1), 23: ("uint64", 0, 2**64 - 1),
}  # fmt: skip
"""dtype -> (NumPy's name, minimum and maximum of the JSON value)."""
_FLOATS = {1: "float32", 2: "float64"}
_JSON_TYPES: dict[int, set[type]] = {
    **{key: {int} for key in INTEGERS}, **{key: {int, float} for key in _FLOATS}, DT_BOOL: {bool}, DT_STRING: {str},
}  # fmt: skip
BLOCK_SIZE = 10_000
"""Values that are converted or formatted in one call, during which Python runs no other thread."""
MAX_DEPTH = 64
"""Maximum depth of nested lists, which is NumPy's."""
Check = Callable[[], None]
"""Called between blocks of values; may raise StatusError to stop."""


def signature_name(document: Any) -> str:
    """The signature's name in a request; empty for the default. Raises StatusError."""
    if not isinstance(document, JsonObject):
        raise _error(document, "Is not object")
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise _error(document, "not formatted correctly. 'signature_name' key must be a string value.")
    return name


def input_arrays(
    document: JsonObject, inputs: Mapping[str, int], check: Check = lambda: None
) -> tuple[dict[str, NDArray[Any]], str]:
    """Convert a request to (input key -> array, its format: ROW or COLUMNAR). Raises StatusError.

    `inputs`: input key -> dtype.
    """
    if "instances" in document:
        instances = document["instances"]
        if "inputs" in document:
            raise _error(
                document, "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist "
            )
        if not isinstance(instances, list):
            raise _error(document, "Expecting 'instances' to be an list/array")
        if not instances:
            raise _error(document, "No values in 'instances' array")
        return _from_rows(instances, inputs, check), ROW
    if "inputs" not in document:
        raise invalid_argument("Missing 'inputs' or 'instances' key")
    value = document["inputs"]
    if not _has_keys(value):
        if len(inputs) > 1:
            raise invalid_argument(
                "inputs is a plain value/list, but expecting an object as multiple input tensors required as per "
                "tensorinfo_map"
            )
        value = {next(iter(inputs)): value}
    if missing := [key for key in inputs if key not in value]:
        raise invalid_argument(f"Missing named input: {missing[0]} in 'inputs' object.")
    return {key: _tensor(value[key], key, dtype, check) for key, dtype in inputs.items()}, COLUMNAR


def _from_rows(instances: list[Any], inputs: Mapping[str, int], check: Check) -> dict[str, NDArray[Any]]:
    are_objects = _has_keys(instances[0])
    if not are_objects and len(inputs) > 1:
        raise invalid_argument(
            "instances is a plain list, but expecting list of objects as multiple input tensors required as per "
            "tensorinfo_map"
        )
    if are_objects and not all(_has_keys(row) and row.keys() == inputs.keys() for row in instances):
        _check_rows(instances, inputs, check)
    columns = {key: [row[key] for row in instances] if are_objects else instances for key in inputs}
    try:
        return {key: _tensor(columns[key], key, dtype, check) for key, dtype in inputs.items()}
    except StatusError:
        # prefer the error that names the row
        _check_rows(instances, inputs, check)
        raise


def _check_rows(instances: list[Any], inputs: Mapping[str, int], check: Check) -> None:
    """Raise StatusError for the first row that is invalid, or whose keys or shapes differ from the previous rows'."""
    are_objects = _has_keys(instances[0])
    first_key = next(iter(inputs))
    shapes: dict[str, list[int]] = {}
    for number, row in enumerate(instances):
        if _has_keys(row) != are_objects:
            expected = "object but got list" if are_objects else "value/list but got object"
            raise invalid_argument(f"Expecting {expected} at item {number} of input list")
        for key, item in row.items() if are_objects else ((first_key, row),):
            try:
                if key not in inputs:
                    raise invalid_argument(f"JSON object: does not have named input: {key}")
                shape = _shape(item)
                _flatten(item, 0, shape, inputs[key], [], check)
                if shapes.setdefault(key, shape) != shape:
                    raise _shape_error(shapes[key], shape)
            except StatusError as error:
                key_text = f" key: {key}" if are_objects else ""
                raise invalid_argument(
                    f"Failed to process element: {number}{key_text} of 'instances' list. Error: {error.code.name}: "
                    f"{error}"
                ) from None
        if are_objects and row.keys() != inputs.keys():
            raise invalid_argument(
                f"Failed to process element: {number} of 'instances' list. JSON object: {quote(row)} "
                f"keys must be equal to: {','.join(sorted(inputs))}"
            )


def _has_keys(value: Any) -> bool:
    """Whether a value is an object of tensors; an object with base64 is a string."""
    return isinstance(value, JsonObject) and not _is_base64(value)


def _is_base64(value: JsonObject) -> bool:
    return len(value.pairs) == 1 and isinstance(value.get("b64"), str)


def _shape_error(expected: list[int], shape: list[int]) -> StatusError:
    if math.prod(expected) != math.prod(shape):
        return invalid_argument(f"Expecting tensor size: {math.prod(expected)} but got: {math.prod(shape)}")
    return invalid_argument(f"Expecting shape [{','.join(map(str, expected))}] but got: [{','.join(map(str, shape))}]")


def _shape(value: Any) -> list[int]:
    """The shape of nested lists, by the first element of each list. Raises StatusError."""
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        if len(shape) > MAX_DEPTH:
            raise invalid_argument(f"a list is nested more than {MAX_DEPTH} deep")
        if not value:
            break
        value = value[0]
    return shape


def _tensor(value: Any, key: str, dtype: int, check: Check) -> NDArray[Any]:
    """Convert nested lists to an array. Raises StatusError for the first invalid value."""
    shape = _shape(value)
    values = _flatten_numbers(value, shape) if dtype in _FLOATS else None
    if values is None:
        values = []
        _flatten(value, 0, shape, dtype, values, check)
    return _array(values, key, dtype).reshape(shape)


def _flatten_numbers(value: Any, shape: list[int]) -> list[Any] | None:
    """A fast `_flatten` for numbers; None if there are other values, or the shape differs."""
    values = [value]
    for size in shape:
        if set(map(type, values)) != {list} or set(map(len, values)) != {size}:
            return None
        values = list(chain.from_iterable(values))
    return values if {int, float}.issuperset(map(type, values)) else None


def _flatten(value: Any, level: int, shape: list[int], dtype: int, values: list[Any], check: Check) -> None:
    """Append the values of nested lists to `values`. Raises StatusError for the first invalid one.

    Args:
        value: a list, or a value in one.
        level: depth of `value` in the nested lists.
        shape: expected shape of all the nested lists.
        dtype: expected dtype of the values.
        values: receives the values.
        check: called for every list, and between blocks of a long one.
    """
    if not isinstance(value, list):
        if level != len(shape):
            raise invalid_argument(
                f"JSON Value: {quote(value)} found at incorrect level: {level + 1} in the JSON DOM. "
                f"Expected at level: {len(shape)}"
            )
        values.append(_convert(value, dtype))
        return
    if level >= len(shape):
        raise invalid_argument(f"Encountered list at unexpected level: {level} expected < {len(shape)}")
    if len(value) != shape[level]:
        raise invalid_argument(
            f"Encountered list at unexpected size: {len(value)} at level: {level} expected size: {shape[level]}"
        )
    for k, element in enumerate(value):
        if k % BLOCK_SIZE == 0:
            check()
        _flatten(element, level + 1, shape, dtype, values, check)


def _convert(value: Any, dtype: int) -> Any:
    """Check a value that is not a list, and convert strings to bytes. Raises StatusError."""
    if isinstance(value, JsonObject) and dtype == DT_STRING:
        return _from_base64(value)
    if dtype not in _JSON_TYPES and not isinstance(value, JsonObject):
        raise unimplemented(f"Conversion of JSON Value: {quote(value)} to type: {type_name(dtype)}")
    _, minimum, maximum = INTEGERS.get(dtype, ("", None, None))
    if type(value) not in _JSON_TYPES.get(dtype, ()) or (minimum is not None and not minimum <= value <= maximum):
        raise _error(value, f"Type: {type_of(value)} is not of expected type: {type_name(dtype)}")
    return value.encode() if dtype == DT_STRING else value


def _array(values: list[Any], key: str, dtype: int) -> NDArray[Any]:
    """The flat array of converted values. Raises StatusError."""
    if dtype in _FLOATS:
        with np.errstate(over="ignore"):  # a number beyond float32's range is infinite, as in TensorFlow Serving
            return _numbers(values, _FLOATS[dtype])
    if dtype in INTEGERS:
        try:
            return _numbers(values, INTEGERS[dtype][0])
        except OverflowError:
            raise invalid_argument(f"tensor parsing error: {key}: a value is beyond {type_name(dtype)}") from None
    return np.array(values, np.bool_ if dtype == DT_BOOL else object)


def _numbers(values: list[Any], dtype: str) -> NDArray[Any]:
    """The array of a list of numbers, converted in blocks, between which Python runs other threads."""
    if len(values) <= BLOCK_SIZE:
        return np.array(values, dtype)
    return np.concatenate([np.array(values[k : k + BLOCK_SIZE], dtype) for k in range(0, len(values), BLOCK_SIZE)])


def _from_base64(value: JsonObject) -> bytes:
    if not _is_base64(value):
        raise _error(value, "not formatted correctly for base64 data")
    # as absl::Base64Unescape: white space is skipped; padding is complete or absent
    text = re.sub(r"[ \t\n\v\f\r]", "", value["b64"]).replace(".", "=")
    data = text.rstrip("=")
    padding = "=" * (-len(data) % 4)
    try:
        if text not in (data, data + padding):
            raise ValueError("incomplete padding")
        return base64.b64decode(data + padding, validate=True)
    except (binascii.Error, ValueError):
        raise invalid_argument("Unable to base64 decode") from None


def _error(value: Any, problem: str) -> StatusError:
    return invalid_argument(f"JSON Value: {quote(value)} {problem}")
