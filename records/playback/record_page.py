"""The page of a record, put together: `greenserve replay FILE --page HOST:PORT`."""

import asyncio
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from city import street_shapes
from city.errors import InputError
from controller.control_address import listen
from controller.operator import operator_token
from controller.operator.page.site import Site
from controller.operator.page.street_data import StreetData
from controller.operator.tl_layout import TlLayout
from controller.recording.run_start import RunStart
from records import recorded_run
from records.playback.lane_positions import LanePositions
from records.playback.moments import MomentReader
from records.playback.overview import Overview
from records.playback.playback_server import PlaybackServer
from records.playback.record_panels import RecordPanels
from records.playback.timeline import Timeline
from records.record_reader import RecordReader
from records.run_files import RunReader, open_files
from signals.movement_names import movement_names


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
