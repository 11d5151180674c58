"""Where the chunks of a file are, and when, without reading their content.

A complete file has an index at its end. Of a file that was cut off, or is still written, the heads of its records are
visited.
"""

import os
import struct
from collections.abc import Iterator
from typing import IO, NamedTuple

from mcap.opcode import Opcode

from records.mcap_stream import MAGIC, MAX_CHUNK_BYTES, MAX_RECORD_BYTES, search_chunk

_HEAD = struct.Struct("<BQ")
_TIMES = struct.Struct("<QQ")
"""How a chunk begins: its first and last log_time."""
_CHUNK_INDEX = struct.Struct("<QQQQ")
"""How a chunk's entry of the index begins: its first and last log_time, where it begins, its length with its head."""
_FOOTER = struct.Struct("<BQQQI")
"""Opcode, length, begin of the index, begin of its own index, checksum; MAGIC follows."""
_CHANNEL = struct.Struct("<H")
"""How an index of the messages of a chunk begins: their channel."""


class Place(NamedTuple):
    """Where a chunk is."""

    first_ns: int
    """log_time of its first message: simulated time."""
    last_ns: int
    file: int
    """Number of the file in the run's list."""
    begin: int
    """Of its content."""
    length: int


class FileIndex(NamedTuple):
    """The chunks of a file, and where the names of its channels are."""

    places: list[Place]
    names: bytes
    """The schemas and channels of the index, as records."""
    named_in: list[Place]
    """Without an index: the chunks in which a channel has its first message, and so its name."""


def find(stream: IO[bytes], file: int) -> FileIndex:
    """Find the chunks of a file. Raises OSError."""
    size = os.fstat(stream.fileno()).st_size
    return _of_index(stream, file, size) or _of_records(stream, file, size)


def _of_index(stream: IO[bytes], file: int, size: int) -> FileIndex | None:
    """By the index; None without one."""
    if size < len(MAGIC) + _FOOTER.size + len(MAGIC):
        return None
    opcode, _, begin, _, _ = _FOOTER.unpack(_read(stream, size - _FOOTER.size - len(MAGIC), _FOOTER.size))
    if opcode != Opcode.FOOTER or stream.read(len(MAGIC)) != MAGIC or begin == 0:
        return None
    names, places = bytearray(), []
    for opcode, at, length in _heads(stream, begin, size):
        if opcode == Opcode.CHUNK_INDEX and length >= _CHUNK_INDEX.size:
            first_ns, last_ns, chunk, chunk_size = _CHUNK_INDEX.unpack(_read(stream, at, _CHUNK_INDEX.size))
            if chunk + chunk_size <= size and _HEAD.size < chunk_size <= MAX_RECORD_BYTES:
                places.append(Place(first_ns, last_ns, file, chunk + _HEAD.size, chunk_size - _HEAD.size))
        elif opcode in (Opcode.SCHEMA, Opcode.CHANNEL) and length <= MAX_CHUNK_BYTES:
            names += _read(stream, at - _HEAD.size, length + _HEAD.size)
    return FileIndex(places, bytes(names), []) if places else None


def _of_records(stream: IO[bytes], file: int, size: int) -> FileIndex:
    """By the heads of the records."""
    places: list[Place] = []
    named_in: list[Place] = []
    channels: set[int] = set()
    for opcode, at, length in _heads(stream, len(MAGIC), size):
        if opcode == Opcode.CHUNK and _TIMES.size < length <= MAX_RECORD_BYTES:
            first_ns, last_ns = _TIMES.unpack(_read(stream, at, _TIMES.size))
            places.append(Place(first_ns, last_ns, file, at, length))
        elif opcode == Opcode.MESSAGE_INDEX and places and length >= _CHANNEL.size:
            (channel,) = _CHANNEL.unpack(_read(stream, at, _CHANNEL.size))
            if channel not in channels:
                channels.add(channel)
                named_in += places[-1:] if named_in[-1:] != places[-1:] else []
    return FileIndex(places, b"", named_in)


def _heads(stream: IO[bytes], begin: int, size: int) -> Iterator[tuple[int, int, int]]:
    """(opcode, begin of the content, its length) of whole records; after a damaged one, from the next chunk on."""
    while begin + _HEAD.size <= size:
        opcode, length = _HEAD.unpack(_read(stream, begin, _HEAD.size))
        following = begin + _HEAD.size + length
        if Opcode.HEADER <= opcode <= Opcode.DATA_END and following <= size:
            yield opcode, begin + _HEAD.size, length
            begin = following
        else:
            chunk = search_chunk(stream, begin + 1, size)
            if chunk is None:
                return
            begin = chunk


def _read(stream: IO[bytes], at: int, size: int) -> bytes:
    stream.seek(at)
    return stream.read(size)
