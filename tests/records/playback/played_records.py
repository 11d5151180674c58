"""Records that are played: their page, without a browser, and served."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from benchmarks.page_frame import Frame, decode
from controller.operator.page.frame_server import FrameRequest
from records.playback.record_page import RecordPage
from records.record_reader import RecordedStep
from records.run_files import open_files

EVERYWHERE = (-1000.0, -1000.0, 3000.0, 3000.0)
SAMPLE_CITY = Path(__file__).parents[1] / "records" / "sample-city.mcap"


class Played:
    """The page of a record; `frame` asks for a second as a browser does."""

    def __init__(self, *paths: Path, reads: bool = True) -> None:
        """`reads`: whether the overview has read the record."""
        self.page = RecordPage(paths, None, ("127.0.0.1", 0))
        self.recorded: list[RecordedStep] = list(open_files(paths).steps())
        """Every step, read from the beginning to the end."""
        if reads:
            self.page.overview.read()

    def frame(self, at_s: float, tl: str | None = None, view=EVERYWHERE) -> Frame:
        data, _ = self.page.server.frame(FrameRequest(view, tl, False, at_s), None)
        return decode(data)

    @contextlib.contextmanager
    def served(self) -> Iterator[str]:
        """Serve the page in a thread; yields its address without the last slash."""
        loop, until = asyncio.new_event_loop(), asyncio.Event()
        ready = threading.Event()

        async def serve() -> None:
            serving = asyncio.create_task(self.page.server.serve(until))
            await asyncio.sleep(0)
            ready.set()
            await serving

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
        thread.start()
        assert ready.wait(5)
        try:
            yield self.page.server.site.url.rstrip("/")
        finally:
            loop.call_soon_threadsafe(until.set)
            thread.join(5)
            loop.close()
