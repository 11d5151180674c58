"""gRPC over a Unix socket: our two ends of it, each against gRPC's own."""

from concurrent import futures

import numpy as np
import pytest

from serving.line import Status
from tests.serving.unix_ends import WORDS, ByGrpc, ByLine, Ours, Theirs


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
