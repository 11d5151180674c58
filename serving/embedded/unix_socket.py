"""gRPC over a Unix socket without gRPC's threads: unary calls, answered where they are read if that is quick.

For callers on the same machine. Each connection has one thread, which reads it. A
call that the method knows to be quick is answered there and then: no other
thread has to wake up. Every other call goes to the method's threads, so that a
model that takes its time holds up nobody.
"""

import contextlib
import errno
import functools
import re
import socket
import stat
import struct
import threading
import time
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from serving import http2
from serving.embedded.grpc_method import Method, Told
from serving.embedded.logs import log
from serving.embedded.pace import Pace
from serving.http2 import Connection, Event, Garbled

MOST_CONNECTIONS = 256
MOST_S = 1e6
"""The longest deadline: later ones are beyond what locks can wait for."""
SEND_S = 10.0
"""Wall time in which a caller must take something of what is sent."""
_CHUNK = 1 << 18
_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT = re.compile("([0-9]{1,8})([HMSmun])")
_CONTENT = ("content-type", "application/grpc")
_HEAD = http2.block((":status", "200"), _CONTENT)
_TRAILER = http2.block(("grpc-status", "0"))
_PRINTED = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
"""What a status's words may hold as they are (PROTOCOL-HTTP2.md)."""


class InUse(Exception):
    """The path cannot be listened on; the text says why."""


class _Service(NamedTuple):
    """A method, and the executor whose threads answer it where that takes time."""

    method: Method
    pool: Any


class _Asked(NamedTuple):
    """What the headers of a call say."""

    service: _Service
    timeout_s: float | None


class _Call:
    """A call whose message is still coming."""

    __slots__ = ("asked", "begin_s", "parts")

    def __init__(self, asked: _Asked) -> None:
        self.asked, self.begin_s = asked, time.monotonic()
        self.parts: list[bytes] = []


class UnixSocket:
    """Listens on a path."""

    def __init__(self, path: Path, most_calls: int) -> None:
        """`most_calls`: those that wait for threads or are worked on there; more are answered RESOURCE_EXHAUSTED."""
        self.path = path
        self._methods: dict[str, _Service] = {}
        self.room = threading.Semaphore(most_calls)
        """For calls that take time."""
        self._identity = (0, 0)
        self._changed = threading.Condition()
        self._peers: set[_Peer] = set()
        self._is_stopping = False
        self._socket: socket.socket | None = None
        # one for all connections: they say the same
        self._usual = functools.lru_cache(maxsize=256)(self._asked)

    def add(self, service: str, methods: Mapping[str, Method], pool: Any) -> None:
        """Answer a service's methods, by name; `pool`: the executor of those that take time. Before `start`."""
        self._methods |= {f"/{service}/{name}": _Service(method, pool) for name, method in methods.items()}

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
            peer = _Peer(self, connected)
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
                self.gone(peer)
            connected.close()

    def gone(self, peer: "_Peer") -> None:
        with self._changed:
            self._peers.discard(peer)
            self._changed.notify_all()

    def ended(self) -> None:
        """A call has ended."""
        if self._is_stopping:
            with self._changed:
                self._changed.notify_all()

    def asked(self, headers: http2.Headers) -> _Asked | str:
        """What is asked for, or why it is refused."""
        return self._usual(headers) if len(headers) <= http2.MOST_USUAL_HEADERS else self._asked(headers)

    def _asked(self, headers: http2.Headers) -> _Asked | str:
        told = dict(headers)
        path, timeout = told.get(":path", ""), told.get("grpc-timeout", "")
        service = self._methods.get(path)
        if service is None:
            return f"{path[:256]} is not to be had on a Unix socket"
        if told.get(":method") != "POST" or not told.get("content-type", "").startswith("application/grpc"):
            return "this is no call of gRPC's"
        if not timeout:
            return _Asked(service, None)
        if found := _TIMEOUT.fullmatch(timeout):
            return _Asked(service, min(int(found[1]) * _UNITS_S[found[2]], MOST_S))
        return f"grpc-timeout {timeout[:64]!r} is none"


class _Peer:
    """One connection, and the thread that reads it."""

    def __init__(self, server: UnixSocket, connected: socket.socket) -> None:
        self._server, self._socket = server, connected
        # a caller that takes nothing must not hold a thread for ever
        bound = struct.pack("@ll", int(SEND_S), int(SEND_S % 1 * 1e6))
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bound)
        self._lock = threading.Lock()
        """Of the connection's state, and of sending."""
        self._connection = Connection(is_client=False)
        self._calls: dict[int, _Call] = {}
        self._is_leaving = False

    @property
    def under_way(self) -> int:
        """Calls, and what is still to be put on the socket."""
        return self._connection.under_way + len(self._connection.outgoing)

    def read(self) -> None:
        """Until the other end is gone."""
        try:
            while part := self._socket.recv(_CHUNK):
                with self._lock:
                    events = self._connection.feed(part)
                    self._send()
                for event in events:
                    self._take(event)
                self._server.ended()  # the rest of an answer may have gone out
        except Garbled as error:
            log.warning("%s: a connection ends: %s", self._server.path, error)
            with contextlib.suppress(OSError), self._lock:
                self._connection.go_away(http2.PROTOCOL_ERROR)
                self._send()
        except OSError:
            pass  # it is gone, or takes nothing; whom to tell?
        except Exception:
            log.exception("%s: a connection failed", self._server.path)
        finally:
            with self._lock:  # nobody may be about to send: another connection could get its number
                self._connection.forget()
                self._socket.close()
            self._server.gone(self)

    def leave(self, end_s: float) -> None:
        """Take no more calls, and say so; not at any cost, as somebody may take nothing of what is sent."""
        self._is_leaving = True
        if self._lock.acquire(timeout=max(end_s - time.monotonic(), 0)):
            outgoing = self._connection.outgoing
            self._connection.go_away(http2.NO_ERROR)
            with contextlib.suppress(OSError):
                del outgoing[: self._socket.send(outgoing, socket.MSG_DONTWAIT)]
            self._lock.release()

    def close(self) -> None:
        """Whoever reads sees the end, and closes it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _send(self) -> None:
        """With the lock. Raises OSError, and ends the connection: half a frame may have gone out."""
        outgoing = self._connection.outgoing
        if outgoing:
            try:
                self._socket.sendall(outgoing)
            except OSError:
                self.close()
                raise
            outgoing.clear()

    def _take(self, event: Event) -> None:
        stream = event.stream
        if event.kind == http2.HEADERS and stream not in self._calls:
            if self._is_leaving:
                with self._lock:
                    self._connection.reset(stream, http2.REFUSED_STREAM)
                    self._send()
                return
            asked = self._server.asked(event.headers)
            if isinstance(asked, str):
                self._answer(stream, Told(grpc.StatusCode.UNIMPLEMENTED, asked))
                return
            self._calls[stream] = _Call(asked)
        elif event.kind == http2.RST_STREAM:
            self._calls.pop(stream, None)
        elif event.kind == http2.DATA and stream in self._calls:
            self._calls[stream].parts.append(event.data)
        if event.is_end and (call := self._calls.pop(stream, None)) is not None:
            self._begin(stream, call)

    def _begin(self, stream: int, call: _Call) -> None:
        service = call.asked.service
        body = call.parts[0] if len(call.parts) == 1 else b"".join(call.parts)
        if body[:1] == b"\x01":
            self._answer(stream, Told(grpc.StatusCode.UNIMPLEMENTED, "compressed messages are not to be had on a Unix socket"))
        elif len(body) < 5 or int.from_bytes(body[1:5], "big") != len(body) - 5:
            self._answer(stream, Told(grpc.StatusCode.INTERNAL, "the call is not one message"))
        else:
            message = body[5:]
            pace = service.method.pace(message)
            if pace is not None and pace.is_quick:
                self._work(stream, service.method, message, call, pace)
            elif self._server.room.acquire(blocking=False):
                service.pool.submit(self._work_beside, stream, service.method, message, call, pace)
            else:
                self._answer(stream, Told(grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!"))

    def _work_beside(self, stream: int, method: Method, message: bytes, call: _Call, pace: Pace | None) -> None:
        try:
            if self._connection.has(stream):  # else it was given up while it waited
                self._work(stream, method, message, call, pace)
        except OSError:
            pass  # who asked is gone
        finally:
            self._server.room.release()

    def _work(self, stream: int, method: Method, message: bytes, call: _Call, pace: Pace | None) -> None:
        timeout_s = call.asked.timeout_s
        left_s = None if timeout_s is None else call.begin_s + timeout_s - time.monotonic()
        if pace is not None:
            pace.begin()
        told = method.answer(message, left_s)
        if pace is not None:
            pace.end()
        self._answer(stream, told)

    def _answer(self, stream: int, told: Told) -> None:
        """Raises OSError where nobody takes it."""
        with self._lock:
            if told.status is grpc.StatusCode.OK:
                response = struct.pack("!BI", 0, len(told.response)) + told.response
                self._connection.send(stream, _HEAD, response, _TRAILER)
            else:
                self._connection.send(stream, _failed(told))
            self._send()
        self._server.ended()


def _failed(told: Told) -> bytes:
    """The header block of an answer that is a status alone."""
    number: int = told.status.value[0]
    words = urllib.parse.quote(told.words, safe=_PRINTED, errors="replace")
    return http2.block((":status", "200"), _CONTENT, ("grpc-status", str(number)), ("grpc-message", words))


def _identity(path: Path) -> tuple[int, int]:
    """Of a file, whatever its name becomes. Raises OSError."""
    found = path.stat()
    return found.st_dev, found.st_ino
