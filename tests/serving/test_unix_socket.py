"""The server's end of a Unix socket, and what it must not be surprised by."""

import socket
import struct
import threading
import time
from concurrent import futures

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving import http2
from serving.embedded import unix_peer, unix_socket
from serving.embedded.call_threads import CallThreads
from serving.embedded.grpc_method import Method
from serving.embedded.metrics import Metrics
from serving.embedded.status import Answer
from serving.embedded.unix_socket import InUse, UnixSocket
from serving.grpc_wire import header_block
from serving.line import Status
from tests.serving.unix_ends import CALL, SERVICE, ByGrpc, ByLine, Echo, Ours, next_of, raw_call


@pytest.fixture
def ours(tmp_path, echo):
    made = Ours(tmp_path / "s", echo, most_calls=2)
    yield made
    echo.go.set()
    made.stop()


def test_more_calls_than_there_is_room_for_are_refused_at_once(ours, echo):
    caller = ByGrpc(ours.server.path)
    with futures.ThreadPoolExecutor(1) as pool:
        two = pool.submit(caller.ask, {"a": b"hold", "b": b"hold"})
        for _ in range(2):
            assert echo.begun.acquire(timeout=20)
        assert caller.ask({"c": b"hold"}) == {"c": Status("RESOURCE_EXHAUSTED", "Concurrent RPC limit exceeded!")}
        echo.go.set()
        assert two.result(20) == {"a": b"hold", "b": b"hold"}
    assert caller.ask({"c": b"hold"}) == {"c": b"hold"}
    caller.close()


def test_what_is_not_there_says_so(ours):
    with grpc.insecure_channel(f"unix:{ours.server.path}") as channel:
        for call in (channel.unary_unary("/test.Echo/Other"), channel.unary_stream("/other/Watch")):
            with pytest.raises(grpc.RpcError) as caught:
                found = call(b"", timeout=20)
                next(found)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(CALL)(b"x" * 5000, timeout=20, compression=grpc.Compression.Gzip)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.RpcError) as caught:
            channel.stream_unary(CALL)(iter([b"a", b"b"]), timeout=20)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert channel.unary_unary(CALL)(b"x", timeout=20) == b"x"


def test_a_call_whose_time_is_over_is_not_begun(tmp_path):
    path, begun, go = tmp_path / "s", [], threading.Event()

    def answer(data):
        begun.append(data)
        assert go.wait(20)
        return Answer(1, data)

    server = UnixSocket(path, 100)
    one = CallThreads(1)
    server.add(SERVICE, {"Call": Method("Call", answer, Metrics(), lambda name: True)}, one)
    server.start()
    caller = ByGrpc(path)
    try:
        with futures.ThreadPoolExecutor(1) as pool:
            first = pool.submit(caller.ask, {"": b"first"})
            while not begun:
                time.sleep(0.001)
            assert caller.ask({"": b"late"}, timeout_s=0.1)[""].code == "DEADLINE_EXCEEDED"
            go.set()
            assert first.result(20) == {"": b"first"}
        assert caller.ask({"": b"last"}) == {"": b"last"}
        assert begun == [b"first", b"last"]
    finally:
        caller.close()
        server.stop(0)
        one.shutdown()


TIMEOUTS = {"5S": "0", "1H": "0", "99999999n": "0", "99999999H": "0", "0m": "4", "1x": "12", "123456789m": "12"}


@pytest.mark.parametrize(("timeout", "answer"), TIMEOUTS.items())
def test_timeouts_of_every_unit_are_read(ours, timeout, answer):
    end = http2.Connection(is_client=True)
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(20)
        caller.connect(str(ours.server.path))
        head = header_block(
            (":method", "POST"), (":path", CALL), ("content-type", "application/grpc"), ("grpc-timeout", timeout)
        )  # fmt: skip
        end.send(end.begin(), head, b"\0\0\0\0\1x")
        caller.sendall(end.outgoing)
        headers = {}
        while "grpc-status" not in headers:
            for event in end.feed(caller.recv(1 << 16)):
                headers |= dict(event.headers)
        assert headers["grpc-status"] == answer


def test_a_deadline_beyond_all_bounds_is_one_that_locks_can_wait_for(ours):
    headers = ((":method", "POST"), (":path", CALL), ("content-type", "application/grpc"), ("grpc-timeout", "99999999H"))
    assert 1e5 < ours.server._methods.asked(headers).timeout_s < threading.TIMEOUT_MAX


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=300), st.booleans())
def test_garbage_ends_its_own_connection_only(served_forever, data, has_preface):
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(served_forever.server.path))
        caller.sendall((http2.PREFACE if has_preface else b"") + data)
    other = ByLine(served_forever.server.path)
    assert other.ask({"": b"x"}) == {"": b"x"}
    other.close()


@pytest.fixture(scope="module")
def served_forever(tmp_path_factory):
    made = Ours(tmp_path_factory.mktemp("unix") / "s", Echo())
    yield made
    made.stop()


@pytest.mark.parametrize("message", [b"quick", b"hold"])
def test_a_caller_that_takes_nothing_is_given_up(tmp_path, echo, monkeypatch, message):
    monkeypatch.setattr(unix_peer, "SEND_S", 0.2)
    echo.go.set()
    server = Ours(tmp_path / "s", echo)
    caller, _ = raw_call(tmp_path / "s", message + bytes(2_000_000))
    end_s = time.monotonic() + 20
    while server.server._peers:
        assert time.monotonic() < end_s
        time.sleep(0.001)
    caller.close()
    other = ByLine(tmp_path / "s")
    assert other.ask({"": b"x"}) == {"": b"x"}
    other.close()
    server.stop()


def test_a_call_that_is_given_up_before_it_is_whole_leaves_nothing_behind(tmp_path, echo):
    server = Ours(tmp_path / "s", echo)
    caller, _ = raw_call(tmp_path / "s", b"x")
    head = header_block((":method", "POST"), (":path", CALL), ("content-type", "application/grpc"))
    caller.sendall(
        struct.pack("!IBI", len(head) << 8 | http2.HEADERS, http2.END_HEADERS, 3) + head
        + struct.pack("!IBII", 4 << 8 | http2.RST_STREAM, 0, 3, http2.CANCEL)
        + struct.pack("!IBI", 8 << 8 | http2.PING, 0, 0) + b"12345678"
    )  # fmt: skip
    got = b""
    while b"12345678" not in got:
        got += caller.recv(1 << 16)
    end_s = time.monotonic() + 20
    (peer,) = server.server._peers
    while peer._calls:
        assert time.monotonic() < end_s
        time.sleep(0.001)
    caller.close()
    server.stop()


def test_more_connections_than_there_is_room_for_end_at_once(tmp_path, echo, monkeypatch):
    monkeypatch.setattr(unix_socket, "MOST_CONNECTIONS", 2)
    server = Ours(tmp_path / "s", echo)
    first, second, third = (ByLine(tmp_path / "s") for _ in range(3))
    try:
        assert first.ask({"": b"x"}) == second.ask({"": b"x"}) == {"": b"x"}
        assert third.ask({"": b"x"}) == {}
        first.close()
        while third.ask({"": b"x"}) == {}:
            third.close()
            third = ByLine(tmp_path / "s")
    finally:
        for one in (second, third):
            one.close()
        server.stop()


def test_stopping_lets_calls_under_way_end_and_takes_no_more(tmp_path, echo):
    server = Ours(tmp_path / "s", echo)
    caller = ByGrpc(tmp_path / "s")
    with futures.ThreadPoolExecutor(2) as pool:
        found = pool.submit(caller.ask, {"": b"hold"})
        assert echo.begun.acquire(timeout=20)
        stopped = pool.submit(server.stop, 20.0)
        while (tmp_path / "s").exists():
            time.sleep(0.001)
        assert not stopped.done()
        while (later := caller.ask({"": b"x"})[""]) == b"x":
            pass  # it came before the word that no more are taken
        assert later.code == "UNAVAILABLE"
        echo.go.set()
        assert found.result(20) == {"": b"hold"}
        stopped.result(10)
    caller.close()


def test_stopping_does_not_wait_longer_than_told(tmp_path, echo):
    server = Ours(tmp_path / "s", echo)
    caller = ByGrpc(tmp_path / "s")
    with futures.ThreadPoolExecutor(1) as pool:
        found = pool.submit(caller.ask, {"": b"hold"})
        assert echo.begun.acquire(timeout=20)
        server.stop(0.05)
        assert found.result(10)[""].code == "UNAVAILABLE"
    echo.go.set()
    caller.close()


def test_an_answer_that_is_being_sent_is_sent_whole_before_the_end(tmp_path, echo):
    server = Ours(tmp_path / "s", echo)
    large, end = raw_call(tmp_path / "s", b"hold" + bytes(3_000_000))
    small, _ = raw_call(tmp_path / "s", b"hold")
    for _ in range(2):
        assert echo.begun.acquire(timeout=20)
    with futures.ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(server.stop, 20.0)
        while (tmp_path / "s").exists():
            time.sleep(0.001)
        echo.go.set()  # the small answer ends while the large one waits to be read
        small.recv(1 << 16)
        time.sleep(0.1)
        size, is_end = 0, False
        while not is_end:
            part = large.recv(1 << 16)
            assert part, f"cut off after {size} bytes"
            for event in end.feed(part):
                size, is_end = size + len(event.data), is_end or event.is_end
        assert size == 3_000_009
        stopped.result(20)
    large.close()
    small.close()


@pytest.mark.parametrize("window", [http2.MOST_NUMBER, 10])
def test_the_end_comes_with_the_last_byte_of_the_last_answer(tmp_path, echo, window):
    """And not with the end of its time, though the callers stay."""
    server = Ours(tmp_path / "s", echo)
    caller, end = raw_call(tmp_path / "s", b"hold for long", window)
    assert echo.begun.acquire(timeout=20)
    with futures.ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(server.stop, 60.0)
        while (tmp_path / "s").exists():
            time.sleep(0.001)
        assert next_of(http2.GOAWAY, caller, end) == 1
        end.send(end.begin(), header_block((":path", CALL)), b"x")
        caller.sendall(end.outgoing)
        assert next_of(http2.RST_STREAM, caller, end) == 3, "what comes later is refused"
        echo.go.set()
        if window == 10:
            got = b""
            while len(got) < window:
                events = end.feed(caller.recv(1 << 16))
                got += b"".join(event.data for event in events)
                assert not any(event.is_end for event in events)
            caller.sendall(struct.pack("!IBII", 4 << 8 | http2.WINDOW_UPDATE, 0, 1, 1000))
        stopped.result(10)
    caller.close()


def test_callers_that_take_nothing_do_not_hold_up_the_end(tmp_path, echo):
    server = Ours(tmp_path / "s", echo)
    callers = [raw_call(tmp_path / "s", b"x" * 3_000_000)[0] for _ in range(3)]
    begin = time.monotonic()
    server.stop(0.2)
    assert time.monotonic() - begin < 3
    for caller in callers:
        caller.close()


def test_nothing_is_done_for_a_connection_that_is_gone(tmp_path, echo):
    server = Ours(tmp_path / "s", echo)
    seen = []
    four = [raw_call(tmp_path / "s", b"hold")[0] for _ in range(4)]
    for _ in four:
        assert echo.begun.acquire(timeout=20)
    gone, _ = raw_call(tmp_path / "s", b"hold it")  # waits for a thread
    caller = ByLine(tmp_path / "s")
    assert caller.ask({"": b"quick"}) == {"": b"quick"}
    gone.close()
    while len(server.server._peers) > 5:
        time.sleep(0.001)
    echo.go.set()
    while echo.begun.acquire(timeout=0.3):
        seen.append(1)
    assert not seen
    caller.close()
    for one in four:
        one.close()
    server.stop()


def test_a_connection_without_a_thread_is_refused_and_the_next_is_taken(tmp_path, echo, monkeypatch):
    server = Ours(tmp_path / "s", echo)
    start = threading.Thread.start

    def fails_once(self):
        if self.name.startswith("unix_peer"):
            monkeypatch.setattr(threading.Thread, "start", start)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", fails_once)
    first = ByLine(tmp_path / "s")
    assert first.ask({"": b"x"}) == {}
    second = ByLine(tmp_path / "s")
    assert second.ask({"": b"x"}) == {"": b"x"}
    assert len(server.server._peers) == 1
    first.close()
    second.close()
    server.stop()


def test_words_that_are_no_text_cost_no_answer(tmp_path, caplog):
    caplog.set_level("CRITICAL", "serving")  # pytest's workers cannot pass such words on

    def answer(data):
        raise RuntimeError("file \udcff")

    server = Ours(tmp_path / "s", answer)
    caller = ByLine(tmp_path / "s")
    for message in (b"quick", b"hold"):
        assert caller.ask({"": message}) == {"": Status("INTERNAL", "RuntimeError: file ?")}
    caller.close()
    server.stop()


# its path


def test_a_socket_that_a_dead_server_left_is_taken_over(tmp_path, echo):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "s"))
    server = Ours(tmp_path / "s", echo)
    caller = ByLine(tmp_path / "s")
    assert caller.ask({"": b"x"}) == {"": b"x"}
    caller.close()
    server.stop()
    assert not (tmp_path / "s").exists()


def test_a_path_that_is_taken_is_left_as_it_is(tmp_path, echo):
    server = Ours(tmp_path / "s", echo)
    with pytest.raises(InUse, match="another server listens there"):
        UnixSocket(tmp_path / "s", 1).start()
    caller = ByLine(tmp_path / "s")
    assert caller.ask({"": b"x"}) == {"": b"x"}
    caller.close()
    server.stop()
    (tmp_path / "s").write_text("mine")
    with pytest.raises(InUse, match="a file of that name"):
        UnixSocket(tmp_path / "s", 1).start()
    assert (tmp_path / "s").read_text() == "mine"
    with socket.socket(socket.AF_UNIX) as stuck, socket.socket(socket.AF_UNIX) as waiting:
        stuck.bind(str(tmp_path / "stuck"))
        stuck.listen(0)
        waiting.connect(str(tmp_path / "stuck"))
        with pytest.raises(InUse, match="another server listens there"):
            UnixSocket(tmp_path / "stuck", 1).start()
    with pytest.raises(InUse, match="too long"):
        UnixSocket(tmp_path / ("s" * 200), 1).start()


def test_a_path_that_is_no_longer_ours_is_left_alone_at_the_end(tmp_path, echo):
    first = Ours(tmp_path / "s", echo)
    (tmp_path / "s").unlink()
    second = Ours(tmp_path / "s", echo)
    first.stop()
    caller = ByLine(tmp_path / "s")
    assert caller.ask({"": b"x"}) == {"": b"x"}
    caller.close()
    (tmp_path / "s").unlink()
    (tmp_path / "s").mkdir()
    second.stop()
    assert (tmp_path / "s").is_dir()
