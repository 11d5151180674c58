"""/metrics and /healthz over a real socket."""

import contextlib
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from controller import config as controller_config
from controller import daemon
from controller.guard import __main__ as guard
from controller.release import Stop
from controller.telemetry.health import IDLE_TIMEOUT_S, MAX_CONNECTIONS, STALE_TIMEOUT_S, Health, HttpServer
from controller.telemetry.metrics import ControllerMetrics
from serving.embedded.flags import parse as parse_serve
from serving.tf_serving.__main__ import main as serve_config
from tests.conftest import GRID, ROOT


@contextlib.contextmanager
def serving(registry=None, health=None):
    registry = registry or ControllerMetrics(CollectorRegistry()).registry
    server = HttpServer(("127.0.0.1", 0), registry, health or Health())
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.close()


@pytest.fixture
def served():
    """(clock, health, metrics, the URL of their server)."""
    clock = [0.0]
    health, metrics = Health(lambda: clock[0]), ControllerMetrics(CollectorRegistry())
    with serving(metrics.registry, health) as url:
        yield clock, health, metrics, url


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


LATER_S = STALE_TIMEOUT_S + 1


def test_health_follows_the_state_of_the_controller(served):
    """A process that starts may wait for SUMO and the model server for long; a release takes steps too."""
    clock, health, _, url = served
    for waited_s, act, healthz, livez in (
        (LATER_S, health.wait, (503, "starting\n"), (200, "alive\n")),
        (0.0, health.beat, (200, "running\n"), (200, "alive\n")),
        (LATER_S, None, (503, "stuck\n"), (503, "stuck\n")),
        (LATER_S, health.wait, (200, "running\n"), (200, "alive\n")),
        (0.0, health.beat, (200, "running\n"), (200, "alive\n")),
        (0.0, health.begin_stopping, (503, "stopping\n"), (200, "alive\n")),
        (0.0, health.beat, (503, "stopping\n"), (200, "alive\n")),
        (LATER_S, None, (503, "stopping\n"), (503, "stuck\n")),
    ):
        clock[0] += waited_s
        if act is not None:
            act()
        assert (get(f"{url}/healthz"), get(f"{url}/livez")) == (healthz, livez)


@pytest.mark.parametrize("has_guard", [False, True])
def test_a_wait_for_sumo_is_no_sign_of_a_stuck_controller(monkeypatch, has_guard):
    """SUMO may wait for another client for any time, and a restart of the controller would not help."""
    opened = []
    monkeypatch.setattr(daemon.start, "connect", lambda sumo, interrupts: opened.append(interrupts))
    monkeypatch.setattr(daemon, "open_guarded", lambda sumo, watchdog_s, interrupts, end_s: opened.append(interrupts))
    clock, stop = [0.0], Stop()
    health = Health(lambda: clock[0])
    config = controller_config.parse(["--city", str(GRID / "city.toml"), "--policy", "max-pressure"])
    daemon._open(replace(config, guard=has_guard), stop, health)
    health.beat()
    clock[0] += LATER_S
    assert not opened[0].abort_requested() and not health.is_stuck
    stop.count = 2
    assert opened[0].abort_requested()


def test_systemd_is_told_ready_watchdog_and_stopping(monkeypatch):
    told, clock = [], [100.0]
    monkeypatch.setenv("WATCHDOG_USEC", "20000000")
    monkeypatch.setattr("city.systemd.notify", told.append)
    health = Health(lambda: clock[0])
    for seconds in (0, 1, 9, 1, 8):
        clock[0] += seconds
        health.beat()
    health.begin_stopping()
    clock[0] += 10
    health.beat()
    assert [state.partition("\n")[0] for state in told] == [
        "READY=1",
        "WATCHDOG=1",
        "WATCHDOG=1",
        "STOPPING=1",
        "WATCHDOG=1",
    ]


UNITS = (
    "controller/greenserve-controller.service",
    "controller/greenserve-guard.service",
    "serving/embedded/greenserve-server.service",
)


@pytest.mark.parametrize("path", UNITS)
def test_unit_is_bounded_and_valid(path):
    keys = dict(re.findall(r"^(\w+)=(.*)$", (ROOT / path).read_text(), re.M))
    assert keys["SystemCallFilter"] == "@system-service" and keys["SystemCallErrorNumber"] == "EPERM"
    assert keys["RestrictAddressFamilies"] == "AF_UNIX AF_INET AF_INET6 AF_NETLINK"
    assert re.fullmatch(r"\d+[MG]", keys["MemoryMax"]) and int(keys["LimitNOFILE"]) >= 1024
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed (Debian: systemd)")
    unit = ROOT / path
    done = subprocess.run(["systemd-analyze", "verify", "--recursive-errors=no", unit], capture_output=True, text=True)
    problems = [line for line in done.stderr.splitlines() if unit.name in line and "is not executable" not in line]
    assert problems == [], "only the program may be missing on this machine"


def unit_settings(name, command, parse):
    text = (ROOT / "controller" / f"greenserve-{name}.service").read_text()
    address = re.search(r"^Environment=SUMO_ADDRESS=(.*)$", text, re.M)[1]
    started = re.search(rf"^ExecStart=\S+ {command} (.*)$", text, re.M)[1].replace("${SUMO_ADDRESS}", address)
    return parse(["--city", str(GRID / "city.toml"), *started.split()])


def test_units_start_a_controller_that_connects_to_its_guard_and_serve_metrics_on_loopback():
    controller = unit_settings("controller", "control", controller_config.parse)
    its_guard = unit_settings("guard", "guard", guard.parse)
    assert controller.sumo.attach == ("127.0.0.1", its_guard.port)
    assert (controller.http, its_guard.http) == (("127.0.0.1", 9108), ("127.0.0.1", 9109)), "as in compose"


def test_unit_of_the_controller_asks_by_label_keeps_what_operators_set_and_restarts_it_if_it_is_stuck():
    assert unit_settings("controller", "control", controller_config.parse).models.version == "stable"
    text = (ROOT / UNITS[0]).read_text()
    folder = re.search(r"^StateDirectory=(.*)$", text, re.M)[1]
    assert f"\nEnvironment=TMPDIR=/var/lib/{folder}\n" in text, "a private /tmp is emptied at each start"
    assert "Type=notify\n" in text and f"WatchdogSec={STALE_TIMEOUT_S:g}\n" in text, "as /livez"


def test_unit_of_the_server_serves_the_labels_that_the_controller_asks_for(monkeypatch, tmp_path, grid_models):
    text = (ROOT / UNITS[2]).read_text()
    arguments = re.search(r"^ExecStart=\S+ serve (.*)$", text, re.M)[1].split()
    monkeypatch.chdir(tmp_path)
    flags = ["--models-dir", str(grid_models), "--out", "config", "--mounted-at", str(grid_models)]
    assert "greenserve serve config --out config --mounted-at" in text and serve_config(flags) == 0
    server = parse_serve(arguments, "serve")
    assert "Type=notify\n" in text and server.host == "127.0.0.1" and server.config_poll_s == 30
    assert server.models and all("stable" in model.labels for model in server.models.values())


def test_metrics_are_prometheus_text_or_openmetrics_for_a_scraper_that_asks_for_it(served):
    _, _, metrics, url = served
    metrics.decisions.inc(3)
    metrics.report_model_numbers(lambda: {"SA101": 7})
    status, text = get(f"{url}/metrics")
    assert status == 200 and 'controller_model_number{tl="SA101"} 7.0' in text and "# EOF" not in text
    accepted = "application/openmetrics-text; version=1.0.0"
    request = urllib.request.Request(f"{url}/metrics", headers={"Accept": accepted})
    with urllib.request.urlopen(request, timeout=5) as answer:
        assert answer.headers["Content-Type"].startswith(accepted)
        text = answer.read().decode()
    assert text.endswith("# EOF\n")
    samples = {sample.name: sample for family in text_string_to_metric_families(text) for sample in family.samples}
    assert samples["controller_decisions_total"].value == 3
    assert get(f"{url}/other")[0] == 404


MAX_WAIT_S = 20.0


@contextlib.contextmanager
def connections_to(url, count):
    host, port = url.removeprefix("http://").split(":")
    with contextlib.ExitStack() as opened:
        address = host, int(port)
        yield [opened.enter_context(socket.create_connection(address, MAX_WAIT_S)) for _ in range(count)]


def scrape(url, path="/metrics"):
    """GET a path, repeated while the server has no free connection."""
    end_s = time.monotonic() + MAX_WAIT_S
    while True:
        try:
            return get(f"{url}{path}")
        except OSError:
            assert time.monotonic() < end_s, "no connection has become free"
            time.sleep(0.01)


def test_idle_connections_hold_a_bounded_number_of_threads(served):
    url = served[3]
    before = threading.active_count()
    with connections_to(url, 100) as idle:
        idle[-1].settimeout(IDLE_TIMEOUT_S / 2)
        assert idle[-1].recv(1) == b"", "closed at once, as all others beyond the limit"
        assert threading.active_count() - before <= MAX_CONNECTIONS
    assert scrape(url)[0] == 200


def test_scrape_whose_answer_is_never_read_ends(monkeypatch):
    """As many such scrapes as there are connections; the answers are larger than the sockets' buffers."""
    monkeypatch.setattr("controller.telemetry.health.IDLE_TIMEOUT_S", 0.5)
    # encoded once: under load, making it anew for each connection would take longer than the test waits
    answer = b"x" * 20_000_000
    monkeypatch.setattr("controller.telemetry.health.choose_encoder", lambda accepted: (lambda _: answer, "text/plain"))
    with serving() as url, connections_to(url, MAX_CONNECTIONS) as unread:
        for connection in unread:
            connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        # a small answer, which no load makes slower than the time-out
        assert scrape(url, "/livez") == (200, "alive\n")


def test_requests_that_are_sent_byte_by_byte_end(monkeypatch):
    monkeypatch.setattr("controller.telemetry.health.CONNECTION_TIMEOUT_S", 0.5)
    is_done = threading.Event()

    def send(connections):
        while not is_done.wait(0.05):
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.sendall(b"x")

    with serving() as url, connections_to(url, MAX_CONNECTIONS) as slow:
        sender = threading.Thread(target=send, args=(slow,))
        sender.start()
        try:
            assert scrape(url)[0] == 200
        finally:
            is_done.set()
            sender.join()


def test_connections_without_a_thread_do_not_use_up_the_limit(served, monkeypatch):
    url = served[3]
    start = threading.Thread.start

    def refuse(thread):
        if threading.current_thread().name == "http":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(MAX_CONNECTIONS):
            with pytest.raises(OSError):
                get(f"{url}/healthz")
    assert get(f"{url}/healthz") == (503, "starting\n")
