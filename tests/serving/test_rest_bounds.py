"""Hostile REST clients: large, packed and many bodies, and clients that leave, cost a bounded amount of work."""

import contextlib
import gc
import gzip
import http.client
import json
import threading
import time
import weakref
from unittest.mock import Mock

import numpy as np
import pytest

from serving.client import Client
from serving.embedded.config import RestConfig, ServerConfig
from serving.embedded.rest import json_request, request_body
from serving.embedded.rest import server as rest_server
from serving.embedded.rest.request_body import Body, Budget
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
