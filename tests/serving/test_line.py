"""The client's end of a Unix socket, and what it must not be surprised by."""

import os
import socket
import struct
import time
from concurrent import futures

import numpy as np
import pytest

from serving import http2
from serving.client import Client
from serving.errors import Unavailable
from serving.grpc_wire import header_block
from serving.line import Line
from tests.serving.unix_ends import CALL, DONE, HEAD, ByLine, Ours, Played, answered

X = np.zeros(17, np.float32)
WEB_PAGE = header_block((":status", "200"), ("content-type", "text/html"))
UNAVAILABLE = header_block((":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "14"))


@pytest.fixture
def served(tmp_path, echo):
    """A line's end to one of our servers."""
    server = Ours(tmp_path / "s", echo)
    caller = ByLine(tmp_path / "s")
    yield caller
    caller.close()
    echo.go.set()
    server.stop()


@pytest.fixture
def played(tmp_path):
    """A server that says what the test wants, and a line to it that leaves out what UNAVAILABLE answers."""
    made = Played(tmp_path / "s")
    made.caller = ByLine(tmp_path / "s", left=("UNAVAILABLE",))
    made.take()
    with futures.ThreadPoolExecutor(1) as made.pool:
        yield made
        made.close()
        made.caller.close()


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


def test_a_line_in_use_keeps_nobody_waiting(served, echo):
    with futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(served.ask, {"": b"hold"})
        assert echo.begun.acquire(timeout=20)
        assert served.ask({"": b"x"}) == {}
        served.close()  # does not wait either
        echo.go.set()
        assert first.result(20) == {"": b"hold"}
    assert served.ask({"": b"x"}) == {}


def test_an_interrupt_leaves_no_answer_for_a_later_question(served):
    class Interrupted(BaseException):
        pass

    class Poll:
        def __init__(self, error):
            self.error = error

        def modify(self, connected, events):
            pass

        def poll(self, wait_ms):
            raise self.error

    assert served.ask({"": b"x"}) == {"": b"x"}
    served.line._poll = Poll(Interrupted())
    with pytest.raises(Interrupted):
        served.ask({"": b"first"})
    served.line._again_s = 0.0
    assert served.ask({"": b"second"}) == {"": b"second"}
    served.line._poll = Poll(MemoryError())
    assert served.ask({"": b"third"}) == {}
    served.line._again_s = 0.0
    assert served.ask({"other": b"fourth"}) == {"other": b"fourth"}


def test_a_question_whose_time_is_over_is_no_sign_against_the_line(served):
    assert served.ask({"": b"x"}, timeout_s=0.0) == {}
    assert served.ask({"": b"x"}) == {"": b"x"}


def test_where_no_more_files_may_be_open_gRPC_is_left_to_tell(tmp_path, monkeypatch):
    def none_left(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("serving.line.socket.socket", none_left)
    with Client(f"unix:{tmp_path / 's'}", retries=0) as client:
        client.renew()
        with pytest.raises(Unavailable):
            client.predict("SA103", X)


def test_what_is_left_to_a_grpc_that_cannot_be_asked_is_told_and_not_waited_for(played, tmp_path):
    with Client(f"unix:{tmp_path / 's'}", retries=0) as client:
        played.take()
        client._channel.close()
        found = played.pool.submit(client.predict_many, {"a": X, "b": X}, timeout_s=20)
        played.end.reset(played.asked(), http2.REFUSED_STREAM)
        played.say()
        with pytest.raises(ValueError, match="Channel closed"):
            found.result(10)


@pytest.mark.parametrize(
    "answer",
    [
        lambda played, stream: answered(played, stream, HEAD, b"\0\0\0\0\2abc", DONE),  # not one message
        lambda played, stream: answered(played, stream, HEAD, b"\1\0\0\0\1a", DONE),  # compressed
        lambda played, stream: answered(played, stream, HEAD, b"\0\0\0\0\1a", b""),  # no status
        lambda played, stream: answered(played, stream, HEAD, b"\0\0\0\0\1a", header_block(("grpc-status", "99"))),
        lambda played, stream: answered(played, stream, HEAD, b"\0\0\0\0\1a", header_block(("grpc-status", "x"))),
        lambda played, stream: answered(played, stream, header_block((":status", "503")), b"", b""),
        lambda played, stream: answered(
            played, stream, header_block((":status", "200"), ("content-type", "text/html")), b"a", DONE
        ),
        lambda played, stream: played.say(os.urandom(64)),
        lambda played, stream: played.connected.shutdown(socket.SHUT_RDWR),
        lambda played, stream: (played.end.reset(stream, http2.REFUSED_STREAM), played.say()),
        lambda played, stream: played.say(struct.pack("!IBI", 8 << 8 | http2.GOAWAY, 0, 0) + bytes(8)),  # it began none
    ],
)
def test_what_is_out_of_the_ordinary_is_left_to_grpc_at_once(played, answer):
    found = played.pool.submit(played.caller.ask, {"": b"x"})
    answer(played, played.asked())
    assert found.result(10) == {}


def test_what_was_answered_before_the_end_of_a_line_counts(played):
    found = played.pool.submit(played.caller.ask, {"a": b"x", "b": b"y"})
    first = played.asked()
    answered(played, first, HEAD, b"\0\0\0\0\1x", DONE)
    played.connected.shutdown(socket.SHUT_RDWR)
    assert found.result(10) == {"a": b"x"}


def test_a_server_that_goes_away_answers_what_it_began_and_gets_no_more(played):
    found = played.pool.submit(played.caller.line.ask, CALL, {"a": b"x", "b": b"y"}, time.monotonic() + 20, most=1)
    stream = played.asked()
    played.end.go_away(http2.NO_ERROR)
    answered(played, stream, HEAD, b"\0\0\0\0\1x", DONE)
    assert found.result(10) == {"a": b"x"}
    assert played.caller.ask({"b": b"y"}) == {}
    played.caller.line._again_s = 0.0
    found = played.pool.submit(played.caller.ask, {"c": b"z"})
    played.take()
    answered(played, played.asked(), HEAD, b"\0\0\0\0\1z", DONE)
    assert found.result(10) == {"c": b"z"}, "the next connection is another one"


@pytest.mark.parametrize(
    "leave",
    [
        lambda played, slow, other: (played.end.reset(other, http2.REFUSED_STREAM), played.say()),
        lambda played, slow, other: answered(played, other, UNAVAILABLE, b"", b""),
        lambda played, slow, other: played.say(struct.pack("!IBIII", 8 << 8 | http2.GOAWAY, 0, 0, slow, 0)),
    ],
    ids=["reset", "status", "going away"],
)
def test_what_is_left_out_is_told_while_others_take_their_time(played, leave):
    """Else a model that hangs would hold up the retry of another."""
    told, messages = futures.Future(), {"slow": b"x", "other": b"y"}
    found = played.pool.submit(played.caller.line.ask, CALL, messages, time.monotonic() + 20, 9, told.set_result)
    slow, other = played.asked(), played.asked()
    leave(played, slow, other)
    assert told.result(10) == "other"
    assert not found.done()
    answered(played, slow, HEAD, b"\0\0\0\0\1x", DONE)
    assert found.result(10) == {"slow": b"x"}


def test_a_line_that_says_nothing_is_given_up_at_the_deadline(played):
    assert played.caller.ask({"a": b"x", "b": b"y"}, timeout_s=0.05).keys() == {"a", "b"}
    assert played.caller.ask({"a": b"x"}) == {}, "it may lead nowhere"


def test_a_call_that_is_no_longer_waited_for_is_cancelled(played):
    found = played.pool.submit(played.caller.ask, {"slow": b"x", "quick": b"y"}, 0.3)
    slow, quick = played.asked(), played.asked()
    answered(played, quick, HEAD, b"\0\0\0\0\1x", DONE)
    late = found.result(10)
    assert late["quick"] == b"x" and late["slow"].code == "DEADLINE_EXCEEDED"
    assert played.asked() == slow and not played.end.has(slow), "the end of a stream here is its reset"


def test_no_more_calls_are_under_way_than_the_server_takes(played):
    played.say(struct.pack("!IBIHI", 6 << 8 | http2.SETTINGS, 0, 0, http2.MAX_CONCURRENT_STREAMS, 1))
    first = played.pool.submit(played.caller.ask, {"": b"x"})  # the line has not heard of it yet, and hears of it now
    answered(played, played.asked(), HEAD, b"\0\0\0\0\1x", DONE)
    assert first.result(10) == {"": b"x"}
    found = played.pool.submit(played.caller.ask, {str(k): b"x" for k in range(5)})
    for _ in range(5):
        stream = played.asked()
        assert played.end.under_way == 1
        answered(played, stream, HEAD, b"\0\0\0\0\1x", DONE)
    assert len(found.result(10)) == 5
