"""Structured log and Prometheus metrics of the embedded server.

Request counts and latencies have TensorFlow Serving's names, labels and buckets
(tensorflow_serving/servables/tensorflow/util.cc), so that its dashboards work; the
others are ours, and begin with `serving_`.
"""

import functools
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest

log = logging.getLogger("serving")
LATENCY_US = tuple(float(f"{10 * 1.8**k:g}") for k in range(33))
"""Bucket bounds of the latency histograms, in microseconds."""
_PREFIX = ":tensorflow:serving:"
_RUNTIME = "TF1"
"""Value of label `runtime`: TensorFlow Serving's name for a session."""


def event(name: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event with its fields."""
    log.log(level, "%s", name, extra={"fields": fields})


class ServerMetrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        # not a Counter, whose sample would be named request_count_total
        requests = Gauge(
            f"{_PREFIX}request_count", "Requests by model and status.", ("model_name", "status"), registry=self.registry
        )
        request_us = Histogram(
            f"{_PREFIX}request_latency",
            "Duration of requests inside the server, in microseconds.",
            ("model_name", "API", "entrypoint"),
            registry=self.registry,
            buckets=LATENCY_US,
        )
        runtime_us = Histogram(
            f"{_PREFIX}runtime_latency",
            "Duration of TensorFlow's part of them, in microseconds.",
            ("model_name", "API", "runtime"),
            registry=self.registry,
            buckets=LATENCY_US,
        )
        # in the path of every Predict: labels() takes longer than to count
        self._requests = functools.cache(requests.labels)
        self._request_us = functools.cache(request_us.labels)
        self._runtime_us = functools.cache(runtime_us.labels)
        self.loads = Counter(
            "serving_model_loads", "Attempts to load a version.", ("model_name", "status"), registry=self.registry
        )
        self.load_s = Gauge(
            "serving_model_load_seconds", "Duration of the last load.", ("model_name",), registry=self.registry
        )
        self.build = Info("serving_build", "Versions of the server and of TensorFlow.", registry=self.registry)
        ProcessCollector(registry=self.registry)

    def report_versions(self, count_by_state: Callable[[], Mapping[str, int]]) -> None:
        """Export the number of versions by state. `count_by_state`: state -> number, called when metrics are read."""
        versions = Gauge("serving_model_versions", "Versions by state.", ("state",), registry=self.registry)
        for state in count_by_state():
            versions.labels(state).set_function(lambda state=state: count_by_state()[state])

    def count_request(self, model: str, status: str) -> None:
        """Count a request. `model`: empty for an unknown model, so that clients cannot add labels."""
        self._requests(model, status).inc()

    def count_latency(self, model: str, api: str, entrypoint: str, seconds: float) -> None:
        """Count the duration of a successful request. `entrypoint`: GRPC or REST."""
        self._request_us(model, api, entrypoint).observe(1e6 * seconds)

    def count_run(self, model: str, seconds: float) -> None:
        """Count the duration of TensorFlow's part of a Predict."""
        self._runtime_us(model, "Predict", _RUNTIME).observe(1e6 * seconds)

    def totals(self, names: Iterable[str]) -> dict[str, int]:
        """The sum of each counter over its labels, by name; 0 for an unknown name.

        `names`: as in Prometheus, or in TensorFlow (/tensorflow/serving/request_count).
        """
        samples = [sample for metric in self.registry.collect() for sample in metric.samples]
        prometheus_names = {name: re.sub("[^a-zA-Z0-9_]", ":", name) for name in names}
        return {
            name: int(sum(sample.value for sample in samples if sample.name == prometheus_name))
            for name, prometheus_name in prometheus_names.items()
        }

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return bytes(generate_latest(self.registry))
