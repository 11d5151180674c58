"""The REST server's shutdown: requests in progress are answered, idle connections are closed."""

import socket
import threading
from concurrent import futures

import numpy as np
import pytest

from serving.client import Client
from serving.embedded.config import RestConfig, ServerConfig
from serving.embedded.rest.server import RestServer
from serving.embedded.server import Server
from tests.serving import http_calls
from tests.serving.gates import Gate

BODY = bytes(8_000_000)
"""Larger than a socket's buffers."""


class SlowRestServer(RestServer):
    """Answers /slow, as it does its metrics, after the test has set `go`."""

    def __init__(self):
        self.began, self.go = threading.Event(), threading.Event()
        super().__init__(None, self, "127.0.0.1", RestConfig(0, threads=2, metrics_path="/slow"))

    def text(self):
        self.began.set()
        assert self.go.wait(30)
        return BODY


@pytest.fixture
def rest():
    before = set(threading.enumerate())
    server = SlowRestServer()
    server.start()
    (server.thread,) = {thread for thread in threading.enumerate() if thread.name == "rest"} - before
    yield server
    server.go.set()


def refuses(port):
    """Tell whether new connections are refused, at last."""
    with pytest.raises(ConnectionError):
        while True:
            socket.create_connection(("127.0.0.1", port), timeout=30).close()
    return True


def test_stop_finishes_requests_and_refuses_new_connections(rest, caplog):
    with futures.ThreadPoolExecutor(2) as pool:
        call = pool.submit(http_calls.call, rest.port, "GET", "/slow")
        assert rest.began.wait(30)
        stopped = pool.submit(rest.stop)
        assert refuses(rest.port)
        rest.go.set()
        assert call.result(30) == (200, BODY.decode())
        stopped.result(30)
    assert not rest.thread.is_alive()
    assert [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")] == []


def test_stop_closes_an_idle_connection(rest):
    rest.go.set()
    with http_calls.connected(rest.port) as connection:
        connection.request("GET", "/slow")
        assert len(connection.getresponse().read()) == len(BODY)
        rest.stop()
        assert not rest.thread.is_alive()


def test_requests_are_refused_while_grpc_calls_end(grid_models, monkeypatch):
    server = Server(ServerConfig(grid_models, port=0, poll_s=0, rest=RestConfig(0)))
    server.start()
    gate = Gate(monkeypatch, server.manager, "find")
    with Client(f"127.0.0.1:{server.port}", retries=0) as client, futures.ThreadPoolExecutor(2) as pool:
        call = pool.submit(client.predict, "SA103", np.zeros(17, np.float32), timeout_s=30)
        assert gate.began.wait(30)
        stopped = pool.submit(server.stop)
        assert refuses(server.rest_port) and not call.done() and not stopped.done()
        gate.go.set()
        assert call.result(30)["action"].shape == (1, 1)
        stopped.result(30)
