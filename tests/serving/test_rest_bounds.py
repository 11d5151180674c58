"""Hostile and many REST clients: bodies cost a bounded amount of work, silent and idle connections end, a stop answers."""

import contextlib
import gc
import gzip
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
import weakref
from concurrent import futures
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from serving.client import Client
from serving.embedded.config import RestConfig, ServerConfig
from serving.embedded.rest import json_request, listener, request_body
from serving.embedded.rest import server as rest_server
from serving.embedded.rest.request_body import Body, Budget
from serving.embedded.rest.server import RestServer
from serving.embedded.server import Server
from serving.embedded.status import StatusError
from tests.end_to_end.programs import free_port, program
from tests.serving.conftest import running
from tests.serving.gates import Gate
from tests.serving.http_calls import call, connected, send
from tests.waiting import wait_until

PREDICT = "/v1/models/SA103:predict"
ROW = json.dumps({"instances": [[0.0] * 17]}).encode()


class BlockedParser(Gate):
    """Holds up the parser, and counts the requests that stop because their client has gone."""

    def __init__(self, monkeypatch):
        super().__init__(monkeypatch, rest_server.json_request, "parse")
        self.stopped = 0

    def __call__(self, text, check):
        try:
            return super().__call__(text, check)
        except StatusError:
            self.stopped += 1
            raise


@pytest.fixture
def server(grid_models):
    with running(ServerConfig(grid_models, port=0, poll_s=0, rest=RestConfig(0, max_body_bytes=1000))) as server:
        yield server


def test_bodies_beyond_the_bytes_in_flight_are_answered_503(server, monkeypatch):
    parser = BlockedParser(monkeypatch)
    budget = server._rest._budget
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connected(server.rest_port)) for _ in range(request_body.BODIES_IN_FLIGHT)]
        for connection in connections:
            connection.request("POST", PREDICT, ROW.ljust(1000))
        wait_until(lambda: budget._used == 1000 * len(connections))
        with connected(server.rest_port) as beyond:
            beyond.request("POST", PREDICT, ROW)
            response = beyond.getresponse()
            assert response.status == 503 and "try again later" in json.loads(response.read())["error"]
        parser.go.set()
        assert {connection.getresponse().status for connection in connections} == {200}
    wait_until(lambda: budget._used == 0)


def test_request_that_waits_is_not_begun_when_its_client_has_gone(server, monkeypatch):
    parser = BlockedParser(monkeypatch)
    with connected(server.rest_port) as first, connected(server.rest_port) as second:
        first.request("POST", PREDICT, ROW)
        assert parser.began.wait(20)
        second.request("POST", PREDICT, ROW)
        wait_until(lambda: server._rest._budget._used == 2 * len(ROW))
        second.close()
        wait_until(lambda: 'status="CANCELLED"} 1.0' in server.metrics.text().decode())
        parser.go.set()
        assert first.getresponse().status == 200
    wait_until(lambda: server._rest._budget._used == 0)
    assert parser.count == 1


@pytest.mark.parametrize("leaves", ["disconnects", "is answered 504"])
def test_work_of_a_request_stops_when_its_client_does_not_wait(grid_models, monkeypatch, leaves):
    parser = BlockedParser(monkeypatch)
    rest = RestConfig(0, timeout_s=0.1 if leaves == "is answered 504" else 30)
    with (
        running(ServerConfig(grid_models, port=0, poll_s=0, rest=rest)) as server,
        connected(server.rest_port) as client,
    ):
        client.request("POST", PREDICT, ROW)
        assert parser.began.wait(20)
        if leaves == "is answered 504":
            assert client.getresponse().status == 504
        else:
            client.close()
            wait_until(lambda: 'status="CANCELLED"} 1.0' in server.metrics.text().decode())
        parser.go.set()
        wait_until(lambda: parser.stopped == 1 and server._rest._budget._used == 0)


def test_parsed_body_of_an_invalid_request_is_freed_with_its_answer(server, monkeypatch):
    class Document(dict):
        """A dictionary that can have weak references."""

    documents = []

    def parse(_text, _check):
        document = Document(inputs=["x"])
        documents.append(weakref.ref(document))
        return document

    monkeypatch.setattr(rest_server.json_request, "parse", parse)
    gc.disable()
    try:
        assert call(server.rest_port, "POST", PREDICT, {})[0] == 400
        wait_until(lambda: documents[0]() is None)
    finally:
        gc.enable()


def test_gzip_beyond_the_bound_is_not_unpacked():
    packed = gzip.compress(bytes(50_000_000))
    budget = Budget(1_000_000)
    body = Body(budget, "gzip")
    body.append(packed)
    begin = time.process_time()
    with pytest.raises(StatusError, match="larger than 1000000 bytes"):
        body.content()
    assert time.process_time() - begin < 0.5 and budget._used < 2_000_000
    body.release()
    assert budget._used == 0


@pytest.mark.parametrize(
    "data",
    [gzip.compress(b"x" * 999)[:-9], gzip.compress(b"x") + b"y", b"", b"no gzip"],
    ids=["truncated", "two members", "empty", "no gzip"],  # the bytes have the time, which differs between workers
)
def test_gzip_that_is_not_one_whole_member_is_refused(data):
    body = Body(Budget(1000), "GZIP")
    body.append(data)
    with pytest.raises(StatusError, match="cannot be unpacked"):
        body.content()


def test_long_text_is_parsed_in_blocks_as_one_piece():
    numbers, checks = list(range(100_000)), []
    text = json.dumps({"instances": numbers}).encode()
    assert json_request.parse(text, lambda: checks.append(1)) == {"instances": numbers}
    assert len(checks) == len(text) // request_body.BLOCK_BYTES + 2
    assert json_request.parse(text + b" x") == {"instances": numbers}, "the text after it is ignored"
    for broken in (text[:-2], text.replace(b"5", b"\xff", 1)):
        with pytest.raises(StatusError, match="the body is not JSON"):
            json_request.parse(broken)


@pytest.mark.parametrize("dtype", [1, 3, 9])
def test_long_list_is_converted_in_blocks_as_one_piece(dtype):
    numbers = list(range(3 * json_request.BLOCK_SIZE + 1))
    arrays, _ = json_request.input_arrays({"inputs": numbers}, {"x": dtype})
    assert np.array_equal(arrays["x"], numbers)


def test_conversion_stops_between_blocks():
    with pytest.raises(ConnectionError):
        json_request.input_arrays({"inputs": ["x"] * 100_000}, {"x": 7}, Mock(side_effect=ConnectionError))


def test_body_that_is_announced_too_large_is_refused_before_it_arrives(server):
    request = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n" % PREDICT.encode()
    status, document = send(server.rest_port, request)
    assert status == 400 and "larger than 1000 bytes" in document["error"]


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("unit", [b"{}", b"[]", b"1"])
def test_hostile_rest_clients_delay_predict_by_less_than_a_second(grid_models, unit):
    size = request_body.MAX_BODY_BYTES - 100
    packed = gzip.compress(b'{"instances":[' + b",".join([unit] * (size // (len(unit) + 1))) + b"]}")
    stopped = threading.Event()

    def attack(port):
        while not stopped.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException), connected(port, timeout_s=2) as connection:
                connection.request("POST", PREDICT, packed, {"Content-Encoding": "gzip"})
                connection.getresponse().read()

    port = free_port()
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(
            program("serving", f"--models_dir={grid_models}", "--port=0", f"--rest_api_port={port}")
        )
        address = process.stdout.readline().removeprefix("ready at ").partition(",")[0]
        client = stack.enter_context(Client(address, retries=0))
        attackers = [threading.Thread(target=attack, args=(port,)) for _ in range(8)]
        try:
            for attacker in attackers:
                attacker.start()
            slowest_s, end = 0.0, time.monotonic() + 5
            while time.monotonic() < end:
                begin = time.monotonic()
                client.predict("SA103", np.zeros(17, np.float32), timeout_s=20)
                slowest_s = max(slowest_s, time.monotonic() - begin)
        finally:
            stopped.set()
            for attacker in attackers:
                attacker.join()
    assert slowest_s < 1


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
