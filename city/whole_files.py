"""Atomic writes: to a temporary file in the same folder, which is then renamed."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from city.errors import InputError

PASS_ANOTHER = "pass another --out"
FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def replacing(path: Path, remedy: str = PASS_ANOTHER) -> Iterator[Path]:
    """Yield a temporary file to write, which replaces `path` after the block.

    Raises InputError with the remedy if writing fails: the old file is kept, and the temporary one removed.
    """
    # two runs may write the same file: the last one to end wins, with a whole file
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        yield draft
        draft.replace(path)
    except OSError as error:
        room = "make room there, or " if error.errno in FULL else ""
        raise InputError(f"{path}: cannot be written: {error.strerror or error}; {room}{remedy}") from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def write(path: Path, text: str, remedy: str = PASS_ANOTHER) -> None:
    """Replace a text file. Raises InputError like `replacing`."""
    with replacing(path, remedy) as draft:
        draft.write_text(text, encoding="utf-8")
