"""One table of a TOML file as a dataclass: every key is known, every value has its field's type, or an InputError says which."""

import dataclasses
import difflib
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from city.errors import InputError

MAX_NUMBER = 1e6
T = TypeVar("T")


def read(
    kind: type[T], where: str, table: Any, folder: Path, synonyms: Mapping[str, str] | None = None, keys: Sequence[str] = ()
) -> T:
    """The dataclass of a table. Raises InputError.

    Args:
        kind: a dataclass; its fields are the keys.
        where: file and table, which begin an error's line.
        table: the value in the file.
        folder: what relative paths are relative to.
        synonyms: other names of keys -> the key.
        keys: the keys that an error lists; empty: all.
    """
    if not isinstance(table, dict):
        raise InputError(f"{where} must be a table")
    known, names = get_type_hints(kind), synonyms or {}
    values: dict[str, Any] = {}
    for written, value in table.items():
        key = names.get(written, written)
        if key not in known:
            raise InputError(f"{where} unknown key {written}; {_suggestion(written, [*(keys or known), *names])}")
        if key in values:
            raise InputError(f"{where} has both {key} and sumo-rl's name for it; remove one")
        values[key] = _value(f"{where} {written}", known[key], value, folder)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        is_required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if is_required and field.name not in values:
            raise InputError(f"{where} {field.name} is missing; add it")
    return kind(**values)


def _suggestion(word: str, known: Sequence[str]) -> str:
    """What to write instead of an unknown word."""
    close = difflib.get_close_matches(word, known, n=1)
    # min_green for min_green_s: close matches prefer short words of the same letters
    longer = [key for key in known if key.startswith(word) or word.startswith(key)]
    nearest = next(iter([*longer, *close]), None)
    return f"did you mean {nearest}?" if nearest else f"the keys are {', '.join(known)}"


def _value(where: str, hint: Any, value: Any, folder: Path) -> Any:
    """A value of a field's type; None as an alternative is what a key that is left out means."""
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (item for item in get_args(hint) if item is not types.NoneType)
    if get_origin(hint) is tuple:
        return (_sizes if get_args(hint)[0] is int else _texts)(where, value)
    return _READERS[hint](where, value, folder)


def _text(where: str, value: Any, folder: Path) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where} = {value!r} must be a string")
    return value


def _path(where: str, value: Any, folder: Path) -> Path:
    if not isinstance(value, str):
        raise InputError(f"{where} = {value!r} must be a path in quotes")
    return folder / value


def _integer(where: str, value: Any, folder: Path) -> int:
    if type(value) is not int:
        raise InputError(f"{where} = {value!r} must be an integer")
    return int(_in_range(where, value))


def _number(where: str, value: Any, folder: Path) -> float:
    if type(value) not in (int, float):
        raise InputError(f"{where} = {value!r} must be a number")
    return float(_in_range(where, value))


def _in_range(where: str, value: float) -> float:
    if not 0 <= value <= MAX_NUMBER:
        raise InputError(f"{where} = {value!r} is out of range; it must lie between 0 and {MAX_NUMBER:g}")
    return value


def _sizes(where: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(type(item) is int and 0 < item <= MAX_NUMBER for item in value):
        raise InputError(f"{where} must be a list of numbers of at least 1, such as [64, 64]")
    return tuple(value)


def _texts(where: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise InputError(f"{where} must be a list of names")
    if repeated := next((item for item in value if value.count(item) > 1), None):
        raise InputError(f"{where} lists {repeated} twice; remove one")
    return tuple(value)


_READERS: Mapping[Any, Callable[[str, Any, Path], Any]] = {str: _text, Path: _path, int: _integer, float: _number}
