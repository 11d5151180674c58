"""The page of a record: `greenserve replay FILE --page HOST:PORT`.

GET  /, /static/..., /city.json   as the live page has them (site)
GET  /overview.json               how far the record is read, what is missing, and where something happened
GET  /live                        WebSocket (frame_server), with the second that the browser shows
"""

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from aiohttp import web

from city import street_shapes
from city.errors import InputError
from controller.control_address import listen
from controller.operator import operator_token
from controller.operator.page import frames
from controller.operator.page.frame_server import FrameRequest, FrameServer, MalformedRequest, Watcher
from controller.operator.page.site import Site
from controller.operator.page.street_data import StreetData
from controller.operator.run_state import HISTORY_S
from controller.operator.tl_layout import TlLayout
from controller.recording.run_start import RunStart
from records import recorded_run
from records.playback.moments import LanePositions, MomentReader
from records.playback.overview import Overview
from records.playback.record_panels import RecordPanels
from records.playback.timeline import Timeline
from records.record_reader import RecordReader
from records.run_files import RunReader, open_files
from signals.movement_names import movement_names


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


class RecordPage:
    """A record, and the server of its page."""

    def __init__(self, paths: Sequence[Path], run: str | None, address: tuple[str, int]) -> None:
        """Open a record, and listen.

        Args:
            paths: files of one run in any order, or folders of them.
            run: of folders with several runs, the beginning of its id.
            address: (host, port)

        Raises InputError if there is no record, this version cannot read it, or the address cannot be used.
        """
        reader = open_files(paths, run)
        start, shapes = _start(reader)
        timeline = Timeline([file.path for file in reader.files])
        lanes = start.tracked_lanes()
        # older records have no names
        signals = start.street.signals
        names = {id: own if own.groups else movement_names(signals[id]) for id, own in start.names.items()}
        layout = TlLayout(start.contracts, lanes.lanes, names)
        driver = start.driver or ""
        positions = LanePositions(shapes, lanes.lanes, start.street.lane_length_m)
        city, path = reader.city, reader.files[0].path
        about = {
            "run": city.run,
            "version": city.greenserve_version,
            "files": [file.path.name for file in reader.files],
            "first_s": timeline.first_s,
            "last_s": timeline.last_s,
            "step_s": city.sumo_step_s if city.sumo_step_s > 0 else 1.0,
            "has_vehicles": any(lanes.vehicle_lanes_of.values()),
        }
        name = path.name if len(reader.files) == 1 else f"{path.resolve().parent.name}, run {city.run}"
        street = StreetData(layout, start.street, shapes, name, driver, about)
        self.moments = MomentReader(timeline, start, city, positions)
        self.overview = Overview(reader, start.street)
        self.panels = RecordPanels(self.moments, self.overview, layout, driver)
        site = Site(listen(*address, "--page"), street, operator_token.new_token())  # no command needs the token
        self.server = PlaybackServer(site, self.moments, self.panels, self.overview)

    def serve(self, on_ready: Callable[[str], None]) -> None:
        """Answer browsers until SIGINT or SIGTERM. `on_ready`: gets the address."""
        reading = threading.Thread(target=self.overview.read, name="overview", daemon=True)
        reading.start()
        try:
            asyncio.run(self._serve(on_ready))
        finally:
            self.overview.stop()
            reading.join()

    async def _serve(self, on_ready: Callable[[str], None]) -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        on_ready(self.server.site.url)
        await self.server.serve(ended)


def _start(reader: RunReader) -> tuple[RunStart, street_shapes.StreetShapes]:
    """The start of the run, and the shapes of its network, by the first file that has both. Raises InputError."""
    first_error: InputError | None = None
    for file in reader.files:
        try:
            with RecordReader(file.path) as record:
                start = recorded_run.start_of(file.path, record.city, record.attachments)
                with recorded_run.unpacked_network(file.path, record.city, record.attachments) as net_file:
                    return start, street_shapes.read(net_file)
        except InputError as error:
            first_error = first_error or error
    assert first_error is not None, "a run has a file"
    raise first_error
