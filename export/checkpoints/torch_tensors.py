"""Read the tensors in files of `torch.save` as NumPy arrays, without torch.

A file is a zip archive (`<name>/data.pkl`, and `<name>/data/<key>` for the bytes of every
storage) or, before torch 1.6, several pickles in a row followed by the storages. The
pickle describes every tensor by its storage, offset, size and stride, in units of
elements. Formats: torch/serialization.py and torch/_utils.py of PyTorch.
"""

import io
import itertools
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from city.errors import first_line
from export.checkpoints.checkpoint import MAX_ELEMENTS
from export.checkpoints.pickles import (
    MAX_DIMENSIONS,
    REBUILDERS,
    Array,
    Function,
    Opaque,
    PickleRefused,
    check_opcodes,
    load,
)
from export.checkpoints.regular_files import MAX_BYTES

MAX_DEPTH, MAX_VALUES = 8, 100_000
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
ADVICE = "save only the weights: torch.save(model.state_dict(), path)"
STORAGES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool",
}  # fmt: skip
"""Class of a storage -> the name of its dtype: text, which a pickle cannot change."""
BUILTINS = (
    *("bool", "int", "long", "float", "complex", "str", "unicode", "bytearray", "slice", "range", "xrange"),
    *("list", "tuple", "dict", "set", "frozenset"),
)
"""Types; long, unicode and xrange are Python 2's names, which pickle protocol 2 writes."""
SETTINGS = ("argparse", "datetime", "decimal", "fractions", "pathlib", "uuid", "zoneinfo", "numpy", "gymnasium", "gym")
"""Modules whose objects beside the weights only hold settings; they are not rebuilt."""


@dataclass(frozen=True)
class Storage:
    """The values that one or several tensors share."""

    dtype: str
    key: str
    elements: int

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.elements * np.dtype(self.dtype).itemsize

    def values(self, data: bytes, byte_order: str) -> NDArray[Any]:
        """The values in this machine's byte order."""
        unsigned = f"u{np.dtype(self.dtype).itemsize}"
        return np.frombuffer(data, byte_order + unsigned).astype(unsigned).view(self.dtype)


@dataclass(frozen=True)
class Tensor:
    """A view of a storage, in units of elements."""

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True)
class SavedTensors:
    """The tensors of a file."""

    arrays: Mapping[str, NDArray[Any]]
    """By name; the keys of nested dicts and the parts of module names are joined by `/`."""
    modules: tuple[str, ...]
    """Names of the network's modules, with or without weights; () if the file does not list them."""


def read(data: bytes) -> SavedTensors:
    """Read the tensors of a file. Raises ValueError if it cannot be read."""
    if data.startswith(b"PK"):
        with open_archive(data) as archive:
            return _zip_archive(archive)
    if not data:
        raise PickleRefused("it is empty")
    return _legacy(data)


def open_archive(data: bytes) -> zipfile.ZipFile:
    """Open the bytes of a zip archive. Raises ValueError if its directory of members cannot be read."""
    try:
        return zipfile.ZipFile(io.BytesIO(data))
    except Exception as error:  # noqa: BLE001 - zipfile and struct raise several kinds for a damaged directory
        raise ValueError(f"it is not a complete zip archive ({first_line(error)}); copy it again") from None


def members_of(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The members of an archive by name. Raises ValueError if two have the same name."""
    members = {info.filename: info for info in archive.infolist()}
    if len(members) != len(archive.infolist()):
        raise ValueError("two of its members have the same name; save it again")
    return members


def member_bytes(archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int = MAX_BYTES) -> bytes:
    """Read a member and check its CRC. Raises ValueError if it is damaged or larger than `limit` bytes."""
    if info.file_size > limit:
        raise ValueError(f"its member {info.filename} has {info.file_size} bytes, more than any actor's")
    if info.external_attr >> 28 == 0o12:
        raise ValueError(f"its member {info.filename} is a symbolic link")
    try:
        with archive.open(info) as member:
            data = member.read(info.file_size + 1)
    except Exception as error:  # noqa: BLE001 - zipfile, zlib, lzma and bz2 raise several kinds for a damaged member
        raise ValueError(f"its member {info.filename} cannot be read ({' '.join(str(error).split())[:120]})") from None
    if len(data) != info.file_size:
        raise ValueError(f"its member {info.filename} has {len(data)} bytes, but {info.file_size} are listed")
    return data


def _zip_archive(archive: zipfile.ZipFile) -> SavedTensors:
    members = members_of(archive)
    prefixes = [name.removesuffix("data.pkl") for name in members if name.endswith("/data.pkl")]
    if len(prefixes) != 1:
        if {"data", "policy.pth"} <= set(members):
            raise ValueError("it is a stable-baselines3 zip; name it .zip")
        raise ValueError("it is not a file of torch.save: it has no member data.pkl")
    prefix = prefixes[0]
    if f"{prefix}constants.pkl" in members:
        raise ValueError(f"it is a TorchScript archive, which holds a program; {ADVICE}")
    order = member_bytes(archive, members[f"{prefix}byteorder"], 64) if f"{prefix}byteorder" in members else b"little"
    if order not in (b"little", b"big"):
        raise ValueError(f"its byte order is {order!r}, not little or big")

    def stored(key: str) -> bytes | None:
        info = members.get(f"{prefix}data/{key}")
        return None if info is None else member_bytes(archive, info)

    content = _load(member_bytes(archive, members[f"{prefix}data.pkl"]), legacy=False)
    return _saved_tensors(content, stored, "<" if order == b"little" else ">")


def _legacy(data: bytes) -> SavedTensors:
    """Read five pickles (magic number, protocol, system, the object, the storages' keys), then every storage with its
    size."""
    ends = [0]
    for number in range(5):
        try:
            ends.append(check_opcodes(data, ends[-1]))
        except PickleRefused as error:
            reason = "it is not a file of torch.save" if number == 0 else str(error)
            raise PickleRefused(reason) from None
        if number == 0 and load(data[: ends[1]], {}) != LEGACY_MAGIC:
            raise PickleRefused(f"it is a plain pickle, not a file of torch.save; {ADVICE}")
    parts = [data[begin:end] for begin, end in itertools.pairwise(ends)]
    system, content, keys = load(parts[2], {}), _load(parts[3], legacy=True), load(parts[4], {})
    if not isinstance(system, dict) or not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ValueError("it is damaged: its storages are not listed")
    byte_order = "<" if system.get("little_endian", True) else ">"
    storages = {tensor.storage.key: tensor.storage for _, tensor in _tensors(content) if isinstance(tensor, Tensor)}
    position, stored = ends[-1], {}
    for key in keys:
        elements = int.from_bytes(data[position : position + 8], "little", signed=True)
        if key not in storages:
            raise ValueError(f"its storage {key} belongs to no tensor")
        begin = position + 8
        position = begin + storages[key].size
        if elements != storages[key].elements or position > len(data):
            raise ValueError(f"its storage {key} is cut off")
        stored[key] = data[begin:position]

    return _saved_tensors(content, stored.get, byte_order)


def _load(data: bytes, legacy: bool) -> Any:

    def persistent(pid: Any) -> Storage:
        count = 6 if legacy else 5
        if not isinstance(pid, tuple) or len(pid) != count or pid[0] != "storage" or (legacy and pid[5] is not None):
            raise PickleRefused("its pickle refers to something other than a storage")
        _, kind, key, _, elements = pid[:5]
        is_storage = kind in STORAGES.values() and isinstance(key, str) and type(elements) is int and elements >= 0
        if not is_storage:
            raise PickleRefused("a storage in its pickle is damaged")
        return Storage(kind, key, elements)

    def tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Tensor:
        if not isinstance(storage, Storage) or type(offset) is not int:
            raise PickleRefused("a tensor in its pickle is damaged")
        is_shape = isinstance(size, tuple) and isinstance(stride, tuple) and len(size) == len(stride) <= MAX_DIMENSIONS
        if not is_shape or not all(type(n) is int for n in (*size, *stride)):
            raise PickleRefused("a tensor in its pickle has an invalid shape")
        return Tensor(storage, offset, size, stride)

    names = {("torch", name): code for name, code in STORAGES.items()}
    inert = Function(Opaque)
    functions = {
        ("torch", "device"): inert,
        **{("torch", name): inert for name in STORAGES.values()},
        ("types", "SimpleNamespace"): inert,
        ("collections", "deque"): Function(lambda *_: []),
        **{("collections", name): Function(lambda *_: {}) for name in ("defaultdict", "Counter")},
        # protocol 2, torch's, writes Python 2's name of the module
        **{(module, name): inert for module in ("builtins", "__builtin__") for name in BUILTINS},
        ("torch._utils", "_rebuild_tensor_v2"): Function(tensor),
        ("torch._utils", "_rebuild_tensor"): Function(tensor),
        ("torch._utils", "_rebuild_parameter"): Function(lambda data, *_: data),
        ("torch", "Size"): Function(lambda sizes=(): tuple(sizes)),
    }
    rebuilders = {**REBUILDERS, **names, **functions}
    return load(data, rebuilders, SETTINGS, persistent=persistent, advice=ADVICE)


def _saved_tensors(content: Any, stored: Callable[[str], bytes | None], byte_order: str) -> SavedTensors:
    """The tensors of the pickled object. `stored`: bytes of the storage with a key, or None. Raises ValueError."""
    storages: dict[str, tuple[Storage, NDArray[Any]]] = {}
    arrays: dict[str, NDArray[Any]] = {}
    total = 0
    for name, tensor in _tensors(content):
        if name in arrays:
            raise ValueError(f"two of its tensors are called {name}")
        if not isinstance(tensor, Tensor):
            arrays[name] = tensor
            continue
        storage = tensor.storage
        if storage.key not in storages:
            total += storage.size
            if total > MAX_BYTES:
                raise ValueError("its tensors are larger than any actor's")
            data = stored(storage.key)
            if data is None or len(data) != storage.size:
                has = "is missing" if data is None else f"has {len(data)} bytes, not {storage.size}"
                raise ValueError(f"its storage {storage.key} {has}")
            storages[storage.key] = storage, storage.values(data, byte_order)
        first_description, values = storages[storage.key]
        if first_description != storage:
            raise ValueError(f"its storage {storage.key} has two different descriptions")
        arrays[name] = _view(name, tensor, values)
    if not storages:
        raise ValueError(f"it holds no tensors; {ADVICE}")
    modules = []
    for name, value in _objects(content):
        listed = getattr(value, "_metadata", None)
        paths = [path for path in listed if isinstance(path, str) and path] if isinstance(listed, dict) else []
        modules += [_joined(name, path) for path in paths]
    return SavedTensors(arrays, tuple(modules))


def _view(name: str, tensor: Tensor, values: NDArray[Any]) -> NDArray[Any]:
    """Copy a tensor out of the values of its storage. Raises ValueError if it reaches beyond them."""
    elements = math.prod(tensor.size)
    last = tensor.offset + sum((size - 1) * stride for size, stride in zip(tensor.size, tensor.stride, strict=True))
    is_negative = min(0, tensor.offset, *tensor.size, *tensor.stride) < 0
    if is_negative or elements > min(MAX_ELEMENTS, len(values)) or (elements and last >= len(values)):
        raise ValueError(
            f"its tensor {name} of shape {list(tensor.size)} does not fit the {len(values)} values of its storage "
            f"(offset {tensor.offset}, stride {list(tensor.stride)})"
        )
    if not elements:
        return np.zeros(tensor.size, values.dtype)
    strides = [stride * values.itemsize for stride in tensor.stride]
    return np.lib.stride_tricks.as_strided(values[tensor.offset :], tensor.size, strides).copy()


def _tensors(content: Any) -> Iterator[tuple[str, Tensor | NDArray[Any]]]:
    """(name, tensor) of every tensor; NumPy arrays and lists of floats are tensors too. Raises ValueError."""
    return ((name, value) for name, value in _objects(content) if isinstance(value, Tensor | np.ndarray))


def _objects(content: Any) -> Iterator[tuple[str, Any]]:
    """(name, value) of everything in nested dicts and lists, in order; arrays and lists of floats are NumPy arrays.

    Raises ValueError if there is more than a network's weights.
    """
    count = 0
    pending: list[tuple[str, Any, int]] = [("", content, 0)]
    while pending:
        name, value, depth = pending.pop()
        count += 1
        if count > MAX_VALUES or depth > MAX_DEPTH:
            raise ValueError(f"it holds more than a network's weights; {ADVICE}")
        if isinstance(value, Array):
            value = value.values
        elif isinstance(value, list | tuple) and value and all(type(item) is float for item in value):
            value = np.array(value)
        yield name, value
        items: list[tuple[Any, Any]] = []
        if isinstance(value, dict):
            items = [(key, item) for key, item in value.items() if isinstance(key, str | int)]
        elif isinstance(value, list | tuple):
            items = list(enumerate(value))
        pending += reversed([(_joined(name, key), item, depth + 1) for key, item in items])


def _joined(name: str, key: str | int) -> str:
    return f"{name}/{str(key).replace('.', '/')}".lstrip("/")
