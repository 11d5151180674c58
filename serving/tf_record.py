"""TFRecord files: length (8 bytes), its checksum (4), the record, its checksum (4); all little-endian.

The checksum is CRC-32C, masked as in tensorflow/core/lib/hash/crc32c.h.
"""

import functools
import struct
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78
"""Castagnoli's, reflected."""
_MASK_DELTA = 0xA282EAD8
_BLOCK_BYTES = 256
_CHUNK_BYTES = 1 << 16
"""Bytes that are looked up at once: the indices take eight times their memory."""


class _Tables(NamedTuple):
    """Changes of the checksum by one byte of a block, by the byte's place and value."""

    flat: NDArray[np.uint32]
    """[_BLOCK_BYTES * 256], in the order of the bytes in a block."""
    offsets: NDArray[np.intp]
    """[_BLOCK_BYTES]: where the values of a byte begin in `flat`."""
    first: tuple[list[int], ...]
    """The tables of a block's first four bytes, which the checksum of the blocks before it changes."""
    last: list[int]
    """That of its last byte."""


@functools.cache
def _tables() -> _Tables:
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, values >> 1 ^ np.uint32(_POLYNOMIAL), values >> 1)
    tables = np.empty((_BLOCK_BYTES, 256), np.uint32)
    tables[-1] = values
    for k in range(_BLOCK_BYTES - 1, 0, -1):
        tables[k - 1] = values[tables[k] & 0xFF] ^ tables[k] >> 8
    first = tuple(table.tolist() for table in tables[:4])
    return _Tables(tables.ravel(), 256 * np.arange(_BLOCK_BYTES), first, values.tolist())


def masked_crc32c(data: bytes) -> int:
    """The masked checksum of bytes."""
    crc = (_crc_of_blocks(data) if len(data) >= 16 else _crc_of_bytes(data)) ^ 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _crc_of_bytes(data: bytes) -> int:
    """The checksum before its final inversion, byte by byte."""
    crc, table = 0xFFFFFFFF, _tables().last
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc


def _crc_of_blocks(data: bytes) -> int:
    """The same for at least four bytes, by blocks.

    The checksum is linear: that of a block is the exclusive or over its bytes, each by its place. Both the initial
    value and the checksum of the blocks before act like a change of the next four bytes, and zeros in front change
    nothing.
    """
    tables = _tables()
    size = -(-len(data) // _BLOCK_BYTES) * _BLOCK_BYTES
    padded = np.zeros(size, np.uint8)
    padded[size - len(data) :] = np.frombuffer(data, np.uint8)
    padded[size - len(data) : size - len(data) + 4] ^= 0xFF
    crc, (t0, t1, t2, t3) = 0, tables.first
    for begin in range(0, size, _CHUNK_BYTES):
        blocks = padded[begin : begin + _CHUNK_BYTES].reshape(-1, _BLOCK_BYTES)
        changes = np.bitwise_xor.reduce(tables.flat.take(blocks + tables.offsets), axis=1)
        for change in changes.tolist():
            crc = change ^ t0[crc & 0xFF] ^ t1[crc >> 8 & 0xFF] ^ t2[crc >> 16 & 0xFF] ^ t3[crc >> 24]
    return int(crc)


def encode(record: bytes) -> bytes:
    """The bytes of a record in a file."""
    length = struct.pack("<Q", len(record))
    return b"".join(
        (length, struct.pack("<I", masked_crc32c(length)), record, struct.pack("<I", masked_crc32c(record)))
    )


def write(file: IO[bytes], record: bytes) -> None:
    """Append a record to a file. Raises OSError."""
    file.write(encode(record))
