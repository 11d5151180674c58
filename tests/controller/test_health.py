"""/metrics and /healthz over a real socket."""

import urllib.error
import urllib.request

import pytest
from prometheus_client import CollectorRegistry

from controller.telemetry.health import STALE_S, Health, HttpServer
from controller.telemetry.metrics import Metrics


@pytest.fixture
def served():
    clock = [0.0]
    health, metrics = Health(lambda: clock[0]), Metrics(CollectorRegistry())
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


def test_health_follows_the_controllers_life(served):
    clock, health, _, url = served
    assert get(f"{url}/healthz") == (503, "starting\n")
    health.beat()
    assert get(f"{url}/healthz") == (200, "running\n")
    clock[0] += STALE_S + 1
    assert get(f"{url}/healthz") == (503, "stuck\n")
    health.beat()
    health.stopping()
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
    assert 'controller_rung{tl="SA101"} 2.0' in text


def test_other_paths_are_not_found(served):
    assert get(f"{served[3]}/other")[0] == 404
