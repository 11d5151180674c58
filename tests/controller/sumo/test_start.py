"""A started SUMO is this process's own, also while other programs start theirs."""

import socket

import pytest

from controller.sumo import start
from controller.sumo.access import SumoAccess
from controller.sumo.connection import Interrupts


def test_no_other_program_gets_the_port_before_sumo_listens(monkeypatch):
    """Two programs with one port were each connected to the other's SUMO."""

    class NotStarted(Exception):
        pass

    def attach(address, *rest):
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address)
        raise NotStarted

    monkeypatch.setattr(start, "sumo_program", lambda: "true")  # it never listens
    monkeypatch.setattr(start, "attach", attach)
    with pytest.raises(NotStarted):
        start.connect(SumoAccess(), Interrupts())
