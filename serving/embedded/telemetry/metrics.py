"""What the server counts, as Prometheus text.

Requests, their errors and their times carry TensorFlow Serving's names
(`:tensorflow:serving:request_count`, `:tensorflow:serving:request_latency`), with
version and method beside the model, so its dashboards find them.
"""

import bisect
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

LATENCY_US = (100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 10_000_000)
"""Bounds of the latency histogram, in microseconds as TensorFlow Serving counts."""
_REQUEST_COUNT, _REQUEST_LATENCY = ":tensorflow:serving:request_count", ":tensorflow:serving:request_latency"
_LABELS = ("model_name", "version", "API", "entrypoint")
_Key = tuple[str, int, str, str]


class _Times:
    """One histogram."""

    __slots__ = ("buckets", "statuses", "sum_us")

    def __init__(self) -> None:
        self.buckets = [0] * (len(LATENCY_US) + 1)
        self.sum_us = 0.0
        self.statuses: dict[str, int] = defaultdict(int)


class Metrics:
    """Counters of one server, in a registry of its own."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.build: Mapping[str, str] = {}
        """What this server is, as labels."""
        self.states: Callable[[], Mapping[str, int]] = dict
        """Versions by state."""
        self._lock = threading.Lock()
        self._times: dict[_Key, _Times] = defaultdict(_Times)
        self._loads: dict[tuple[str, str], int] = defaultdict(int)
        self._load_s: dict[str, float] = {}
        ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def count_request(self, model: str, version: int, api: str, entrypoint: str, status: str, seconds: float) -> None:
        """Count one request. `model` must be one that is served: a client must not make up labels."""
        us = 1e6 * seconds
        with self._lock:
            times = self._times[model, version, api, entrypoint]
            times.buckets[bisect.bisect_left(LATENCY_US, us)] += 1
            times.sum_us += us
            times.statuses[status] += 1

    def loaded(self, model: str, seconds: float) -> None:
        with self._lock:
            self._loads[model, "success"] += 1
            self._load_s[model] = seconds

    def load_failed(self, model: str) -> None:
        with self._lock:
            self._loads[model, "fail"] += 1

    def text(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return bytes(generate_latest(self.registry))

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        with self._lock:
            times = [
                ((model, str(version or ""), api, entrypoint), list(found.buckets), found.sum_us, dict(found.statuses))
                for (model, version, api, entrypoint), found in self._times.items()
            ]
            loads, load_s = dict(self._loads), dict(self._load_s)
        # not a CounterMetricFamily: it would call the samples request_count_total
        requests = Metric(_REQUEST_COUNT, "Requests by model, version, method and status.", "unknown")
        for key, _, _, statuses in times:
            for status, count in statuses.items():
                requests.add_sample(_REQUEST_COUNT, {**dict(zip(_LABELS, key, strict=True)), "status": status}, count)
        yield requests
        latency = HistogramMetricFamily(_REQUEST_LATENCY, "Time of a request inside the server, in microseconds.", labels=_LABELS)
        for key, buckets, sum_us, _ in times:
            total, rows = 0, []
            for bound, count in zip((*map(str, LATENCY_US), "+Inf"), buckets, strict=True):
                total += count
                rows.append((bound, total))
            latency.add_metric(key, rows, sum_us)
        yield latency
        attempts = CounterMetricFamily("serving_model_loads", "Attempts to load a version.", labels=("model_name", "status"))
        for (model, outcome), count in loads.items():
            attempts.add_metric((model, outcome), count)
        yield attempts
        seconds = GaugeMetricFamily("serving_model_load_seconds", "Time the last load took.", labels=("model_name",))
        for model, took in load_s.items():
            seconds.add_metric((model,), took)
        yield seconds
        states = GaugeMetricFamily("serving_model_versions", "Versions by state.", labels=("state",))
        for state, number in self.states().items():
            states.add_metric((state,), number)
        yield states
        build = GaugeMetricFamily("serving_build_info", "What this server is.", labels=tuple(self.build))
        build.add_metric(tuple(self.build.values()), 1)
        yield build
