"""TFRecord files: length (8 bytes), its checksum (4), the record, its checksum (4); all little-endian.

The checksum is CRC-32C, masked as in tensorflow/core/lib/hash/crc32c.h.
"""

import functools
import struct
from typing import IO

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78
"""Castagnoli's, reflected."""
_MASK_DELTA = 0xA282EAD8
_BLOCK_BYTES = 1024


@functools.cache
def _tables() -> NDArray[np.uint32]:
    """[_BLOCK_BYTES, 256]: the checksum's change by a byte with so many bytes behind it, by the byte's value."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, first >> 1 ^ np.uint32(_POLYNOMIAL), first >> 1)
    tables = np.empty((_BLOCK_BYTES, 256), np.uint32)
    tables[0] = first
    for k in range(1, _BLOCK_BYTES):
        tables[k] = first[tables[k - 1] & 0xFF] ^ tables[k - 1] >> 8
    return tables


def masked_crc32c(data: bytes) -> int:
    """The masked checksum of bytes.

    The checksum is linear: that of a block is the exclusive or over its bytes, each by its distance from the block's end,
    and the checksum of the blocks before it acts like a change of its first four bytes.
    """
    tables, crc = _tables(), 0xFFFFFFFF
    for begin in range(0, len(data), _BLOCK_BYTES):
        block = data[begin : begin + _BLOCK_BYTES]
        size = len(block)
        values = np.frombuffer(block, np.uint8).copy()
        head = min(4, size)
        values[:head] ^= np.frombuffer(struct.pack("<I", crc), np.uint8)[:head]
        changes = tables[np.arange(size - 1, -1, -1), values]
        crc = crc >> 8 * size ^ int(np.bitwise_xor.reduce(changes)) if size < 4 else int(np.bitwise_xor.reduce(changes))
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def encode(record: bytes) -> bytes:
    """The bytes of a record in a file."""
    length = struct.pack("<Q", len(record))
    return b"".join((length, struct.pack("<I", masked_crc32c(length)), record, struct.pack("<I", masked_crc32c(record))))


def write(file: IO[bytes], record: bytes) -> None:
    """Append a record to a file. Raises OSError."""
    file.write(encode(record))
