"""A helper process's answers as JSON and arrays: the exporter runs no code that an answer names, unlike a pickle's.

Values are those of JSON, tuples, paths, bytes, arrays of numbers, and the exporter's own dataclasses and errors,
which JSON names by module and class. An answer is the JSON text's length, the text, and the arrays' bytes.
"""

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import bfloat16
from numpy.typing import NDArray

from city.errors import InputError, ProgramFailed

NUMBERS = "fiub"
"""Kinds of the dtypes of numbers."""
ERRORS = {kind.__name__: kind for kind in (InputError, ProgramFailed, OSError)}
PACKAGE = "export."
"""The dataclasses of this package may be in an answer."""
LENGTH_BYTES = 8


def encode(value: Any) -> bytes:
    """The bytes of a value. Raises TypeError for a value of another kind."""
    data = bytearray()
    text = json.dumps(_plain(value, data)).encode()
    return b"".join((len(text).to_bytes(LENGTH_BYTES, "big"), text, data))


def decode(answer: bytes) -> Any:
    """The value of `encode`. Raises ValueError for other bytes."""
    begin = LENGTH_BYTES + int.from_bytes(answer[:LENGTH_BYTES], "big")
    try:
        return _value(json.loads(answer[LENGTH_BYTES:begin]), memoryview(answer)[begin:])
    except (LookupError, TypeError, AttributeError, RecursionError, ImportError) as error:
        raise ValueError(f"an answer of the helper process is damaged ({type(error).__name__})") from None


def _plain(value: Any, data: bytearray) -> Any:
    """The value in JSON's types, a list with its kind first; the bytes of its arrays are added to `data`."""

    def plain(item: Any) -> Any:
        return _plain(item, data)

    def stored(content: bytes) -> tuple[int, int]:
        data.extend(content)
        return len(data) - len(content), len(data)

    match value:
        case np.generic():
            return plain(value.item())
        case None | bool() | int() | float() | str():
            return value
        case np.ndarray():
            array = _of_numbers(value)
            dtype = array.dtype.name if array.dtype == bfloat16 else array.dtype.str  # its str is that of any 2 bytes
            return ["array", dtype, array.shape, *stored(array.tobytes())]
        case bytes():
            return ["bytes", *stored(value)]
        case Path():
            return ["path", str(value)]
        case OSError():
            return ["error", "OSError", "", value.errno, value.strerror]
        case InputError():
            return ["error", "InputError", value.subject, str(value)]
        case ProgramFailed():
            return ["error", "ProgramFailed", "", str(value)]
        case tuple():
            return ["tuple", *map(plain, value)]
        case list():
            return ["list", *map(plain, value)]
        case dict():
            return ["dict", *map(plain, value.items())]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        raise TypeError(f"a {type(value).__name__} is no plain value")
    fields = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value) if field.init]
    return ["class", type(value).__module__, type(value).__qualname__, plain(dict(fields))]


def _of_numbers(array: NDArray[Any]) -> NDArray[Any]:
    """An array of numbers, or of the texts of other values: readers refuse these by their dtype."""
    if array.dtype.kind in NUMBERS or array.dtype == bfloat16:
        return array
    return np.array([str(item) for item in array.ravel().tolist()], np.str_).reshape(array.shape)


def _value(plain: Any, data: memoryview) -> Any:
    def value(item: Any) -> Any:
        return _value(item, data)

    match plain:
        case None | bool() | int() | float() | str():
            return plain
        case ["array", dtype, shape, begin, end]:
            kind = np.dtype(bfloat16 if dtype == bfloat16.__name__ else dtype)
            if kind.kind not in f"{NUMBERS}U" and kind != bfloat16:
                raise ValueError(f"an answer of the helper process has an array of {dtype}")
            # a copy, which may be written to
            return np.frombuffer(bytearray(data[begin:end]), kind).reshape(shape)
        case ["bytes", begin, end]:
            return bytes(data[begin:end])
        case ["path", path]:
            return Path(path)
        case ["error", name, subject, *arguments]:
            error = ERRORS[name](*arguments)
            if isinstance(error, InputError):
                error.subject = str(subject)
            return error
        case ["tuple", *items]:
            return tuple(map(value, items))
        case ["list", *items]:
            return list(map(value, items))
        case ["dict", *items]:
            return dict(map(value, items))
        case ["class", module, name, fields]:
            return _class(module, name)(**value(fields))
    raise ValueError("an answer of the helper process has an unknown value")


def _class(module: str, name: str) -> Any:
    """A dataclass of the exporter. Raises ValueError if the names are not one's."""
    found = getattr(importlib.import_module(module), name) if module.startswith(PACKAGE) else None
    if not (isinstance(found, type) and dataclasses.is_dataclass(found) and found.__module__ == module):
        raise ValueError(f"an answer of the helper process names {module}.{name}, which it must not")
    return found
