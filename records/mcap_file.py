"""The records of an MCAP file, as far as it goes: whole, cut off, still written, damaged, or another program's.

    index at the end, with a right checksum | it says where every record is
    otherwise                               | records are visited one after another, after damage from the next chunk on

What is damaged, or is not where the index says, is left out and named in the losses. Nothing in a file makes it read,
or unpack, more than the limits.
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
from mcap.data_stream import RecordBuilder
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.records import Chunk, McapRecord, Message
from mcap.stream_reader import CRCValidationError, StreamReader, breakup_chunk
from mcap.writer import MCAP0_MAGIC as MAGIC

from city.printable import printable

MAX_RECORD_BYTES = 1 << 30
"""Largest record that is read; the largest are attachments with networks."""
MAX_CHUNK_BYTES = 1 << 28
"""Largest chunk that is unpacked; the writer's have some 1 MiB."""
MAX_INDEX_BYTES = 1 << 25
"""Largest index that is used; the writer's have some 3 MB. A file with a larger one is read without it."""
_BLOCK_BYTES = 1 << 16
MAX_LOSSES, MAX_COUNTED_LOSSES = 20, 1000
"""Losses that are named; further ones are counted, up to a number that bounds the memory."""

_HEAD = struct.Struct("<BQ")
"""How a record begins: its opcode, and the length of its content."""
_FOOTER = struct.Struct("<BQQQI8s")
"""How a file ends: opcode, length, begin of the index, begin of its own index, checksum, MAGIC."""
_CHUNK_INDEX = struct.Struct("<QQQQ")
"""How a chunk's entry of the index begins: first and last log_time, begin and length of the chunk."""
_PAIR = struct.Struct("<QQ")
"""How a chunk begins, first and last log_time, and another record's entry of the index: its begin and length."""
_CRC = _SIZE = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
_BEGIN_BYTES = 128
"""Bytes of a record's begin that say whether its length can be right."""
_MESSAGE_BYTES = 31
"""Bytes of a message in a chunk without its data."""
_COMPRESSION_AT = 37
"""Where a chunk says how it is compressed, from its begin on."""
_COMPRESSION = _SIZE.pack(4) + b"zstd"
"""How the writer's chunks say it: by that the next one is found behind damage."""
_READ = (Opcode.HEADER, Opcode.CHUNK, Opcode.ATTACHMENT, Opcode.METADATA)
"""Records that are read. Those of a chunk are not valid outside of one, where no checksum would show a changed one."""
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
        self._texts: dict[str, None] = {}
        """Each once, in their order."""
        self.may_lack_steps = False
        """True if a part is lost that may have had steps."""

    def add(self, text: str, may_lack_steps: bool = True) -> None:
        self.may_lack_steps |= may_lack_steps
        if len(self._texts) < MAX_COUNTED_LOSSES:
            self._texts[printable(text)] = None  # it may have names from the file

    def __bool__(self) -> bool:
        return bool(self._texts)

    def __str__(self) -> str:
        named, more = list(self._texts)[:MAX_LOSSES], len(self._texts) - MAX_LOSSES
        return "; ".join([*named, *([f"and {more:,} more losses"] if more > 0 else [])])


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
    """0: bytes that are no record."""
    index_bytes: int = 0
    """Size of the message indexes that follow a chunk, by the file's index."""


class McapFile:
    """An open MCAP file."""

    def __init__(self, stream: IO[bytes], losses: Losses, with_copies: bool = False) -> None:
        """Read the index, if there is one. Raises OSError.

        Args:
            stream: the file.
            losses: gets what cannot be read.
            with_copies: also read chunks that the index does not list: copies of the head.
        """
        self._stream, self._losses, self._with_copies = stream, losses, with_copies
        self._size = self._data_end = os.fstat(stream.fileno()).st_size
        """Of the file, and where its index begins."""
        self._has_lost_index = False
        self._indexed: list[Place] = []
        """The places of all records of the index, in the file's order."""
        self._since_ns = 0
        self.names: list[McapRecord] = []
        """Schemas and channels of the index."""
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
                found = read_record(self._stream, place)
                if place.index_bytes:
                    self._check_chunk_index(place, found)
                yield from found
            except DamagedRecord as damage:
                self._losses.add(str(damage))
            if k == 0:  # after the header
                yield from self.names

    def places(self) -> Iterator[Place]:
        """Where the records are, in the file's order: as the index says, or as they follow one another."""
        begin = len(MAGIC)
        for place in self._indexed:
            if self._with_copies:
                yield from self._visited(begin, place.begin)
            yield place
            begin = max(begin, place.end)
        if self._with_copies or not self._indexed:
            yield from self._visited(begin, self._data_end)

    def _visited(self, begin: int, limit: int) -> Iterator[Place]:
        """The records that follow one another and are read, up to a limit, the data's end, or where the file ends."""
        for place in self._following(begin, limit):
            begin = place.end
            if place.opcode == Opcode.MESSAGE_INDEX:
                continue
            if place.opcode in _READ:
                yield place
            elif place.opcode == Opcode.DATA_END and place.end - place.begin == _HEAD.size + _CRC.size:
                if self._has_lost_index:
                    self._losses.add("its index is cut off or damaged: no step is lost by that", False)
                return
            elif place.opcode == 0 and place.end == self._size:
                is_cut = any(self._read(place.begin, _HEAD.size))
                lost = (
                    "cut off after byte {:,}" if is_cut else "damaged after byte {:,}, so that the rest cannot be read"
                )
                self._losses.add(lost.format(place.begin))
                return
            else:
                self._losses.add(f"bytes {place.begin:,} to {place.end:,} are damaged (not a valid record)")
        if limit == self._size:
            self._losses.add(f"cut off after byte {begin:,}")

    def _following(self, begin: int, limit: int) -> Iterator[Place]:
        """The records that follow one another up to a limit, and what is no record."""
        while begin < limit:
            head = self._read(begin, _BEGIN_BYTES)
            opcode, length = _HEAD.unpack_from(head) if len(head) >= _HEAD.size else (0, 0)
            end = begin + _HEAD.size + length
            if not opcode or end > limit or not _has_stated_length(head):
                end = self._next_chunk(begin + 1, limit)
                yield Place(0, 0, begin, end, 0)
            else:
                first_ns, last_ns = _PAIR.unpack_from(head, _HEAD.size) if opcode == Opcode.CHUNK else (0, 0)
                yield Place(first_ns, last_ns, begin, end, opcode)
            begin = end

    def _next_chunk(self, begin: int, limit: int) -> int:
        """Where the next whole chunk of the writer begins; the limit without one."""
        overlap = len(_COMPRESSION) - 1
        for at in range(begin, limit, _BLOCK_BYTES):
            block = self._read(at, min(_BLOCK_BYTES + _COMPRESSION_AT + overlap, limit - at))
            found = block.find(_COMPRESSION, _COMPRESSION_AT)
            while found >= 0:
                chunk = at + found - _COMPRESSION_AT
                head = self._read(chunk, _BEGIN_BYTES)
                opcode, length = _HEAD.unpack_from(head)
                if opcode == Opcode.CHUNK and chunk + _HEAD.size + length <= limit and _has_stated_length(head):
                    return chunk
                found = block.find(_COMPRESSION, found + 1)
        return limit

    def _check_chunk_index(self, place: Place, found: list[McapRecord]) -> None:
        """Note that a chunk's times, or the message indexes behind it, are not its own: other readers use them."""
        if _PAIR.unpack(self._read(place.begin + _HEAD.size, _PAIR.size)) != (place.first_ns, place.last_ns):
            where = f"bytes {place.begin:,} to {place.end:,}"
            self._losses.add(f"the times of {where} are damaged: no step is lost by that", False)
        entries: dict[int, list[int]] = {}
        at = 0
        for item in found:
            if isinstance(item, Message):
                entries.setdefault(item.channel_id, []).extend((item.log_time, at))
                at += _MESSAGE_BYTES + len(item.data)
            else:
                builder = RecordBuilder()
                item.write(builder)
                at += builder.count
        indexes = [
            struct.pack(f"<BQHI{len(each)}Q", Opcode.MESSAGE_INDEX, 6 + 8 * len(each), channel, 8 * len(each), *each)
            for channel, each in entries.items()
        ]
        written = self._read(place.end, place.index_bytes)
        if written != b"".join(indexes):
            where = f"bytes {place.end:,} to {place.end + place.index_bytes:,}"
            self._losses.add(f"{where} are damaged (an index of messages): no step is lost by that", False)

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
            if zlib.crc32(self._read(begin, self._size - len(MAGIC) - _CRC.size - begin)) != crc:
                raise ValueError("its checksum differs")
            self._take_index(begin, footer)
        except _MALFORMED:
            self._has_lost_index = True

    def _take_index(self, begin: int, end: int) -> None:
        """Raises one of _MALFORMED."""
        header = next(self._following(len(MAGIC), self._size), Place(0, 0, len(MAGIC), len(MAGIC), Opcode.HEADER))
        places, names = [header._replace(opcode=Opcode.HEADER)], []
        for entry in self._following(begin, end):
            content = self._read(entry.begin + _HEAD.size, min(entry.end - entry.begin - _HEAD.size, MAX_INDEX_BYTES))
            if entry.opcode == Opcode.CHUNK_INDEX:
                first_ns, last_ns, at, length = _CHUNK_INDEX.unpack_from(content)
                (offsets_bytes,) = _SIZE.unpack_from(content, _CHUNK_INDEX.size)
                (index_bytes,) = _LENGTH.unpack_from(content, _CHUNK_INDEX.size + _SIZE.size + offsets_bytes)
                places.append(Place(first_ns, last_ns, at, at + length, Opcode.CHUNK, index_bytes))
            elif entry.opcode in _INDEXED:
                at, length = _PAIR.unpack_from(content)
                places.append(Place(0, 0, at, at + length, _INDEXED[entry.opcode]))
            elif entry.opcode in (Opcode.SCHEMA, Opcode.CHANNEL):
                names += read_record(self._stream, entry)
        if any(place.opcode == Opcode.CHUNK for place in places):
            self._data_end = begin
            self._indexed, self.names = sorted(places, key=lambda place: place.begin), names

    def _read(self, begin: int, size: int) -> bytes:
        self._stream.seek(begin)
        return self._stream.read(size)


def _has_stated_length(head: bytes) -> bool:
    """Whether the length of a record is the one that follows from what it has, if its kind says so.

    Args:
        head: the begin of the record, or all of a shorter one.
    """
    opcode, length = _HEAD.unpack_from(head)
    try:
        if opcode == Opcode.CHUNK:
            (compression,) = _SIZE.unpack_from(head, _COMPRESSION_AT)
            (data,) = _LENGTH.unpack_from(head, _COMPRESSION_AT + _SIZE.size + compression)
            return bool(length == _COMPRESSION_AT - _HEAD.size + _SIZE.size + compression + _LENGTH.size + data)
        if opcode == Opcode.HEADER:
            (profile,) = _SIZE.unpack_from(head, _HEAD.size)
            (library,) = _SIZE.unpack_from(head, _HEAD.size + _SIZE.size + profile)
            return bool(length == 2 * _SIZE.size + profile + library)
        if opcode == Opcode.MESSAGE_INDEX:
            (entries,) = _SIZE.unpack_from(head, _HEAD.size + 2)
            return bool(length == 2 + _SIZE.size + entries)
    except struct.error:
        return False
    return True


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
        if _HEAD.unpack_from(data) != (place.opcode, length - _HEAD.size) or not _has_stated_length(data):
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
