"""gRPC over a Unix socket: our two ends of it, each against gRPC's own, and what no end may be surprised by."""

import os
import socket
import struct
import threading
import time
from concurrent import futures

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from city.errors import InputError
from controller import config as controller_config
from serving import http2, shell
from serving.client import Client
from serving.embedded import flags, unix_socket
from serving.embedded.call_threads import CallThreads
from serving.embedded.config import ServerConfig
from serving.embedded.grpc_method import Method, handler
from serving.embedded.metrics import Metrics
from serving.embedded.pace import Pace
from serving.embedded.status import Answer, StatusError
from serving.embedded.unix_socket import InUse, UnixSocket
from serving.errors import ServingError, Unavailable
from serving.line import Line, Status
from tests.conftest import GRID
from tests.serving.conftest import running

SERVICE, CALL = "test.Echo", "/test.Echo/Call"
X = np.zeros(17, np.float32)
WORDS = "not so: ä 100 %\nor else €"


class Echo:
    """Answers what it is asked; b"hold..." waits until it is let go, b"wrong" is refused."""

    def __init__(self):
        self.go, self.begun = threading.Event(), threading.Semaphore(0)
        self.left_s = []

    def __call__(self, data):
        if data.startswith(b"hold"):
            self.begun.release()
            assert self.go.wait(20)
        if data == b"wrong":
            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, WORDS)
        if data.startswith(b"broken"):
            raise RuntimeError("broken")
        return Answer(1, data)


class Ours:
    """UnixSocket. Quick is what says so, as a model that has been quick so far."""

    def __init__(self, path, echo, most_calls=100):
        self.pool = CallThreads(4)
        self.server = UnixSocket(path, most_calls)
        quick = Pace()
        quick.begin()
        quick.end()
        method = Method("Call", echo, Metrics(), lambda name: True, lambda data: None if data.startswith(b"hold") else quick)
        self.server.add(SERVICE, {"Call": method}, self.pool)
        self.server.start()

    def stop(self, drain_s=0.0):
        self.server.stop(drain_s)
        self.pool.shutdown()


class Theirs:
    """gRPC's own server, on a Unix socket as TensorFlow Serving's is."""

    def __init__(self, path, echo):
        self.server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", -1)])
        handlers = {"Call": handler(Method("Call", echo, Metrics(), lambda name: True))}
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        assert self.server.add_insecure_port(f"unix:{path}")
        self.server.start()

    def stop(self):
        self.server.stop(None).wait()


class ByLine:
    def __init__(self, path):
        self.line = Line(str(path))
        self.close = self.line.close

    def ask(self, messages, timeout_s=20.0):
        return self.line.ask(CALL, messages, time.monotonic() + timeout_s)


class ByGrpc:
    def __init__(self, path):
        self.channel = grpc.insecure_channel(f"unix:{path}", options=[("grpc.max_receive_message_length", -1)])
        self.close = self.channel.close

    def ask(self, messages, timeout_s=20.0):
        calls = {key: self.channel.unary_unary(CALL).future(message, timeout=timeout_s) for key, message in messages.items()}
        found = {}
        for key, call in calls.items():
            try:
                found[key] = call.result()
            except grpc.RpcError as error:
                found[key] = Status(error.code().name, error.details())
        return found


@pytest.fixture
def echo():
    made = Echo()
    yield made
    made.go.set()


@pytest.fixture(params=[(Ours, ByLine), (Ours, ByGrpc), (Theirs, ByLine)], ids=["line to ours", "gRPC to ours", "line to gRPC"])
def asked(request, tmp_path, echo):
    """A caller of a server of one of the kinds."""
    server = request.param[0](tmp_path / "s", echo)
    caller = request.param[1](tmp_path / "s")
    yield caller
    caller.close()
    echo.go.set()
    server.stop()


def test_messages_of_every_size_come_back(asked):
    rng = np.random.default_rng(0)
    for size in (1, 900, 16_384 - 5, 16_384, 65_536, 5_000_000):
        message = rng.bytes(size)
        assert asked.ask({"": message}) == {"": message}


def test_an_empty_message_is_a_message(asked):
    assert asked.ask({"": b""}) == {"": b""}


def test_large_messages_at_once_share_the_connection(asked):
    messages = {str(k): bytes([k]) * 300_000 for k in range(20)}
    assert asked.ask(messages) == messages


def test_a_status_comes_with_its_words(asked):
    assert asked.ask({"": b"wrong"}) == {"": Status("FAILED_PRECONDITION", WORDS)}
    assert asked.ask({"": b"broken"}) == {"": Status("INTERNAL", "RuntimeError: broken")}
    assert asked.ask({"": b"right"}) == {"": b"right"}


def test_a_call_that_takes_its_time_holds_up_no_other(asked, echo):
    with futures.ThreadPoolExecutor(1) as pool:
        several = pool.submit(asked.ask, {"slow": b"hold", **{str(k): b"%d" % k for k in range(30)}})
        assert echo.begun.acquire(timeout=20)
        echo.go.set()
        assert several.result(20) == {"slow": b"hold", **{str(k): b"%d" % k for k in range(30)}}
    echo.go.clear()
    found = asked.ask({"slow": b"hold", "quick": b"quick"}, timeout_s=0.5)
    assert found["quick"] == b"quick"
    assert found["slow"].code == "DEADLINE_EXCEEDED"
    assert asked.ask({"": b"again"}) == {"": b"again"}, "the connection goes on"


def test_one_call_after_another_for_long(asked):
    for k in range(2000):
        message = b"%d" % k
        assert asked.ask({"": message}) == {"": message}


# the line


def test_a_line_to_nobody_answers_nothing_and_finds_the_server_once_it_is_there(tmp_path, echo):
    clock = iter(range(100, 10_000, 2))  # time passes by itself
    line = Line(str(tmp_path / "s"), clock=lambda: next(clock))
    assert line.ask(CALL, {"": b"x"}, 1e9) == {}
    server = Ours(tmp_path / "s", echo)
    try:
        assert line.ask(CALL, {"": b"x"}, 1e9) == {"": b"x"}
    finally:
        line.close()
        server.stop()
    assert line.ask(CALL, {"": b"x"}, 1e9) == {}, "a line that is closed stays so"


def test_a_server_that_is_started_again_is_found_again(tmp_path, echo):
    server = Ours(tmp_path / "s", echo)
    now = 0.0
    line = Line(str(tmp_path / "s"), clock=lambda: now)
    assert line.ask(CALL, {"": b"x"}, 10) == {"": b"x"}
    server.stop()
    assert line.ask(CALL, {"": b"x"}, 10) == {}
    server = Ours(tmp_path / "s", echo)
    try:
        assert line.ask(CALL, {"": b"x"}, 10) == {}, "not at once: it could be gone again each time"
        now = 5.0
        assert line.ask(CALL, {"": b"x"}, 10) == {"": b"x"}
    finally:
        line.close()
        server.stop()


def test_a_line_in_use_keeps_nobody_waiting(tmp_path, echo):
    server = Ours(tmp_path / "s", echo)
    caller = ByLine(tmp_path / "s")
    try:
        with futures.ThreadPoolExecutor(1) as pool:
            first = pool.submit(caller.ask, {"": b"hold"})
            assert echo.begun.acquire(timeout=20)
            assert caller.ask({"": b"x"}) == {}
            caller.close()  # does not wait either
            echo.go.set()
            assert first.result(20) == {"": b"hold"}
        assert caller.ask({"": b"x"}) == {}
    finally:
        server.stop()


def test_an_interrupt_leaves_no_answer_for_a_later_question(tmp_path, echo):
    class Interrupted(BaseException):
        pass

    class Poll:
        def __init__(self, error):
            self.error = error

        def modify(self, connected, events):
            pass

        def poll(self, wait_ms):
            raise self.error

    server = Ours(tmp_path / "s", echo)
    caller = ByLine(tmp_path / "s")
    try:
        assert caller.ask({"": b"x"}) == {"": b"x"}
        caller.line._poll = Poll(Interrupted())
        with pytest.raises(Interrupted):
            caller.ask({"": b"first"})
        caller.line._again_s = 0.0
        assert caller.ask({"": b"second"}) == {"": b"second"}
        caller.line._poll = Poll(MemoryError())
        assert caller.ask({"": b"third"}) == {}
        caller.line._again_s = 0.0
        assert caller.ask({"other": b"fourth"}) == {"other": b"fourth"}
    finally:
        caller.close()
        server.stop()


def test_a_question_whose_time_is_over_is_no_sign_against_the_line(tmp_path, echo):
    server = Ours(tmp_path / "s", echo)
    caller = ByLine(tmp_path / "s")
    try:
        assert caller.ask({"": b"x"}, timeout_s=0.0) == {}
        assert caller.ask({"": b"x"}) == {"": b"x"}
    finally:
        caller.close()
        server.stop()


def test_where_no_more_files_may_be_open_gRPC_is_left_to_tell(tmp_path, monkeypatch):
    def none_left(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("serving.line.socket.socket", none_left)
    with Client(f"unix:{tmp_path / 's'}", retries=0) as client:
        client.renew()
        with pytest.raises(Unavailable):
            client.predict("SA103", X)


def test_what_is_left_to_a_grpc_that_cannot_be_asked_is_told_and_not_waited_for(tmp_path):
    played = Played(tmp_path / "s")
    with Client(f"unix:{tmp_path / 's'}", retries=0) as client, futures.ThreadPoolExecutor(1) as pool:
        played.take()
        client._channel.close()
        found = pool.submit(client.predict_many, {"a": X, "b": X}, timeout_s=20)
        played.end.reset(played.asked(), http2.REFUSED_STREAM)
        played.say()
        with pytest.raises(ValueError, match="Channel closed"):
            found.result(10)
    played.close()


class Played:
    """A server that says what the test wants, byte by byte; nothing real does so on purpose."""

    def __init__(self, path):
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(path))
        self.listening.listen()
        self.listening.settimeout(20)

    def take(self):
        self.connected, _ = self.listening.accept()
        self.end, self.calls = http2.Connection(is_client=False), []
        return self

    def asked(self):
        """The stream of the next whole call."""
        while not self.calls:
            self.calls += [event.stream for event in self.end.feed(self.connected.recv(1 << 16)) if event.is_end]
        return self.calls.pop(0)

    def say(self, data=b""):
        self.connected.sendall(bytes(self.end.outgoing) + data)
        self.end.outgoing.clear()

    def close(self):
        self.connected.close()
        self.listening.close()


HEAD = http2.block((":status", "200"), ("content-type", "application/grpc"))
DONE = http2.block(("grpc-status", "0"))


def answered(played, stream, *parts):
    head, body, trailer = parts
    played.end.send(stream, head, body, trailer)
    played.say()


@pytest.mark.parametrize(
    "answer",
    [
        lambda played, stream: answered(played, stream, HEAD, b"\0\0\0\0\2abc", DONE),  # not one message
        lambda played, stream: answered(played, stream, HEAD, b"\1\0\0\0\1a", DONE),  # compressed
        lambda played, stream: answered(played, stream, HEAD, b"\0\0\0\0\1a", b""),  # no status
        lambda played, stream: answered(played, stream, HEAD, b"\0\0\0\0\1a", http2.block(("grpc-status", "99"))),
        lambda played, stream: answered(played, stream, HEAD, b"\0\0\0\0\1a", http2.block(("grpc-status", "x"))),
        lambda played, stream: answered(played, stream, http2.block((":status", "503")), b"", b""),
        lambda played, stream: answered(
            played, stream, http2.block((":status", "200"), ("content-type", "text/html")), b"a", DONE
        ),
        lambda played, stream: played.say(os.urandom(64)),
        lambda played, stream: played.connected.shutdown(socket.SHUT_RDWR),
        lambda played, stream: (played.end.reset(stream, http2.REFUSED_STREAM), played.say()),
        lambda played, stream: played.say(struct.pack("!IBI", 8 << 8 | http2.GOAWAY, 0, 0) + bytes(8)),  # it began none
    ],
)
def test_what_is_out_of_the_ordinary_is_left_to_grpc_at_once(tmp_path, answer):
    played = Played(tmp_path / "s")
    caller = ByLine(tmp_path / "s")
    played.take()
    try:
        with futures.ThreadPoolExecutor(1) as pool:
            found = pool.submit(caller.ask, {"": b"x"})
            answer(played, played.asked())
            assert found.result(10) == {}
    finally:
        caller.close()
        played.close()


def test_what_was_answered_before_the_end_of_a_line_counts(tmp_path):
    played = Played(tmp_path / "s")
    caller = ByLine(tmp_path / "s")
    played.take()
    try:
        with futures.ThreadPoolExecutor(1) as pool:
            found = pool.submit(caller.ask, {"a": b"x", "b": b"y"})
            first = played.asked()
            answered(played, first, HEAD, b"\0\0\0\0\1x", DONE)
            played.connected.shutdown(socket.SHUT_RDWR)
            assert found.result(10) == {"a": b"x"}
    finally:
        caller.close()
        played.close()


def test_a_server_that_goes_away_answers_what_it_began_and_gets_no_more(tmp_path):
    played = Played(tmp_path / "s")
    caller = ByLine(tmp_path / "s")
    played.take()
    try:
        with futures.ThreadPoolExecutor(1) as pool:
            found = pool.submit(caller.line.ask, CALL, {"a": b"x", "b": b"y"}, time.monotonic() + 20, most=1)
            stream = played.asked()
            played.end.go_away(http2.NO_ERROR)
            answered(played, stream, HEAD, b"\0\0\0\0\1x", DONE)
            assert found.result(10) == {"a": b"x"}
            assert caller.ask({"b": b"y"}) == {}
            caller.line._again_s = 0.0
            found = pool.submit(caller.ask, {"c": b"z"})
            played.take()
            answered(played, played.asked(), HEAD, b"\0\0\0\0\1z", DONE)
            assert found.result(10) == {"c": b"z"}, "the next connection is another one"
    finally:
        caller.close()
        played.close()


@pytest.mark.parametrize("way", ["reset", "status", "going away"])
def test_what_is_left_out_is_told_while_others_take_their_time(tmp_path, way):
    """Else a model that hangs would hold up the retry of another."""
    played = Played(tmp_path / "s")
    line = Line(str(tmp_path / "s"), left=("UNAVAILABLE",))
    played.take()
    told = futures.Future()
    try:
        with futures.ThreadPoolExecutor(1) as pool:
            found = pool.submit(line.ask, CALL, {"slow": b"x", "other": b"y"}, time.monotonic() + 20, 9, told.set_result)
            slow, other = played.asked(), played.asked()
            if way == "reset":
                played.end.reset(other, http2.REFUSED_STREAM)
                played.say()
            elif way == "status":
                answered(
                    played,
                    other,
                    http2.block((":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "14")),
                    b"",
                    b"",
                )
            else:
                played.say(struct.pack("!IBIII", 8 << 8 | http2.GOAWAY, 0, 0, slow, 0))
            assert told.result(10) == "other"
            assert not found.done()
            answered(played, slow, HEAD, b"\0\0\0\0\1x", DONE)
            assert found.result(10) == {"slow": b"x"}
    finally:
        line.close()
        played.close()


def test_a_line_that_says_nothing_is_given_up_at_the_deadline(tmp_path):
    played = Played(tmp_path / "s")
    caller = ByLine(tmp_path / "s")
    played.take()
    try:
        assert caller.ask({"a": b"x", "b": b"y"}, timeout_s=0.05).keys() == {"a", "b"}
        assert caller.ask({"a": b"x"}) == {}, "it may lead nowhere"
    finally:
        caller.close()
        played.close()


def test_a_call_that_is_no_longer_waited_for_is_cancelled(tmp_path):
    played = Played(tmp_path / "s")
    caller = ByLine(tmp_path / "s")
    played.take()
    try:
        with futures.ThreadPoolExecutor(1) as pool:
            found = pool.submit(caller.ask, {"slow": b"x", "quick": b"y"}, 0.3)
            slow, quick = played.asked(), played.asked()
            answered(played, quick, HEAD, b"\0\0\0\0\1x", DONE)
            late = found.result(10)
            assert late["quick"] == b"x" and late["slow"].code == "DEADLINE_EXCEEDED"
            assert played.asked() == slow and not played.end.has(slow), "the end of a stream here is its reset"
    finally:
        caller.close()
        played.close()


def test_no_more_calls_are_under_way_than_the_server_takes(tmp_path):
    played = Played(tmp_path / "s")
    caller = ByLine(tmp_path / "s")
    played.take()
    try:
        with futures.ThreadPoolExecutor(1) as pool:
            played.say(struct.pack("!IBIHI", 6 << 8 | http2.SETTINGS, 0, 0, http2.MAX_CONCURRENT_STREAMS, 1))
            first = pool.submit(caller.ask, {"": b"x"})  # the line has not heard of it yet, and hears of it now
            answered(played, played.asked(), HEAD, b"\0\0\0\0\1x", DONE)
            assert first.result(10) == {"": b"x"}
            found = pool.submit(caller.ask, {str(k): b"x" for k in range(5)})
            for _ in range(5):
                stream = played.asked()
                assert played.end.under_way == 1
                answered(played, stream, HEAD, b"\0\0\0\0\1x", DONE)
            assert len(found.result(10)) == 5
    finally:
        caller.close()
        played.close()


# the server


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
        block = http2.block(
            (":method", "POST"), (":path", CALL), ("content-type", "application/grpc"), ("grpc-timeout", timeout)
        )  # fmt: skip
        end.send(end.begin(), block, b"\0\0\0\0\1x")
        caller.sendall(end.outgoing)
        headers = {}
        while "grpc-status" not in headers:
            for event in end.feed(caller.recv(1 << 16)):
                headers |= dict(event.headers)
        assert headers["grpc-status"] == answer


def test_a_deadline_beyond_all_bounds_is_one_that_locks_can_wait_for(ours):
    headers = ((":method", "POST"), (":path", CALL), ("content-type", "application/grpc"), ("grpc-timeout", "99999999H"))
    assert 1e5 < ours.server.asked(headers).timeout_s < threading.TIMEOUT_MAX


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
    monkeypatch.setattr(unix_socket, "SEND_S", 0.2)
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
    head = http2.block((":method", "POST"), (":path", CALL), ("content-type", "application/grpc"))
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
        assert caller.ask({"": b"x"})[""].code == "UNAVAILABLE"
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


def raw_call(path, message, window=http2.MOST_NUMBER):
    """A connection that has made a call, and reads nothing by itself; (socket, this end of HTTP/2).

    `window`: how much of an answer it takes.
    """
    caller, end = socket.socket(socket.AF_UNIX), http2.Connection(is_client=True)
    caller.settimeout(20)
    caller.connect(str(path))
    caller.sendall(end.outgoing + struct.pack("!IBIHI", 6 << 8 | http2.SETTINGS, 0, 0, http2.INITIAL_WINDOW_SIZE, window))
    end.outgoing.clear()
    end.feed(caller.recv(1 << 16))  # how much the server takes
    block = http2.block((":method", "POST"), (":path", CALL), ("content-type", "application/grpc"))
    end.send(end.begin(), block, struct.pack("!BI", 0, len(message)) + message)
    caller.sendall(end.outgoing)
    end.outgoing.clear()
    return caller, end


def next_of(kind, caller, end):
    """The stream of the next event of a kind."""
    while True:
        for event in end.feed(caller.recv(1 << 16)):
            if event.kind == kind:
                return event.stream


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
        end.send(end.begin(), http2.block((":path", CALL)), b"x")
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


def test_words_that_are_no_text_cost_no_answer(tmp_path):
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


# the embedded server as a whole


def test_clients_on_a_unix_socket_see_errors_as_on_the_port(grid_server, grid_unix):
    asked = [
        lambda client: client.predict("nobody", X),
        lambda client: client.predict("SA103", X, version=7),
        lambda client: client.predict("SA103", np.zeros(3, np.float32)),
        lambda client: client.run("SA103", {"observation": X}, signature="other"),
    ]
    with Client(grid_server) as tcp, Client(grid_unix) as unix:
        for ask in asked:
            told = []
            for client in (tcp, unix):
                with pytest.raises(ServingError) as caught:
                    ask(client)
                told.append((type(caught.value), str(caught.value)))
            assert told[0] == told[1]


def test_a_client_on_a_unix_socket_predicts_without_grpc(grid_unix):
    with Client(grid_unix) as client:
        client._predict = None
        assert client.predict("SA103", X)["action"].shape == (1, 1)
        assert client.predict_many({"SA103": X})["SA103"].version == 1


def test_a_model_that_is_quick_is_answered_by_the_thread_that_reads(grid_models, tmp_path, monkeypatch):
    with running(ServerConfig(grid_models, port=0, poll_s=0, socket_path=tmp_path / "s")) as server:
        names = []
        answer = Method.answer

        def seen(self, data, left_s):
            names.append(threading.current_thread().name.partition("_")[0])
            return answer(self, data, left_s)

        monkeypatch.setattr(Method, "answer", seen)
        with Client(f"unix:{tmp_path / 's'}") as client:
            while "unix" not in names:
                client.predict("SA103", X)
            assert names[0] == "rpc", "what has not been asked before may take its time"
            # and one that has become slow is not
            monkeypatch.setattr("serving.embedded.pace.QUICK_S", 0.0)
            client.predict("SA103", X)
            assert names[-1] == "rpc"
        assert server.metrics.registry.get_sample_value(
            ":tensorflow:serving:request_count",
            {"model_name": "SA103", "version": "1", "API": "Predict", "entrypoint": "GRPC", "status": "OK"},
        ) == len(names)


def test_a_socket_that_is_in_use_is_told_in_one_line(grid_models, tmp_path, echo):
    other = Ours(tmp_path / "s", echo)
    try:
        with (
            pytest.raises(
                InputError, match=r"cannot listen on .*/s: another server listens there; choose another --grpc_socket_path"
            ),
            running(ServerConfig(grid_models, port=0, poll_s=0, socket_path=tmp_path / "s")),
        ):
            pass
    finally:
        other.stop()


def test_one_line_of_city_toml_lets_server_controller_and_shell_share_a_socket(grid_models, tmp_path, capsys):
    text = (GRID / "city.toml").read_text().replace("grid.sumocfg", str(GRID / "grid.sumocfg"))
    assert "[serving]\n" in text
    city = tmp_path / "city.toml"
    (tmp_path / "models").symlink_to(grid_models)
    city.write_text(text.replace("[serving]\n", '[serving]\ngrpc_socket_path = "s"\n'))
    config = flags.parse(["--city", str(city), "--port", "0"])
    assert config.socket_path == tmp_path / "s"
    assert controller_config.parse(["--city", str(city)]).server == f"unix:{tmp_path / 's'}"
    assert controller_config.parse(["--city", str(city), "--server", "10.0.0.1:8500"]).server == "10.0.0.1:8500"
    with running(config):
        assert shell.main(["predict", "SA103", "--observation", "zeros", "--city", str(city)]) == 0
        assert shell.main(["status", "--city", str(city)]) == 0
    assert "AVAILABLE" in capsys.readouterr().out
