"""The files of the prediction logs: PREFIX-20261125T181000Z-0000.tfrecord below one folder, of bounded size together.

A file is opened for each append and holds whole records only, unless the server was killed during a write. So files may
be moved or deleted while the server runs: the next append begins a new one.
"""

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_FILE_BYTES = 64 << 20
"""Size at which a new file begins."""
SLACK = 0.05
"""Share of the folder's limit that is kept free, so that the folder is not listed for each append."""
MAX_FILES_A_SECOND = 10_000
_NAME = re.compile(r".+-\d{8}T\d{6}Z-\d{4}\.tfrecord", re.DOTALL)
# no link, device or FIFO: another program may write to the folder
_OPEN_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class _File:
    path: Path
    bytes: int
    mtime_ns: int


class LogFiles:
    """Appends records to the newest file of a prefix. Not thread-safe."""

    def __init__(self, root: Path, max_bytes: int, wall_clock: Callable[[], float] = time.time) -> None:
        """Prepare; nothing is written yet.

        Args:
            root: folder of the files, which must exist whenever they are written.
            max_bytes: limit of all log files in it together; the oldest are deleted first, those of other runs too.
            wall_clock: s since 1970.
        """
        self._root, self._max_bytes, self._wall_clock = root, max_bytes, wall_clock
        self._current: dict[Path, Path] = {}
        """Prefix -> its newest file."""
        self._free_bytes = 0
        """Bytes that may be written before the folder's size is looked at again."""

    def append(self, prefix: Path, data: bytes) -> None:
        """Append whole records. Raises OSError; then nothing of them stays in the file.

        Args:
            prefix: begin of the files' paths; a relative one lies in the folder.
            data: the encoded records.
        """
        if not self._root.is_dir():
            raise FileNotFoundError(errno.ENOENT, "the folder of the logs is missing", str(self._root))
        if len(data) > self._free_bytes:
            self._make_room(len(data))
        with self._open(self._root / prefix) as descriptor:
            _write(descriptor, data)
        self._free_bytes -= len(data)

    @contextlib.contextmanager
    def _open(self, prefix: Path) -> Iterator[int]:
        """The prefix's newest file, or a new one if that is full, or gone."""
        descriptor = self._reopen(prefix)
        if descriptor is None:
            descriptor = self._create(prefix)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _reopen(self, prefix: Path) -> int | None:
        path = self._current.get(prefix)
        if path is None:
            return None
        try:
            descriptor = os.open(path, _OPEN_FLAGS)
        except OSError:
            return None  # moved or deleted, or a link or FIFO is there now
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_size < MAX_FILE_BYTES:
            return descriptor
        os.close(descriptor)
        return None

    def _create(self, prefix: Path) -> int:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        begin = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._wall_clock()))
        for number in range(MAX_FILES_A_SECOND):
            path = prefix.with_name(f"{prefix.name}-{begin}-{number:04d}.tfrecord")
            with contextlib.suppress(FileExistsError):
                descriptor = os.open(path, _OPEN_FLAGS | os.O_CREAT | os.O_EXCL, 0o644)
                self._current[prefix] = path
                return descriptor
        raise FileExistsError(errno.EEXIST, f"{MAX_FILES_A_SECOND} files of this second exist", str(prefix))

    def _make_room(self, size: int) -> None:
        """Delete the oldest files until so many bytes and the slack are free. Raises OSError if that is impossible."""
        files = sorted(_log_files(self._root), key=lambda file: file.mtime_ns)
        slack = int(SLACK * self._max_bytes)
        free = self._max_bytes - sum(file.bytes for file in files)
        for file in files:
            if free >= size + slack:
                break
            file.path.unlink(missing_ok=True)
            free += file.bytes
        if free < size:
            raise OSError(errno.EFBIG, f"{size} bytes are more than all logs may have (--logs_max_mb)", str(self._root))
        self._free_bytes = min(free, size + slack)


def _log_files(root: Path) -> Iterator[_File]:
    """The log files below a folder."""
    for folder, _, names in os.walk(root):
        for name in filter(_NAME.fullmatch, names):
            path = Path(folder, name)
            with contextlib.suppress(FileNotFoundError):  # moved or deleted in this moment
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    yield _File(path, status.st_size, status.st_mtime_ns)


def _write(descriptor: int, data: bytes) -> None:
    """Write all bytes at the end of a file. Raises OSError; then the file has its former size."""
    begin = os.fstat(descriptor).st_size
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except OSError:
        with contextlib.suppress(OSError):  # the write's own error has the reason
            os.ftruncate(descriptor, begin)
        raise
