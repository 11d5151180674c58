"""The WebSocket side of a page, live or of a record: each browser asks for its frames, one at a time.

GET /live   WebSocket. The browser sends a request for each frame, a JSON text:
            {"view": [min x, min y, max x, max y], "tl": name or null, "fresh": true after a reconnect,
             "at": simulated second, of a record alone}
            A further request before the frame replaces the one before. The server answers with one frame (`frames`).
"""

import asyncio
import contextlib
import json
import logging
from abc import ABC, abstractmethod
from typing import Generic, NamedTuple, TypeVar

from aiohttp import WSCloseCode, WSMsgType, web

from controller.operator.page.frames import View
from controller.operator.page.site import Site

MAX_WATCHERS = 200
MAX_REQUEST_BYTES = 4096
"""Limit of a browser's message."""
MAX_S = 1e12
"""Bound of the second that a browser asks for; SUMO's times are far below."""
MAX_REASON_BYTES = 120
"""Limit of the reason for which a connection is closed."""
SEND_TIMEOUT_S = 30.0
"""Wall time after which a browser that does not read is disconnected."""
HEARTBEAT_S = 20.0
CLOSE_TIMEOUT_S = 0.5
"""Wall time in which a browser answers that its connection is closed."""


class MalformedRequest(Exception):
    """A browser's message that is not a request for a frame."""


class FrameRequest(NamedTuple):
    view: View
    tl: str | None
    is_fresh: bool
    at_s: float | None = None
    """Simulated second; None for the newest."""


def parse_request(text: str) -> FrameRequest:
    """A browser's message. Raises MalformedRequest."""
    try:
        message = json.loads(text)
        x0, y0, x1, y1 = (float(value) for value in message["view"])
        tl, at_s = message.get("tl"), message.get("at")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):  # a huge integer overflows
        raise MalformedRequest("a request needs view: [min x, min y, max x, max y]") from None
    if not all(abs(value) < 1e9 for value in (x0, y0, x1, y1)) or x0 >= x1 or y0 >= y1:  # NaN is not below either
        raise MalformedRequest("view must be [min x, min y, max x, max y] in m")
    if tl is not None and not isinstance(tl, str):
        raise MalformedRequest("tl must be a name or null")
    if at_s is not None:
        # a huge integer is compared as it is: as a float it would overflow
        if isinstance(at_s, bool) or not isinstance(at_s, int | float) or not abs(at_s) < MAX_S:
            raise MalformedRequest("at must be a simulated second")
        at_s = float(at_s)
    return FrameRequest((x0, y0, x1, y1), tl, message.get("fresh") is True, at_s)


class Watcher:
    """A browser that has the page open."""

    def __init__(self, connection: web.WebSocketResponse) -> None:
        self.connection = connection
        self.changed = asyncio.Event()
        """Set by a new request, and by what is new to it."""
        self.request: FrameRequest | None = None
        """Not answered yet."""


W = TypeVar("W", bound=Watcher)


class FrameServer(ABC, Generic[W]):
    """Answers the browsers of one page."""

    watcher_type: type[W]
    log: logging.Logger
    output: str
    """Where the user finds the log, for the browser's message."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.watchers: set[W] = set()

    @abstractmethod
    def take(self, watcher: W, request: FrameRequest) -> None:
        """Take a request before it is answered. Raises MalformedRequest."""

    @abstractmethod
    async def next_frame(self, watcher: W) -> bytes:
        """Wait until a browser has asked for a frame, and make it."""

    def changed_watchers(self) -> None:
        """Called after a browser was answered, and after it has gone."""

    async def begin(self, *routes: web.RouteDef) -> None:
        """Answer requests from now on, with these routes too."""
        await self.site.begin(web.get("/live", self._live), *routes)

    async def end(self, reason: str, code: int = WSCloseCode.GOING_AWAY) -> None:
        """Close every connection."""
        closing = [watcher.connection.close(code=code, message=_bounded(reason)) for watcher in self.watchers]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*closing, return_exceptions=True), 2 * CLOSE_TIMEOUT_S)
        await self.site.end()

    async def _live(self, request: web.Request) -> web.StreamResponse:
        if len(self.watchers) >= MAX_WATCHERS:
            return web.Response(status=503, text=f"{MAX_WATCHERS} watchers are connected; close one\n")
        connection = web.WebSocketResponse(
            timeout=CLOSE_TIMEOUT_S, max_msg_size=MAX_REQUEST_BYTES, heartbeat=HEARTBEAT_S, compress=False
        )
        if not connection.can_prepare(request).ok:
            return web.Response(status=426, text="this address is for the page's WebSocket\n")
        await connection.prepare(request)
        watcher = self.watcher_type(connection)
        self.watchers.add(watcher)
        sending = asyncio.create_task(self._send_frames(watcher, request.transport))
        try:
            async for message in connection:
                if message.type is not WSMsgType.TEXT:
                    await connection.close(code=WSCloseCode.UNSUPPORTED_DATA, message=b"requests are JSON texts")
                    break
                try:
                    wanted = parse_request(message.data)
                    self.take(watcher, wanted)
                except MalformedRequest as error:
                    await connection.close(code=WSCloseCode.INVALID_TEXT, message=_bounded(str(error)))
                    break
                watcher.request = wanted  # the newest alone is answered
                watcher.changed.set()
        finally:
            sending.cancel()
            self.watchers.discard(watcher)
            self.changed_watchers()
        return connection

    async def _send_frames(self, watcher: W, transport: asyncio.Transport | None) -> None:
        """Answer a browser's requests, one frame at a time, until its connection ends."""
        connection = watcher.connection
        while True:
            try:
                frame = await self.next_frame(watcher)
            except Exception:
                self.log.exception("a frame could not be made; the browser is disconnected")
                await connection.close(
                    code=WSCloseCode.INTERNAL_ERROR,
                    message=f"a frame could not be made; see {self.output}".encode(),
                )
                return
            try:
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    await connection.send_bytes(frame)
            except TimeoutError:
                self.log.info("the page: a browser has not read for %g s; it is disconnected", SEND_TIMEOUT_S)
                if transport is not None:
                    transport.abort()
                return
            except (ConnectionError, RuntimeError):
                return  # it has gone
            self.changed_watchers()


def _bounded(reason: str) -> bytes:
    """A reason that a closing message has room for."""
    return reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore").encode()
