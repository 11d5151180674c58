"""Temporary folders of simulations. A killed process cannot remove its own: the next one does."""

import contextlib
import fcntl
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "greenserve-simulation-"
LOCK = ".lock"
"""File that the folder's process keeps locked until it ends."""
MIN_AGE_S = 60.0
"""A younger folder may be one whose process has not locked it yet."""


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a temporary folder, and remove it after the block; first remove those of processes that were killed."""
    _remove_abandoned(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name, (Path(name) / LOCK).open("w") as lock:
        with contextlib.suppress(OSError):  # some network file systems have no locks: then nothing removes it
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(name)


def _remove_abandoned(parent: Path) -> None:
    for lock in parent.glob(f"{PREFIX}*/{LOCK}"):
        # another user's folder, or one that is being removed
        with contextlib.suppress(OSError):
            if time.time() - lock.stat().st_mtime < MIN_AGE_S:
                continue
            with lock.open("a") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent)
