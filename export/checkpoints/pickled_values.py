"""Read the values of a pickle without running code that it names.

A pickle is a program for a stack machine: GLOBAL opcodes name functions of any
module, REDUCE and BUILD call them. Here a name stands only for an object that the caller
passes in: a function of ours that rebuilds a value or, for libraries whose objects hold
settings beside the values, an `Opaque` object that stores its arguments. A file with any
other name is refused. The opcodes are checked first: only those that plain data
needs are permitted, with sizes and memo indexes that fit the file.
"""

import collections
import io
import pickle
import pickletools
from collections.abc import Callable, Mapping
from typing import Any

MAX_PICKLE_BYTES = 1 << 29
MAX_OPCODES = 2_000_000
"""The state dict of a network of 10,000 layers has some 300,000."""
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
