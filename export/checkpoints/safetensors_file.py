"""Tensors of a .safetensors file, read by the library of the format."""

import numpy as np
import safetensors

from export.checkpoints.torch_tensors import SavedTensors

DTYPES = {
    "F64": "f8", "F32": "f4", "F16": "f2", "BF16": "bfloat16", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1",
    "U8": "u1", "BOOL": "b1",
}  # fmt: skip


def read(data: bytes) -> SavedTensors:
    """Read the tensors of a file. Raises ValueError if it cannot be read."""
    try:
        stored = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise ValueError(f"it is not a complete safetensors file ({error}); copy it again") from None
    arrays = {}
    for key, tensor in sorted(stored, key=lambda entry: entry[0]):  # the library's order changes from call to call
        name, dtype = key.replace(".", "/"), tensor["dtype"]
        if dtype not in DTYPES:
            raise ValueError(f"its tensor {key} has dtype {dtype}, not one of {', '.join(DTYPES)}")
        if name in arrays:
            raise ValueError(f"two of its tensors are called {name}")
        arrays[name] = np.frombuffer(tensor["data"], DTYPES[dtype]).reshape(tensor["shape"])
    if not arrays:
        raise ValueError("it holds no tensors")
    return SavedTensors(arrays, ())
