"""The ledger's file: one line of JSON for each line, appended and never changed.

An append takes the file's lock, applies what others have appended meanwhile, checks the new line by the rules, and is
on the disk when it returns. A line without its end was cut off by a power failure or a full volume: it was never
reported as written, readers leave it out, and the next append replaces it.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from city import whole_files
from city.errors import InputError
from city.ledger import Ledger, Line, RuleBroken, decode, encode

FILE = Path("ledger.jsonl")
MAX_LINE_BYTES = 1_000_000
REMEDY = "restore the file from its copy"


class LedgerFile:
    """A ledger in a file, and its state as far as it has been read."""

    def __init__(self, path: Path) -> None:
        """Read and verify the file; one that does not exist is an empty ledger. Raises InputError."""
        self.path = path
        self.state = Ledger()
        self.lines: list[Line] = []
        self._read_bytes = 0
        """Size of the whole lines that have been read."""
        self.cut_off = ""
        """Why the file's end is not read: a line without its end; "" if there is none."""
        self.read()

    def read(self) -> None:
        """Apply the lines that were appended since the last call. Raises InputError."""
        try:
            with self.path.open("rb") as stream:
                self._apply(stream.fileno())
        except FileNotFoundError:
            if self._read_bytes:
                raise InputError(f"{self.path}: has been removed; {REMEDY}") from None

    def append(self, line: Line, at: datetime) -> Line:
        """Append a line and return it as it is written. Raises InputError if it breaks a rule, or cannot be written.

        Args:
            line: without its number, time and digests.
            at: the clock. If it has gone back, the line gets the time of the line before.
        """
        with self._locked() as descriptor:
            self._apply(descriptor)
            line = Line(**{**vars(line), "at": max(time_text(at), self.state.at)})
            try:
                line = self.state.followed_by(line)
                state = self.state.after(line)
            except RuleBroken as error:
                raise InputError(str(error)) from None
            data = encode(line) + b"\n"
            try:
                os.ftruncate(descriptor, self._read_bytes)
                _write_all(descriptor, data, self._read_bytes)
                os.fsync(descriptor)
            except OSError as error:
                os.ftruncate(descriptor, self._read_bytes)
                room = "make room there" if error.errno in whole_files.FULL else "look at its file system"
                raise InputError(
                    f"{self.path}: cannot be written: {error.strerror}; {room}, then run this again"
                ) from None
            self.state = state
            self.lines.append(line)
            self._read_bytes += len(data)
            self.cut_off = ""
        return line

    def _apply(self, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        if size < self._read_bytes:
            raise InputError(f"{self.path}: has become shorter; {REMEDY}")
        data = os.pread(descriptor, size - self._read_bytes, self._read_bytes)
        *whole, rest = data.split(b"\n")
        for text in whole:
            try:
                if len(text) > MAX_LINE_BYTES:
                    raise RuleBroken(f"has more than {MAX_LINE_BYTES:,} bytes")
                line = decode(text)
                self.state = self.state.after(line)
            except RuleBroken as error:
                raise InputError(f"{self.path}: line {len(self.lines) + 1} {error}; {REMEDY}") from None
            self.lines.append(line)
            self._read_bytes += len(text) + 1
        self.cut_off = f"the last line was cut off after {len(rest)} bytes, and is left out" if rest else ""

    @contextmanager
    def _locked(self) -> Iterator[int]:
        try:
            is_new = not self.path.exists()
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be opened: {error.strerror}; pass another --ledger") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if is_new:
                whole_files.sync_folder(self.path.parent)
            elif not self.path.exists():
                raise InputError(f"{self.path}: has been removed; {REMEDY}")
            yield descriptor
        finally:
            os.close(descriptor)


def time_text(at: datetime) -> str:
    """A time as lines have it: UTC, milliseconds."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written
