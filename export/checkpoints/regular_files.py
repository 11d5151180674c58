"""Check that checkpoints are regular files of a limited size: a FIFO would block an export, a device would fill the
memory."""

import os
import stat
from pathlib import Path

from city import placeholders
from city.errors import InputError, errors_about

MAX_BYTES = 2 << 30
"""Limit for a file that is read whole, and for its arrays."""
MAX_PLACEHOLDER_BYTES = 1 << 20
"""Larger files are what they are named after."""
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


def check_folder(folder: Path, max_bytes: int = MAX_BYTES) -> None:
    """Raise InputError if a file in a model's folder is missing, not a regular file or too large."""
    for path in sorted(folder.rglob("*")):
        if not path.is_dir():
            check(path, max_bytes)


def check(path: Path, max_bytes: int = MAX_BYTES) -> os.stat_result:
    """The status of a file, with links followed; called before any file of a checkpoint is opened.

    Raises InputError if it is missing, not a regular file or larger than `max_bytes`.
    """
    with errors_about(path):
        try:
            status = path.stat()
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}") from None
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a special file")
            raise InputError(
                f"cannot be read as a checkpoint: it is {kind}, not a regular file; put the file itself there"
            )
        if status.st_size > max_bytes:
            raise InputError(
                f"cannot be read as a checkpoint: it has {status.st_size} bytes, and the limit is {max_bytes}; "
                "save the actor without the rest of the training"
            )
        if status.st_size < MAX_PLACEHOLDER_BYTES and (remedy := placeholders.remedy(path)):
            raise InputError(f"cannot be read as a checkpoint: {remedy}")
    return status
