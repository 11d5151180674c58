"""JSON as TensorFlow Serving parses it, and quotes it in errors: RapidJSON, which allows NaN and Infinity."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import rapidjson

from serving.embedded.rest.request_body import BLOCK_BYTES
from serving.embedded.status import invalid_argument

MAX_QUOTE_BYTES = 256
"""Maximum length of a JSON value in an error; the token that exceeds it is the last."""
_PARSE_ERROR = re.compile(r"Parse error at offset (\d+): (.*)", re.DOTALL)


class JsonObject(dict[str, Any]):
    """A JSON object. The first value of a repeated key counts."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        if len(self) < len(pairs):
            self.update(reversed(pairs))
        self.pairs = pairs
        """(key, value), with every value of a repeated key."""


class _Decoder(rapidjson.Decoder):
    def start_object(self) -> list[tuple[str, Any]]:
        return []

    def end_object(self, pairs: list[tuple[str, Any]]) -> JsonObject:
        return JsonObject(pairs)


_decode = _Decoder(number_mode=rapidjson.NM_NATIVE | rapidjson.NM_NAN)


class _Blocks:
    """A text in blocks, as a file. Between two blocks Python runs other threads, and `check` may raise StatusError."""

    def __init__(self, text: bytes, check: Callable[[], None]) -> None:
        self._text, self._check, self._offset = text, check, 0

    def read(self, size: int) -> bytes:
        self._check()
        begin = self._offset
        self._offset += size
        return self._text[begin : self._offset]


def parse(text: bytes, check: Callable[[], None] = lambda: None) -> Any:
    """Parse the JSON value at the start of a text; the text after it is ignored.

    Args:
        text: UTF-8.
        check: called between blocks of a long text; may raise StatusError to stop.

    Raises:
        StatusError: the text is not JSON.
    """
    text = text.removeprefix(b"\xef\xbb\xbf")
    if not text:
        raise invalid_argument("JSON Parse error: The document is empty")
    try:
        if len(text) <= BLOCK_BYTES:
            return _decode(text)
        blocks: Any = _Blocks(text, check)  # read() is all that the parser calls
        return _decode(blocks, chunk_size=BLOCK_BYTES)
    except UnicodeDecodeError as error:
        raise invalid_argument(f"JSON Parse error: Invalid encoding in string. at offset: {error.start}") from None
    except (rapidjson.JSONDecodeError, RecursionError) as error:
        match = _PARSE_ERROR.fullmatch(str(error))
        offset, reason = (int(match[1]), match[2]) if match else (0, str(error))
        if "must not be followed" in reason:
            return parse(text[:offset], check)
        raise invalid_argument(f"JSON Parse error: {reason} at offset: {offset}") from None


def type_of(value: Any) -> str:
    """RapidJSON's name of a value's type."""
    if isinstance(value, bool):
        return str(value)
    return {type(None): "Null", JsonObject: "Object", list: "Array", str: "String", int: "Number", float: "Number"}[
        type(value)
    ]


def quote(value: Any) -> str:
    """Format a value for an error, as RapidJSON's PrettyWriter does with lists on one line."""
    tokens: list[str] = []
    size = 0
    for token in _tokens(value, "", 1):
        if token is None or size >= MAX_QUOTE_BYTES:
            break
        tokens.append(token)
        size += len(token.encode())
    return "".join(tokens)


def _tokens(value: Any, prefix: str, depth: int) -> Iterator[str | None]:
    """The tokens of a value's text; None at NaN or an infinity, where RapidJSON stops."""
    if isinstance(value, JsonObject):
        yield prefix + "{"
        for index, (key, item) in enumerate(value.pairs):
            yield f"{',' if index else ''}\n{'    ' * depth}{_scalar(key)}"
            yield from _tokens(item, ": ", depth + 1)
        yield f"\n{'    ' * (depth - 1)}}}" if value else "}"
    elif isinstance(value, list):
        yield prefix + "["
        for index, item in enumerate(value):
            yield from _tokens(item, ", " if index else "", depth + 1)
        yield "]"
    elif isinstance(value, float) and not math.isfinite(value):
        yield prefix
        yield None
    else:
        yield prefix + _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, float):
        # RapidJSON writes digits for some numbers for which repr writes an exponent, and 1e30 for 1e+30
        if value == 0 or 1e-6 <= abs(value) < 1e21:
            return np.format_float_positional(value, trim="0")
        return re.sub(r"e\+?(-?)0*", r"e\1", repr(value))
    return str(rapidjson.dumps(value, ensure_ascii=False))
