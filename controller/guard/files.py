"""The files of this user's guards: PID file, lock and log of each, in a folder for temporary files."""

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from city.errors import InputError
from controller.guard.listener import record_of

OPERATOR_PREFIX = "operator-"
"""Begin of the names of files with what operators have set, which hold until it is taken back."""
MAX_AGE_S = 7 * 86400.0
"""Wall time for which the files of a guard that has ended are kept, so that its log can be read."""


def folder(or_else: str = "") -> Path:
    """The folder of the files. Raises InputError if it is a link or belongs to another user.

    `or_else`: a further remedy.

    Any user may write to /tmp: through a link of another user this process would write its files elsewhere.
    """
    path = Path(tempfile.gettempdir()) / f"greenserve-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise InputError(f"{path}: is a link or a file, not a folder; remove it, or set TMPDIR{or_else}")
    if found.st_uid != os.getuid():
        raise InputError(f"{path}: belongs to another user; set TMPDIR{or_else}")
    return path


@contextlib.contextmanager
def locked(pid_file: Path) -> Iterator[TextIO]:
    """Wait for the lock of a PID file, and hold it: of two controllers that start at once, one starts the guard."""
    path = pid_file.with_suffix(".lock")
    while True:
        with path.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_at(lock, path):  # else `remove_old` has removed it meanwhile
                yield lock
                return


def remove_old(path: Path) -> None:
    """Remove the files of guards that ended more than MAX_AGE_S ago. `path`: the folder."""
    os.utime(path)
    now = path.stat().st_mtime  # by the clock of the files' own times
    for file in sorted(path.iterdir()):
        if file.name.startswith(OPERATOR_PREFIX):
            continue
        with contextlib.suppress(OSError):  # another process has removed it, or holds its lock
            if now - file.stat().st_mtime > MAX_AGE_S and record_of(file.with_suffix(".json")) is None:
                _remove(file)


def _remove(file: Path) -> None:
    """Remove a file, unless a process holds its lock. Raises OSError."""
    if file.suffix not in (".lock", ".log"):
        file.unlink()
        return
    with file.open() as opened:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.unlink()


def _is_at(file: TextIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
