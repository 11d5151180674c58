"""Read the values, arrays and spaces in a pickle without running code that it names.

A pickle is a program for a stack machine: GLOBAL opcodes name functions of any
module, REDUCE and BUILD call them. Here a name stands only for an object that the caller
passes in: a function of ours that rebuilds a value, such as one of NumPy's arrays from its bytes, or, for
libraries whose objects hold settings beside the values, an `Opaque` object that stores its arguments. A file with any
other name is refused. The opcodes are checked first: only those that plain data
needs are permitted, with sizes and memo indexes that fit the file.
"""

import collections
import io
import math
import pickle
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.contract import CATEGORICAL

MAX_PICKLE_BYTES = 1 << 29
MAX_OPCODES = 2_000_000
"""The state dict of a network of 10,000 layers has some 300,000."""
CONTINUOUS = "continuous"
MAX_DIMENSIONS = 32
LIBRARIES = ("stable_baselines3", "sb3_contrib", "gymnasium", "gym", "numpy")
"""Libraries whose objects in pickles only hold settings; they are not rebuilt."""
OPCODES = frozenset(
    {
        *("PROTO", "FRAME", "STOP", "MARK", "GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ", "BUILD", "BINPERSID"),
        *("MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
        *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "APPEND", "APPENDS"),
        *("EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_SET", "ADDITEMS", "FROZENSET"),
        *("SHORT_BINSTRING", "BINSTRING", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
        *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
        *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "NEWTRUE", "NEWFALSE", "NONE"),
    }
)

Rebuilders = Mapping[tuple[str, str], Any]
"""(module, name) in a pickle -> the object that it stands for, which a pickle may call and cannot change."""


class PickleRefused(ValueError):
    """A pickle is damaged, or holds more than plain data."""


class Opaque:
    """An object of a class that is not imported: the class's name, the arguments and the state."""

    global_name = ""
    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> "Opaque":
        opaque = super().__new__(cls)
        opaque.args, opaque.state = args, None
        return opaque

    def __setstate__(self, state: Any) -> None:
        self.state = state


class Function:
    """A function of ours that a name stands for. It has no attributes that a pickle's BUILD could change."""

    __slots__ = ("_call",)
    _call: Callable[..., Any]

    def __init__(self, call: Callable[..., Any]) -> None:
        object.__setattr__(self, "_call", call)

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __setattr__(self, name: str, value: Any) -> None:
        raise PickleRefused("it changes a function")


def load(
    data: bytes,
    rebuilders: Rebuilders,
    opaque_modules: tuple[str, ...] = (),
    persistent: Callable[[Any], Any] | None = None,
    advice: str = "",
) -> Any:
    """Read the value of a pickle.

    Args:
        data: the pickle.
        rebuilders: the objects that names stand for.
        opaque_modules: top-level modules whose objects become Opaque.
        persistent: returns the value of a persistent id. Without it, a pickle with one is refused.
        advice: how to fix a pickle with an unknown name.

    Raises:
        PickleRefused: it is damaged, or has an unknown name.
    """
    check_opcodes(data)
    values = {("collections", "OrderedDict"): collections.OrderedDict, **rebuilders}

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) in values:
                return values[module, name]
            if module.split(".")[0] in opaque_modules and "." not in name:
                return type("Opaque", (Opaque,), {"global_name": f"{module}.{name}"})
            remedy = f"; {advice}" if advice else ""
            raise PickleRefused(
                f"its pickle names {module}.{name}, and only plain data is read; no code of it was run{remedy}"
            )

        def persistent_load(self, pid: Any) -> Any:
            if persistent is None:
                raise PickleRefused("its pickle refers to data outside itself")
            return persistent(pid)

    try:
        return Reader(io.BytesIO(data)).load()
    except PickleRefused:
        raise
    except RecursionError:
        raise PickleRefused("its values are nested too deeply") from None
    except Exception as error:  # noqa: BLE001 - a damaged pickle raises many kinds
        raise PickleRefused(f"its pickle is damaged ({type(error).__name__})") from None


def check_opcodes(data: bytes, begin: int = 0) -> int:
    """Check the pickle at byte `begin` and return its end. Raises PickleRefused for opcodes or sizes that plain data
    lacks."""
    if len(data) - begin > MAX_PICKLE_BYTES:
        raise PickleRefused(f"its pickle has {len(data) - begin} bytes, more than any actor's")
    stream = io.BytesIO(data)
    stream.seek(begin)
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(stream), 1):
            if opcode.name not in OPCODES:
                raise PickleRefused(
                    f"its pickle uses opcode {opcode.name}, which plain data does not need; no code of it was run"
                )
            if count > MAX_OPCODES:
                raise PickleRefused("its pickle has more opcodes than any actor's")
            if opcode.name in ("BINPUT", "LONG_BINPUT") and int(argument or 0) > len(data):
                raise PickleRefused(f"its pickle has memo index {argument}, more than its {len(data)} bytes can hold")
    except PickleRefused:
        raise
    except Exception as error:  # noqa: BLE001 - pickletools raises several kinds for a damaged pickle
        raise PickleRefused(f"its pickle is damaged ({' '.join(str(error).split())[:120]})") from None
    return stream.tell()


class Dtype:
    """A dtype as a pickle builds it: from a code such as `f4`, then a state with the byte order."""

    __slots__ = ("byte_order", "code")

    def __init__(self, code: str) -> None:
        self.code, self.byte_order = code, "="

    def __setstate__(self, state: Any) -> None:
        if not (isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">", "|", "=")):
            raise PickleRefused("a dtype in its pickle is damaged")
        self.byte_order = state[1]

    def numpy(self) -> np.dtype[Any] | None:
        """NumPy's dtype; `None` unless it is one of numbers."""
        if not isinstance(self.code, str) or self.code[:1] not in "fiub" or self.code[1:] not in ("1", "2", "4", "8"):
            return None
        return np.dtype(self.byte_order.replace("=", "<") + self.code)


class Array:
    """An array as older pickles build it: empty, then a state with shape, dtype and bytes."""

    __slots__ = ("values",)

    def __init__(self, values: NDArray[Any] | None = None) -> None:
        """`values`: the numbers; `None` if it holds text, objects or nothing."""
        self.values = values

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise PickleRefused("an array in its pickle is damaged")
        _, shape, dtype, is_fortran, data = state
        self.values = from_bytes(data, dtype, shape, "F" if is_fortran else "C")


def numbers(value: Any) -> NDArray[Any] | None:
    """The numbers of an array in a pickle. `None` for any other value."""
    return value.values if isinstance(value, Array) else None


def from_bytes(data: Any, dtype: Any, shape: Any, order: Any = "C") -> NDArray[Any] | None:
    """Build an array from its bytes; `None` unless it holds numbers. Raises PickleRefused if the bytes do not fit the
    shape and dtype."""
    if not isinstance(dtype, Dtype) or not isinstance(shape, tuple):
        raise PickleRefused("an array in its pickle is damaged")
    numpy_dtype = dtype.numpy()
    if numpy_dtype is None or not isinstance(data, bytes | bytearray):
        return None
    if len(shape) > MAX_DIMENSIONS or not all(type(size) is int and size >= 0 for size in shape):
        raise PickleRefused("an array in its pickle has an invalid shape")
    if math.prod(shape) * numpy_dtype.itemsize != len(data):
        raise PickleRefused(f"an array in its pickle has shape {list(shape)}, but {len(data)} bytes")
    return np.frombuffer(bytes(data), numpy_dtype).reshape(shape, order="F" if order == "F" else "C")


def _latin1(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding != "latin1":
        raise PickleRefused("bytes in its pickle are damaged")
    return text.encode(encoding)


def _scalar(dtype: Any, data: Any) -> Any:
    values = from_bytes(data, dtype, ())
    return None if values is None else values[()]


_OF_CORE = {
    ("numeric", "_frombuffer"): Function(
        lambda data, dtype, shape, order="C", *_: Array(from_bytes(data, dtype, shape, order))
    ),
    ("multiarray", "_reconstruct"): Function(lambda *_: Array()),
    ("multiarray", "scalar"): Function(_scalar),
}
REBUILDERS: Rebuilders = {
    ("numpy", "dtype"): Function(lambda code, *_: Dtype(code)),
    ("numpy", "ndarray"): Function(lambda *_: Array()),
    # pickle protocol 2, torch's, writes bytes as text
    ("_codecs", "encode"): Function(_latin1),
    # NumPy 2 renamed numpy.core
    **{
        (f"{core}.{module}", name): function
        for core in ("numpy.core", "numpy._core")
        for (module, name), function in _OF_CORE.items()
    },
}
"""(module, name) in NumPy's pickles -> our function that rebuilds an array, a dtype or a scalar."""


@dataclass(frozen=True)
class Space:
    """A Discrete space from 0 on, or a Box of one dimension."""

    kind: str
    """`categorical` or `continuous`."""
    size: int
    low: tuple[float, ...] = ()
    """Bounds of a Box, exact."""
    high: tuple[float, ...] = ()


def space_of(space: Any, use: str, *kinds: str) -> Space:
    """The space of a pickle.

    Args:
        space: the pickled object.
        use: `observation` or `action`, for messages.
        kinds: the permitted ones.

    Raises:
        ValueError: it is another space.
    """
    state = space.state if isinstance(space, Opaque) and isinstance(space.state, dict) else {}
    name = str(getattr(space, "global_name", type(space).__name__)).rpartition(".")[2]
    shape = state.get("_shape")
    if name == "Discrete" and CATEGORICAL in kinds and int(state.get("start", 0)) == 0:
        return Space(CATEGORICAL, int(state["n"]))
    if name == "Box" and CONTINUOUS in kinds and isinstance(shape, tuple) and len(shape) == 1:
        low, high = (numbers(state.get(key)) for key in ("low", "high"))
        if low is None or high is None or not low.shape == high.shape == shape:
            raise ValueError(f"the bounds of its {use} space cannot be read")
        return Space(CONTINUOUS, int(shape[0]), *(tuple(bound.astype(float).tolist()) for bound in (low, high)))
    permitted = {CATEGORICAL: "Discrete from 0 on", CONTINUOUS: "a Box of one dimension"}
    raise ValueError(
        f"its {use} space is {name}{f' of shape {list(shape)}' if shape else ''}; only "
        f"{' and '.join(permitted[kind] for kind in kinds)} can be exported"
        f"{'; train one policy for each signal' if name == 'MultiDiscrete' else ''}"
    )
