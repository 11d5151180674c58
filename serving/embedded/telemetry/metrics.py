"""Prometheus metrics of the server.

Request counts and latencies have TensorFlow Serving's names, labels and buckets
(tensorflow_serving/servables/tensorflow/util.cc), so that its dashboards work; the
others are ours, and begin with `serving_`.
"""

import bisect
import itertools
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

LATENCY_US = tuple(10 * 1.8**k for k in range(33))
"""Bucket bounds of the latency histograms, in microseconds."""
_PREFIX = ":tensorflow:serving:"
_LATENCIES = {
    "request_latency": (
        ("model_name", "API", "entrypoint"),
        "Duration of requests inside the server, in microseconds.",
    ),
    "runtime_latency": (("model_name", "API", "runtime"), "Duration of TensorFlow's part of them, in microseconds."),
}
"""Name -> (labels, help)."""
_RUNTIME = "TF1"
"""Value of label `runtime`: TensorFlow Serving's name for a session."""


class _Latency:
    """The latency histogram of one set of labels."""

    __slots__ = ("buckets", "sum_us")

    def __init__(self) -> None:
        self.buckets = [0] * (len(LATENCY_US) + 1)
        self.sum_us = 0.0


class ServerMetrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.build: Mapping[str, str] = {}
        """Labels of serving_build_info."""
        self.states: Callable[[], Mapping[str, int]] = dict
        """Returns the number of versions by state."""
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, str], int] = defaultdict(int)
        """(model, status) -> count."""
        self._latencies: dict[str, dict[tuple[str, ...], _Latency]] = {
            name: defaultdict(_Latency) for name in _LATENCIES
        }
        self._loads: dict[tuple[str, str], int] = defaultdict(int)
        self._load_s: dict[str, float] = {}
        self._logged = dict.fromkeys(("written", "dropped", "failed"), 0)
        """Outcome -> prediction logs."""
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def count_request(self, model: str, status: str) -> None:
        """Count a request. `model`: empty for an unknown model, so that clients cannot add labels."""
        with self._lock:
            self._requests[model, status] += 1

    def count_latency(self, model: str, api: str, entrypoint: str, seconds: float) -> None:
        """Count the duration of a successful request. `entrypoint`: GRPC or REST."""
        self._count("request_latency", (model, api, entrypoint), seconds)

    def count_run(self, model: str, seconds: float) -> None:
        """Count the duration of TensorFlow's part of a Predict."""
        self._count("runtime_latency", (model, "Predict", _RUNTIME), seconds)

    def _count(self, name: str, labels: tuple[str, ...], seconds: float) -> None:
        us = 1e6 * seconds
        with self._lock:
            latency = self._latencies[name][labels]
            latency.buckets[bisect.bisect_left(LATENCY_US, us)] += 1
            latency.sum_us += us

    def count_load(self, model: str, seconds: float) -> None:
        """Count a loaded version and the duration of its load."""
        with self._lock:
            self._loads[model, "success"] += 1
            self._load_s[model] = seconds

    def count_failed_load(self, model: str) -> None:
        """Count a version that failed to load."""
        with self._lock:
            self._loads[model, "fail"] += 1

    def count_logged(self, status: str, count: int = 1) -> None:
        """Count prediction logs: `written`, `dropped` because the writer is too slow, or `failed` to be written."""
        with self._lock:
            self._logged[status] += count

    def totals(self, names: Iterable[str]) -> dict[str, int]:
        """The sum of each counter over its labels, by name; 0 for an unknown name.

        `names`: as in Prometheus, or in TensorFlow (/tensorflow/serving/request_count).
        """
        samples = [sample for metric in self.collect() for sample in metric.samples]
        prometheus_names = {name: re.sub("[^a-zA-Z0-9_]", ":", name) for name in names}
        return {
            name: int(sum(sample.value for sample in samples if sample.name == prometheus_name))
            for name, prometheus_name in prometheus_names.items()
        }

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return bytes(generate_latest(self.registry))

    def collect(self) -> Iterator[Metric]:
        """The current values; called by the registry."""
        with self._lock:
            counts = dict(self._requests)
            latencies = {
                name: [(labels, list(latency.buckets), latency.sum_us) for labels, latency in by_labels.items()]
                for name, by_labels in self._latencies.items()
            }
            loads, load_s, logged = dict(self._loads), dict(self._load_s), dict(self._logged)
        # not a CounterMetricFamily, whose samples would be named request_count_total
        requests = Metric(f"{_PREFIX}request_count", "Requests by model and status.", "unknown")
        for (model, status), count in counts.items():
            requests.add_sample(requests.name, {"model_name": model, "status": status}, count)
        yield requests
        for name, (label_names, description) in _LATENCIES.items():
            family = HistogramMetricFamily(_PREFIX + name, description, labels=label_names)
            for labels, buckets, sum_us in latencies[name]:
                bounds = (*(f"{bound:g}" for bound in LATENCY_US), "+Inf")
                family.add_metric(labels, list(zip(bounds, itertools.accumulate(buckets), strict=True)), sum_us)
            yield family
        attempts = CounterMetricFamily(
            "serving_model_loads", "Attempts to load a version.", labels=("model_name", "status")
        )
        for (model, outcome), count in loads.items():
            attempts.add_metric((model, outcome), count)
        yield attempts
        seconds = GaugeMetricFamily("serving_model_load_seconds", "Duration of the last load.", labels=("model_name",))
        for model, duration_s in load_s.items():
            seconds.add_metric((model,), duration_s)
        yield seconds
        logs = CounterMetricFamily("serving_prediction_logs", "Logged Predict requests by outcome.", labels=("status",))
        for outcome, count in logged.items():
            logs.add_metric((outcome,), count)
        yield logs
        states = GaugeMetricFamily("serving_model_versions", "Versions by state.", labels=("state",))
        for state, count in self.states().items():
            states.add_metric((state,), count)
        yield states
        build = GaugeMetricFamily(
            "serving_build_info", "Versions of the server and of TensorFlow.", labels=tuple(self.build)
        )
        build.add_metric(tuple(self.build.values()), 1)
        yield build
