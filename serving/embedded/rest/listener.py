"""Accept the connections of the REST API: fewer than the process may open files, and none that stays silent.

At the limit of open files, asyncio's own accept loop logs a traceback for every waiting connection, again and again.
"""

import asyncio
import math
import resource
import socket
import time
from collections.abc import Callable

from serving.embedded.telemetry import log

MAX_PENDING_CONNECTIONS = 4096
"""Connections that may wait to be accepted; on Linux net.core.somaxconn limits it further."""
MAX_CONNECTIONS = 1 << 15
"""Open connections; at most half of the files that the process may open, because gRPC's connections need files, too."""
FIRST_REQUEST_TIMEOUT_S = 20.0
"""Wall time within which the headers of a connection's first request must arrive."""
UNREAD_TIMEOUT_S = 60.0
"""Wall time after which a connection whose client does not read its response is closed."""
ACCEPT_RETRY_S = 1.0
"""Wall time between attempts to accept while no file can be opened."""
WARNING_INTERVAL_S = 60.0


def max_connections() -> int:
    """The maximum number of open connections."""
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if open_files == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, open_files // 2)


class RestListener:
    """The listening sockets of an address. All methods run in the event loop's thread."""

    def __init__(
        self, host: str, port: int, protocol: Callable[[], asyncio.Protocol], connections: Callable[[], int]
    ) -> None:
        """Bind and listen; `start` accepts. Raises OSError if the address is unusable.

        Args:
            host: address or name.
            port: 0: the system chooses.
            protocol: creates the protocol of a connection.
            connections: returns the number of open connections.
        """
        self._protocol, self._connections = protocol, connections
        self._max_connections = max_connections()
        self._sockets: list[socket.socket] = []
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(infos):
                self._sockets.append(socket.create_server(address, family=family, backlog=MAX_PENDING_CONNECTIONS))
                self._sockets[-1].setblocking(False)
        except OSError:
            self.close()
            raise
        self.port: int = self._sockets[0].getsockname()[1]
        self._silent = set[asyncio.BaseTransport]()
        """Connections without a request."""
        self._tasks = set[asyncio.Task[None]]()
        self._warned_s = -math.inf

    def start(self) -> None:
        """Accept connections."""
        for listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def close(self) -> None:
        """Refuse new connections; open ones stay."""
        for listening in self._sockets:
            if listening.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(listening)
                listening.close()

    def note_request(self, transport: asyncio.BaseTransport | None) -> None:
        """Record that a request has arrived on a connection."""
        if transport is not None:
            self._silent.discard(transport)

    def _accept(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            # no file can be opened now, so the connection stays in the socket's queue
            loop = asyncio.get_running_loop()
            loop.remove_reader(listening)
            loop.call_later(ACCEPT_RETRY_S, self._accept_again, listening)
            self._warn(f"connections wait to be accepted: {error.strerror}")
            return
        # those that are accepted become open ones in tasks
        if self._connections() + len(self._tasks) >= self._max_connections:
            connection.close()
            self._warn(f"connections beyond {self._max_connections} are closed; raise the limit of open files")
            return
        task = asyncio.get_running_loop().create_task(self._open(connection))
        self._tasks.add(task)  # asyncio keeps no reference
        task.add_done_callback(self._tasks.discard)

    def _accept_again(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    async def _open(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * UNREAD_TIMEOUT_S))
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_accepted_socket(self._protocol, connection)
        self._silent.add(transport)
        loop.call_later(FIRST_REQUEST_TIMEOUT_S, self._end_if_silent, transport)

    def _end_if_silent(self, transport: asyncio.Transport) -> None:
        if transport in self._silent:
            self._silent.remove(transport)
            transport.abort()

    def _warn(self, message: str) -> None:
        """Log a line, unless one was logged a moment ago."""
        if time.monotonic() >= self._warned_s + WARNING_INTERVAL_S:
            self._warned_s = time.monotonic()
            log.warning("REST: %s", message)
