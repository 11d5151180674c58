"""SUMO's XML files: options of a .sumocfg, times, and elements in a streaming pass."""

import gzip
import hashlib
import math
import os
import re
import xml.etree.ElementTree as ET
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from city import placeholders
from city.errors import InputError, os_errors

_LONG_NAMES = {
    "n": "net-file",
    "net": "net-file",
    "r": "route-files",
    "routes": "route-files",
    "a": "additional-files",
    "additional": "additional-files",
    "b": "begin",
    "e": "end",
    "tripinfo": "tripinfo-output",
    "summary": "summary-output",
    "vehroutes": "vehroute-output",
    "ndump": "netstate-dump",
    "netstate": "netstate-dump",
    "netstate-output": "netstate-dump",
    "l": "log",
    "log-file": "log",
}
"""Other names that SUMO accepts for its options."""
_MAX_INCLUDES = 20
"""Depth of files that include files."""
_CUT_OFF = ("no element found", "unclosed token")
"""Texts of the XML parser's errors at the end of a file that is not complete."""
_MAX_TIME_S = 1e12
"""Larger ones are not times: SUMO counts milliseconds in 64 bits."""
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_TIME = re.compile(rf"\s*(?:(?:\d+:)?\d+:\d+:)?{_NUMBER}", re.ASCII)


def options(path: Path) -> dict[str, str]:
    """The options of a .sumocfg by their long names. Raises InputError."""
    values: dict[str, str] = {}
    for _, element in elements(path):
        value = element.get("value", element.get("v"))
        if value is not None:
            values[long_name(element.tag)] = os.path.expandvars(value)
    return values


def long_name(option: str) -> str:
    """The long name of an option of a .sumocfg."""
    return _LONG_NAMES.get(option, option)


def listed_files(path: Path, option: str) -> list[Path]:
    """The files that an option of a .sumocfg lists, relative to the .sumocfg. Raises InputError."""
    names = options(path).get(option, "").split(",")
    return [path.resolve().parent / name.strip() for name in names if name.strip()]


def digest(sumocfg: Path) -> str:
    """SHA-256 of a .sumocfg and of the network, demand and additional files that it names. Raises InputError."""
    result = hashlib.sha256()
    inputs = [
        path for option in ("net-file", "route-files", "additional-files") for path in listed_files(sumocfg, option)
    ]
    for path in (sumocfg, *inputs):
        with os_errors(f"{path}: cannot be read", "fix its path in the .sumocfg"), path.open("rb") as file:
            result.update(hashlib.file_digest(file, "sha256").digest())
    return result.hexdigest()


def seconds(text: str) -> float:
    """Parse a time as SUMO does: seconds, hours:minutes:seconds or days:hours:minutes:seconds. Raises ValueError.

    SUMO 1.28 refuses other forms, minutes:seconds included.
    """
    if not _TIME.fullmatch(text):
        raise ValueError(text)
    units = (1, 60, 3600, 86400)
    value = sum(float(part) * unit for part, unit in zip(reversed(text.split(":")), units, strict=False))
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def time_text(second: float) -> str:
    """A simulated second as SUMO writes times: hours:minutes:seconds, with days before them from the second day on."""
    if not abs(second) < _MAX_TIME_S:
        return f"{second:g}"
    milliseconds = round(abs(second) * 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    whole, fraction = divmod(milliseconds, 1000)
    text = f"{hours:02}:{minutes:02}:{whole:02}" + (f".{fraction:03}".rstrip("0") if fraction else "")
    return ("-" if second < 0 else "") + (f"{days}:" if days else "") + text


def time_hint(text: str) -> str:
    """How to write a time, for an error about `text`, which is not one of SUMO's."""
    if re.fullmatch(r"\d{1,2}:\d{2}", text):
        return (
            f"hours, minutes and seconds, such as {text}:00, or seconds, such as "
            f"{3600 * int(text[:-3]) + 60 * int(text[-2:])}"
        )
    return "seconds, such as 3600, or hours:minutes:seconds, such as 08:15:00"


def read_elements(path: Path, read: Callable[[ET.Element], None], remedy: str) -> None:
    """Call `read` with each element when it ends. Raises InputError with the remedy if an element is malformed.

    `read`: raises KeyError for a missing attribute, ValueError for a wrong value.
    """
    for depth, element in elements(path):
        try:
            read(element)
        except (KeyError, ValueError) as error:
            attributes = " ".join(f'{key}="{value}"' for key, value in list(element.attrib.items())[:3])
            reason = f"attribute {error} is missing" if isinstance(error, KeyError) else error
            raise InputError(f"{path}: <{element.tag} {attributes}> is malformed ({reason}); {remedy}") from None
        if depth == 1:
            element.clear()


def elements(path: Path) -> Iterator[tuple[int, ET.Element]]:
    """Yield (depth, element) when each element ends; the root has depth 0. Raises InputError."""
    try:
        with opened(path) as file:
            depth = -1
            for event, element in ET.iterparse(file, events=("start", "end")):
                if event == "start":
                    depth += 1
                else:
                    yield depth, element
                    depth -= 1
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; fix its path in the .sumocfg or city.toml") from None
    except (OSError, EOFError, ValueError, zlib.error, ET.ParseError) as error:
        raise InputError(f"{path}: cannot be read as XML: {error}{_remedy(path, error)}") from None


def with_includes(path: Path, depth: int = 0) -> list[Path]:
    """The files that an additional file includes, and the file itself behind them. Raises InputError.

    `depth`: how many files include one another down to this one.
    """
    if depth > _MAX_INCLUDES:
        raise InputError(f"{path}: is included by a file that it includes; remove one of the two <include>s")
    files: list[Path] = []
    for _, element in elements(path):
        if element.tag == "include":
            files += with_includes(path.parent / element.get("href", ""), depth + 1)
        element.clear()
    return [*files, path]


def opened(path: Path) -> BinaryIO:
    """Open a file that may be gzipped, by its content as SUMO does, and not by its name. Raises OSError."""
    with path.open("rb") as file:
        is_gzipped = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path)) if is_gzipped else path.open("rb")


def _remedy(path: Path, error: Exception) -> str:
    """How to get the file that a person meant, to follow an error; "" if unknown."""
    if path.is_dir():
        return "; name a file"
    remedy = placeholders.remedy(path) if path.is_file() and os.access(path, os.R_OK) else ""
    if not remedy and (isinstance(error, EOFError) or any(text in str(error) for text in _CUT_OFF)):
        remedy = "it ends too early: copy it again"
    return remedy and f"; {remedy}"
