"""A lock that only one run holds, for folders into which two runs must not write the same results."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from city.errors import InputError


class IsHeld(InputError):
    """Another run holds the lock."""


@contextlib.contextmanager
def held(path: Path, message: str) -> Iterator[None]:
    """Hold the lock of a file, which exists while the lock is held; the kernel releases the lock if the process dies.

    Args:
        path: file of the lock; its folder is created, and removed if it is empty after the run.
        message: text of the IsHeld error if another run holds the lock; it names the remedy.

    Raises InputError.
    """
    is_new_folder = not path.parent.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = _locked(path)
    except BlockingIOError:
        raise IsHeld(message) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be locked: {error.strerror or error}; pass another --out") from None
    try:
        yield
    finally:
        # removed before it is released, so that no other run locks a file that is about to be removed;
        # a folder with results is not empty, and a file that remains is harmless: it is not locked
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            if is_new_folder:
                path.parent.rmdir()
        os.close(fd)


def _locked(path: Path) -> int:
    """A descriptor that holds the lock of the file at `path`. Raises BlockingIOError if another one holds it."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), path.stat()):
                    return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # the file was removed by the run that held it
