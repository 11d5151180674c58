"""/metrics and /healthz over a real socket."""

import selectors
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest
from prometheus_client import CollectorRegistry

from controller.telemetry.health import MAX_CONNECTIONS, STALE_TIMEOUT_S, Health, HttpServer
from controller.telemetry.metrics import ControllerMetrics


@pytest.fixture
def served():
    clock = [0.0]
    health, metrics = Health(lambda: clock[0]), ControllerMetrics(CollectorRegistry())
    server = HttpServer(("127.0.0.1", 0), metrics.registry, health)
    yield clock, health, metrics, f"http://127.0.0.1:{server.port}"
    server.close()


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_healthz_follows_the_state_of_the_controller(served):
    clock, health, _, url = served
    assert get(f"{url}/healthz") == (503, "starting\n")
    health.beat()
    assert get(f"{url}/healthz") == (200, "running\n")
    clock[0] += STALE_TIMEOUT_S + 1
    assert get(f"{url}/healthz") == (503, "stuck\n")
    health.beat()
    health.begin_stopping()
    assert get(f"{url}/healthz") == (503, "stopping\n")
    health.beat()  # the steps of a release
    assert get(f"{url}/healthz") == (503, "stopping\n")


def test_metrics_are_prometheus_text(served):
    _, _, metrics, url = served
    metrics.decisions.inc(3)
    metrics.mode.labels("SA101").set(2)
    status, text = get(f"{url}/metrics")
    assert status == 200
    assert "controller_decisions_total 3.0" in text
    assert 'controller_mode{tl="SA101"} 2.0' in text


def test_other_paths_are_not_found(served):
    assert get(f"{served[3]}/other")[0] == 404


MAX_WAIT_S = 20.0


def open_idle(url, count):
    """Open idle connections, and wait until the server has closed those beyond MAX_CONNECTIONS."""
    host, port = url.removeprefix("http://").split(":")
    idle = [socket.create_connection((host, int(port)), timeout=MAX_WAIT_S) for _ in range(count)]
    with selectors.DefaultSelector() as selector:
        for connection in idle:
            selector.register(connection, selectors.EVENT_READ)
        end_s = time.monotonic() + MAX_WAIT_S
        while len(selector.get_map()) > MAX_CONNECTIONS and time.monotonic() < end_s:
            for key, _ in selector.select(1.0):
                assert key.fileobj.recv(1) == b""
                selector.unregister(key.fileobj)
    return idle


def scrape(url):
    """GET /metrics, repeated while the server has no free connection."""
    end_s = time.monotonic() + MAX_WAIT_S
    while True:
        try:
            return get(f"{url}/metrics")
        except OSError:
            assert time.monotonic() < end_s, "no connection has become free"
            time.sleep(0.01)


def test_idle_connections_hold_a_bounded_number_of_threads(served):
    url = served[3]
    before = threading.active_count()
    idle = open_idle(url, 300)
    try:
        assert threading.active_count() - before <= MAX_CONNECTIONS
    finally:
        for connection in idle:
            connection.close()
    assert scrape(url)[0] == 200


def test_idle_connections_time_out_and_free_their_threads(monkeypatch):
    monkeypatch.setattr("controller.telemetry.health.IDLE_TIMEOUT_S", 0.2)
    server = HttpServer(("127.0.0.1", 0), ControllerMetrics(CollectorRegistry()).registry, Health())
    url = f"http://127.0.0.1:{server.port}"
    idle = open_idle(url, MAX_CONNECTIONS + 5)
    try:
        assert scrape(url)[0] == 200
    finally:
        for connection in idle:
            connection.close()
        server.close()
