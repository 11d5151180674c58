"""Hostile REST clients: large, packed and many bodies, and clients that leave, cost a bounded amount of work."""

import contextlib
import gzip
import http.client
import json
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from city.errors import InputError
from serving.client import Client
from serving.embedded.config import RestConfig, ServerConfig
from serving.embedded.flags import parse
from serving.embedded.rest import json_document, json_request, request_body
from serving.embedded.rest import server as rest_server
from serving.embedded.rest.request_body import Body, Budget
from serving.embedded.status import StatusError
from tests.end_to_end.programs import free_port
from tests.serving.conftest import running

PREDICT = "/v1/models/SA103:predict"
ROW = json.dumps({"instances": [[0.0] * 17]}).encode()


class BlockedParser:
    """Stands for the parser; it waits until `go` is set, and counts."""

    def __init__(self, monkeypatch):
        self.began, self.go, self.count, self.stopped = threading.Event(), threading.Event(), 0, 0
        monkeypatch.setattr(rest_server.json_document, "parse", self)

    def __call__(self, text, check):
        self.count += 1
        self.began.set()
        assert self.go.wait(30)
        try:
            check()
        except StatusError:
            self.stopped += 1
            raise
        return json_document._decode(text)


@contextlib.contextmanager
def connected(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=20)
    try:
        yield connection
    finally:
        connection.close()


@contextlib.contextmanager
def server_process(models):
    """A server in a process of its own: (its gRPC address, its REST port)."""
    port = free_port()
    command = [sys.executable, "-m", "serving", f"--models_dir={models}", "--port=0", f"--rest_api_port={port}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process.stdout.readline().removeprefix("ready at ").partition(",")[0], port
    finally:
        process.terminate()
        process.wait(20)


def until(condition):
    limit = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.005)


@pytest.fixture
def server(grid_models):
    with running(ServerConfig(grid_models, port=0, poll_s=0, rest=RestConfig(0, max_body_bytes=1000))) as server:
        yield server


def test_bodies_beyond_the_bytes_in_flight_are_answered_503(server, monkeypatch):
    parser = BlockedParser(monkeypatch)
    budget = server._rest._budget
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connected(server)) for _ in range(request_body.BODIES_IN_FLIGHT)]
        for connection in connections:
            connection.request("POST", PREDICT, ROW.ljust(1000))
        until(lambda: budget._used == 1000 * len(connections))
        with connected(server) as beyond:
            beyond.request("POST", PREDICT, ROW)
            response = beyond.getresponse()
            assert response.status == 503 and "try again later" in json.loads(response.read())["error"]
        parser.go.set()
        assert {connection.getresponse().status for connection in connections} == {200}
    until(lambda: budget._used == 0)


def test_request_that_waits_is_not_begun_when_its_client_has_gone(server, monkeypatch):
    parser = BlockedParser(monkeypatch)
    with connected(server) as first, connected(server) as second:
        first.request("POST", PREDICT, ROW)
        assert parser.began.wait(20)
        second.request("POST", PREDICT, ROW)
        until(lambda: server._rest._budget._used == 2 * len(ROW))
        second.close()
        until(lambda: 'status="CANCELLED"} 1.0' in server.metrics.text().decode())
        parser.go.set()
        assert first.getresponse().status == 200
    until(lambda: server._rest._budget._used == 0)
    assert parser.count == 1


@pytest.mark.parametrize("leaves", ["disconnects", "is answered 504"])
def test_work_of_a_request_stops_when_its_client_does_not_wait(grid_models, monkeypatch, leaves):
    parser = BlockedParser(monkeypatch)
    rest = RestConfig(0, timeout_s=0.1 if leaves == "is answered 504" else 30)
    with running(ServerConfig(grid_models, port=0, poll_s=0, rest=rest)) as server, connected(server) as client:
        client.request("POST", PREDICT, ROW)
        assert parser.began.wait(20)
        if leaves == "is answered 504":
            assert client.getresponse().status == 504
        else:
            client.close()
            until(lambda: 'status="CANCELLED"} 1.0' in server.metrics.text().decode())
        parser.go.set()
        until(lambda: parser.stopped == 1 and server._rest._budget._used == 0)


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
    assert json_document.parse(text, lambda: checks.append(1)) == {"instances": numbers}
    assert len(checks) == len(text) // request_body.BLOCK_BYTES + 2
    for broken, error in (
        (text[:-2], "Missing a comma"),
        (text + b" x", None),
        (text.replace(b"5", b"\xff", 1), "Invalid"),
    ):
        if error is None:
            assert json_document.parse(broken) == {"instances": numbers}
        else:
            with pytest.raises(StatusError, match=error):
                json_document.parse(broken)


@pytest.mark.parametrize("dtype", [1, 3, 9])
def test_long_list_is_converted_in_blocks_as_one_piece(dtype):
    numbers = list(range(3 * json_request.BLOCK_SIZE + 1))
    document = json_document.JsonObject([("inputs", numbers)])
    arrays, _ = json_request.input_arrays(document, {"x": dtype})
    assert np.array_equal(arrays["x"], numbers)


def test_conversion_stops_between_blocks():
    class Gone(Exception):
        pass

    def check():
        raise Gone

    document = json_document.JsonObject([("inputs", ["x"] * 100_000)])
    with pytest.raises(Gone):
        json_request.input_arrays(document, {"x": 7}, check)


def test_body_that_is_announced_too_large_is_refused_before_it_arrives(server):
    with socket.create_connection(("127.0.0.1", server.rest_port), timeout=20) as connection:
        connection.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n" % PREDICT.encode())
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert response.status == 400 and "larger than 1000 bytes" in json.loads(response.read())["error"]


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("unit", [b"{}", b"[]", b"1"])
def test_hostile_rest_clients_delay_predict_by_less_than_a_second(grid_models, unit):
    size = request_body.MAX_BODY_BYTES - 100
    packed = gzip.compress(b'{"instances":[' + b",".join([unit] * (size // (len(unit) + 1))) + b"]}")
    stopped = threading.Event()

    def attack(port):
        while not stopped.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
                connection.request("POST", PREDICT, packed, {"Content-Encoding": "gzip"})
                connection.getresponse().read()

    with server_process(grid_models) as (address, rest_port), Client(address, retries=0) as client:
        attackers = [threading.Thread(target=attack, args=(rest_port,)) for _ in range(8)]
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


@pytest.mark.parametrize("size", [0, (1 << 26) + 1])
def test_bound_of_a_body_lies_within_64_mib(tmp_path, size):
    with pytest.raises(InputError, match=f"--rest_api_max_body_bytes {size} must lie between"):
        parse([f"--models_dir={tmp_path}", f"--rest_api_max_body_bytes={size}"])
