"""The REST server's shutdown: requests in progress are answered, idle connections are closed."""

import http.client
import socket
import threading
from concurrent import futures

import numpy as np
import pytest

from serving.client import Client
from serving.embedded.config import RestConfig, ServerConfig
from serving.embedded.rest.server import RestServer
from serving.embedded.server import Server

BODY = bytes(8_000_000)
"""Larger than a socket's buffers."""


class SlowRestServer(RestServer):
    """Answers /slow, as it does its metrics, after the test has set `go`."""

    def __init__(self):
        self.began, self.go = threading.Event(), threading.Event()
        super().__init__(None, self, "127.0.0.1", 0, threads=2, timeout_s=30, metrics_path="/slow")

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


def connect(rest):
    return http.client.HTTPConnection("127.0.0.1", rest.port, timeout=30)


def get(rest, path, sizes):
    connection = connect(rest)
    connection.request("GET", path)
    sizes.append(len(connection.getresponse().read()))
    connection.close()


def test_stop_finishes_requests_and_refuses_new_connections(rest, caplog):
    sizes = []
    caller = threading.Thread(target=get, args=(rest, "/slow", sizes))
    caller.start()
    assert rest.began.wait(30)
    stopper = threading.Thread(target=rest.stop)
    stopper.start()
    with pytest.raises(ConnectionError):
        while True:
            socket.create_connection(("127.0.0.1", rest.port), timeout=30).close()
    rest.go.set()
    caller.join(30)
    stopper.join(30)
    assert sizes == [len(BODY)]
    assert not rest.thread.is_alive()
    assert [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")] == []


def test_stop_closes_an_idle_connection(rest):
    connection = connect(rest)
    rest.go.set()
    connection.request("GET", "/slow")
    assert len(connection.getresponse().read()) == len(BODY)
    rest.stop()
    assert not rest.thread.is_alive()
    connection.close()


def test_requests_are_refused_while_grpc_calls_end(grid_models, monkeypatch):
    server = Server(ServerConfig(grid_models, port=0, poll_s=0, rest=RestConfig(0)))
    server.start()
    find, began, go = server.manager.find, threading.Event(), threading.Event()

    def blocked(spec):
        began.set()
        assert go.wait(30)
        return find(spec)

    monkeypatch.setattr(server.manager, "find", blocked)
    with Client(f"127.0.0.1:{server.port}", retries=0) as client, futures.ThreadPoolExecutor(2) as pool:
        call = pool.submit(client.predict, "SA103", np.zeros(17, np.float32), timeout_s=30)
        assert began.wait(30)
        stopped = pool.submit(server.stop)
        with pytest.raises(ConnectionError):
            while True:
                socket.create_connection(("127.0.0.1", server.rest_port), timeout=30).close()
        assert not call.done() and not stopped.done()
        go.set()
        assert call.result(30)["action"].shape == (1, 1)
        stopped.result(30)
