"""A page of the sample city without SUMO: events are made by hand, commands go to a real command queue."""

import asyncio
import json
import socket
from pathlib import Path

import aiohttp
import numpy as np

from benchmarks.page_frame import decode
from city import street_shapes
from controller.control_address import listen
from controller.operator import operator_token
from controller.operator.page.collector import Collected, Collector
from controller.operator.page.exports import Exports
from controller.operator.page.frames import Vehicles
from controller.operator.page.server import PageServer
from controller.operator.page.site import Site
from controller.operator.page.street_data import StreetData
from controller.operator.tl_layout import TlLayout
from controller.policies.no_policies import contracts_of_city
from controller.telemetry.traffic import TrafficMeter
from signals.observation import Readings
from tests.controller.decision_events import decision, event
from tests.controller.operator.operated_runs import OperatedRun

VIEW = (-1000.0, -1000.0, 3000.0, 3000.0)
"""Everything."""


class Page(OperatedRun):
    """The parts of a page, wired as `live` wires them."""

    def __init__(self, city, street, tls=None):
        """`tls`: the controlled ones; None: all of the city."""
        self.contracts = list(contracts_of_city(city, tuple(city.tls) if tls is None else tls, street).values())
        super().__init__(run_contracts=self.contracts, keeps_history=True)
        lanes = dict.fromkeys(lane for contract in self.contracts for s in contract.signals for lane in s.lane_ids)
        self.layout = TlLayout(self.contracts, tuple(lanes))
        self.street = StreetData(self.layout, street, street_shapes.read(street.net_file), "grid")
        self.collector = Collector(self.street)
        site = Site(listen("127.0.0.1", 0, "--page"), self.street, operator_token.new_token())
        self.traffic = TrafficMeter(self.contracts, street)
        self.traffic.track(self.layout.lanes)
        self.earlier: dict[int, dict] = {}
        """By simulated minute, the figures of an earlier record."""
        exports = Exports(None, Path("models"))
        self.server = PageServer(site, self.service, exports, self.collector, self.traffic, self.earlier)
        self.server.start()
        self.url = site.url.rstrip("/")
        self.port = site.port
        self.token = {"Authorization": f"Bearer {site.gate.token}"}

    def states(self, letter="r"):
        """A state for every signal."""
        return tuple(letter * 12 for _ in self.layout.signals)

    def decided(self, tl, **arguments):
        """A decision of a TL with an observation of its contract's size."""
        size = len(self.layout.contracts[tl].observation.features)
        return decision(tl, **arguments)._replace(observation=np.zeros(size, np.float32))

    def step(self, at_s, letter="r", decisions=(), halting=None, **arguments):
        """Publish an event in which every signal shows one letter."""
        lanes = len(self.layout.lanes)
        readings = Readings(np.zeros((2, lanes)), np.zeros(lanes), np.zeros(lanes))
        if halting is not None:
            readings.halting[:] = halting
        states = [(at_s - 1, at_s, self.states(letter))]
        made = event(at_s, decisions, states=states, readings=readings, **arguments)
        self.state.add(made)
        self.traffic.add(made)

    def collect(self, count, states=None):
        """Take vehicles, and the states of uncontrolled signals."""
        axis = np.linspace(0, 500, count).astype(np.float32)
        vehicles = Vehicles(axis, axis, np.zeros(count, np.float32), np.ones(count, np.float32))
        self.collector.collected = Collected(self.collector.collected.number + 1, vehicles, states or {})

    def close(self):
        self.server.stop()


class Browser:
    """A watcher that asks for frames as the page does."""

    def __init__(self, url, is_slow=False, **headers):
        """Connect. `is_slow`: over a line with a small buffer. Raises aiohttp.WSServerHandshakeError."""
        self._runner = asyncio.Runner()

        def small_socket(address):
            made = socket.socket(*address[:3])
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            return made

        async def connect():
            factory = dict(socket_factory=small_socket) if is_slow else {}
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(**factory))
            try:
                return await self._session.ws_connect(f"{url}/live", headers={"Origin": url, **headers})
            except BaseException:
                await self._session.close()
                raise

        self.socket = self._runner.run(connect())

    def send(self, data):
        sending = self.socket.send_bytes(data) if isinstance(data, bytes) else self.socket.send_str(data)
        self._runner.run(sending)

    def ask(self, view=VIEW, **request):
        self.send(json.dumps({"view": view, **request}))

    def receive(self, timeout_s=5.0):
        """The next message; its frame if it has one. Raises TimeoutError."""
        message = self._runner.run(self.socket.receive(timeout=timeout_s))
        return decode(message.data) if message.type is aiohttp.WSMsgType.BINARY else message

    def frame(self, timeout_s=5.0, **request):
        """Ask for a frame, and wait for it."""
        self.ask(**request)
        return self.receive(timeout_s)

    def end(self, timeout_s=5.0):
        """Wait until the server closes the connection; return the code."""
        assert self.receive(timeout_s).type is aiohttp.WSMsgType.CLOSE
        return self.socket.close_code

    def close(self):
        self._runner.run(self.socket.close())
        self._runner.run(self._session.close())
        self._runner.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def fetch(url, method="GET", data=None, **headers):
    """(status, headers, body) of a request."""

    async def work():
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(method, url, data=data, headers=headers) as response,
        ):
            return response.status, response.headers, await response.read()

    return asyncio.run(work())
