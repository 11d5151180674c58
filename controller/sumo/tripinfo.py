"""SUMO's tripinfo file: the options to write it with, and the check that it is complete."""

import xml.etree.ElementTree as ET
from pathlib import Path

from city import sumo_files
from city.errors import InputError

TRIPINFO_OPTIONS = ("--tripinfo-output.write-unfinished", "true", "--tripinfo-output.write-undeparted", "true")
"""Include vehicles that never arrive or never depart, with their delay."""
SPECIAL_OUTPUTS = ("stdout", "stderr", "NUL", "/dev/null")
"""Names of outputs that SUMO does not treat as files; HOST:PORT is a socket."""
TABLE_SUFFIXES = {".csv", ".parquet"}
"""Suffixes, also before .gz, for which SUMO writes tables instead of XML."""


def check_complete(tripinfo: Path) -> None:
    """Raise InputError if SUMO has not written its XML tripinfo (.gz too) completely; other outputs are not checked."""
    is_special = str(tripinfo) in SPECIAL_OUTPUTS or ":" in str(tripinfo)
    if is_special or not TABLE_SUFFIXES.isdisjoint(tripinfo.suffixes):
        return
    try:
        with sumo_files.opened(tripinfo) as file:
            elements = ET.iterparse(file, ("start", "end"))
            _, root = next(elements)
            for event, _ in elements:
                if event == "end":
                    root.clear()
    except (OSError, EOFError, StopIteration, ET.ParseError) as error:
        raise InputError(f"{tripinfo}: is not a complete tripinfo file: {error}") from None
