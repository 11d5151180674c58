"""The records of an MCAP file, read in one direction: a file that was cut off, damaged, or written by another program.

A killed writer leaves no footer, so the index that MCAP's own reader begins with is missing. This reader needs none: it
skips what is damaged, names it in `losses`, and stops at the file's end. If there is an index, it finds the next chunk and the
names of channels after a damaged part. Nothing in a file makes it read, or unpack, more
than its limits.
"""

import os
import struct
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from io import BytesIO
from typing import IO, Any

import lz4.frame
import zstandard
from mcap.data_stream import ReadDataStream
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.records import Attachment, Channel, Chunk, Header, McapRecord, Message, Metadata, Schema

from city.printable import printable

MAGIC = b"\x89MCAP0\r\n"
MAX_RECORD_BYTES = 1 << 30
"""Largest record that is read; the largest are attachments with networks."""
MAX_CHUNK_BYTES = 1 << 28
"""Largest chunk that is unpacked; the writer's have some 1 MiB."""
MAX_LOSSES = 20
"""Losses that are named; further ones are counted."""

_HEAD = struct.Struct("<BQ")
_MESSAGE = struct.Struct("<HIQQ")
_CRC = struct.Struct("<I")
_CHUNK_INDEX = struct.Struct("<QQQ")
"""How a chunk's entry of the index begins: its first and last log_time, and where it begins."""
_FOOTER = struct.Struct("<BQQQI")
"""Opcode, length, begin of the index, begin of its own index, checksum; MAGIC follows."""
_KINDS: dict[int, Any] = {
    Opcode.HEADER: Header,
    Opcode.SCHEMA: Schema,
    Opcode.CHANNEL: Channel,
    Opcode.CHUNK: Chunk,
    Opcode.ATTACHMENT: Attachment,
    Opcode.METADATA: Metadata,
}
_MALFORMED = (McapError, struct.error, zstandard.ZstdError, ValueError, RuntimeError, OverflowError, MemoryError, EOFError)
"""What the parsers of records and the decompressors raise for invalid bytes."""


class Losses:
    """What is missing of a file, as texts for the user."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._more = 0

    def add(self, text: str) -> None:
        if len(self._texts) < MAX_LOSSES:
            # it may have names from the file
            self._texts.append(printable(text))
        else:
            self._more += 1

    def __bool__(self) -> bool:
        return bool(self._texts)

    def __str__(self) -> str:
        return "; ".join([*self._texts, *([f"and {self._more:,} more losses"] if self._more else [])])


class McapStream:
    """Reads the data section of an MCAP file."""

    def __init__(self, stream: IO[bytes], losses: Losses) -> None:
        """`losses`: gets what cannot be read."""
        self._stream = stream
        self._size = os.fstat(stream.fileno()).st_size
        self._losses = losses
        self._has_read_names = False
        self._chunk_begins: array[int] | None = None
        """Where the chunks of the index begin, sorted; None before it is needed."""

    def records(self) -> Iterator[McapRecord]:
        """Header, attachments, metadata, and the schemas, channels and messages inside and outside of chunks, in order."""
        if self._stream.read(len(MAGIC)) != MAGIC:
            self._losses.add("it does not begin as an MCAP file does")
            return
        in_index = False
        while True:
            begin = self._stream.tell()
            head = self._stream.read(_HEAD.size)
            opcode, length = _HEAD.unpack(head) if len(head) == _HEAD.size else (None, 0)
            if opcode == 0 or (length > MAX_RECORD_BYTES and begin + length > self._size):
                following = self._indexed_chunk_after(begin)
                if following is not None:
                    self._losses.add(f"bytes {begin:,} to {following:,} are damaged (not a valid record)")
                    yield from self._indexed_names()
                    self._stream.seek(following)
                    continue
                self._losses.add(f"damaged after byte {begin:,}, so that the rest cannot be read")
                return
            end = begin + _HEAD.size + length
            if opcode is None or end > self._size:
                self._lose_end(begin, in_index)
                return
            if opcode == Opcode.FOOTER:
                if self._stream.read(length + len(MAGIC))[length:] != MAGIC:
                    self._lose_end(begin, in_index=True)
                return
            in_index = in_index or opcode == Opcode.DATA_END
            if in_index or (opcode not in _KINDS and opcode != Opcode.MESSAGE):
                self._stream.seek(end)
            elif length > MAX_RECORD_BYTES:
                self._losses.add(f"bytes {begin:,} to {end:,} are not read: more than the limit of {MAX_RECORD_BYTES:,} bytes")
                self._stream.seek(end)
            else:
                try:
                    yield from self._parsed(opcode, self._stream.read(length))
                except _MALFORMED as error:
                    self._losses.add(f"bytes {begin:,} to {end:,} are damaged ({_reason(error)})")
                    # the damaged part may have had the names of channels, which the index repeats
                    yield from self._indexed_names()
                    self._stream.seek(end)

    def _indexed_names(self) -> Iterator[McapRecord]:
        """The schemas and channels of the index, once; none if the file has no index."""
        if self._has_read_names:
            return
        self._has_read_names = True
        for opcode, content in self._index(Opcode.SCHEMA, Opcode.CHANNEL):
            try:
                yield _record(opcode, content)
            except _MALFORMED:
                return  # the loss that made the index necessary is reported already

    def _indexed_chunk_after(self, position: int) -> int | None:
        """Where the next chunk begins after a position; None if the index does not have it."""
        if self._chunk_begins is None:
            begins = array("Q")
            for _, content in self._index(Opcode.CHUNK_INDEX):
                if len(content) >= _CHUNK_INDEX.size:
                    begins.append(_CHUNK_INDEX.unpack_from(content)[2])
            self._chunk_begins = array("Q", sorted(begins))
        k = bisect_right(self._chunk_begins, position)
        return self._chunk_begins[k] if k < len(self._chunk_begins) and self._chunk_begins[k] < self._size else None

    def _index(self, *opcodes: int) -> Iterator[tuple[int, bytes]]:
        """(opcode, content) of the index's records of these kinds; none if the file has no index. Moves the stream."""
        if self._size < _FOOTER.size + len(MAGIC):
            return
        self._stream.seek(self._size - _FOOTER.size - len(MAGIC))
        opcode, _, position, _, _ = _FOOTER.unpack(self._stream.read(_FOOTER.size))
        if opcode != Opcode.FOOTER or self._stream.read(len(MAGIC)) != MAGIC or position == 0:
            return
        while position < self._size:
            self._stream.seek(position)
            head = self._stream.read(_HEAD.size)
            opcode, length = _HEAD.unpack(head) if len(head) == _HEAD.size else (Opcode.FOOTER, 0)
            position += _HEAD.size + length
            if opcode == Opcode.FOOTER or position > self._size:
                return
            if opcode in opcodes and length <= MAX_CHUNK_BYTES:
                yield opcode, self._stream.read(length)

    def _lose_end(self, begin: int, in_index: bool) -> None:
        self._losses.add(f"cut off after byte {begin:,}{', in its index: no step is lost by that' if in_index else ''}")

    def _parsed(self, opcode: int, content: bytes) -> Iterator[McapRecord]:
        """The record, or those inside a chunk. Raises one of _MALFORMED."""
        record = _record(opcode, content)
        if isinstance(record, Chunk):
            yield from _records_in(_unpacked(record))
        else:
            if isinstance(record, Attachment):
                (crc,) = _CRC.unpack_from(content, len(content) - _CRC.size)
                _check(content[: -_CRC.size], crc)
            yield record


def records_of_chunk(content: bytes) -> Iterator[McapRecord]:
    """The schemas, channels and messages of a chunk, by its content. Raises ValueError at the first damaged one."""
    try:
        chunk: Chunk = Chunk.read(ReadDataStream(BytesIO(content)))
        yield from _records_in(_unpacked(chunk))
    except _MALFORMED as error:
        raise ValueError(_reason(error)) from None


def records_of_names(data: bytes) -> Iterator[McapRecord]:
    """Schemas and channels that follow one another, as in an index. Raises ValueError at the first damaged one."""
    try:
        yield from _records_in(data)
    except _MALFORMED as error:
        raise ValueError(_reason(error)) from None


def _reason(error: Exception) -> str:
    """Why bytes cannot be read, without the names of a library's internals."""
    return str(error) if type(error) is ValueError else "not a valid record"


def _record(opcode: int, content: bytes) -> McapRecord:
    if opcode == Opcode.MESSAGE:
        channel, sequence, log_time, publish_time = _MESSAGE.unpack_from(content)
        return Message(channel, log_time, content[_MESSAGE.size :], publish_time, sequence)
    record: McapRecord = _KINDS[opcode].read(ReadDataStream(BytesIO(content)))
    return record


def _records_in(data: bytes) -> Iterator[McapRecord]:
    """The records of an unpacked chunk."""
    begin = 0
    while begin < len(data):
        opcode, length = _HEAD.unpack_from(data, begin)
        begin += _HEAD.size
        end = begin + length
        if end > len(data):
            raise ValueError("a message is longer than its chunk")
        if opcode in (Opcode.MESSAGE, Opcode.SCHEMA, Opcode.CHANNEL):
            yield _record(opcode, data[begin:end])
        begin = end


def _unpacked(chunk: Chunk) -> bytes:
    """The content of a chunk. Raises ValueError if its size or checksum is not the stated one."""
    size = chunk.uncompressed_size
    if size > MAX_CHUNK_BYTES:
        raise ValueError(f"a chunk of {size:,} bytes, more than the limit of {MAX_CHUNK_BYTES:,}")
    # one byte more than stated shows that there is more
    if chunk.compression == "zstd":
        # not zstandard.decompress: it allocates the size that the frame states, whatever its limit
        data: bytes = zstandard.ZstdDecompressor().stream_reader(chunk.data).read(size + 1)
    elif chunk.compression == "lz4":
        data = lz4.frame.LZ4FrameDecompressor().decompress(chunk.data, max_length=size + 1)
    elif chunk.compression == "":
        data = chunk.data
    else:
        raise ValueError(f"compression {chunk.compression[:20]!r} is unknown")
    if len(data) != size:
        raise ValueError("a chunk does not have its stated size")
    _check(data, chunk.uncompressed_crc)
    return data


def _check(data: bytes, crc: int) -> None:
    """Raise ValueError unless a checksum fits; 0 means that there is none."""
    if crc and zlib.crc32(data) != crc:
        raise ValueError("its checksum differs")
