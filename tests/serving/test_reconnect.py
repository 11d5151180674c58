"""A client replaces its connection without losing a call."""

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from serving.client import Client
from serving.embedded.config import ServerConfig
from serving.errors import DeadlineExceeded, Unavailable
from tests.end_to_end.faults import Fault, Proxy
from tests.serving.conftest import running
from tests.waiting import wait_until

X = np.zeros(17, np.float32)


@pytest.fixture(params=["TCP", "Unix socket"])
def proxy(request, tmp_path, grid_models):
    with running(ServerConfig(grid_models, port=0, poll_s=0, drain_s=0, socket_path=tmp_path / "s")) as server:
        opened = Proxy(server.port if request.param == "TCP" else tmp_path / "s")
        yield opened
        opened.close()


def test_reconnect_leaves_a_half_open_connection(proxy):
    with Client(proxy.address, retries=0) as client:
        client.predict("SA103", X)
        proxy.fault = Fault.HALF_OPEN
        proxy.fault = Fault.NONE  # only new connections reach the server
        with pytest.raises(DeadlineExceeded):
            client.predict("SA103", X, timeout_s=0.3)
        client.reconnect()
        assert client.predict("SA103", X, timeout_s=5)["action"].shape == (1, 1)


@pytest.mark.parametrize("server", ["grid_server", "grid_unix"])
def test_calls_succeed_after_every_reconnect(server, request):
    with Client(request.getfixturevalue(server)) as client:
        for _ in range(20):
            client.reconnect()
            assert client.predict("SA103", X, timeout_s=5)["action"].shape == (1, 1)


def test_reconnect_connects_before_the_next_call(proxy):
    with Client(proxy.address, retries=0) as client:
        client.predict("SA103", X)
        before = len(proxy.connections)
        client.reconnect()
        wait_until(lambda: len(proxy.connections) > before)


def test_reconnect_without_a_server_is_unavailable(tmp_path, caplog):
    caplog.set_level(logging.WARNING)  # whatever earlier tests have left
    for address in (f"unix:{tmp_path / 's'}", "127.0.0.1:1"):
        with Client(address, retries=0) as client:
            for _ in range(3):
                client.reconnect()
            with pytest.raises(Unavailable):
                client.predict("SA103", X, timeout_s=5)
    assert not caplog.records


def test_reconnects_of_several_threads_leave_one_connection_open(monkeypatch):
    open_channels, lock = [], threading.Lock()

    class Channel:
        def __init__(self):
            with lock:
                open_channels.append(self)
            time.sleep(0.002)  # as long as another thread needs to come in between

        def unary_unary(self, *_):
            return SimpleNamespace(future=lambda *_, **__: None)

        def close(self):
            with lock:
                open_channels.remove(self)  # fails if it is closed twice
            time.sleep(0.002)

    monkeypatch.setattr("serving.client.client.open_channel", lambda *_: Channel())
    client = Client("127.0.0.1:1")
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: client.reconnect(), range(24)))
    assert len(open_channels) == 2  # the current one, and the previous one for calls in flight
    client.close()
    client.reconnect()
    assert not open_channels
