"""The bytes of MCAP files, for tests that damage them."""

import struct
from pathlib import Path
from typing import NamedTuple

from mcap.opcode import Opcode

MAGIC_BYTES = 8
_HEAD = struct.Struct("<BQ")


class Record(NamedTuple):
    """A record of a file, and where it is."""

    opcode: int
    begin: int
    content: int
    """Where its content begins."""
    end: int


def records(data: bytes) -> list[Record]:
    found = []
    begin = MAGIC_BYTES
    while begin + _HEAD.size <= len(data):
        opcode, length = _HEAD.unpack_from(data, begin)
        end = begin + _HEAD.size + length
        if end > len(data):
            break
        found.append(Record(opcode, begin, begin + _HEAD.size, end))
        begin = end
    return found


def chunks(data: bytes) -> list[Record]:
    """The head, and the chunks of steps: those without copies of the head."""
    copies = head_copies(data)
    return [each for each in records(data) if each.opcode == Opcode.CHUNK and each not in copies]


def head_copies(data: bytes) -> list[Record]:
    """The second chunk of a whole file, and all that are the same."""
    found = [each for each in records(data) if each.opcode == Opcode.CHUNK]
    copies = [data[each.begin : each.end] for each in found[1:2]]
    return [each for each in found[1:] if data[each.begin : each.end] in copies]


def record(opcode: int, content: bytes) -> bytes:
    return _HEAD.pack(opcode, len(content)) + content


def chunk(data: bytes, size: int, compression: str = "zstd", crc: int = 0) -> bytes:
    """A chunk that says that its content has `size` bytes."""
    name = compression.encode()
    head = struct.pack("<QQQI", 0, 0, size, crc) + struct.pack("<I", len(name)) + name
    return record(Opcode.CHUNK, head + struct.pack("<Q", len(data)) + data)


def with_record_after_city(path: Path, out: Path, inserted: bytes) -> Path:
    data = path.read_bytes()
    end = chunks(data)[0].end
    out.write_bytes(data[:end] + inserted + data[end:])
    return out


def flipped(data: bytes, at: int, mask: int = 0xFF) -> bytes:
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]
