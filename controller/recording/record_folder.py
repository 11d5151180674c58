"""The folder of a record: names, locks and the size of its files.

A file is locked (flock) while it is written. The oldest files are deleted to keep the folder below
its limit: only those that are named like a record, begin like one, and are not locked.
"""

import contextlib
import datetime
import fcntl
import logging
import os
import re
import struct
from pathlib import Path
from typing import IO

from mcap.writer import MCAP0_MAGIC

from city import whole_files
from controller.recording.record_writer import PROFILE, SUFFIX

log = logging.getLogger("controller")

NAME = re.compile(rf"\d{{8}}T\d{{6}}Z-[0-9a-f]+-\d{{4,}}{re.escape(SUFFIX)}")
_HEADER = re.compile(
    re.escape(MCAP0_MAGIC) + rb"\x01.{8}" + re.escape(struct.pack("<I", len(PROFILE)) + PROFILE.encode()), re.DOTALL
)
"""How a record begins: MCAP's magic, and a header with our profile."""


def file_name(begin_ns: int, run: str, number: int) -> str:
    """The name of a file: its begin in UTC, the run's id, and the file's number in the run. Names sort by time."""
    begin = datetime.datetime.fromtimestamp(begin_ns // 1_000_000_000, datetime.UTC)
    return f"{begin:%Y%m%dT%H%M%SZ}-{run}-{number:04d}{SUFFIX}"


class RecordFolder:
    """Creates the files of a record, and deletes the oldest ones."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        """`max_bytes`: limit of all record files in the folder together, also of other controllers'."""
        self.path, self.max_bytes = path, max_bytes
        self._undeletable: set[str] = set()
        """Files that could not be deleted, and were reported."""

    def create(self, name: str) -> IO[bytes]:
        """Create and lock a file whose name is on the disk. Raises OSError."""
        stream = (self.path / name).open("xb")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            whole_files.sync_folder(self.path)
        except OSError:
            stream.close()
            raise
        return stream

    def make_room(self, needed_bytes: int, own: str = "") -> None:
        """Delete the oldest files until `needed_bytes` more fit below the limit, or none can be deleted.

        `own`: name of the file for which the room is, which does not count. Raises OSError if the folder cannot be
        read.
        """
        sizes: dict[str, int] = {}
        for path in self.path.iterdir():
            if NAME.fullmatch(path.name) and path.name != own:
                with contextlib.suppress(FileNotFoundError):  # another controller has deleted it
                    sizes[path.name] = path.stat().st_size
        excess = sum(sizes.values()) + needed_bytes - self.max_bytes
        for name in sorted(sizes):
            if excess <= 0:
                return
            if self._delete(self.path / name):
                log.info("deleted %s, so that the record stays below %g GB", self.path / name, self.max_bytes / 1e9)
                excess -= sizes[name]

    def _delete(self, path: Path) -> bool:
        """Delete a file if it is a record that no process writes; whether it is gone."""
        try:
            with path.open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _HEADER.match(stream.read(64)):
                    return False
                path.unlink()
                return True
        except FileNotFoundError:
            return True
        except BlockingIOError:
            return False  # it is being written
        except OSError as error:
            if path.name not in self._undeletable:
                self._undeletable.add(path.name)
                log.warning("%s cannot be deleted, so the record may exceed its limit: %s", path, error.strerror)
            return False


def is_in_place(stream: IO[bytes], path: Path) -> bool:
    """True while `path` names the file that is open, and neither it nor its folder has been deleted."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False
