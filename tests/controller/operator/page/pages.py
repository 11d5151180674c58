"""A page of the sample city without SUMO: events are made by hand, commands go to a real command queue."""

import asyncio
import contextlib
import json
import socket
from pathlib import Path

import aiohttp
import numpy as np

from city import street_shapes
from controller.alarms import Alarms
from controller.assembly import Start
from controller.operator.command_queue import CommandQueue
from controller.operator.page.controls import LiveControls
from controller.operator.page.exports import Exports
from controller.operator.page.feed import Feed
from controller.operator.page.frames import Vehicles, decode
from controller.operator.page.server import PageServer
from controller.operator.page.site import listen
from controller.operator.page.street_data import StreetData
from controller.operator.run_state import RunState
from controller.operator.saved_modes import SavedModes
from controller.operator.watchers import Watchers
from controller.pace import Pace
from controller.policies.no_policies import contracts_of_city
from controller.recording.messages import Encoder
from controller.recording.run_start import RunStart
from signals.observation import Readings
from tests.controller.decision_events import event
from tests.controller.operator.operated_runs import Loop, applying

VIEW = (-1000.0, -1000.0, 3000.0, 3000.0)
"""Everything."""


class Page:
    """The parts of a page, wired as `live` wires them."""

    def __init__(self, city, street, tls=None):
        """`tls`: the controlled ones; None: all of the city."""
        self.contracts = list(contracts_of_city(city, tuple(city.tls) if tls is None else tls, street).values())
        tls = [contract.tl for contract in self.contracts]
        self.loop = Loop(tls)
        self.state, self.pace = RunState(self.contracts, Watchers()), Pace()
        self.alarms = Alarms({s: c.tl for c in self.contracts for s in c.signal_ids}, len(tls), wall_clock=lambda: 1e9)
        self.queue = CommandQueue(self.state, self.pace, self.alarms, SavedModes(None))
        self.feed = Feed(self.contracts)
        run = RunStart(street, tuple(self.contracts), Start(0.0, 1.0, False, {}), city.safety, city.controller)
        self.lanes = run.tracked_lanes().lanes
        self.feed.track(self.lanes)
        self.shapes = street_shapes.read(street.net_file)
        data = StreetData(self.feed, street, self.shapes, "grid")
        controls = LiveControls(self.state, self.queue, self.pace, self.alarms, Exports(None, Path("models")))
        self.server = PageServer(listen("127.0.0.1", 0), self.feed, data, controls, make_encoder=lambda: Encoder(run))
        self.server.start()
        self.url = f"http://127.0.0.1:{self.server.port}"
        self.token = {"Authorization": f"Bearer {self.server.token}"}

    def states(self, letter="r"):
        """A state for every signal."""
        return tuple(letter * 12 for _ in self.feed.signals)

    def step(self, at_s, letter="r", decisions=(), halting=None, **arguments):
        """Publish an event in which every signal shows one letter."""
        readings = Readings(np.zeros((2, len(self.lanes))), np.zeros(len(self.lanes)), np.zeros(len(self.lanes)))
        if halting is not None:
            readings.halting[:] = halting
        made = event(at_s, decisions, states=[(at_s - 1, at_s, self.states(letter))], readings=readings, **arguments)
        for subscriber in (self.state, self.feed):
            subscriber.add(made)

    def collect(self, count, at_s=0.0, states=None):
        """Take vehicles, and the states of uncontrolled signals."""
        axis = np.linspace(0, 500, count).astype(np.float32)
        vehicles = Vehicles(axis, axis, np.zeros(count, np.float32), np.ones(count, np.float32))
        self.feed.set_collected(at_s, vehicles, states or {})

    def applying(self):
        return applying(self.queue, self.loop)

    def close(self):
        self.server.stop()


class Browser:
    """A watcher that asks for frames as the page does."""

    def __init__(self, session, page):
        self._session, self._page = session, page

    async def __aenter__(self):
        self.socket = await self._session.ws_connect(f"{self._page.url}/live", headers={"Origin": self._page.url})
        return self

    async def __aexit__(self, *_):
        await self.socket.close()

    async def ask(self, view=VIEW, tl=None, fresh=False):
        await self.socket.send_json({"view": view, "tl": tl, "fresh": fresh})

    async def frame(self, timeout_s=5.0, **request):
        """Ask for a frame, and wait for it."""
        await self.ask(**request)
        return decode(await self.socket.receive_bytes(timeout=timeout_s))


class SlowLine:
    """A watcher at the other end of a line with a small buffer, read when the test wants; it asks in plain WebSocket
    messages."""

    def __init__(self, page):
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.connect(("127.0.0.1", page.server.port))
        self._socket.sendall(
            f"GET /live HTTP/1.1\r\nHost: 127.0.0.1:{page.server.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )
        assert b" 101 " in self._socket.recv(1000)

    def ask(self, view=VIEW):
        text = json.dumps({"view": view, "tl": None}).encode()
        self._socket.sendall(bytes((0x81, 0x80 | len(text), 0, 0, 0, 0)) + text)  # masked with zeros

    def wait(self):
        """Wait until the answer begins to arrive; read nothing."""
        assert self._socket.recv(1, socket.MSG_PEEK)

    def frame(self):
        """Read a frame."""
        head = self._read(2)
        more = {126: 2, 127: 8}.get(head[1], 0)
        return decode(self._read(int.from_bytes(self._read(more)) if more else head[1]))

    def _read(self, size):
        content = b""
        while len(content) < size:
            part = self._socket.recv(size - len(content))
            assert part, "the server has ended the connection"
            content += part
        return content

    def end(self):
        """End the connection."""
        with contextlib.suppress(OSError):  # the server has ended it
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._socket.close()


def run(work):
    """Run a coroutine function with an HTTP session."""

    async def main():
        async with aiohttp.ClientSession() as session:
            return await work(session)

    return asyncio.run(main())
