"""SUMO's XML files: the options of a .sumocfg, times, and elements one by one."""

import gzip
import hashlib
import os
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

from city.errors import InputError

_LONG_NAMES = {"n": "net-file", "net": "net-file", "r": "route-files", "routes": "route-files", "b": "begin", "e": "end",
                  "a": "additional-files", "additional": "additional-files"}  # fmt: skip
"""Other names that SUMO accepts for its options."""


def options(path: Path) -> dict[str, str]:
    """The options of a .sumocfg by their long names. Raises InputError."""
    values: dict[str, str] = {}
    for _, element in elements(path):
        value = element.get("value", element.get("v"))
        if value is not None:
            values[_LONG_NAMES.get(element.tag, element.tag)] = os.path.expandvars(value)
    return values


def listed(path: Path, option: str) -> list[Path]:
    """The files that an option of a .sumocfg lists, relative to the .sumocfg. Raises InputError."""
    names = options(path).get(option, "").split(",")
    return [path.resolve().parent / name.strip() for name in names if name.strip()]


def digest(sumocfg: Path) -> str:
    """SHA-256 of a .sumocfg and of the network, demand and additional files that it names. Raises InputError."""
    total = hashlib.sha256()
    for path in [
        sumocfg,
        *(each for option in ("net-file", "route-files", "additional-files") for each in listed(sumocfg, option)),
    ]:
        try:
            with path.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}; fix its path in the .sumocfg") from None
    return total.hexdigest()


def seconds(text: str) -> float:
    """Parse a time in SUMO's formats: seconds, or [days:]hours:minutes:seconds. Raises ValueError."""
    parts = text.split(":")
    if len(parts) > 4:
        raise ValueError(text)
    return sum(float(part) * factor for part, factor in zip(reversed(parts), (1, 60, 3600, 86400), strict=False))


def elements(path: Path) -> Iterator[tuple[int, ET.Element]]:
    """Yield (depth, element) at the end of each element; depth 0 is the root. Raises InputError."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            depth = -1
            for event, element in ET.iterparse(file, events=("start", "end")):
                if event == "start":
                    depth += 1
                else:
                    yield depth, element
                    depth -= 1
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; fix its path in the .sumocfg or city.toml") from None
    except (OSError, EOFError, ValueError, ET.ParseError) as error:
        raise InputError(f"{path}: cannot be read as XML: {error}") from None
