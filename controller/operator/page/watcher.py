"""A browser that has the page open: what it asks for, and what it has already."""

import asyncio
import json
import math
from typing import NamedTuple

from aiohttp import web

from controller.operator.page.frames import View
from controller.operator.page.panels import TlPanel


class MalformedRequest(Exception):
    """A watcher's message that is not a request for a frame."""


class FrameRequest(NamedTuple):
    view: View
    tl: str | None
    is_fresh: bool


def parse_request(text: str) -> FrameRequest:
    """A watcher's message. Raises MalformedRequest."""
    try:
        message = json.loads(text)
        view, tl = tuple(float(value) for value in message["view"]), message.get("tl")
        x0, y0, x1, y1 = view
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):  # a huge integer overflows
        raise MalformedRequest("a request needs view: [min x, min y, max x, max y]") from None
    if not all(abs(value) < 1e9 for value in view) or x0 >= x1 or y0 >= y1:  # NaN is not below either
        raise MalformedRequest("view must be [min x, min y, max x, max y] in m")
    if tl is not None and not isinstance(tl, str):
        raise MalformedRequest("tl must be a name or null")
    return FrameRequest((x0, y0, x1, y1), tl, message.get("fresh") is True)


class Watcher:
    """One of the browsers."""

    def __init__(self, connection: web.WebSocketResponse) -> None:
        self.connection = connection
        self.changed = asyncio.Event()
        """Set by a new request and by a new step."""
        self.request: FrameRequest | None = None
        """Not answered yet."""
        self.view: View | None = None
        self.asked_s = 0.0
        """Wall time of the newest request."""
        self.forget()

    def forget(self) -> None:
        """Forget what the browser has, so that the next frame has everything."""
        self.sent_s = self.city_s = -math.inf
        self.sequence = self.collected_number = -1
        self.sent_view: View | None = None
        self.states: dict[int, str] = {}
        self.modes = b""
        self.panel: TlPanel | None = None
        self.has_end = False
        """Whether it knows that the run has ended."""
