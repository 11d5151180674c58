"""Prometheus metrics of the server.

Request counts and latencies have TensorFlow Serving's names
(`:tensorflow:serving:request_count`, `:tensorflow:serving:request_latency`), so
that its dashboards work; version and method are labels beside the model.
"""

import bisect
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

LATENCY_US = (100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 10_000_000)
"""Bucket bounds of the latency histogram, in microseconds as in TensorFlow Serving."""
_REQUEST_COUNT, _REQUEST_LATENCY = ":tensorflow:serving:request_count", ":tensorflow:serving:request_latency"
_LABELS = ("model_name", "version", "API", "entrypoint")
_Key = tuple[str, int, str, str]


class _Requests:
    """Latency histogram and status counts of one set of labels."""

    __slots__ = ("buckets", "statuses", "sum_us")

    def __init__(self) -> None:
        self.buckets = [0] * (len(LATENCY_US) + 1)
        self.sum_us = 0.0
        self.statuses: dict[str, int] = defaultdict(int)


class ServerMetrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.build: Mapping[str, str] = {}
        """Labels of serving_build_info."""
        self.states: Callable[[], Mapping[str, int]] = dict
        """Returns the number of versions by state."""
        self._lock = threading.Lock()
        self._requests: dict[_Key, _Requests] = defaultdict(_Requests)
        self._loads: dict[tuple[str, str], int] = defaultdict(int)
        self._load_s: dict[str, float] = {}
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def count_request(self, model: str, version: int, api: str, entrypoint: str, status: str, seconds: float) -> None:
        """Count a request. `model`: empty for an unknown model, so that clients cannot add labels."""
        us = 1e6 * seconds
        with self._lock:
            requests = self._requests[model, version, api, entrypoint]
            requests.buckets[bisect.bisect_left(LATENCY_US, us)] += 1
            requests.sum_us += us
            requests.statuses[status] += 1

    def count_load(self, model: str, seconds: float) -> None:
        """Count a version that was loaded in this time."""
        with self._lock:
            self._loads[model, "success"] += 1
            self._load_s[model] = seconds

    def count_failed_load(self, model: str) -> None:
        """Count a version that failed to load."""
        with self._lock:
            self._loads[model, "fail"] += 1

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return bytes(generate_latest(self.registry))

    def collect(self) -> Iterator[Metric]:
        """The current values; called by the registry."""
        with self._lock:
            rows = [
                ((model, str(version or ""), api, entrypoint), list(counts.buckets), counts.sum_us, dict(counts.statuses))
                for (model, version, api, entrypoint), counts in self._requests.items()
            ]
            loads, load_s = dict(self._loads), dict(self._load_s)
        # not a CounterMetricFamily, whose samples would be named request_count_total
        requests = Metric(_REQUEST_COUNT, "Requests by model, version, method and status.", "unknown")
        for key, _, _, statuses in rows:
            for status, count in statuses.items():
                requests.add_sample(_REQUEST_COUNT, {**dict(zip(_LABELS, key, strict=True)), "status": status}, count)
        yield requests
        latency = HistogramMetricFamily(_REQUEST_LATENCY, "Request latency inside the server, in microseconds.", labels=_LABELS)
        for key, buckets, sum_us, _ in rows:
            total, cumulative = 0, []
            for bound, count in zip((*map(str, LATENCY_US), "+Inf"), buckets, strict=True):
                total += count
                cumulative.append((bound, total))
            latency.add_metric(key, cumulative, sum_us)
        yield latency
        attempts = CounterMetricFamily("serving_model_loads", "Attempts to load a version.", labels=("model_name", "status"))
        for (model, outcome), count in loads.items():
            attempts.add_metric((model, outcome), count)
        yield attempts
        seconds = GaugeMetricFamily("serving_model_load_seconds", "Duration of the last load.", labels=("model_name",))
        for model, duration_s in load_s.items():
            seconds.add_metric((model,), duration_s)
        yield seconds
        states = GaugeMetricFamily("serving_model_versions", "Versions by state.", labels=("state",))
        for state, number in self.states().items():
            states.add_metric((state,), number)
        yield states
        build = GaugeMetricFamily("serving_build_info", "Versions of the server and of TensorFlow.", labels=tuple(self.build))
        build.add_metric(tuple(self.build.values()), 1)
        yield build
