"""The guard's listener: which connections it accepts."""

import socket

import pytest

from city.errors import InputError
from controller.guard.listener import TraciListener
from controller.sumo import wire

VERSION_REQUEST = wire.message([wire.command(wire.GETVERSION, b"")])


@pytest.fixture
def listener():
    made = TraciListener(0, None)
    yield made
    made.close()


def test_traci_client_is_accepted_with_its_first_message_unread(listener):
    with socket.create_connection(("127.0.0.1", listener.port)) as client:
        client.sendall(VERSION_REQUEST)
        with listener.accept(5.0) as controller:
            assert controller.recv(100) == VERSION_REQUEST


@pytest.mark.parametrize("content", [b"GET / HTTP/1.0", b"\x00", b"\xff" * 8])
def test_connection_that_does_not_look_like_traci_is_closed(listener, content):
    with socket.create_connection(("127.0.0.1", listener.port)) as client:
        client.sendall(content)
        client.shutdown(socket.SHUT_WR)
        assert listener.accept(5.0) is None


def test_port_in_use_is_an_input_error(listener):
    with pytest.raises(InputError, match=rf"--port {listener.port}: cannot listen on it .*; choose another port"):
        TraciListener(listener.port, None)


def test_no_client_and_one_that_is_gone_before_accept_are_none(listener):
    class Aborted(socket.socket):
        def accept(self):
            raise ConnectionAbortedError("gone")

    assert listener.accept(0.0) is None
    listener.socket.close()
    listener.socket = Aborted()
    assert listener.accept(0.0) is None
