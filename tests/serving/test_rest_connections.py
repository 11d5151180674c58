"""REST connections: silent and idle ones end, none is accepted beyond a bound, and a stop answers requests in progress."""

import contextlib
import http.client
import socket
import subprocess
import sys
import threading
import time
from concurrent import futures
from pathlib import Path

import numpy as np
import pytest

from serving.client import Client
from serving.embedded.config import RestConfig, ServerConfig
from serving.embedded.rest import listener
from serving.embedded.rest import server as rest_server
from serving.embedded.rest.server import RestServer
from serving.embedded.server import Server
from tests.end_to_end.programs import free_port
from tests.serving.conftest import running
from tests.serving.gates import Gate
from tests.serving.http_calls import call, connected
from tests.waiting import wait_until

STATUS = "/v1/models/SA103"
OPEN_FILES = 200


@pytest.fixture
def rest_port(grid_models, monkeypatch):
    monkeypatch.setattr(listener, "FIRST_REQUEST_TIMEOUT_S", 0.5)
    monkeypatch.setattr(listener, "UNREAD_TIMEOUT_S", 0.5)
    monkeypatch.setattr(rest_server, "IDLE_TIMEOUT_S", 1.5)
    config = RestConfig(0, metrics_path="/metrics")
    with running(ServerConfig(grid_models, port=0, poll_s=0, rest=config)) as server:
        yield server.rest_port


@pytest.mark.parametrize("sent", [b"", b"GET ", f"GET {STATUS} HTTP/1.1\r\nHost: x\r\n".encode()])
def test_a_connection_without_a_whole_request_is_closed(rest_port, sent):
    with socket.create_connection(("127.0.0.1", rest_port), timeout=20) as connection:
        connection.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""


def test_a_connection_whose_headers_arrive_byte_by_byte_is_closed(rest_port):
    with socket.create_connection(("127.0.0.1", rest_port), timeout=20) as connection, pytest.raises(ConnectionError):
        connection.sendall(b"GET / HTTP/1.1\r\nA: ")
        for _ in range(200):
            connection.sendall(b"a")
            time.sleep(0.05)


def test_a_used_connection_outlasts_the_first_deadline_and_is_closed_when_idle(rest_port):
    with connected(rest_port) as connection:
        for _ in range(4):
            connection.request("GET", STATUS)
            assert connection.getresponse().read()
            time.sleep(0.3)
        assert connection.sock.recv(1) == b""


def test_a_connection_whose_client_reads_no_response_is_closed(rest_port):
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", rest_port))
        request = f"GET {STATUS} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        with pytest.raises(ConnectionError):
            while True:
                connection.sendall(request * 1000)
                time.sleep(0.05)


@contextlib.contextmanager
def limited_server(models):
    """(process id, gRPC port, REST port, path of its log) of a server that may open few files."""
    rest_port = free_port()
    command = [sys.executable, "-m", "serving", "--models-dir", str(models), "--port=0", f"--rest_api_port={rest_port}"]
    with (
        (models.parent / "log").open("w") as log,
        subprocess.Popen(
            ["sh", "-c", f'ulimit -n {OPEN_FILES}; exec "$@"', "sh", *command],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            address = process.stdout.readline().removeprefix("ready at ").partition(",")[0]
            yield process.pid, int(address.rpartition(":")[2]), rest_port, models.parent / "log"
        finally:
            process.kill()


@pytest.fixture
def models(grid_models, tmp_path):
    (tmp_path / "models").symlink_to(grid_models)
    return tmp_path / "models"


def opened(stack, port):
    for _ in range(OPEN_FILES):
        with contextlib.suppress(OSError):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))


def test_connections_beyond_the_bound_are_closed_with_one_line_in_the_log(models):
    with limited_server(models) as (_, _, rest_port, log):
        with contextlib.ExitStack() as stack:
            opened(stack, rest_port)
            with pytest.raises((ConnectionError, http.client.HTTPException)):
                call(rest_port, "GET", STATUS)
        until_answered(rest_port)
        lines = [line for line in log.read_text().splitlines() if "REST" in line and "connections" in line]
        assert len(lines) == 1 and f"connections beyond {OPEN_FILES // 2} are closed" in lines[0]


def test_connections_wait_while_no_file_can_be_opened_with_one_line_in_the_log(models):
    with limited_server(models) as (pid, grpc_port, rest_port, log):
        with contextlib.ExitStack() as stack:
            opened(stack, grpc_port)
            wait_until(lambda: len(list(Path(f"/proc/{pid}/fd").iterdir())) == OPEN_FILES)
            with pytest.raises(TimeoutError), connected(rest_port, timeout_s=1) as connection:
                connection.request("GET", STATUS)
                connection.getresponse()
        until_answered(rest_port)
        text = log.read_text()
        assert text.count("connections wait to be accepted: Too many open files") == 1
        assert "Traceback" not in text and len(text) < 10_000


def until_answered(port):
    end_s = time.monotonic() + 30
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if call(port, "GET", STATUS)[0] == 200:
                return
        time.sleep(0.2)
    raise AssertionError("the server answers no more")


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
        slow = pool.submit(call, rest.port, "GET", "/slow")
        assert rest.began.wait(30)
        stopped = pool.submit(rest.stop)
        assert refuses(rest.port)
        rest.go.set()
        assert slow.result(30) == (200, BODY.decode())
        stopped.result(30)
    assert not rest.thread.is_alive()
    assert [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")] == []


def test_stop_closes_an_idle_connection(rest):
    rest.go.set()
    with connected(rest.port) as connection:
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
