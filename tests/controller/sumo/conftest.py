"""Sockets to a fake SUMO, and connections to the real one."""

import socket

import pytest

from controller.sumo.connection import LanesToRead
from tests.controller.sumo.openers import OPENERS, OPTIONS


@pytest.fixture
def sockets():
    """(our end, SUMO's end)."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def quick_polls(monkeypatch):
    """A wait for SUMO checks the operator's requests at once."""
    monkeypatch.setattr("controller.sumo.messages.POLL_INTERVAL_S", 0.001)


@pytest.fixture(params=OPENERS)
def connection(request):
    made = request.param(OPTIONS)
    yield made
    made.close()


@pytest.fixture
def busy(connection):
    connection.track(LanesToRead(), {})
    connection.read(())
    connection.advance(90.0)
    connection.read(())
    return connection
