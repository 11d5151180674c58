"""Text files that are whole or not there: written beside their place, then renamed."""

import contextlib
from pathlib import Path

from city.errors import InputError


def write(path: Path, text: str) -> None:
    """Replace a file. Raises InputError; an older file is kept then, and nothing half-written stays."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise InputError(
            f"{path}: cannot be written: {error.strerror or error}; make room there, or pass another --out"
        ) from None
