"""A proxy between controller and model server that does what networks and servers do on bad days."""

import contextlib
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Fault(Enum):
    NONE = "none"
    DELAY = "delay"
    """Every piece comes late, by more than the deadline."""
    DROP = "drop"
    """Nothing comes through, in either direction; connections stay."""
    HALF_OPEN = "half-open"
    """As drop; and after its end the old connections stay dead: only new ones lead to the server."""
    RESET = "reset"
    """Every connection is reset at once."""
    GARBAGE = "garbage"
    """The server's bytes are replaced by noise."""
    REFUSE = "refuse"
    """Connections are closed as soon as they come, as by a server that is not there."""


class Proxy:
    """Listens on loopback, or on a Unix socket; `fault` may be changed at any time."""

    def __init__(self, target: int | Path, delay_s: float = 0.4) -> None:
        """`target`: the server's port, or its Unix socket: then the proxy's is beside it."""
        self._target, self._delay_s = target, delay_s
        if isinstance(target, Path):
            path = target.with_name("proxy")
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(path))
            self._listener.listen()
            self.address = f"unix:{path}"
        else:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._fault, self._stopping = Fault.NONE, False
        self._pairs: list[list[socket.socket]] = []
        self._dead: set[int] = set()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def aim(self, target: int | Path) -> None:
        """The server is elsewhere from now on."""
        self._target = target

    @property
    def connections(self) -> list[socket.socket]:
        """The callers' ends of those there are."""
        return [caller for caller, _ in self._pairs]

    @property
    def fault(self) -> Fault:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault) -> None:
        if self._fault is Fault.HALF_OPEN:
            self._dead |= {id(pair) for pair in self._pairs}
        self._fault = fault

    def close(self) -> None:
        self._stopping = True
        self._thread.join()
        self._listener.close()
        if self.address.startswith("unix:"):
            Path(self.address.removeprefix("unix:")).unlink()
        for pair in list(self._pairs):
            self._end(pair)

    def _run(self) -> None:
        late: list[tuple[float, socket.socket, bytes]] = []
        while not self._stopping:
            alive = [pair for pair in self._pairs if id(pair) not in self._dead]
            sides = {one: other for a, b in alive for one, other in ((a, b), (b, a))}
            ready, _, _ = select.select([self._listener, *sides], [], [], 0.005)
            if self._fault in (Fault.RESET, Fault.REFUSE):
                for pair in list(self._pairs):
                    self._end(pair, reset=self._fault is Fault.RESET)
            for one in ready:
                if one is self._listener:
                    self._accept()
                elif one.fileno() >= 0:
                    self._pass_on(one, sides[one], late)
            now = time.monotonic()
            while late and late[0][0] <= now:
                _, other, data = late.pop(0)
                with contextlib.suppress(OSError):
                    other.sendall(data)

    def _accept(self) -> None:
        client = self._listener.accept()[0]
        if self._fault in (Fault.RESET, Fault.REFUSE):
            client.close()
            return
        try:
            if isinstance(self._target, Path):
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._target))
            else:
                server = socket.create_connection(("127.0.0.1", self._target), 1)
                for one in (client, server):
                    # as both ends do: a small piece that waits for the last one's acknowledgement is late by 40 ms each way
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            client.close()
            return
        self._pairs.append([client, server])

    def _pass_on(self, one: socket.socket, other: socket.socket, late: list[tuple[float, socket.socket, bytes]]) -> None:
        pair = next((pair for pair in self._pairs if one in pair), None)
        if pair is None:
            return
        try:
            data = one.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._end(pair)
        elif self._fault in (Fault.DROP, Fault.HALF_OPEN):
            return
        elif self._fault is Fault.DELAY:
            late.append((time.monotonic() + self._delay_s, other, data))
        else:
            noise = self._fault is Fault.GARBAGE and one is pair[1]
            with contextlib.suppress(OSError):
                other.sendall(os.urandom(len(data)) if noise else data)

    def _end(self, pair: list[socket.socket], reset: bool = False) -> None:
        for one in pair:
            if reset:
                with contextlib.suppress(OSError):
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()
        if pair in self._pairs:
            self._pairs.remove(pair)
        self._dead.discard(id(pair))  # the next pair may get its id


class ProxyProcess:
    """A `Proxy` in a process of its own, where no work of the caller's holds it up."""

    def __init__(self, target: int | Path) -> None:
        command = [sys.executable, "-m", "tests.end_to_end.faults", str(target)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.address = self._hear()
        self._fault = Fault.NONE

    def aim(self, target: int | Path) -> None:
        """The server is elsewhere from now on."""
        self._tell("aim", target)

    @property
    def fault(self) -> Fault:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault) -> None:
        self._tell("fault", fault.value)
        self._fault = fault

    def close(self) -> None:
        self._process.communicate(timeout=30)

    def _tell(self, word: str, value: object) -> None:
        assert self._process.stdin is not None
        print(word, value, file=self._process.stdin, flush=True)
        assert self._hear() == "done"

    def _hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def _target(value: str) -> int | Path:
    return int(value) if value.isdecimal() else Path(value)


def main() -> None:
    """Do what standard input says until it ends."""
    proxy = Proxy(_target(sys.argv[1]))
    print(proxy.address, flush=True)
    for line in sys.stdin:
        word, value = line.strip().split(maxsplit=1)
        if word == "aim":
            proxy.aim(_target(value))
        else:
            proxy.fault = Fault(value)
        print("done", flush=True)
    proxy.close()


if __name__ == "__main__":
    main()
