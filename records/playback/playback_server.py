"""The HTTP and WebSocket side of a record's page.

GET  /, /static/..., /city.json   as the live page has them (site)
GET  /overview.json               how far the record is read, what is missing, and where something happened
GET  /live                        WebSocket. The browser sends the live page's requests with a second more:
                                  {"view": [...], "tl": name or null, "at": second, "fresh": true after a reconnect}
                                  The server answers with one frame. A further request before the frame replaces the one
                                  before.
"""

import asyncio
import contextlib
import json
import logging
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from aiohttp import WSCloseCode, WSMsgType, web

from controller.operator.page import frames, security
from controller.operator.page.feed import HISTORY_S
from controller.operator.page.server import (
    CLOSE_TIMEOUT_S,
    HEARTBEAT_S,
    MAX_REQUEST_BYTES,
    MAX_WATCHERS,
    SEND_TIMEOUT_S,
)
from controller.operator.page.site import Site
from controller.operator.page.street_data import StreetData
from controller.operator.page.watcher import FrameRequest, MalformedRequest, parse_request
from records.playback.moment_panels import MomentPanels
from records.playback.moments import MomentReader
from records.playback.overview import Overview

log = logging.getLogger("greenserve.playback")

MAX_S = 1e12
"""Bound of the second that a browser asks for; SUMO's times are far below."""


class MomentRequest(NamedTuple):
    frame: FrameRequest
    at_s: float


class Panel(NamedTuple):
    """The TL's panel that a browser has."""

    tl: str
    at_s: float


class PlaybackServer:
    """Serves the page of one record."""

    def __init__(
        self,
        listener: socket.socket,
        street: StreetData,
        moments: MomentReader,
        panels: MomentPanels,
        overview: Overview,
    ) -> None:
        """Prepare the page.

        Args:
            listener: a listening socket, see `site.listen`; `serve` closes it.
            street: what never changes.
            moments, panels: used by one thread of this server alone.
            overview: of the record, which another thread reads.
        """
        self._site = Site(listener, street, security.new_token())  # no command needs the token
        self._street, self._moments, self._panels, self._overview = street, moments, panels, overview
        self._tls = set(moments.tls)
        self._watchers: set[web.WebSocketResponse] = set()
        self._pool = ThreadPoolExecutor(1, "playback")

    @property
    def url(self) -> str:
        return self._site.url

    async def serve(self, until: asyncio.Event) -> None:
        """Answer requests, until the event is set."""
        await self._site.begin(web.get("/overview.json", self._overview_json), web.get("/live", self._live))
        try:
            await until.wait()
        finally:
            for connection in list(self._watchers):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CLOSE_TIMEOUT_S):
                        await connection.close(code=WSCloseCode.GOING_AWAY, message=b"greenserve replay has ended")
            await self._site.end()
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def _overview_json(self, request: web.Request) -> web.Response:
        return web.json_response(self._overview.as_json())

    async def _live(self, request: web.Request) -> web.StreamResponse:
        if len(self._watchers) >= MAX_WATCHERS:
            return web.Response(status=503, text=f"{MAX_WATCHERS} watchers are connected; close one\n")
        connection = web.WebSocketResponse(
            timeout=CLOSE_TIMEOUT_S, max_msg_size=MAX_REQUEST_BYTES, heartbeat=HEARTBEAT_S
        )
        if not connection.can_prepare(request).ok:
            return web.Response(status=426, text="this address is for the page's WebSocket\n")
        await connection.prepare(request)
        self._watchers.add(connection)
        requests: asyncio.Queue[MomentRequest] = asyncio.Queue()
        sending = asyncio.create_task(self._send_frames(connection, request.transport, requests))
        try:
            async for message in connection:
                if message.type is not WSMsgType.TEXT:
                    await connection.close(code=WSCloseCode.UNSUPPORTED_DATA, message=b"requests are JSON texts")
                    break
                try:
                    wanted = parse_moment_request(message.data)
                except MalformedRequest as error:
                    await connection.close(code=WSCloseCode.INVALID_TEXT, message=str(error).encode()[:120])
                    break
                while not requests.empty():
                    requests.get_nowait()  # the newest alone is answered
                requests.put_nowait(wanted)
        finally:
            sending.cancel()
            self._watchers.discard(connection)
        return connection

    async def _send_frames(
        self,
        connection: web.WebSocketResponse,
        transport: asyncio.Transport | None,
        requests: "asyncio.Queue[MomentRequest]",
    ) -> None:
        """Answer a browser's requests, one frame at a time, until its connection ends."""
        panel: Panel | None = None
        while True:
            request = await requests.get()
            try:
                frame, panel = await asyncio.get_running_loop().run_in_executor(self._pool, self.frame, request, panel)
            except Exception:
                log.exception("second %g: a frame could not be made; the browser is disconnected", request.at_s)
                await connection.close(
                    code=WSCloseCode.INTERNAL_ERROR,
                    message=b"a frame could not be made; see the output of greenserve replay",
                )
                return
            try:
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    await connection.send_bytes(frame)
            except TimeoutError:
                if transport is not None:
                    transport.abort()
                return
            except (ConnectionError, RuntimeError):
                return  # it has gone

    def frame(self, request: MomentRequest, panel: Panel | None) -> tuple[bytes, Panel | None]:
        """The frame of a request, and the panel that its browser has then. `panel`: the one that it has."""
        wanted, timeline = request.frame, self._moments.timeline
        at_s = min(max(request.at_s, timeline.first_s), timeline.last_s)
        moment = self._moments.moment(at_s)
        rows = self._street.lanes_in(wanted.view)
        panels: dict[str, Any] = {"city": {**self._panels.city(moment), "watchers": len(self._watchers)}}
        tl = wanted.tl if wanted.tl in self._tls else None
        if tl is not None:
            is_next = (
                panel is not None and panel.tl == tl and not wanted.is_fresh and 0 <= at_s - panel.at_s < HISTORY_S
            )
            panels["tl"] = self._panels.tl(tl, moment, panel.at_s if panel is not None and is_next else None)
        sections = [
            frames.vehicles_section(moment.vehicles, wanted.view),
            # a record has no states of uncontrolled signals, which come last
            frames.states_section(
                {k: moment.shown[k] for k in self._street.signals_in(wanted.view) if k < len(moment.shown)}
            ),
            frames.modes_section(moment.modes),
            frames.queues_section(rows, moment.halting[rows]),
            frames.panel_section(panels),
        ]
        return frames.encode(moment.number + 1, at_s, True, sections), Panel(tl, at_s) if tl is not None else None


def parse_moment_request(text: str) -> MomentRequest:
    """A browser's message. Raises MalformedRequest."""
    request = parse_request(text)
    at_s = json.loads(text).get("at")
    # a huge integer is compared as it is: as a float it would overflow
    if isinstance(at_s, bool) or not isinstance(at_s, int | float) or not abs(at_s) < MAX_S:  # NaN is not below either
        raise MalformedRequest("a request needs at: the simulated second")
    return MomentRequest(request, float(at_s))
