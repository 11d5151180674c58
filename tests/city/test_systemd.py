"""What is told to systemd, read from a real socket."""

import os
import socket

import pytest

from city import systemd


@pytest.fixture(params=["file", "abstract"])
def manager(request, tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        name = (
            str(tmp_path / "notify") if request.param == "file" else f"@greenserve-test-{tmp_path.name}-{id(tmp_path)}"
        )
        listener.bind(name.replace("@", "\0", 1) if name.startswith("@") else name)
        listener.settimeout(5)
        monkeypatch.setenv(systemd.SOCKET_VARIABLE, name)
        yield listener


def test_states_reach_the_service_manager(manager):
    systemd.notify("READY=1")
    assert manager.recv(100) == b"READY=1"


@pytest.mark.parametrize("path", ["", "/nowhere/notify", "@nobody-listens"])
def test_missing_service_manager_is_no_error(path, monkeypatch):
    monkeypatch.setenv(systemd.SOCKET_VARIABLE, path)
    systemd.notify("READY=1")


@pytest.mark.parametrize(
    ("text", "pid", "interval_s"),
    [
        ("60000000", None, 30.0),
        ("60000000", os.getpid, 30.0),
        ("60000000", os.getppid, None),  # the variables are another process's
        ("", None, None),
        ("0", None, None),
        ("soon", None, None),
    ],
)
def test_watchdog_is_told_twice_in_its_time(text, pid, interval_s, monkeypatch):
    monkeypatch.setenv(systemd.WATCHDOG_VARIABLE, text)
    if pid is not None:
        monkeypatch.setenv(systemd.WATCHDOG_PID_VARIABLE, str(pid()))
    assert systemd.watchdog_interval_s() == interval_s
