"""The guard's --http: liveness, and whether a controller is connected."""

import contextlib
import re
import threading
import time

from controller.guard.__main__ import _open, parse
from controller.telemetry import health
from tests.controller.telemetry.test_health import get
from tests.end_to_end.programs import connect, free_port, guard, socket_of, sumo
from tests.waiting import wait_until


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
