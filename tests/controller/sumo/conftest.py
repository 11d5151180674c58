"""Sockets to a fake SUMO, and connections to the real one."""

import socket

import pytest


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
