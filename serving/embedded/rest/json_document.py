"""JSON as TensorFlow Serving parses it: RapidJSON, which allows NaN and Infinity."""

import re
from collections.abc import Callable
from typing import Any

import rapidjson
from grpc import StatusCode

from serving.embedded.rest.request_body import BLOCK_BYTES
from serving.embedded.status import StatusError

_TEXT_AFTER = re.compile(r"Parse error at offset (\d+): .*must not be followed.*", re.DOTALL)


class _Decoder(rapidjson.Decoder):
    def start_object(self) -> list[tuple[str, Any]]:
        return []

    def end_object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return dict(reversed(pairs))  # the first value of a repeated key counts, as in TensorFlow Serving


_decode = _Decoder(number_mode=rapidjson.NM_NATIVE | rapidjson.NM_NAN)


class _Blocks:
    """A text in blocks, as a file. Between two blocks Python runs other threads, and `check` may raise StatusError."""

    def __init__(self, text: bytes, check: Callable[[], None]) -> None:
        self._text = text
        self._check = check
        self._offset = 0

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
    blocks: Any = _Blocks(text.removeprefix(b"\xef\xbb\xbf"), check)  # read() is all that the parser calls
    try:
        return _decode(blocks, chunk_size=BLOCK_BYTES)
    except (UnicodeDecodeError, rapidjson.JSONDecodeError, RecursionError) as error:
        if match := _TEXT_AFTER.fullmatch(str(error)):
            return parse(text[: int(match[1])], check)
        raise StatusError(StatusCode.INVALID_ARGUMENT, f"the body is not JSON: {error}") from None
