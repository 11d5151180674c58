"""Read a table of a TOML file as a dataclass; an unknown key or a value of the wrong type is an InputError."""

import dataclasses
import datetime
import difflib
import re
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

from city.errors import InputError
from city.sumo_files import seconds, time_hint

MAX_VALUE = 1e6
"""The largest number."""
MAX_SHOWN_LINE = 60
"""Characters of a file's line that an error shows."""
NOT_A_KEY = {"is_key": False}
"""Metadata of a field that no table of a file sets."""
T = TypeVar("T")
SimulationTime = NewType("SimulationTime", float)
"""A simulated second; a file may also have it as text of SUMO's form hours:minutes:seconds."""


def requires(requirement: str, is_valid: Callable[[Any], bool]) -> dict[str, Any]:
    """Metadata of a field whose values have a requirement; it completes "KEY = VALUE must ..."."""
    return {"requirement": requirement, "is_valid": is_valid}


def read(
    kind: type[T],
    where: str,
    table: Any,
    folder: Path,
    synonyms: Mapping[str, str] | None = None,
    keys: Sequence[str] = (),
) -> T:
    """The dataclass of a table. Raises InputError.

    Args:
        kind: a dataclass; its fields are the keys.
        where: file and table, at the beginning of an error line.
        table: the value in the file.
        folder: base of relative paths.
        synonyms: other name of a key -> the key.
        keys: the keys that an error suggests (default: all).
    """
    if not isinstance(table, dict):
        raise InputError(f"{where} must be a table")
    hints, synonyms = get_type_hints(kind), synonyms or {}
    all_fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    fields = {field.name: field for field in all_fields if field.metadata.get("is_key", True)}
    values: dict[str, Any] = {}
    for written, value in table.items():
        key = synonyms.get(written, written)
        if key not in fields:
            raise InputError(f"{where} unknown key {written}; {_suggestion(written, keys or [*fields, *synonyms])}")
        if key in values:
            raise InputError(f"{where} has both {key} and sumo-rl's name for it; remove one")
        values[key] = _value(f"{where} {written}", hints[key], value, folder, fields[key].metadata)
    for field in fields.values():
        is_required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if is_required and field.name not in values:
            raise InputError(f"{where} {field.name} is missing; add it")
    return kind(**values)


def _suggestion(word: str, keys: Sequence[str]) -> str:
    """The remedy for an unknown key: the most similar key, else all keys."""
    close = difflib.get_close_matches(word, keys, n=1)
    # min_green for min_green_s: close matches prefer short words of the same letters
    longer = [key for key in keys if key.startswith(word) or word.startswith(key)]
    similar = next(iter([*longer, *close]), None)
    return f"did you mean {similar}?" if similar else f"the keys are {', '.join(keys)}"


_USUAL_MISTAKES = (
    (r"([-+]?\d+(?:\.\d+)?)\s*[A-Za-z%]+\S*", "a number has no unit: write {} = {}"),
    (r"(\d+(?::\d+)+)", 'a time must be in quotes: write {} = "{}"'),
    (r"([A-Za-z_.~/][^\"'#=\[\]{}]*?)", 'text must be in quotes: write {} = "{}"'),
)
"""Values that are not TOML, and the advice."""


def syntax_error(text: str, reason: str) -> str:
    """An error text for a file that is not TOML: the line and the fix of a usual mistake. `reason`: the parser's
    message."""
    at = re.search(r"\(at line (\d+), column \d+\)", reason)
    if at is None:
        return f"cannot be read as TOML: {reason}"
    line = text.split("\n")[int(at[1]) - 1].strip()  # splitlines() would also divide lines at characters such as U+2028
    shown = line if len(line) <= MAX_SHOWN_LINE else f"{line[:MAX_SHOWN_LINE]}..."
    matches = {advice: re.fullmatch(rf"(\S+)\s*=\s*{value}(?:\s*#.*)?", line) for value, advice in _USUAL_MISTAKES}
    remedies = [advice.format(*match.groups()) for advice, match in matches.items() if match]
    remedy = next(iter(remedies), reason)
    return f"line {at[1]} is not TOML: {shown}; {remedy}" if shown else f"cannot be read as TOML: {reason}"


def _value(where: str, hint: Any, value: Any, folder: Path, metadata: Mapping[str, Any]) -> Any:
    """Check and convert a value to a field's type; an optional field's None stands for a missing key, never for a
    value."""
    if get_origin(hint) in (Union, types.UnionType):
        hints = [item for item in get_args(hint) if item is not types.NoneType]
        # a number that may also be a word
        hint = str if str in hints and isinstance(value, str) else hints[0]
    read = _plain(where, value, hint) if hint in _PLAIN else _READERS[hint](where, value, folder)
    if "is_valid" in metadata and not metadata["is_valid"](read):
        raise InputError(f"{where} = {read!r} must {metadata['requirement']}")
    if isinstance(read, int | float) and not 0 <= read <= MAX_VALUE:
        raise InputError(f"{where} = {read!r} is out of range; it must lie between 0 and {MAX_VALUE:g}")
    return float(read) if hint in (float, SimulationTime) else read


def _plain(where: str, value: Any, hint: type) -> Any:
    """The value as it is written: an integer of hundreds of digits does not fit a float."""
    kinds, name = _PLAIN[hint]
    if type(value) not in kinds:
        raise InputError(f"{where} = {value!r} must be {name}")
    return value


def _path(where: str, value: Any, folder: Path) -> Path:
    if not isinstance(value, str):
        raise InputError(f"{where} = {value!r} must be a path in quotes")
    if not value.strip():
        raise InputError(f"{where} is empty; write a path, or leave the key out")
    return folder / value


def _time(where: str, value: Any, folder: Path) -> SimulationTime:
    # TOML has a type for 07:30:00 without quotes
    if not isinstance(value, str | datetime.time):
        return SimulationTime(_plain(where, value, float))
    try:
        return SimulationTime(seconds(str(value)))
    except ValueError:
        raise InputError(f"{where} = {value!r} is not a time; write {time_hint(str(value))}") from None


def _sizes(where: str, value: Any, folder: Path) -> tuple[int, ...]:
    sizes = value if isinstance(value, list) else []
    if not sizes or not all(type(item) is int and 0 < item <= MAX_VALUE for item in sizes):
        raise InputError(f"{where} must be a list of positive integers, such as [64, 64]")
    return tuple(sizes)


def _by_name(kind: type, example: str) -> Callable[[str, Any, Path], dict[str, Any]]:
    """The reader of a table of names and values of one kind."""

    def read(where: str, value: Any, folder: Path) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise InputError(f"{where} = {value!r} must be a table, such as {example}")
        return {name: _value(f"{where} {name}", kind, item, folder, {}) for name, item in value.items()}

    return read


def _texts(where: str, value: Any, folder: Path) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise InputError(f"{where} must be a list of names")
    if repeated := next((item for item in value if value.count(item) > 1), None):
        raise InputError(f"{where} lists {repeated} twice; remove one")
    return tuple(value)


_PLAIN: Mapping[Any, tuple[Sequence[type], str]] = {
    str: ((str,), "a string"),
    int: ((int,), "an integer"),
    float: ((int, float), "a number"),
    bool: ((bool,), "true or false"),
}
_READERS: Mapping[Any, Callable[[str, Any, Path], Any]] = {
    Path: _path,
    SimulationTime: _time,
    tuple[int, ...]: _sizes,
    tuple[str, ...]: _texts,
    dict[str, int]: _by_name(int, '{ "A1B1" = 2 }'),
    dict[str, float]: _by_name(float, "{ left = 90 }"),
    dict[str, str]: _by_name(str, '{ "A1B1:left" = "to the station" }'),
}
