"""The guard's --http: liveness, and whether a controller is connected."""

import re
import threading
import time
import urllib.error
import urllib.request

from controller.guard.__main__ import _open, parse
from controller.telemetry import health
from tests.end_to_end.programs import connect, free_port, guard, socket_of, sumo


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()


def connected(http):
    return float(re.search(r"^guard_controller_connected (\S+)", get(http, "/metrics"), re.M)[1])


def wait_until(condition, limit_s=20):
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_http_reports_whether_a_controller_is_connected():
    http = free_port()
    with (
        sumo(1) as (port, _),
        guard("--sumo", f"127.0.0.1:{port}", "--only-client", "--http", f"127.0.0.1:{http}") as process,
    ):
        own = int(process.stdout.readline().split()[1])
        wait_until(lambda: get(http, "/healthz") == "running\n")
        assert get(http, "/livez") == "alive\n" and connected(http) == 0
        client = connect(own, 1)
        assert connected(http) == 1
        socket_of(client).close()
        wait_until(lambda: connected(http) == 0)


def test_guard_is_alive_while_sumo_waits_for_another_client(monkeypatch):
    """It must not be ended then: SUMO would end with it."""
    monkeypatch.setattr(health, "STALE_TIMEOUT_S", 1.5)
    http, opened = free_port(), []
    with sumo(2) as (port, _):
        flags = [
            "--sumo",
            f"127.0.0.1:{port}",
            "--order",
            "1",
            "--http",
            f"127.0.0.1:{http}",
            "--first-controller-timeout-s",
            "0",
        ]
        thread = threading.Thread(target=lambda: _open(parse(flags), opened).run(), daemon=True)
        thread.start()
        other = connect(port, 2)
        wait_until(lambda: get(http, "/healthz") == "running\n")
        time.sleep(2)  # the guard steps; the other client does not
        assert get(http, "/healthz") == "running\n" and get(http, "/livez") == "alive\n"
        opened[0].stop()
        other.close()
        thread.join(20)
        assert not thread.is_alive()
