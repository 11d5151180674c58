"""Tensors of a .safetensors file: 8 bytes with the header's length, a JSON header, the tensors' bytes.

Format: https://github.com/huggingface/safetensors#format
"""

import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.checkpoints.torch_tensors import SavedTensors, to_native

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
DTYPES = {
    "F64": "f8", "F32": "f4", "F16": "f2", "BF16": "bf16", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1",
    "U8": "u1",
    "BOOL": "b1",
}  # fmt: skip


def read(data: bytes) -> SavedTensors:
    """Read the tensors of a file. Raises ValueError if it cannot be read."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 0 < length <= min(len(data) - 8, MAX_HEADER_BYTES):
        raise ValueError("its header is cut off")
    try:
        header = json.loads(data[8 : 8 + length])
    except RecursionError:
        raise ValueError("its header is nested too deeply") from None
    except ValueError:
        raise ValueError("its header is not JSON") from None
    if not isinstance(header, dict):
        raise ValueError("its header is not a table of tensors")
    header.pop("__metadata__", None)
    body = data[8 + length :]
    arrays: dict[str, NDArray[Any]] = {}
    spans = []  # (begin, end) of every tensor in the body
    for key, entry in header.items():
        name = key.replace(".", "/")
        span, values = _tensor(key, entry, body)
        spans.append(span)
        if name in arrays:
            raise ValueError(f"two of its tensors are called {name}")
        arrays[name] = values
    previous_end = 0
    for begin, end in sorted(spans):
        if begin != previous_end:
            raise ValueError("its tensors overlap or leave a gap")
        previous_end = end
    if previous_end != len(body):
        raise ValueError(f"{len(body) - previous_end} of its bytes belong to no tensor")
    if not arrays:
        raise ValueError("it holds no tensors")
    return SavedTensors(arrays, ())


def _tensor(key: str, entry: Any, body: bytes) -> tuple[tuple[int, int], NDArray[Any]]:
    """((begin, end) of a tensor's bytes in the body, its values). Raises ValueError."""
    if not isinstance(entry, dict):
        raise ValueError(f"its tensor {key} is not described")
    shape, offsets, dtype = entry.get("shape"), entry.get("data_offsets"), entry.get("dtype")
    if dtype not in DTYPES:
        raise ValueError(f"its tensor {key} has dtype {dtype}, not one of {', '.join(DTYPES)}")
    if not isinstance(shape, list) or len(shape) > 32 or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"its tensor {key} has an invalid shape")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(offset) is int for offset in offsets):
        raise ValueError(f"its tensor {key} has invalid offsets")
    code = DTYPES[dtype]
    stored_dtype = np.dtype("<" + code.replace("bf16", "u2"))
    begin, end = offsets
    if not 0 <= begin <= end <= len(body) or end - begin != math.prod(shape) * stored_dtype.itemsize:
        raise ValueError(f"its tensor {key} has shape {shape}, but its bytes are {begin} to {end} of {len(body)}")
    return (begin, end), to_native(np.frombuffer(body[begin:end], stored_dtype).reshape(shape), code)
