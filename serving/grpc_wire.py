"""What gRPC puts into HTTP/2: messages with their prefix, and header blocks.

https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md and https://www.rfc-editor.org/rfc/rfc7541 (HPACK).
"""

import functools
import struct

from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError
from hpack.struct import NeverIndexedHeaderTuple

MOST_HEADER_BYTES = 1 << 16
MOST_USUAL_HEADERS = 32
"""Of a block that may be worth remembering."""
_MOST_KNOWN, _MOST_KNOWN_BYTES = 256, 1024
_PREFIX = struct.Struct("!BI")

Headers = tuple[tuple[str, str], ...]


class Garbled(Exception):
    """The other end does not speak gRPC over HTTP/2 as it is; the connection cannot go on."""


class Compressed(Garbled):
    """A message that is whole, and compressed."""


def prefixed(message: bytes) -> bytes:
    """A message as it goes out: not compressed."""
    return _PREFIX.pack(0, len(message)) + message


def unprefixed(body: bytes) -> bytes:
    """The one message that all data of a stream is. Raises Garbled, or Compressed."""
    if len(body) < _PREFIX.size or int.from_bytes(body[1 : _PREFIX.size], "big") != len(body) - _PREFIX.size:
        raise Garbled("what came is not one message")
    if body[0]:
        raise Compressed("what came is compressed")
    return body[_PREFIX.size :]


@functools.lru_cache(maxsize=1024)
def header_block(*headers: tuple[str, str]) -> bytes:
    """A header block that means the same whatever came before."""
    return bytes(Encoder().encode([NeverIndexedHeaderTuple(*pair) for pair in headers], huffman=False))


class HeaderReader:
    """The header blocks of one connection, read in their order."""

    def __init__(self, has_table: bool) -> None:
        """`has_table`: whether the other end may build on what it has said before."""
        self._decoder = Decoder(max_header_list_size=MOST_HEADER_BYTES)
        if not has_table:
            self._decoder.max_allowed_table_size = self._decoder.header_table_size = 0
        self._table_bytes = self._decoder.header_table_size
        self._known: dict[bytes, Headers] = {}
        """Blocks that mean the same whatever came before."""

    def read(self, block: bytes) -> Headers:
        """Raises Garbled."""
        headers = self._known.get(block)
        return self._decoded(block) if headers is None else headers

    def _decoded(self, block: bytes) -> Headers:
        try:
            headers = tuple((str(name), str(value)) for name, value in self._decoder.decode(block))
        except (HPACKError, UnicodeDecodeError) as error:
            raise Garbled(f"headers that cannot be read: {error}") from None
        # a short block that leaves the table empty, though there is room in it, found it empty and added nothing
        table = self._decoder.header_table
        is_untouched = not table.dynamic_entries and table.maxsize == self._table_bytes
        is_short = len(block) <= _MOST_KNOWN_BYTES and len(headers) <= MOST_USUAL_HEADERS
        if is_untouched and is_short and not _resizes(block):
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[block] = headers
        return headers


def _resizes(block: bytes) -> bool:
    """Whether a header block changes the size of the table: RFC 7541, 6.3."""
    return bool(block) and block[0] & 0xE0 == 0x20
