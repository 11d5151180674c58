"""Who is let in, and who is not."""

import socket

import pytest

from controller.guard.listener import Listener
from controller.sumo import wire

HELLO = wire.message([wire.command(wire.GETVERSION, b"")])


@pytest.fixture
def listener():
    made = Listener(0, None)
    yield made
    made.close()


def test_who_speaks_traci_is_let_in_and_nothing_of_it_is_lost(listener):
    with socket.create_connection(("127.0.0.1", listener.port)) as visitor:
        visitor.sendall(HELLO)
        with listener.accept(5.0) as controller:
            assert controller.recv(100) == HELLO


@pytest.mark.parametrize("words", [b"GET / HTTP/1.0", b"\x00", b"\xff" * 8])
def test_who_says_something_else_is_sent_away(listener, words):
    with socket.create_connection(("127.0.0.1", listener.port)) as visitor:
        visitor.sendall(words)
        visitor.shutdown(socket.SHUT_WR)
        assert listener.accept(5.0) is None


def test_nobody_there_is_no_error(listener):
    assert listener.accept(0.0) is None


def test_a_visitor_that_has_gone_before_it_is_let_in_is_none(listener):
    class Aborted(socket.socket):
        def accept(self):
            raise ConnectionAbortedError("gone")

    listener.listener.close()
    listener.listener = Aborted()
    assert listener.accept(0.0) is None
