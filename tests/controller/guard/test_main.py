"""The guard's program: its flags, SUMO's other clients, and its --http."""

import contextlib
import re
import socket
import threading
import time

import pytest

from city.errors import InputError
from controller.guard.__main__ import CONNECTION_TABLES, _open, count_connections, parse
from controller.telemetry import health
from tests.controller.telemetry.test_health import get
from tests.end_to_end.programs import connect, free_port, guard, socket_of, sumo
from tests.waiting import wait_until

SUMO_ARGUMENTS = ["--", "-c", "any.sumocfg"]


@pytest.mark.parametrize(
    ("argv", "order"),
    [
        (["--sumo", "127.0.0.1:1"], 1),  # SUMO ends for all clients if one of several has no order
        (["--sumo", "127.0.0.1:1", "--order", "3"], 3),
        (SUMO_ARGUMENTS, 1),
        (["--clients", "1", *SUMO_ARGUMENTS], None),
    ],
)
def test_guard_has_an_order_if_sumo_has_other_clients(argv, order):
    assert parse(argv).sumo.order == order


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "pass --sumo HOST:PORT to attach, or --"),
        (["--sumo", "127.0.0.1:1", *SUMO_ARGUMENTS], "pass --sumo HOST:PORT to attach, or --"),
        (["--watchdog-s", "nan", *SUMO_ARGUMENTS], "--watchdog-s nan must be above 0"),
        (["--first-controller-timeout-s", "inf", *SUMO_ARGUMENTS], "--first-controller-timeout-s inf must be a time"),
        (["--idle-timeout-s", "-1", *SUMO_ARGUMENTS], "--idle-timeout-s -1 must be a time"),
        (["--sumo-port", "-1", *SUMO_ARGUMENTS], "--sumo-port -1 must lie between"),
        (["--watchdog-s", "0", *SUMO_ARGUMENTS], "--watchdog-s 0 must be above 0"),
        (["--clients", "0", *SUMO_ARGUMENTS], "--clients 0 must lie between 1"),
        (["--sumo", "nowhere"], "must be HOST:PORT"),
        (["--sumo", "127.0.0.1:99999"], "must be HOST:PORT"),
        (["--sumo", "127.0.0.1:1", "--order", "99999999999"], "--order 99999999999 must lie"),
        (["--sumo", "127.0.0.1:1", "--http", "9109"], "--http"),
        (["--only-client", "--clients", "1", *SUMO_ARGUMENTS], "--only-client is for a SUMO at --sumo"),
    ],
)
def test_invalid_flags_are_refused(argv, message):
    with pytest.raises(InputError, match=message):
        parse(argv)


@pytest.mark.skipif(not CONNECTION_TABLES[0].exists(), reason="no Linux: there is no table of TCP connections")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_established_connections_to_a_port_are_counted(address, tmp_path):
    assert count_connections(80, (tmp_path / "tcp",)) is None, "a machine without tables gives no count"
    try:
        listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    except OSError:
        pytest.skip(f"this machine has no {address}")
    with listener:
        port = listener.getsockname()[1]
        assert count_connections(port) == 0, "a listener is not a connection"
        with socket.create_connection((address, port)) as first, listener.accept()[0]:
            with socket.create_connection((address, port)), listener.accept()[0]:
                assert count_connections(port) == 2
            assert count_connections(port) == 1 and count_connections(first.getsockname()[1]) == 1


def connected(url):
    return float(re.search(r"^guard_controller_connected (\S+)", get(f"{url}/metrics")[1], re.M)[1])


def reports(url, path, text):
    """True if the probe answers with this text."""
    with contextlib.suppress(OSError):  # it does not listen yet
        return get(f"{url}{path}")[1] == text


def test_http_reports_whether_a_controller_is_connected():
    address = f"127.0.0.1:{free_port()}"
    url = f"http://{address}"
    with sumo(1) as (port, _), guard("--sumo", f"127.0.0.1:{port}", "--only-client", "--http", address) as process:
        own = int(process.stdout.readline().split()[1])
        wait_until(lambda: reports(url, "/healthz", "running\n"))
        assert reports(url, "/livez", "alive\n") and connected(url) == 0
        client = connect(own, 1)
        assert connected(url) == 1
        socket_of(client).close()
        wait_until(lambda: connected(url) == 0)


def test_guard_is_alive_while_sumo_waits_for_another_client(monkeypatch):
    """It must not be ended then: SUMO would end with it."""
    monkeypatch.setattr(health, "STALE_TIMEOUT_S", 1.0)
    address, opened = f"127.0.0.1:{free_port()}", []
    url = f"http://{address}"
    with sumo(2) as (port, _):
        flags = ["--sumo", f"127.0.0.1:{port}", "--order", "1", "--http", address, "--first-controller-timeout-s", "0"]
        thread = threading.Thread(target=lambda: _open(parse(flags), opened).run(), daemon=True)
        thread.start()
        other = connect(port, 2)
        wait_until(lambda: reports(url, "/healthz", "running\n"))
        time.sleep(1.3)  # the guard steps; the other client does not
        assert reports(url, "/healthz", "running\n") and reports(url, "/livez", "alive\n")
        opened[0].stop()
        other.close()
        thread.join(20)
        assert not thread.is_alive()
