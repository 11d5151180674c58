"""The records of an MCAP file, read in one direction: a file that was cut off, damaged, or written by another program.

A killed writer leaves no footer, so the index that MCAP's own reader begins with is missing. This reader needs none: it
skips what is damaged, names it in `losses`, and stops at the file's end. After a damaged part, the index has the next
chunk and the names of channels; without one, the next chunk is searched for, and the names are those of the next chunk
that has some. Nothing in a file makes it read, or unpack, more than its limits.
"""

import os
import re
import struct
import zlib
from array import array
from collections.abc import Iterator
from io import BytesIO
from typing import IO, Any

import lz4.frame
import numpy as np
import zstandard
from mcap.data_stream import ReadDataStream
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.records import Attachment, Channel, Chunk, Header, McapRecord, Message, Metadata, Schema
from numpy.typing import NDArray

from city.printable import printable

MAGIC = b"\x89MCAP0\r\n"
MAX_RECORD_BYTES = 1 << 30
"""Largest record that is read; the largest are attachments with networks."""
MAX_CHUNK_BYTES = 1 << 28
"""Largest chunk that is unpacked; the writer's have some 1 MiB."""
MAX_LOSSES = 20
"""Losses that are named; further ones are counted."""

SCAN_BYTES = 1 << 20
"""Read at once while the next chunk is searched for."""

_HEAD = struct.Struct("<BQ")
_MESSAGE = struct.Struct("<HIQQ")
_CRC = struct.Struct("<I")
_CHUNK_INDEX = struct.Struct("<QQQ")
"""How a chunk's entry of the index begins: its first and last log_time, and where it begins."""
_CHUNK_BEGIN = re.compile(rb"\x06(.{8}).{28}\x04\x00\x00\x00zstd(.{8})", re.DOTALL)
"""How a chunk begins, with the length of its record and that of its compressed data."""
_CHUNK_BEGIN_BYTES = 53
_LENGTH = struct.Struct("<Q")
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
_MALFORMED = (
    McapError,
    struct.error,
    zstandard.ZstdError,
    ValueError,
    RuntimeError,
    OverflowError,
    MemoryError,
    EOFError,
)
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
        self._has_channels = self._has_read_names = False
        """Whether channels have been read, and whether names were read again after a damaged part."""
        self._chunks: NDArray[np.uint64] | None = None
        """[chunks, 2]: begin and last log_time of the chunks of the index; None before it is needed."""
        self._read_to = self._search_from = 0
        """Where the last readable record ends, and where the next chunk is searched for: further on with every
        search."""
        self._target: int | None = None
        """Where to read on."""

    def skip_before(self, log_ns: int) -> bool:
        """Let `records` go on at the chunk of this log_time; whether there is an index that has it. log_time must not
        fall."""
        position = self._stream.tell()
        chunks = self._indexed_chunks()
        self._stream.seek(position)
        if len(chunks):
            is_wanted = chunks[:, 1] >= log_ns
            self._target = int(chunks[is_wanted.argmax() if is_wanted.any() else -1, 0])
        return self._target is not None

    def records(self) -> Iterator[McapRecord]:
        """Header, attachments, metadata, and the schemas, channels and messages inside and outside of chunks, in
        order."""
        if self._stream.read(len(MAGIC)) != MAGIC:
            self._losses.add("it does not begin as an MCAP file does")
            return
        yield from self._data()

    def _data(self) -> Iterator[McapRecord]:
        """The records from the stream's position on."""
        in_index = False
        while True:
            if self._target is not None:
                # the names of channels may be in the part that is left out
                yield from self._indexed_names()
                self._stream.seek(self._target)
                self._read_to, self._search_from, self._target = self._target, self._target + 1, None
            begin = self._stream.tell()
            head = self._stream.read(_HEAD.size)
            opcode, length = _HEAD.unpack(head) if len(head) == _HEAD.size else (None, 0)
            end = begin + _HEAD.size + length
            if opcode is None or (in_index and end > self._size):
                self._lose_end(begin, in_index)
                return
            # bytes that are read from a wrong place on often look like an end
            is_false_end = (opcode == Opcode.FOOTER and not in_index) or (
                opcode == Opcode.DATA_END and length != _CRC.size
            )
            if opcode == 0 or end > self._size or is_false_end:
                following = self._next_chunk(begin)
                if following is None:
                    if opcode == 0 or length > MAX_RECORD_BYTES:
                        self._losses.add(f"damaged after byte {begin:,}, so that the rest cannot be read")
                    else:
                        self._lose_end(begin, in_index)
                    return
                yield from self._damaged(begin, following, "not a valid record")
                continue
            if opcode == Opcode.FOOTER:
                if self._stream.read(length + len(MAGIC))[length:] != MAGIC:
                    self._lose_end(begin, in_index=True)
                return
            in_index = in_index or opcode == Opcode.DATA_END
            if in_index or (opcode not in _KINDS and opcode != Opcode.MESSAGE):
                is_unknown = not in_index and opcode > Opcode.DATA_END and not self._is_record(end)
                following = self._next_chunk() if is_unknown else None
                if following is not None:
                    yield from self._damaged(begin, following, "not a valid record")
                else:
                    self._stream.seek(end)
            elif length > MAX_RECORD_BYTES:
                self._losses.add(
                    f"bytes {begin:,} to {end:,} are not read: more than the limit of {MAX_RECORD_BYTES:,} bytes"
                )
                self._stream.seek(end)
            else:
                try:
                    yield from self._parsed(opcode, self._stream.read(length))
                    self._read_to = self._search_from = end
                except _MALFORMED as error:
                    self._search_from = begin + 1
                    # its length may be what is damaged
                    following = None if self._is_record(end) else self._next_chunk()
                    yield from self._damaged(begin, end if following is None else following, _reason(error))

    def _damaged(self, begin: int, following: int, reason: str) -> Iterator[McapRecord]:
        """Report a damaged part and go on after it; yield the names of channels, which it may have had."""
        first = begin if begin < following else self._read_to  # a damaged length may have led over chunks
        self._losses.add(f"bytes {first:,} to {following:,} are damaged ({reason})")
        if len(self._indexed_chunks()):
            yield from self._indexed_names()
        elif not self._has_channels and not self._has_read_names:
            self._has_read_names = True
            yield from self._names_after(following)
        self._stream.seek(following)

    def _names_after(self, position: int) -> Iterator[McapRecord]:
        """The schemas and channels of the next chunk after a position that begins with some."""
        self._stream.seek(position)
        ahead = McapStream(self._stream, Losses())
        ahead._has_read_names = True
        is_found = False
        for record in ahead._data():
            if isinstance(record, Schema | Channel):
                is_found = True
                yield record
            elif is_found:
                return

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

    def _is_record(self, position: int) -> bool:
        """Whether the file ends at a position, or what is there begins and ends like a record. Moves the stream."""
        self._stream.seek(position)
        head = self._stream.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return not head
        opcode, length = _HEAD.unpack(head)
        return bool(Opcode.HEADER <= opcode <= Opcode.DATA_END and position + length <= self._size)

    def _next_chunk(self, damaged: int = -1) -> int | None:
        """Where the next chunk begins: by the index, or without one by how chunks begin. Moves the stream.

        `damaged`: not here.
        """
        begins = self._indexed_chunks()[:, 0]
        if len(begins):
            k = int(np.searchsorted(begins, self._search_from))
            following = int(begins[k]) if k < len(begins) and begins[k] < self._size else None
        else:
            following = search_chunk(self._stream, self._search_from, self._size)
        if following is not None:
            self._search_from = following + 1
        return self._next_chunk() if following == damaged else following

    def _indexed_chunks(self) -> NDArray[np.uint64]:
        """[chunks, 2]: begin and last log_time of the chunks of the index, in the file's order. May move the stream."""
        if self._chunks is None:
            values = array("Q")
            for _, content in self._index(Opcode.CHUNK_INDEX):
                if len(content) >= _CHUNK_INDEX.size:
                    _, last_ns, begin = _CHUNK_INDEX.unpack_from(content)
                    values.extend((begin, last_ns))
            chunks = np.array(values, np.uint64).reshape(-1, 2)
            self._chunks = chunks[chunks[:, 0].argsort(kind="stable")]
        return self._chunks

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
            if len(content) != _CHUNK_BEGIN_BYTES - _HEAD.size - len("zstd") + len(record.compression) + len(
                record.data
            ):
                raise ValueError("a chunk does not have its stated length")
            for each in _records_in(_unpacked(record)):
                self._has_channels = self._has_channels or isinstance(each, Channel)
                yield each
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


def search_chunk(stream: IO[bytes], begin: int, size: int) -> int | None:
    """Where the next bytes from `begin` on are that begin and end like a chunk. Moves the stream.

    `size`: of the file.
    """
    kept, block_begin = b"", begin
    stream.seek(block_begin)
    while block := stream.read(SCAN_BYTES):
        kept += block
        for match in _CHUNK_BEGIN.finditer(kept):
            found = block_begin + match.start()
            (length,), (data_length,) = (_LENGTH.unpack(part) for part in match.groups())
            if length == data_length + _CHUNK_BEGIN_BYTES - _HEAD.size and found + _HEAD.size + length <= size:
                return found
        # a chunk may begin at the end of the block
        rest = kept[1 - _CHUNK_BEGIN_BYTES :]
        kept, block_begin = rest, block_begin + len(kept) - len(rest)
    return None


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
