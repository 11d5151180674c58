"""What a real controller tells systemd."""

import signal
import socket

import pytest

from tests.end_to_end.programs import controller, sumo


@pytest.fixture
def notifications(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(60)
        yield listener


def until(notifications, wanted):
    """The messages up to the first one that holds a line."""
    received = []
    while not received or wanted not in received[-1]:
        received.append(notifications.recv(4096).decode().splitlines())
    return received


def test_controller_tells_systemd_that_it_is_ready_alive_and_stopping(notifications, tmp_path, monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    flags = ("--policy", "max-pressure", "--no-guard")
    with sumo(1, "--end", "100000") as (port, _), controller(*flags, "--sumo", f"127.0.0.1:{port}") as process:
        before_ready = until(notifications, "READY=1")[:-1]
        assert not [lines for lines in before_ready if "WATCHDOG=1" in lines], "ready comes first"
        until(notifications, "WATCHDOG=1")
        until(notifications, "WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        until(notifications, "STOPPING=1")
        assert process.wait(60) == 0
