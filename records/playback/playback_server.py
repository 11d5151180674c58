"""The server of a record's page.

GET  /, /static/..., /city.json   as the live page has them (site)
GET  /overview.json               how far the record is read, what is missing, and where something happened
GET  /live                        WebSocket (frame_server), with the second that the browser shows
"""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiohttp import web

from controller.operator.page import frames
from controller.operator.page.frame_server import FrameRequest, FrameServer, MalformedRequest, Watcher
from controller.operator.page.site import Site
from controller.operator.run_state import HISTORY_S
from records.playback.moments import MomentReader
from records.playback.overview import Overview
from records.playback.record_panels import RecordPanels


class PlaybackWatcher(Watcher):
    """A browser that has the page open."""

    panel: tuple[str, float] | None = None
    """(TL, second) of the TL's panel that it has."""


class PlaybackServer(FrameServer[PlaybackWatcher]):
    """Serves the page of one record."""

    watcher_type = PlaybackWatcher
    log = logging.getLogger("greenserve.playback")
    output = "the output of greenserve replay"

    def __init__(self, site: Site, moments: MomentReader, panels: RecordPanels, overview: Overview) -> None:
        """Prepare the page.

        Args:
            site: the page's address and files; `serve` closes its socket.
            moments, panels: used by one thread of this server alone.
            overview: of the record, which another thread reads.
        """
        super().__init__(site)
        self._moments = moments
        self._panels = panels
        self._overview = overview
        self._pool = ThreadPoolExecutor(1, "playback")

    async def serve(self, until: asyncio.Event) -> None:
        """Answer requests, until the event is set."""
        await self.begin(web.get("/overview.json", self._overview_json))
        try:
            await until.wait()
        finally:
            await self.end("greenserve replay has ended")
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def _overview_json(self, request: web.Request) -> web.Response:
        return web.json_response(self._overview.as_json())

    def take(self, watcher: PlaybackWatcher, request: FrameRequest) -> None:
        if request.at_s is None:
            raise MalformedRequest("a request needs at: the simulated second")

    async def next_frame(self, watcher: PlaybackWatcher) -> bytes:
        while watcher.request is None:
            watcher.changed.clear()
            await watcher.changed.wait()
        request, watcher.request = watcher.request, None
        loop = asyncio.get_running_loop()
        frame, watcher.panel = await loop.run_in_executor(self._pool, self.frame, request, watcher.panel)
        return frame

    def frame(self, request: FrameRequest, panel: tuple[str, float] | None) -> tuple[bytes, tuple[str, float] | None]:
        """The frame of a request, and the panel that its browser has then. `panel`: the one that it has."""
        assert request.at_s is not None, "`take` refuses such a request"
        timeline, street = self._moments.timeline, self.site.street
        at_s = min(max(request.at_s, timeline.first_s), timeline.last_s)
        moment = self._moments.moment(at_s)
        shown: dict[str, Any] = {"city": {**self._panels.city(moment), "watchers": len(self.watchers)}}
        tl = request.tl if request.tl in street.layout.contracts else None
        if tl is not None:
            sent_tl, sent_s = panel or ("", at_s)
            follows = sent_tl == tl and not request.is_fresh and 0 <= at_s - sent_s < HISTORY_S
            shown["tl"] = self._panels.tl(tl, moment, sent_s if follows else None)
        # a record has no states of uncontrolled signals, which come last
        in_view = [signal for signal in street.signals_in(request.view) if signal < len(moment.shown)]
        rows = street.lanes_in(request.view)
        sections = [
            frames.vehicles_section(moment.vehicles, request.view),
            frames.states_section({signal: moment.shown[signal] for signal in in_view}),
            frames.modes_section(moment.modes),
            frames.queues_section(rows, moment.counts[1, rows]),
            frames.panel_section({name: frames.as_json(panel) for name, panel in shown.items()}),
        ]
        return frames.encode(moment.number + 1, at_s, True, sections), (tl, at_s) if tl is not None else None
