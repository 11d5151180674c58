"""The loopback port on which a guard accepts controllers, and the PID file with which a controller finds it."""

import contextlib
import fcntl
import json
import math
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from city.errors import InputError
from controller.sumo.access import SumoAccess

FIRST_MESSAGE_TIMEOUT_S = 1.0
"""Wall time in which a client must send its first message."""
MAX_FIRST_MESSAGE_BYTES = 1 << 10
"""Limit of the first message: a controller first requests the version, which is shorter."""


class TraciListener:
    """Accepts controllers; it listens before the guard connects to SUMO, which may wait for its other clients."""

    def __init__(self, port: int, pid_file: Path | None, settings: Mapping[str, Any] | None = None) -> None:
        """Listen at `port`, 0 for a free one, and write the PID file with the guard's settings. Raises InputError."""
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.socket.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise InputError(f"--port {port}: cannot listen on it ({error}); choose another port") from None
        self.socket.listen(4)
        self.port = int(self.socket.getsockname()[1])
        self._path = pid_file
        self._pid_file = None if pid_file is None else _write(pid_file, {"port": self.port, **(settings or {})})

    def accept(self, timeout_s: float) -> socket.socket | None:
        """Accept a client if its first bytes look like TraCI, else close it; None if there is no such client."""
        self.socket.settimeout(timeout_s)
        with contextlib.suppress(TimeoutError, BlockingIOError, ConnectionError):
            connection = self.socket.accept()[0]
            if _looks_like_traci(connection):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection
            connection.close()
        return None

    def close(self) -> None:
        """Accept no more controllers: a client that connected later would wait forever."""
        self.socket.close()
        if self._path is not None and self._pid_file is not None:
            self._path.unlink(missing_ok=True)
            self._pid_file.close()
            self._pid_file = None


def settings(sumo: SumoAccess, watchdog_s: float, end_s: float | None) -> dict[str, Any]:
    """A guard's settings, for its PID file."""
    return {
        "watchdog_s": watchdog_s,
        "--end": None if end_s == math.inf else end_s,
        "--clients": sumo.clients if sumo.attach is None else None,
        "arguments": list(sumo.arguments),
    }


def record_of(pid_file: Path) -> dict[str, Any] | None:
    """Read the PID file of a running guard: port, pid, settings. None if it has ended: it locks the file while it
    listens."""
    try:
        with pid_file.open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                record = json.load(file)
                return {**record, "port": int(record["port"])}
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _looks_like_traci(connection: socket.socket) -> bool:
    """True if the first message arrives at once and has a controller's length; the simulation waits meanwhile."""
    connection.settimeout(FIRST_MESSAGE_TIMEOUT_S)
    try:
        size = connection.recv(4, socket.MSG_PEEK | socket.MSG_WAITALL)
    except OSError:
        return False
    return len(size) == 4 and int.from_bytes(size) <= MAX_FIRST_MESSAGE_BYTES


def _write(path: Path, record: Mapping[str, Any]) -> TextIO:
    """Write the PID file and return it open: it is locked until it is closed. Raises InputError."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        file = temporary.open("w", encoding="utf-8")
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump({**record, "pid": os.getpid()}, file)
        file.flush()
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise InputError(f"--pid-file {path}: cannot be written ({error})") from None
    return file
