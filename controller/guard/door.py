"""Where controllers knock: a loopback port, and a record by which the next controller finds it."""

import contextlib
import fcntl
import json
import os
import socket
from pathlib import Path
from typing import TextIO

from city.errors import InputError

FIRST_S, FIRST_BYTES = 1.0, 1 << 10
"""Wall time in which whoever comes must say something, and the most that a first message may hold: it asks for the version."""


class Door:
    """Open from the beginning, so that a controller may come before SUMO's other clients have."""

    def __init__(self, port: int, record: Path | None) -> None:
        """`port`: 0 for a free one. Raises InputError."""
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.listener.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise InputError(f"--port {port}: cannot be listened on ({error}); choose another") from None
        self.listener.listen(4)
        self.port = int(self.listener.getsockname()[1])
        self._path, self._record = record, _write(record, self.port) if record is not None else None

    def accept(self, timeout_s: float) -> socket.socket | None:
        """Who has come and begins to speak TraCI; whoever says something else, or nothing, is sent away."""
        self.listener.settimeout(timeout_s)
        with contextlib.suppress(TimeoutError, BlockingIOError, ConnectionError):
            visitor = self.listener.accept()[0]
            if _speaks(visitor):
                visitor.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return visitor
            visitor.close()
        return None

    def close(self) -> None:
        """Take no controller any more: one that came now would wait for ever."""
        self.listener.close()
        if self._path is not None and self._record is not None:
            self._path.unlink(missing_ok=True)
            self._record.close()
            self._record = None


def port_of(record: Path) -> int | None:
    """The port of a guard that runs: it keeps a lock on its record for as long as its door is open."""
    try:
        with record.open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(json.load(file)["port"])
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _speaks(visitor: socket.socket) -> bool:
    """Whether somebody's first message comes at once, and is of a controller's length: the simulation stands still meanwhile."""
    visitor.settimeout(FIRST_S)
    try:
        size = visitor.recv(4, socket.MSG_PEEK | socket.MSG_WAITALL)
    except OSError:
        return False
    return len(size) == 4 and int.from_bytes(size) <= FIRST_BYTES


def _write(path: Path, port: int) -> TextIO:
    """The record, locked for as long as it is open. Raises InputError."""
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        file = beside.open("w", encoding="utf-8")
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump({"port": port, "pid": os.getpid()}, file)
        file.flush()
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise InputError(f"--record {path}: cannot be written ({error})") from None
    return file
