"""What a real controller tells systemd."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from tests.end_to_end.programs import CITY, sumo


@pytest.fixture
def notifications(tmp_path):
    """systemd's socket."""
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


def test_controller_tells_systemd_that_it_is_ready_alive_and_stopping(grid_server, notifications, tmp_path):
    environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
    with sumo(1, "--end", "100000") as (port, _):
        command = [
            sys.executable,
            "-m",
            "controller",
            "--city",
            CITY,
            "--server",
            grid_server,
            "--sumo",
            f"127.0.0.1:{port}",
        ]
        process = subprocess.Popen([*command, "--no-guard"], env=environment, stderr=subprocess.DEVNULL)
        try:
            assert not [lines for lines in until(notifications, "READY=1")[:-1] if "WATCHDOG=1" in lines], (
                "ready comes first"
            )
            until(notifications, "WATCHDOG=1")
            until(notifications, "WATCHDOG=1")
            process.send_signal(signal.SIGTERM)
            until(notifications, "STOPPING=1")
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
