"""TFRecord files: length (8 bytes), its checksum (4), the record, its checksum (4); all little-endian.

The checksum is CRC-32C, masked as in tensorflow/core/lib/hash/crc32c.h.
"""

import struct
from typing import IO

_POLYNOMIAL = 0x82F63B78
"""Castagnoli's, reflected."""
_MASK_DELTA = 0xA282EAD8


def _entry(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value


_TABLE = tuple(map(_entry, range(256)))


def masked_crc32c(data: bytes) -> int:
    """The masked checksum of bytes."""
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def write(file: IO[bytes], record: bytes) -> None:
    """Append a record to a file. Raises OSError."""
    length = struct.pack("<Q", len(record))
    file.write(length + struct.pack("<I", masked_crc32c(length)) + record + struct.pack("<I", masked_crc32c(record)))
