"""Atomic writes: to a temporary file in the same folder, which is then renamed; a power failure leaves one of both."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from city.errors import InputError, refuse

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
        # without this, the name may reach the disk before the content: an empty file
        _sync(draft, os.O_RDONLY)
        draft.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        room = "make room there, or " if error.errno in FULL else ""
        raise InputError(f"{path}: cannot be written: {error.strerror or error}; {room}{remedy}") from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def check_writable(flag: str, path: Path) -> None:
    """Raise InputError if a file that is written at the end of a run could not be written."""
    path = Path(os.path.realpath(path))
    place = path if path.exists() else path.parent
    refuse(
        (path.is_symlink(), f"{flag} {path}: is a symbolic link to itself; name a file"),
        (not path.parent.is_dir(), f"{flag} {path}: there is no folder {path.parent}; create it"),
        (path.is_dir(), f"{flag} {path}: is a folder; name a file in it"),
        (not os.access(place, os.W_OK), f"{flag} {path}: is not writable; name another file"),
    )


def sync_folder(folder: Path) -> None:
    """Write a folder's names to the disk: a file created or renamed in it then survives a power failure.

    Some network file systems cannot do that for a folder; they are left to their server. Raises OSError.
    """
    try:
        _sync(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, text: str, remedy: str = PASS_ANOTHER) -> None:
    """Replace a text file. Raises InputError like `replacing`."""
    with replacing(path, remedy) as draft:
        draft.write_text(text, encoding="utf-8")
