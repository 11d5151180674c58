"""Parse the REST API's Predict requests and convert them to arrays, with the formats and statuses of
tensorflow/serving's json_tensor.cc."""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import numpy as np
import rapidjson
from grpc import StatusCode
from numpy.typing import NDArray

from serving.embedded.rest.request_body import BLOCK_BYTES
from serving.embedded.status import StatusError, refuse
from serving.tensors import DT_BOOL, DT_STRING, NUMPY_DTYPES, type_name

_INVALID = StatusCode.INVALID_ARGUMENT
ROW, COLUMNAR = "row", "columnar"
FLOATS = frozenset((1, 2))
INTEGERS = frozenset((3, 4, 5, 6, 9, 22, 23))
_JSON_TYPES: dict[int, set[type]] = {
    **{dtype: {int, float} for dtype in FLOATS}, **{dtype: {int} for dtype in INTEGERS},
    DT_BOOL: {bool}, DT_STRING: {str, dict},
}  # fmt: skip
"""dtype -> types of the JSON values; an object is base64."""
BLOCK_SIZE = 10_000
"""Values that are converted or formatted in one call, during which Python runs no other thread."""
MAX_DEPTH = 64
"""Maximum depth of nested lists, which is NumPy's."""
MAX_SHOWN_CHARS = 40
Check = Callable[[], None]
"""Called between steps of a long conversion; may raise StatusError to stop."""
_TEXT_AFTER = re.compile(r"Parse error at offset (\d+): .*must not be followed.*", re.DOTALL)


class _Decoder(rapidjson.Decoder):
    def start_object(self) -> list[tuple[str, Any]]:
        return []

    def end_object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return dict(reversed(pairs))  # the first value of a repeated key counts, as in TensorFlow Serving


_decode = _Decoder(number_mode=rapidjson.NM_NATIVE | rapidjson.NM_NAN)


class _Blocks:
    """A text in blocks, as a file. Between two blocks Python runs other threads, and `check` may raise StatusError."""

    def __init__(self, text: bytes, check: Check) -> None:
        self._text = text
        self._check = check
        self._offset = 0

    def read(self, size: int) -> bytes:
        self._check()
        begin = self._offset
        self._offset += size
        return self._text[begin : self._offset]


def parse(text: bytes, check: Check = lambda: None) -> Any:
    """Parse the JSON value at the start of a text, as TensorFlow Serving does: RapidJSON allows NaN and Infinity.

    The text after the value is ignored.

    Args:
        text: UTF-8.
        check: called between blocks of a long text; may raise StatusError to stop.

    Raises:
        StatusError: the text is not JSON.
    """
    blocks: Any = _Blocks(text.removeprefix(b"\xef\xbb\xbf"), check)  # read() is all that the parser calls
    try:
        return _decode(blocks, chunk_size=BLOCK_BYTES)
    except (UnicodeDecodeError, rapidjson.JSONDecodeError, RecursionError) as error:
        if match := _TEXT_AFTER.fullmatch(str(error)):
            return parse(text[: int(match[1])], check)
        raise StatusError(StatusCode.INVALID_ARGUMENT, f"the body is not JSON: {error}") from None


def signature_name(document: Any) -> str:
    """The signature's name in a request; empty for the default. Raises StatusError."""
    refuse((not isinstance(document, dict), "the body must be an object"))
    name: str = document.get("signature_name", "")
    refuse((not isinstance(name, str), "'signature_name' must be a string"))
    return name


def input_arrays(
    document: Mapping[str, Any], inputs: Mapping[str, int], check: Check = lambda: None
) -> tuple[dict[str, NDArray[Any]], str]:
    """Convert a request to (input key -> array, its format: ROW or COLUMNAR). Raises StatusError.

    `inputs`: input key -> dtype.
    """
    is_unclear = ("instances" in document) == ("inputs" in document)
    refuse((is_unclear, "the body must have either 'instances', a list of rows, or 'inputs'"))
    if "instances" in document:
        columns, layout = _columns(document["instances"], inputs), ROW
    else:
        value, layout = document["inputs"], COLUMNAR
        columns = value if _has_keys(value) else {_only_key(inputs): value}
        refuse(*((key not in columns, f"'inputs' lacks {key!r}") for key in inputs))
    return {key: _tensor(columns[key], key, dtype, check) for key, dtype in inputs.items()}, layout


def _columns(rows: Any, inputs: Mapping[str, int]) -> dict[str, list[Any]]:
    """Input key -> its values in all rows. Raises StatusError."""
    refuse((not isinstance(rows, list) or not rows, "'instances' must be a list of at least one row"))
    if not any(map(_has_keys, rows)):
        return {_only_key(inputs): rows}
    names = ", ".join(inputs)
    for number, row in enumerate(rows):
        if not _has_keys(row) or row.keys() != inputs.keys():
            raise StatusError(_INVALID, f"row {number} of 'instances' must be an object with the keys {names}")
    return {key: [row[key] for row in rows] for key in inputs}


def _only_key(inputs: Mapping[str, int]) -> str:
    """The key of a signature's only input. Raises StatusError if it has several."""
    refuse((len(inputs) > 1, f"the signature has several inputs; send objects with the keys {', '.join(inputs)}"))
    return next(iter(inputs))


def _has_keys(value: Any) -> bool:
    """Tell whether a value is an object of tensors; an object with base64 is a string."""
    return isinstance(value, dict) and not _is_base64(value)


def _is_base64(value: Mapping[str, Any]) -> bool:
    return len(value) == 1 and isinstance(value.get("b64"), str)


def _tensor(value: Any, key: str, dtype: int, check: Check) -> NDArray[Any]:
    types = _JSON_TYPES.get(dtype)
    if types is None:
        raise StatusError(
            StatusCode.UNIMPLEMENTED, f"input {key}: JSON cannot hold {type_name(dtype)}; send it over gRPC"
        )
    shape, values = _flatten(value, key, check)
    if not types.issuperset(map(type, values)):
        wrong = next(item for item in values if type(item) not in types)
        raise StatusError(_INVALID, f"input {key}: {_shown(wrong)} is not of type {type_name(dtype)}")
    if dtype == DT_STRING:
        strings = np.empty(len(values), object)
        strings[:] = [item.encode() if isinstance(item, str) else _from_base64(item, key) for item in values]
        return strings.reshape(shape)
    numpy_dtype = NUMPY_DTYPES[dtype]
    try:
        with np.errstate(over="ignore"):  # a number beyond float32's range is infinite, as in TensorFlow Serving
            # in blocks, between which Python runs other threads
            blocks = [np.array(values[k : k + BLOCK_SIZE], numpy_dtype) for k in range(0, len(values), BLOCK_SIZE)]
            return np.concatenate([np.empty(0, numpy_dtype), *blocks]).reshape(shape)
    except OverflowError as error:
        raise StatusError(_INVALID, f"input {key}: {error}") from None


def _flatten(value: Any, key: str, check: Check) -> tuple[list[int], list[Any]]:
    """The shape of nested lists, and all their values. Raises StatusError if lists at one depth differ in length."""
    shape: list[int] = []
    values = [value]
    while list in (types := set(map(type, values))):
        check()
        differ = types != {list} or len(set(map(len, values))) != 1
        refuse(
            (differ, f"input {key}: its lists differ in length at depth {len(shape)}"),
            (len(shape) == MAX_DEPTH, f"input {key}: lists are nested more than {MAX_DEPTH} deep"),
        )
        shape.append(len(values[0]))
        values = list(chain.from_iterable(values))
    check()
    return shape, values


def _from_base64(value: Mapping[str, Any], key: str) -> bytes:
    if not _is_base64(value):
        raise StatusError(_INVALID, f"input {key}: {_shown(value)} is not an object with the one key b64")
    # as absl::Base64Unescape: white space is skipped; padding is complete or absent
    text = re.sub(r"[ \t\n\v\f\r]", "", value["b64"]).replace(".", "=")
    data = text.rstrip("=")
    padding = "=" * (-len(data) % 4)
    try:
        if text in (data, data + padding):
            return base64.b64decode(data + padding, validate=True)
    except (binascii.Error, ValueError):
        pass  # reported below
    raise StatusError(_INVALID, f"input {key}: {_shown(value['b64'])} is not base64")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."
