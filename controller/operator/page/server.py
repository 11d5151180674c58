"""The page's HTTP and WebSocket side, in a thread of its own.

GET  /            the page; /static/... its files
GET  /city.json   what never changes (street_data), gzip
GET  /live        WebSocket. The browser sends a request for each frame, a JSON text:
                  {"view": [min x, min y, max x, max y], "tl": name or null, "fresh": true after a reconnect}
                  A further request before the frame replaces the one before. The server sends one frame (frames) for it
                  as soon as there is something new, or after IDLE_INTERVAL_S.
POST /command     {"action": ..., "author": ..., ...} with the token: see controls.parse_command
"""

import asyncio
import contextlib
import json
import logging
import math
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, web

from controller.operator.page import frames, security
from controller.operator.page.collector import Collector
from controller.operator.page.controls import ERRORS, Controls
from controller.operator.page.feed import Feed
from controller.operator.page.panels import TlPanel, city_panel
from controller.operator.page.site import STOP_TIMEOUT_S, Site
from controller.operator.page.street_data import StreetData
from controller.operator.page.watcher import FrameRequest, MalformedRequest, Watcher, parse_request
from controller.recording.messages import Encoder

log = logging.getLogger("controller")

MAX_WATCHERS = 200
MAX_REQUEST_BYTES = 4096
"""Of a watcher's message."""
MIN_FRAME_INTERVAL_S = 0.1
"""Wall time between two frames of a watcher, at least: vehicles are not read more often either."""
FRAME_SHARE = 0.03
"""Of a processor's time, what making frames for all watchers takes at most."""
IDLE_INTERVAL_S = 1.0
"""Wall time after which a watcher gets a frame without news: it shows that the connection lives."""
CITY_INTERVAL_S = 1.0
"""Wall time between two panels of the city in the frames of a watcher."""
STALLED_S = 5.0
"""Wall time after which a watcher that asks for nothing counts as absent: nothing is read for it."""
SEND_TIMEOUT_S = 30.0
"""Wall time after which a watcher that does not read is disconnected."""
HEARTBEAT_S = 20.0
COMMAND_THREADS = 4
LAST_FRAME_S = 0.2
"""Wall time in which watchers get the frame that says that the run has ended."""
CLOSE_TIMEOUT_S = 0.5
"""Wall time in which a watcher answers that its connection is closed."""


class PageServer:
    """Serves the page of one run."""

    def __init__(
        self,
        listener: socket.socket,
        feed: Feed,
        street: StreetData,
        controls: Controls,
        collector: Collector | None = None,
        make_encoder: Callable[[], Encoder] | None = None,
        token: str | None = None,
    ) -> None:
        """Prepare the page; `start` answers requests.

        Args:
            listener: a listening socket, see `site.listen`; this closes it.
            feed, street, controls: of the run.
            collector: reads from SUMO for the page; None: nothing is.
            make_encoder: of the run's messages, for the sentences of a TL; None: there are no sentences.
            token: of commands; None: a new one.
        """
        self._feed, self._street, self._controls = feed, street, controls
        self._collector, self._make_encoder = collector, make_encoder
        self._watchers: set[Watcher] = set()
        self._awaiting: set[Watcher] = set()
        """Those that have asked and wait for news: a step wakes the page for them alone."""
        self._made_s = 0.0
        """Processor time of making a frame, smoothed."""
        self._wake_lock = threading.Lock()
        self._is_waking = False
        self.token = token or security.new_token()
        self._socket = listener
        self._site = Site(listener, street, self.token)
        self._pool = ThreadPoolExecutor(COMMAND_THREADS, "page-command")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="page", daemon=True)

    @property
    def url(self) -> str:
        """The address with the token, for the operator."""
        return f"{self._site.url}#token={self.token}"

    @property
    def port(self) -> int:
        return int(self._site.port)

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    def start(self) -> None:
        """Answer requests from now on."""
        routes = web.get("/live", self._live), web.post("/command", self._command)
        self._loop.run_until_complete(self._site.begin(*routes))
        self._feed.wake = self._wake
        self._thread.start()

    def stop(self) -> None:
        """Send every watcher a last frame if it waits for one, close, and end the thread."""
        if not self._thread.is_alive():
            self._socket.close()
            return
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _close(self) -> None:
        self._feed.wanted_view = None
        if any(watcher.request is not None for watcher in self._watchers):
            await asyncio.sleep(LAST_FRAME_S)
        closing = [
            watcher.connection.close(code=WSCloseCode.GOING_AWAY, message=b"the run has ended")
            for watcher in self._watchers
        ]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*closing, return_exceptions=True), STOP_TIMEOUT_S)
        await self._site.end()

    # called by the thread of the decision loop

    def _wake(self) -> None:
        """Notify the waiting watchers of a new step; one call to the page's loop at a time."""
        if not self._awaiting:
            return
        with self._wake_lock:
            if self._is_waking:
                return
            self._is_waking = True
        with contextlib.suppress(RuntimeError):  # the loop has just ended
            self._loop.call_soon_threadsafe(self._woken)

    # called by the page's thread

    def _woken(self) -> None:
        with self._wake_lock:
            self._is_waking = False
        for watcher in self._awaiting:
            watcher.changed.set()

    async def _command(self, request: web.Request) -> web.Response:
        if not self._site.gate.has_token(request.headers):
            return _error(
                401, "commands need the token of the address that the controller has printed; open that address"
            )
        if request.content_type != "application/json":
            return _error(415, "a command must be application/json")
        try:
            command = json.loads(await request.read())
        except (ValueError, RecursionError):
            return _error(400, "the command is not JSON")
        try:
            await self._loop.run_in_executor(self._pool, self._controls.apply, command)
        except tuple(ERRORS) as error:
            return _error(next(status for kind, status in ERRORS.items() if isinstance(error, kind)), str(error))
        for watcher in self._watchers:
            watcher.city_s = -math.inf  # all see the command at once
            watcher.changed.set()
        return web.json_response({"run": self._controls.run()})

    async def _live(self, request: web.Request) -> web.StreamResponse:
        if len(self._watchers) >= MAX_WATCHERS:
            return web.Response(status=503, text=f"{MAX_WATCHERS} watchers are connected; close one\n")
        connection = web.WebSocketResponse(
            timeout=CLOSE_TIMEOUT_S, max_msg_size=MAX_REQUEST_BYTES, heartbeat=HEARTBEAT_S, compress=False
        )
        if not connection.can_prepare(request).ok:
            return web.Response(status=426, text="this address is for the page's WebSocket\n")
        await connection.prepare(request)
        watcher = Watcher(connection)
        self._watchers.add(watcher)
        sending = asyncio.create_task(self._send_frames(connection, request.transport, watcher))
        try:
            async for message in connection:
                if message.type is not WSMsgType.TEXT:
                    await connection.close(code=WSCloseCode.UNSUPPORTED_DATA, message=b"requests are JSON texts")
                    break
                try:
                    watcher.request = parse_request(message.data)
                except MalformedRequest as error:
                    await connection.close(code=WSCloseCode.INVALID_TEXT, message=str(error).encode()[:120])
                    break
                if watcher.request.is_fresh:
                    watcher.forget()
                watcher.view, watcher.asked_s = watcher.request.view, time.monotonic()
                self._want()
                self._loop.call_later(STALLED_S, self._want)
                watcher.changed.set()
        finally:
            sending.cancel()
            self._watchers.discard(watcher)
            self._want()
        return connection

    async def _send_frames(
        self, connection: web.WebSocketResponse, transport: asyncio.Transport | None, watcher: Watcher
    ) -> None:
        """Answer a watcher's requests, one frame at a time, until its connection ends."""
        while True:
            try:
                frame = await self._next_frame(watcher)
            except Exception:
                log.exception("the live page: a frame could not be made; the watcher is disconnected")
                await connection.close(
                    code=WSCloseCode.INTERNAL_ERROR, message=b"a frame could not be made; see the controller's log"
                )
                return
            try:
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    await connection.send_bytes(frame)
            except TimeoutError:
                log.info("the live page: a watcher has not read for %g s; it is disconnected", SEND_TIMEOUT_S)
                if transport is not None:
                    transport.abort()
                return
            except (ConnectionError, RuntimeError):
                return  # it has gone
            self._want()

    async def _next_frame(self, watcher: Watcher) -> bytes:
        """Wait until there is a request and something new, or the time is over, and make the frame."""
        while True:
            watcher.changed.clear()
            if watcher.request is not None:
                self._awaiting.add(watcher)  # before it looks, so that no step is missed
            try:
                wait_s = self._wait_s(watcher)
                if wait_s > 0:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(wait_s if math.isfinite(wait_s) else None):
                            await watcher.changed.wait()
                    continue
            finally:
                self._awaiting.discard(watcher)
            # news come at once, but not faster than a watcher's interval
            pause_s = watcher.sent_s + self._interval_s() - time.monotonic()
            if pause_s <= 0:
                break
            await asyncio.sleep(pause_s)
        begin = time.thread_time()
        frame = self._frame(watcher)
        self._made_s += 0.2 * (time.thread_time() - begin - self._made_s)
        return frame

    def _wait_s(self, watcher: Watcher) -> float:
        """Wall time for which a watcher waits for news; 0: there are some; inf: it has not asked."""
        request = watcher.request
        if request is None:
            return math.inf
        is_new = (
            watcher.sequence != self._feed.newest.sequence
            or watcher.collected_number != self._feed.collected.number
            or watcher.sent_view != request.view
            or watcher.city_s == -math.inf
            or watcher.has_end != self._feed.has_ended
            or (watcher.panel.tl if watcher.panel else None) != self._known(request.tl)
        )
        return 0.0 if is_new else max(watcher.sent_s + IDLE_INTERVAL_S - time.monotonic(), 0.0)

    def _interval_s(self) -> float:
        """Wall time between two frames of a watcher: that of all watchers together stays below FRAME_SHARE."""
        return max(MIN_FRAME_INTERVAL_S, self._made_s * len(self._watchers) / FRAME_SHARE)

    def _want(self) -> None:
        """Ask for what the present watchers see."""
        now_s = time.monotonic()
        views = [watcher.view for watcher in self._watchers if watcher.view and now_s - watcher.asked_s < STALLED_S]
        if not views:
            self._feed.wanted_view = None
            return
        x0, y0, x1, y1 = zip(*views, strict=True)
        self._feed.wanted_view = (min(x0), min(y0), max(x1), max(y1))

    def _known(self, tl: str | None) -> str | None:
        return tl if tl in self._feed.contracts else None

    def _frame(self, watcher: Watcher) -> bytes:
        """The frame of a watcher's request, with what is new to it."""
        request, feed = watcher.request, self._feed
        assert request is not None
        newest, collected, now_s = feed.newest, feed.collected, time.monotonic()
        is_new_view = watcher.sent_view != request.view
        sections = []
        if is_new_view or watcher.collected_number != collected.number:
            sections.append(frames.vehicles_section(collected.vehicles, request.view))
        if is_new_view or watcher.sequence != newest.sequence or watcher.collected_number != collected.number:
            count, others, in_view = len(newest.shown), collected.states, self._street.signals_in(request.view)
            states = {k: newest.shown[k] if k < count else others[k] for k in in_view if k < count or k in others}
            new = states if is_new_view else {k: state for k, state in states.items() if watcher.states.get(k) != state}
            sections.append(frames.states_section(new))
            watcher.states = states
        if watcher.modes != newest.modes:
            sections.append(frames.modes_section(newest.modes))
        if is_new_view or watcher.sequence != newest.sequence:
            rows = self._street.lanes_in(request.view)
            sections.append(frames.queues_section(rows, newest.halting[rows]))
        panel = self._panel(watcher, request, now_s)
        if panel:
            sections.append(frames.panel_section(panel))
        watcher.request, watcher.sent_view, watcher.sent_s = None, request.view, now_s
        watcher.has_end = feed.has_ended
        watcher.sequence, watcher.collected_number, watcher.modes = newest.sequence, collected.number, newest.modes
        return frames.encode(newest.sequence, newest.at_s, is_new_view, sections)

    def _panel(self, watcher: Watcher, request: FrameRequest, now_s: float) -> dict[str, Any]:
        panel: dict[str, Any] = {}
        if now_s - watcher.city_s >= CITY_INTERVAL_S or self._feed.has_ended:
            watcher.city_s = now_s
            panel["city"] = {**city_panel(self._feed, self._controls, self._collector), "watchers": len(self._watchers)}
        tl = self._known(request.tl)
        if tl is None:
            watcher.panel = None
        else:
            if watcher.panel is None or watcher.panel.tl != tl:
                encoder = self._make_encoder() if self._make_encoder is not None else None
                watcher.panel = TlPanel(self._feed, self._controls, tl, encoder, self._street.driver)
            panel["tl"] = watcher.panel.update()
        return panel


def _error(status: int, error: str) -> web.Response:
    return web.json_response({"error": error}, status=status)
