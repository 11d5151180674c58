"""The records of an MCAP file, as far as it goes: whole, cut off, still written, damaged, or another program's.

    index at the end, with a right checksum | it says where every record is
    otherwise                               | records are visited one after another, up to the first invalid length

A damaged record is left out and named in the losses. Nothing in a file makes it read, or unpack, more than the limits.
"""

import dataclasses
import itertools
import os
import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import IO, NamedTuple

import lz4.frame
import zstandard
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.records import Chunk, McapRecord
from mcap.stream_reader import CRCValidationError, StreamReader, breakup_chunk
from mcap.writer import MCAP0_MAGIC as MAGIC

from city.printable import printable

MAX_RECORD_BYTES = 1 << 30
"""Largest record that is read; the largest are attachments with networks."""
MAX_CHUNK_BYTES = 1 << 28
"""Largest chunk that is unpacked; the writer's have some 1 MiB."""
MAX_INDEX_BYTES = 1 << 25
"""Largest index that is used; the writer's have some 3 MB. A file with a larger one is read without it."""
_CRC_BLOCK_BYTES = 1 << 16
MAX_LOSSES = 20
"""Losses that are named; further ones are counted."""

_HEAD = struct.Struct("<BQ")
"""How a record begins: its opcode, and the length of its content."""
_FOOTER = struct.Struct("<BQQQI8s")
"""How a file ends: opcode, length, begin of the index, begin of its own index, checksum, MAGIC."""
_CHUNK_INDEX = struct.Struct("<QQQQ")
"""How a chunk's entry of the index begins: first and last log_time, begin and length of the chunk."""
_PAIR = struct.Struct("<QQ")
"""How a chunk begins, first and last log_time, and another record's entry of the index: its begin and length."""
_CRC = struct.Struct("<I")
_READ = (
    Opcode.HEADER,
    Opcode.SCHEMA,
    Opcode.CHANNEL,
    Opcode.MESSAGE,
    Opcode.CHUNK,
    Opcode.ATTACHMENT,
    Opcode.METADATA,
)
_INDEXED: dict[int, Opcode] = {Opcode.ATTACHMENT_INDEX: Opcode.ATTACHMENT, Opcode.METADATA_INDEX: Opcode.METADATA}
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
"""Errors of record parsers and decompressors for invalid bytes."""


class Losses:
    """Texts for the user about missing parts of a file."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._more = 0

    def add(self, text: str) -> None:
        shown = printable(text)  # it may have names from the file
        if len(self._texts) >= MAX_LOSSES:
            self._more += 1
        elif shown not in self._texts:
            self._texts.append(shown)

    def __bool__(self) -> bool:
        return bool(self._texts)

    def __str__(self) -> str:
        return "; ".join([*self._texts, *([f"and {self._more:,} more losses"] if self._more else [])])


class DamagedRecord(ValueError):
    """A record that cannot be read: where it is, and why."""


class Place(NamedTuple):
    """Where a record is. Chunks sort by their time."""

    first_ns: int
    """log_time of a chunk's first message: simulated time."""
    last_ns: int
    begin: int
    end: int
    opcode: int


class McapFile:
    """An open MCAP file."""

    def __init__(self, stream: IO[bytes], losses: Losses, has_index: bool = True) -> None:
        """Read the index, if there is one. Raises OSError.

        Args:
            stream: the file.
            losses: gets what cannot be read.
            has_index: False: do not use the index; chunks that it does not list, copies of the head, are read then.
        """
        self._stream, self._losses = stream, losses
        self._size = os.fstat(stream.fileno()).st_size
        self._has_lost_index = False
        self._indexed: list[Place] = []
        """The places of all records of the index, in the file's order."""
        self._whole_to = 0
        """Where the last whole record ends, once they have been visited."""
        self._since_ns = 0
        self.names: list[McapRecord] = []
        """Schemas and channels of the index."""
        if has_index:
            self._read_index()

    def skip_before(self, log_ns: int) -> bool:
        """Let `records` leave out chunks that end before a log_time; False without an index."""
        self._since_ns = log_ns
        return bool(self._indexed)

    def records(self) -> Iterator[McapRecord]:
        """Header, schemas, channels, attachments, metadata and messages, in the file's order."""
        if self._read(0, len(MAGIC)) != MAGIC:
            self._losses.add("it does not begin as an MCAP file does")
            return
        for k, place in enumerate(self.places()):
            if self._indexed and place.opcode == Opcode.CHUNK and place.last_ns < self._since_ns:
                continue
            try:
                yield from read_record(self._stream, place)
            except DamagedRecord as damage:
                self._losses.add(str(damage))
            if k == 0:  # after the header
                yield from self.names

    def places(self) -> Iterator[Place]:
        """Where the records are, in the file's order: as the index says, or as they follow one another."""
        if self._indexed:
            yield from self._indexed
            return
        for place in self._following(len(MAGIC), self._size):
            if place.opcode == Opcode.DATA_END and place.end - place.begin == _HEAD.size + _CRC.size:
                if self._has_lost_index:
                    self._losses.add("its index is cut off or damaged: no step is lost by that")
                return
            if place.opcode == 0:
                self._losses.add(f"damaged after byte {place.begin:,}, so that the rest cannot be read")
                return
            if place.opcode in _READ:
                yield place
            else:
                self._losses.add(f"bytes {place.begin:,} to {place.end:,} are damaged (not a valid record)")
        self._losses.add(f"cut off after byte {self._whole_to:,}")

    def _following(self, begin: int, limit: int) -> Iterator[Place]:
        """The records that follow one another, up to a limit or the first that ends beyond it; no message indexes."""
        seek, read = self._stream.seek, self._stream.read
        while begin + _HEAD.size <= limit:
            seek(begin)
            head = read(_HEAD.size + _PAIR.size)
            opcode, length = _HEAD.unpack_from(head)
            end = begin + _HEAD.size + length
            if end > limit:
                break
            # most records of a file are message indexes
            if opcode != Opcode.MESSAGE_INDEX:
                has_times = opcode == Opcode.CHUNK and length >= _PAIR.size
                first_ns, last_ns = _PAIR.unpack_from(head, _HEAD.size) if has_times else (0, 0)
                yield Place(first_ns, last_ns, begin, end, opcode)
            begin = end
        self._whole_to = begin

    def _read_index(self) -> None:
        """Take places and names from the index, if there is one whose checksum is right."""
        footer = self._size - _FOOTER.size
        if footer < len(MAGIC):
            return
        opcode, _, begin, _, crc, magic = _FOOTER.unpack(self._read(footer, _FOOTER.size))
        self._has_lost_index = opcode != Opcode.FOOTER or magic != MAGIC
        if self._has_lost_index or not begin or not crc or footer - begin > MAX_INDEX_BYTES:
            return
        try:
            # the checksum is that of the bytes up to itself
            if self._crc(begin, self._size - len(MAGIC) - _CRC.size) != crc:
                raise ValueError("its checksum differs")
            self._take_index(begin, footer)
        except _MALFORMED:
            self._has_lost_index = True

    def _crc(self, begin: int, end: int) -> int:
        crc = 0
        for at in range(begin, end, _CRC_BLOCK_BYTES):
            crc = zlib.crc32(self._read(at, min(_CRC_BLOCK_BYTES, end - at)), crc)
        return crc

    def _take_index(self, begin: int, end: int) -> None:
        """Raises one of _MALFORMED."""
        header = next(self._following(len(MAGIC), self._size), Place(0, 0, len(MAGIC), len(MAGIC), Opcode.HEADER))
        places, names = [header._replace(opcode=Opcode.HEADER)], []
        for entry in self._following(begin, end):
            content = self._read(entry.begin + _HEAD.size, _CHUNK_INDEX.size)
            if entry.opcode == Opcode.CHUNK_INDEX:
                first_ns, last_ns, at, length = _CHUNK_INDEX.unpack_from(content)
                places.append(Place(first_ns, last_ns, at, at + length, Opcode.CHUNK))
            elif entry.opcode in _INDEXED:
                at, length = _PAIR.unpack_from(content)
                places.append(Place(0, 0, at, at + length, _INDEXED[entry.opcode]))
            elif entry.opcode in (Opcode.SCHEMA, Opcode.CHANNEL):
                names += read_record(self._stream, entry)
        if any(place.opcode == Opcode.CHUNK for place in places):
            self._indexed, self.names = sorted(places, key=lambda place: place.begin), names

    def _read(self, begin: int, size: int) -> bytes:
        self._stream.seek(begin)
        return self._stream.read(size)


def read_record(stream: IO[bytes], place: Place) -> list[McapRecord]:
    """The record at a place, or those inside it if it is a chunk. Raises DamagedRecord, OSError."""
    where = f"bytes {place.begin:,} to {place.end:,}"
    length = place.end - place.begin
    if length > MAX_RECORD_BYTES:
        raise DamagedRecord(f"{where} are not read: more than the limit of {MAX_RECORD_BYTES:,} bytes")
    try:
        if place.end > os.fstat(stream.fileno()).st_size:
            raise ValueError("the file ends before them")
        stream.seek(place.begin)
        data = stream.read(length)
        if _HEAD.unpack_from(data) != (place.opcode, length - _HEAD.size):
            raise ValueError("not a valid record")
        if place.opcode == Opcode.ATTACHMENT:
            # the library does not check it; 0: there is none
            (crc,) = _CRC.unpack_from(data, length - _CRC.size)
            if crc and zlib.crc32(data[_HEAD.size : -_CRC.size]) != crc:
                raise ValueError("its checksum differs")
        (record,) = itertools.islice(StreamReader(BytesIO(data), skip_magic=True, emit_chunks=True).records, 1)
        return _unpacked(record) if isinstance(record, Chunk) else [record]
    except CRCValidationError:
        raise DamagedRecord(f"{where} are damaged (its checksum differs)") from None
    except _MALFORMED as error:
        # the names of a library's internals tell the user nothing
        reason = error if type(error) is ValueError else "not a valid record"
        raise DamagedRecord(f"{where} are damaged ({reason})") from None


def _unpacked(chunk: Chunk) -> list[McapRecord]:
    """The records of a chunk. Raises one of _MALFORMED."""
    size = chunk.uncompressed_size
    if size > MAX_CHUNK_BYTES:
        raise ValueError(f"a chunk of {size:,} bytes, more than the limit of {MAX_CHUNK_BYTES:,}")
    # the library's own decompression allocates what the data states, whatever the chunk says;
    # one byte more than the chunk says shows that there is more
    data = chunk.data
    if chunk.compression == "zstd":
        data = zstandard.ZstdDecompressor().stream_reader(data).read(size + 1)
    elif chunk.compression == "lz4":
        data = lz4.frame.LZ4FrameDecompressor().decompress(data, max_length=size + 1)
    elif chunk.compression:
        raise ValueError(f"compression {chunk.compression[:20]!r} is unknown")
    if len(data) != size:
        raise ValueError("a chunk does not have its stated size")
    records: list[McapRecord] = breakup_chunk(dataclasses.replace(chunk, compression="", data=data), validate_crc=True)
    return records
