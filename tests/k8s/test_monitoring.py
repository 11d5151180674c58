"""Alerts, dashboard and scrape configuration: valid, true to the metrics of the code, and tried on a real
Prometheus."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request

import pytest
import yaml
from prometheus_client import CollectorRegistry

from city.network import StreetNetwork
from controller.alarms import KINDS, Alarms
from controller.guard.metrics import GuardMetrics
from controller.pace import Pace
from controller.telemetry.metrics import MISSING_REASONS, ControllerMetrics, RecordMetrics
from controller.telemetry.traffic import TrafficMeter
from protos import policy_pb2 as pb
from serving.embedded.telemetry import ServerMetrics
from signals.fallback.control_mode import ControlMode
from signals.safety.conflicts import OverrideReason
from signals.safety.monitor import MonitorRule
from tests.conftest import GRID, ROOT
from tests.end_to_end.programs import free_port, started
from tests.waiting import wait_until

FOLDER = ROOT / "k8s" / "monitoring"
METRIC = re.compile(r"(?<![\w:-])(?:controller|guard|serving)_[a-z_]+(?![\w(/:-])|:tensorflow:[a-z:_]+(?![a-z_:])")
"""Names of metrics in expressions and prose."""
LABEL = re.compile(r'(\w+)\s*(?:=|!=|=~|!~)\s*"([^"]*)"')
"""Matchers of labels: name and value."""
NOT_METRICS = {"controller_settings"}
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",)}
"""Type of a metric -> ends of its samples' names."""
ONLY_TENSORFLOW_SERVING = {":tensorflow:cc:saved_model:load_attempt_count"}
"""Metrics that the embedded server has under another name."""


def promtool(*arguments):
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True)


@pytest.fixture(scope="module")
def samples():
    controller = ControllerMetrics(CollectorRegistry())
    controller.report_model_numbers(dict)
    RecordMetrics(controller.registry)
    alarms = Alarms({}, 1)
    alarms.note_certificates("model server", {"ca": 2e9})
    controller.registry.register(alarms)
    controller.report_pace(lambda: Pace().state)
    controller.registry.register(TrafficMeter([pb.PolicyContract(tl="SA101")], StreetNetwork(None, {}, {})))
    server = ServerMetrics()
    server.report_versions(dict)
    families = [*controller.registry.collect(), *GuardMetrics().registry.collect(), *server.registry.collect()]
    return {family.name + suffix for family in families for suffix in ("", *SUFFIXES.get(family.type, ()))}


def rules():
    return yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"]


def expressions():
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    alerts = [rule["expr"] for group in rules() for rule in group["rules"]]
    return alerts + [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def test_every_metric_in_alerts_and_dashboard_exists(samples):
    named = {name for expression in expressions() for name in METRIC.findall(expression)}
    assert named - samples == ONLY_TENSORFLOW_SERVING and len(named) > 10


def test_every_label_value_in_alerts_and_dashboard_exists():
    """A matcher with a value that nothing has is valid, and never true."""
    jobs = {each["job_name"] for each in yaml.safe_load((FOLDER / "prometheus.yaml").read_text())["scrape_configs"]}
    known = {
        "job": jobs,
        "mode": {mode.name.lower() for mode in ControlMode},
        "reason": {*MISSING_REASONS.values(), "other", *(reason.value for reason in OverrideReason)},
        "rule": {rule.value for rule in MonitorRule},
        "status": {"success", "fail", "OK"},
        "name": set(KINDS),
    }
    found = [match for expression in expressions() for match in LABEL.findall(expression) if match[1] != "$instance"]
    assert {label for label, _ in found} >= {"job", "mode", "reason", "status"}
    unknown = [(label, value) for label, values in found for value in values.split("|") if value not in known[label]]
    assert unknown == []


def test_every_metric_in_the_docs_exists(samples):
    pages = ("reference/metrics.md", "operations.md", "runbook.md")
    text = "".join((ROOT / "docs" / page).read_text() for page in pages)
    assert set(METRIC.findall(text)) - samples - NOT_METRICS - ONLY_TENSORFLOW_SERVING == set()


def test_metrics_of_the_controller_are_documented(samples):
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    names = {
        re.sub(r"_(bucket|sum|count|created)$", "", name)
        for name in samples
        if name.startswith(("controller_", "guard_"))
    }
    assert {name for name in names if name.removesuffix("_total") not in text} == set()


def test_every_alert_has_a_runbook_section_with_its_severity():
    alerts = (ROOT / "docs" / "runbook.md").read_text().split("\n## Alerts\n")[1].split("\n## ")[0]
    sections = dict(re.findall(r"^### (\w+)\n\n(Critical|Warning)\. ", alerts, re.M))
    found = [rule for group in rules() for rule in group["rules"]]
    assert {rule["alert"]: rule["labels"]["severity"].capitalize() for rule in found} == sections
    for rule in found:
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{rule['alert'].lower()}"


def test_operators_rules_are_the_same():
    assert yaml.safe_load((FOLDER / "prometheusrule.yaml").read_text())["spec"]["groups"] == rules()


@pytest.mark.parametrize(
    "arguments", [("check rules", "rules.yaml"), ("check config", "prometheus.yaml"), ("test rules", "rules_test.yaml")]
)
def test_promtool_accepts(arguments):
    command, file = arguments
    done = promtool(*command.split(), FOLDER / file)
    assert done.returncode == 0, done.stdout + done.stderr


def query(port, expression):
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.loads(answer.read())["data"]["result"]


@pytest.mark.slow
def test_real_prometheus_scrapes_a_real_run(grid_server, grid_rest, tmp_path):
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (Debian: prometheus)")
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    http, guard_http, traci, own = (free_port() for _ in range(4))
    for job, target in zip(
        config["scrape_configs"], (f"127.0.0.1:{http}", f"127.0.0.1:{guard_http}", grid_rest), strict=True
    ):
        job["static_configs"] = [{"targets": [target]}]
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    shutil.copy(FOLDER / "rules.yaml", tmp_path)
    hold = [sys.executable, "-m", "controller.guard", "--port", traci, "--http", f"127.0.0.1:{guard_http}"]
    hold += ["--clients", "1", "--", "-c", GRID / "grid.sumocfg", "--end", "100000000"]
    control = [sys.executable, "-m", "controller", "--city", GRID / "city.toml", "--server", grid_server]
    control += ["--http", f"127.0.0.1:{http}", "--sumo", f"127.0.0.1:{traci}", "--no-guard", "--end", "100000000"]
    scrape = ["prometheus", f"--config.file={tmp_path / 'prometheus.yaml'}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    scrape += [f"--web.listen-address=127.0.0.1:{own}"]
    with contextlib.ExitStack() as processes:
        for name, command in (("prometheus", scrape), ("guard", hold), ("controller", control)):
            log = processes.enter_context((tmp_path / f"{name}.log").open("w"))
            processes.enter_context(started(command, cwd=ROOT, stdout=log, stderr=log))
        wait_until(lambda: is_open(own), 60)
        wait_until(lambda: len(query(own, "up == 1")) == 3, 60)
        wait_until(lambda: query(own, "rate(controller_decisions_total[10s]) > 0"), 60)
        for expression in expressions():
            # a query that Prometheus does not understand is an HTTP error
            query(own, expression.replace('instance=~"$instance"', ""))
        assert len(query(own, "controller_model_number == 1")) == 8
        (policies,) = query(own, 'controller_tls{mode="policy"}')
        assert policies["value"][1] == "8"
        assert query(own, ":tensorflow:serving:request_count")
        assert query(own, "guard_controller_connected == 1")
        assert query(own, 'ALERTS{alertstate="firing"}') == []


def is_open(port):
    try:
        query(port, "up")
    except OSError:
        return False
    return True
