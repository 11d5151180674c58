"""Read and write TFRecord files: length (8 bytes), its checksum (4), the record, its checksum (4); all little-endian.

The checksum is CRC-32C, masked as in tensorflow/core/lib/hash/crc32c.h.
"""

import functools
import struct
from collections.abc import Iterator
from typing import IO

_POLYNOMIAL = 0x82F63B78
"""Castagnoli's, reflected."""
_MASK_DELTA = 0xA282EAD8


@functools.cache
def _table() -> list[int]:
    """The change of the checksum by each value of a byte."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


def masked_crc32c(data: bytes) -> int:
    """The masked checksum of bytes."""
    crc, table = 0xFFFFFFFF, _table()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def write(file: IO[bytes], record: bytes) -> None:
    """Append a record to a file. Raises OSError."""
    length = struct.pack("<Q", len(record))
    for part in (length, record):
        file.write(part + struct.pack("<I", masked_crc32c(part)))


def read(data: bytes) -> Iterator[bytes]:
    """The records of a file. Raises ValueError if it is truncated; checksums are not verified."""
    offset = 0
    while offset < len(data):
        size = int.from_bytes(data[offset : offset + 8], "little")
        if offset + 16 + size > len(data):
            raise ValueError("the file of records is truncated; export the model again")
        yield data[offset + 12 : offset + 12 + size]
        offset += 16 + size
