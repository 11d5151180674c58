"""A line to a model server over a Unix socket: unary gRPC calls without gRPC's threads.

gRPC for Python hands every call through several threads, at both ends. Where a
caller waits for the answer anyway, that is most of what a small Predict costs
(`python -m benchmarks.control_loop`: fleet, and fleet over TCP). A line is one
socket, written and read by whoever calls. It does what nearly every call needs
and nothing else: it never retries, and whatever is out of the ordinary ends it. Who
calls asks again through gRPC, which knows what to do then; another line is opened later.
"""

import functools
import logging
import math
import select
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import grpc

from serving import http2
from serving.grpc_wire import Garbled, Headers, header_block, prefixed, unprefixed
from serving.http2 import Connection, Event

log = logging.getLogger("serving.line")

AGAIN_S = 1.0
"""Wall time after the end of a line before another one is opened."""
_CHUNK = 1 << 18
_MOST_S = 99_990.0
"""Waited for at once, and the longest deadline that is told: both have few digits."""
_STEP_MS = 10
"""Deadlines are told to the server in such steps: headers that it has seen before cost it nothing."""
_STATUS = {str(code.value[0]): code.name for code in grpc.StatusCode}
"""Names of statuses by what tells them."""


class Status(NamedTuple):
    """How a call failed: the name of gRPC's status, and its words."""

    code: str
    words: str


class _Over(Exception):
    """The line is of no more use."""


class _Call:
    """What has come of one answer."""

    __slots__ = ("headers", "key", "parts")

    def __init__(self, key: str) -> None:
        self.key = key
        self.headers: Headers = ()
        self.parts: list[bytes] = []

    def answer(self) -> bytes | Status:
        """Raises Garbled where it is none of gRPC's."""
        status = _status(self.headers)
        if status.code != "OK":
            return status
        return unprefixed(b"".join(self.parts))


class Line:
    """One connection at a time. Safe to use from many threads: one has it, and the others are not kept waiting."""

    def __init__(self, path: str, left: Collection[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        """Connects to a socket's path, and waits for nothing. `left`: names of statuses that are no answer, but left out."""
        self._path, self._left, self._clock = path, left, clock
        self._lock = threading.Lock()
        self._again_s = -math.inf
        """From when on another connection may be opened."""
        self._socket: socket.socket | None = None
        self._connection = Connection(is_client=True)
        self._calls: dict[int, _Call] = {}
        self._answers: dict[str, bytes | Status] = {}
        self._leave: Callable[[str], None] = lambda key: None
        self._is_leaving = self._is_closed = False
        """Whether the server takes no more calls; whether this side makes none."""
        self._poll = select.poll()
        self._open()

    def ask(
        self,
        method: str,
        messages: Mapping[str, bytes],
        end: float,
        most: int = 100,
        leave: Callable[[str], None] = lambda key: None,
    ) -> dict[str, bytes | Status]:
        """What the server answers to messages of one method, by key, up to moment `end` of the clock.

        `most`: calls at once. Left out is what this line cannot answer; `leave` is
        called with the key where that is known while others still take their time.
        Never raises.
        """
        if not self._lock.acquire(blocking=False):
            return {}
        try:
            self._answers, self._leave = {}, leave
            if self._socket is None:
                self._open()
            if self._socket is not None and end > self._clock():
                self._ask(self._socket, method, messages, end, most)
        except Exception as error:
            self._drop()
            if not isinstance(error, _Over | Garbled | OSError):
                log.exception("a line failed; gRPC is asked instead")
        except BaseException:
            # an interrupt, somewhere in between: what is still under way must not answer a later question
            self._drop()
            raise
        finally:
            answers = self._answers
            self._lock.release()
        self._drop_if_closed()
        return answers

    def close(self) -> None:
        """For good. A call under way ends as it would; nobody waits for it."""
        self._is_closed = True
        self._drop_if_closed()

    def _drop_if_closed(self) -> None:
        # whoever of close and ask has the lock last sees it
        if self._is_closed and self._lock.acquire(blocking=False):
            self._drop()
            self._again_s = math.inf
            self._lock.release()

    def _open(self) -> None:
        now = self._clock()
        if now < self._again_s:
            return
        self._again_s = now + AGAIN_S
        self._calls.clear()
        self._is_leaving = False
        self._connection = Connection(is_client=True)
        self._poll = select.poll()
        try:
            found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError:
            return  # no more files may be open
        found.setblocking(False)
        try:
            found.connect(self._path)  # of a Unix socket it ends at once
        except (OSError, ValueError):
            found.close()
            return
        self._poll.register(found, select.POLLIN)
        self._socket = found

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._again_s = self._clock() + AGAIN_S

    def _ask(self, connected: socket.socket, method: str, messages: Mapping[str, bytes], end: float, most: int) -> None:
        connection, calls = self._connection, self._calls
        waiting = iter(messages.items())
        has_more, has_heard = True, False
        while has_more or calls:
            left_s = min(end - self._clock(), _MOST_S)
            while has_more and len(calls) < min(most, connection.most_streams) and not self._is_leaving:
                following = next(waiting, None)
                if following is None:
                    has_more = False
                    break
                key, message = following
                stream = connection.begin()
                calls[stream] = _Call(key)
                connection.send(stream, _head(method, math.ceil(left_s * 1000 / _STEP_MS)), prefixed(message))
            if not calls:
                if has_more:
                    raise _Over("the server takes no more calls")
                break
            if left_s <= 0:
                late = [call.key for call in calls.values()] + [key for key, _ in waiting]
                self._answers |= dict.fromkeys(late, Status("DEADLINE_EXCEEDED", "no answer came in time"))
                for stream in calls:
                    connection.reset(stream, http2.CANCEL)
                calls.clear()
                if not has_heard:
                    raise _Over("it may lead nowhere")
                break
            has_heard |= self._exchange(connected, left_s)
        self._send(connected)
        if self._is_leaving:
            raise _Over("the server takes no more calls")

    def _send(self, connected: socket.socket) -> None:
        outgoing = self._connection.outgoing
        if outgoing:
            try:
                del outgoing[: connected.send(outgoing)]
            except BlockingIOError:
                return

    def _exchange(self, connected: socket.socket, wait_s: float) -> bool:
        """Send and receive, as either is possible, and take what has come. Whether anything has."""
        self._send(connected)
        self._poll.modify(connected, select.POLLIN | (select.POLLOUT if self._connection.outgoing else 0))
        if not self._poll.poll(math.ceil(1000 * wait_s)):
            return False
        try:
            part = connected.recv(_CHUNK)
        except BlockingIOError:
            return False
        if not part:
            raise _Over("the server has closed it")
        for event in self._connection.feed(part):
            self._take(event)
        return True

    def _take(self, event: Event) -> None:
        if event.kind == http2.GOAWAY:
            self._is_leaving = True
            for stream in [stream for stream in self._calls if stream > event.stream]:
                self._connection.end(stream)
                self._leave(self._calls.pop(stream).key)
            return
        call = self._calls.get(event.stream)
        if call is None:
            return  # it came behind the end of its call
        if event.kind == http2.RST_STREAM:
            self._leave(self._calls.pop(event.stream).key)  # why, gRPC may find out
        elif event.kind == http2.DATA:
            call.parts.append(event.data)
            if event.is_end:
                raise Garbled("an answer without a status")
        else:
            call.headers += event.headers
            if event.is_end:
                answer = call.answer()
                del self._calls[event.stream]
                self._connection.end(event.stream)
                if isinstance(answer, Status) and answer.code in self._left:
                    self._leave(call.key)
                else:
                    self._answers[call.key] = answer


@functools.lru_cache(maxsize=256)
def _head(method: str, steps: int) -> bytes:
    """The header block of a call that has so many steps of time left."""
    return header_block(
        (":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "localhost"),
        ("te", "trailers"), ("content-type", "application/grpc"), ("grpc-timeout", f"{max(steps, 1) * _STEP_MS}m"),
    )  # fmt: skip


@functools.lru_cache(maxsize=256)
def _status(headers: Headers) -> Status:
    """How a call ended, by all headers of its answer. Raises Garbled where they are none of gRPC's."""
    told = dict(headers)
    if told.get(":status") != "200" or not told.get("content-type", "").startswith("application/grpc"):
        raise Garbled("an answer that is none of gRPC's")
    status = told.get("grpc-status", "")
    if status not in _STATUS:
        raise Garbled(f"an answer with status {status!r}")
    return Status(_STATUS[status], urllib.parse.unquote(told.get("grpc-message", "")))
