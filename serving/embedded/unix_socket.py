"""gRPC over a Unix socket without gRPC's threads, for callers on the same machine: unary calls."""

import contextlib
import errno
import socket
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serving.embedded.grpc_method import Method
from serving.embedded.logs import log
from serving.embedded.unix_peer import Methods, Peer

MOST_CONNECTIONS = 256


class InUse(Exception):
    """The path cannot be listened on; the text says why."""


class UnixSocket:
    """Listens on a path."""

    def __init__(self, path: Path, most_calls: int) -> None:
        """`most_calls`: those that wait for threads or are worked on there; more are answered RESOURCE_EXHAUSTED."""
        self.path = path
        self._methods = Methods(most_calls)
        self._identity = (0, 0)
        self._changed = threading.Condition()
        self._peers: set[Peer] = set()
        self._is_stopping = False
        self._socket: socket.socket | None = None

    def add(self, service: str, methods: Mapping[str, Method], pool: Any) -> None:
        """Answer a service's methods, by name; `pool`: the executor of those that take time. Before `start`."""
        self._methods.add(service, methods, pool)

    def start(self) -> None:
        """Listen. Raises InUse."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._clear()
            listening.bind(str(self.path))
            self._identity = _identity(self.path)
            listening.listen(64)
        except (OSError, ValueError) as error:
            listening.close()
            raise InUse(getattr(error, "strerror", None) or str(error)) from None
        self._socket = listening
        threading.Thread(target=self._accept, args=(listening,), name="unix", daemon=True).start()

    def _clear(self) -> None:
        """Take away the socket that a server left there which is no more."""
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(self.path.stat().st_mode):
                raise OSError(errno.EEXIST, "there is a file of that name")
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.setblocking(False)  # one that hangs is there, too
                try:
                    probe.connect(str(self.path))
                except ConnectionRefusedError:
                    self.path.unlink()
                    return
                except BlockingIOError:
                    pass
            raise OSError(errno.EADDRINUSE, "another server listens there")

    def stop(self, drain_s: float) -> None:
        """Take no more calls; those under way have drain_s to end."""
        end_s = time.monotonic() + drain_s
        if self._socket is None:
            return
        with contextlib.suppress(OSError):
            # while it still listens, nobody else takes the path; somebody may have removed it, and put another there
            if _identity(self.path) == self._identity:
                self.path.unlink()
        with self._changed:
            self._is_stopping = True
            peers = list(self._peers)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        self._socket.close()
        for peer in peers:
            peer.leave(end_s)
        with self._changed:
            self._changed.wait_for(lambda: not any(peer.under_way for peer in self._peers), max(end_s - time.monotonic(), 0))
        for peer in peers:
            peer.close()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connected, _ = listening.accept()
            except OSError as error:
                if self._is_stopping:
                    return
                log.error("%s: a connection could not be taken: %s", self.path, error.strerror)
                time.sleep(0.1)  # no files left, most likely: others may end
                continue
            peer = Peer(connected, self.path, self._methods, self._notice, self._forget)
            with self._changed:
                is_taken = not self._is_stopping and len(self._peers) < MOST_CONNECTIONS
                if is_taken:
                    self._peers.add(peer)
            try:
                if is_taken:
                    threading.Thread(target=peer.read, name="unix_peer", daemon=True).start()
                    continue
            except RuntimeError as error:
                log.error("%s: a connection could not be taken: %s", self.path, error)
                self._forget(peer)
            connected.close()

    def _forget(self, peer: Peer) -> None:
        with self._changed:
            self._peers.discard(peer)
            self._changed.notify_all()

    def _notice(self) -> None:
        """A call has ended."""
        if self._is_stopping:
            with self._changed:
                self._changed.notify_all()


def _identity(path: Path) -> tuple[int, int]:
    """Of a file, whatever its name becomes. Raises OSError."""
    found = path.stat()
    return found.st_dev, found.st_ino
