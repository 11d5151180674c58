"""Files that are whole or not there: written beside their place, then renamed."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from city.errors import InputError


@contextlib.contextmanager
def replacing(path: Path, remedy: str = "make room there, or pass another --out") -> Iterator[Path]:
    """A file beside `path` to write, which takes its place after the block.

    Raises InputError with the remedy if it cannot be written; an older file is kept then, and nothing half-written stays.
    """
    draft = path.with_name(f".{path.name}.draft")
    try:
        yield draft
        draft.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}; {remedy}") from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def write(path: Path, text: str, remedy: str = "make room there, or pass another --out") -> None:
    """Replace a text file. Raises InputError, as `replacing`."""
    with replacing(path, remedy) as draft:
        draft.write_text(text, encoding="utf-8")
