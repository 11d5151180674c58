"""One connection over a Unix socket, and the methods that may be called on it.

Each connection has one thread, which reads it. A call that the method knows to be
quick is answered there and then: no other thread has to wake up. Every other call
goes to the method's threads, so that a model that takes its time holds up nobody.
"""

import contextlib
import functools
import re
import socket
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from serving import http2
from serving.embedded.grpc_method import Method, Told
from serving.embedded.logs import log
from serving.embedded.pace import Pace
from serving.grpc_wire import MOST_USUAL_HEADERS, Compressed, Garbled, Headers, header_block, prefixed, unprefixed
from serving.http2 import Connection, Event

MOST_S = 1e6
"""The longest deadline: later ones are beyond what locks can wait for."""
SEND_S = 10.0
"""Wall time in which a caller must take something of what is sent."""
_CHUNK = 1 << 18
_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT = re.compile("([0-9]{1,8})([HMSmun])")
_CONTENT = ("content-type", "application/grpc")
_HEAD = header_block((":status", "200"), _CONTENT)
_TRAILER = header_block(("grpc-status", "0"))
_PRINTED = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
"""What a status's words may hold as they are (PROTOCOL-HTTP2.md)."""


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


class Methods:
    """What may be called, on all connections."""

    def __init__(self, most_calls: int) -> None:
        """`most_calls`: those that wait for threads or are worked on there; more are answered RESOURCE_EXHAUSTED."""
        self._services: dict[str, _Service] = {}
        self.room = threading.Semaphore(most_calls)
        """For calls that take time."""
        # one for all connections: they say the same
        self._usual = functools.lru_cache(maxsize=256)(self._asked)

    def add(self, service: str, methods: Mapping[str, Method], pool: Any) -> None:
        """A service's methods, by name; `pool`: the executor of those that take time."""
        self._services |= {f"/{service}/{name}": _Service(method, pool) for name, method in methods.items()}

    def asked(self, headers: Headers) -> _Asked | str:
        """What is asked for, or why it is refused."""
        return self._usual(headers) if len(headers) <= MOST_USUAL_HEADERS else self._asked(headers)

    def _asked(self, headers: Headers) -> _Asked | str:
        told = dict(headers)
        path, timeout = told.get(":path", ""), told.get("grpc-timeout", "")
        service = self._services.get(path)
        if service is None:
            return f"{path[:256]} is not to be had on a Unix socket"
        if told.get(":method") != "POST" or not told.get("content-type", "").startswith("application/grpc"):
            return "this is no call of gRPC's"
        if not timeout:
            return _Asked(service, None)
        if found := _TIMEOUT.fullmatch(timeout):
            return _Asked(service, min(int(found[1]) * _UNITS_S[found[2]], MOST_S))
        return f"grpc-timeout {timeout[:64]!r} is none"


class Peer:
    """One connection, and the thread that reads it."""

    def __init__(
        self,
        connected: socket.socket,
        path: Path,
        methods: Methods,
        on_progress: Callable[[], None],
        on_end: Callable[["Peer"], None],
    ) -> None:
        """`on_progress`: called when a call may have ended; `on_end`: when the connection has."""
        self._socket, self._path, self._methods = connected, path, methods
        self._on_progress, self._on_end = on_progress, on_end
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
                self._on_progress()  # the rest of an answer may have gone out
        except Garbled as error:
            log.warning("%s: a connection ends: %s", self._path, error)
            with contextlib.suppress(OSError), self._lock:
                self._connection.go_away(http2.PROTOCOL_ERROR)
                self._send()
        except OSError:
            pass  # it is gone, or takes nothing; whom to tell?
        except Exception:
            log.exception("%s: a connection failed", self._path)
        finally:
            with self._lock:  # nobody may be about to send: another connection could get its number
                self._connection.forget()
                self._socket.close()
            self._on_end(self)

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
            asked = self._methods.asked(event.headers)
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
        try:
            message = unprefixed(body)
        except Compressed:
            self._answer(stream, Told(grpc.StatusCode.UNIMPLEMENTED, "compressed messages are not to be had on a Unix socket"))
            return
        except Garbled as error:
            self._answer(stream, Told(grpc.StatusCode.INTERNAL, str(error)))
            return
        pace = service.method.pace(message)
        if pace is not None and pace.is_quick:
            self._work(stream, service.method, message, call, pace)
        elif self._methods.room.acquire(blocking=False):
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
            self._methods.room.release()

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
                self._connection.send(stream, _HEAD, prefixed(told.response), _TRAILER)
            else:
                self._connection.send(stream, _failed(told))
            self._send()
        self._on_progress()


def _failed(told: Told) -> bytes:
    """The header block of an answer that is a status alone."""
    number: int = told.status.value[0]
    words = urllib.parse.quote(told.words, safe=_PRINTED, errors="replace")
    return header_block((":status", "200"), _CONTENT, ("grpc-status", str(number)), ("grpc-message", words))
