"""A proxy between controller and model server that injects network and server faults."""

import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path


class Fault(Enum):
    NONE = "none"
    DELAY = "delay"
    """Every chunk is delayed by more than the deadline."""
    DROP = "drop"
    """Nothing is forwarded in either direction; connections stay open."""
    HALF_OPEN = "half-open"
    """As drop, and the old connections stay dead afterwards: only new ones reach the server."""
    RESET = "reset"
    """Every connection is reset at once."""
    GARBAGE = "garbage"
    """The server's bytes are replaced by random ones."""
    REFUSE = "refuse"
    """Connections are closed at once, as if no server listened."""


class Proxy:
    """Listens on loopback or on a Unix socket; `fault`, and the `target` of new connections, may change at any time."""

    def __init__(self, target: int | Path, delay_s: float = 0.4) -> None:
        """`target`: the server's port, or the path of its Unix socket; the proxy's is in the same folder."""
        self.target, self._delay_s = target, delay_s
        if isinstance(target, Path):
            path = target.with_name("proxy")
            path.unlink(missing_ok=True)
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(path))
            self._listener.listen()
            self.address = f"unix:{path}"
        else:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._fault, self._stopping = Fault.NONE, False
        self._pairs: list[list[socket.socket]] = []
        self._dead: list[list[socket.socket]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def connections(self) -> list[socket.socket]:
        return [client for client, _ in self._pairs]

    @property
    def fault(self) -> Fault:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault) -> None:
        if self._fault is Fault.HALF_OPEN:
            self._dead, self._pairs = self._dead + self._pairs, []
        self._fault = fault

    def close(self) -> None:
        self._stopping = True
        self._thread.join()
        self._listener.close()
        for pair in self._dead + self._pairs:
            self._close_pair(pair)

    def _run(self) -> None:
        delayed: list[tuple[float, socket.socket, bytes]] = []
        while not self._stopping:
            peers = {source: peer for a, b in self._pairs for source, peer in ((a, b), (b, a))}
            ready, _, _ = select.select([self._listener, *peers], [], [], 0.005)
            if self._fault in (Fault.RESET, Fault.REFUSE):
                for pair in list(self._pairs):
                    self._close_pair(pair, reset=self._fault is Fault.RESET)
            for source in ready:
                if source is self._listener:
                    self._accept()
                elif source.fileno() >= 0:
                    self._forward(source, peers[source], delayed)
            now = time.monotonic()
            while delayed and delayed[0][0] <= now:
                _, peer, data = delayed.pop(0)
                with contextlib.suppress(OSError):
                    peer.sendall(data)

    def _accept(self) -> None:
        client = self._listener.accept()[0]
        if self._fault in (Fault.RESET, Fault.REFUSE):
            client.close()
            return
        try:
            if isinstance(self.target, Path):
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self.target))
            else:
                server = socket.create_connection(("127.0.0.1", self.target), 1)
                for connection in (client, server):
                    # as both ends do: a small segment that waits for an acknowledgement is 40 ms late each way
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            client.close()
            return
        self._pairs.append([client, server])

    def _forward(
        self, source: socket.socket, peer: socket.socket, delayed: list[tuple[float, socket.socket, bytes]]
    ) -> None:
        pair = next((pair for pair in self._pairs if source in pair), None)
        if pair is None:  # it may have died after this round of `_run` began
            return
        try:
            data = source.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._close_pair(pair)
        elif self._fault in (Fault.DROP, Fault.HALF_OPEN):
            return
        elif self._fault is Fault.DELAY or any(late is peer for _, late, _ in delayed):
            # also after the fault, until what was delayed has been forwarded: TCP keeps the order
            delayed.append((time.monotonic() + self._delay_s, peer, data))
        else:
            is_garbage = self._fault is Fault.GARBAGE and source is pair[1]
            with contextlib.suppress(OSError):
                peer.sendall(os.urandom(len(data)) if is_garbage else data)

    def _close_pair(self, pair: list[socket.socket], reset: bool = False) -> None:
        for connection in pair:
            if reset:
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        if pair in self._pairs:
            self._pairs.remove(pair)


@contextlib.contextmanager
def injected(proxy: Proxy, fault: Fault) -> Iterator[None]:
    """Inject a fault during the block."""
    proxy.fault = fault
    yield
    proxy.fault = Fault.NONE
