"""Prometheus metrics of a controller; the registry is passed in."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from city.version import VERSION
from controller.pace import PaceState
from signals.fallback.control_mode import ControlMode
from signals.safety.monitor import MonitorRule

_BUCKETS_S = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
MISSING_REASONS = {
    "DeadlineExceeded": "deadline",
    "Unavailable": "unavailable",
    "Overloaded": "overloaded",
    "ModelNotFound": "not_found",
    "BadRequest": "bad_request",
    "InvalidResponse": "invalid_response",
    "InvalidAction": "invalid_action",
    "ContractChanged": "contract_changed",
}
"""Label of a missing answer, by the class of its error; `other` for all other classes."""


PACE_TEXTS = {
    "paused": "1: an operator has paused the run; 0: it runs",
    "speed": "Simulated seconds per wall second that the run keeps; 0: as fast as possible",
    "lateness_seconds": "Wall time by which the newest step began after the schedule of the run's speed",
    "late_steps": "Steps that began more than 0.1 s of wall time after their schedule",
    "lost_seconds": "Wall time by which the schedule was moved because the run did not keep its speed",
}


class ControllerMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        Info("controller_build", "Version of the controller", registry=registry).info({"version": VERSION})
        self.policy = Info(
            "controller_policy",
            "What controls the TLs in mode policy: served, max-pressure or greedy",
            registry=registry,
        )
        self.steps = Counter("controller_decision_steps", "Moments at which at least one TL was due", registry=registry)
        self.decisions = Counter(
            "controller_decisions",
            "Valid answers of policies, in fallback not followed; or decisions of max-pressure or greedy in their "
            "place",
            registry=registry,
        )
        self.missing_answers = Counter(
            "controller_missing_answers",
            "Requests to a policy without a valid action",
            ["tl", "reason"],
            registry=registry,
        )
        self.deadline_misses = Counter(
            "controller_deadline_misses", "Decision steps in which an answer missed the deadline", registry=registry
        )
        self.overrides = Counter(
            "controller_safety_overrides",
            "Requested states that the safety rules replaced",
            ["reason"],
            registry=registry,
        )
        self.alarms = Counter(
            "controller_safety_alarms", "Shown states that broke a rule; must stay at 0", ["rule"], registry=registry
        )
        for rule in MonitorRule:
            self.alarms.labels(rule.value)
        self.unexpected_states = Counter(
            "controller_unexpected_states",
            "Readings at which a signal showed another state than was set",
            ["signal"],
            registry=registry,
        )
        self.street_floors = Gauge(
            "controller_street_floors", "1: the street's floors hold; 0: [safety] floors = dialect", registry=registry
        )
        self.rejections = Counter("controller_sumo_rejections", "Commands that SUMO rejected", registry=registry)
        self.mode = Gauge(
            "controller_mode",
            "Control mode of a TL: 0 policy, 1 hold, 2 fallback, 3 recovering, 4 fixed",
            ["tl"],
            registry=registry,
        )
        self.tls = Gauge("controller_tls", "TLs by control mode", ["mode"], registry=registry)
        for mode in ControlMode:
            self.tls.labels(mode.name.lower())
        self.decision_s = Histogram(
            "controller_decision_seconds",
            "Wall time of a decision step, from readings to choices",
            registry=registry,
            buckets=_BUCKETS_S,
        )
        self.stage_s = Histogram(
            "controller_stage_seconds",
            "Wall time of a decision step's stages: sumo (waiting for its readings), observe, inference, apply",
            ["stage"],
            registry=registry,
            buckets=_BUCKETS_S,
        )
        self.simulation_s = Gauge("controller_simulation_seconds", "Simulation time", registry=registry)

    def report_model_numbers(self, numbers: Callable[[], Mapping[str, int]]) -> None:
        """Add a metric of the model number by TL. `numbers` returns it and is called at each scrape."""

        def collect() -> Iterable[Metric]:
            family = GaugeMetricFamily(
                "controller_model_number", "Model number of a TL's newest answer", labels=("tl",)
            )
            for tl, number in dict(numbers()).items():
                family.add_metric((tl,), number)
            yield family

        self.registry.register(_Collected(collect))

    def report_pace(self, state: Callable[[], PaceState]) -> None:
        """Add the metrics of the run's pace. `state` returns it and is called at each scrape."""

        def collect() -> Iterable[Metric]:
            pace = state()
            for kind, name, value in (
                (GaugeMetricFamily, "paused", pace.is_paused),
                (GaugeMetricFamily, "speed", pace.speed),
                (GaugeMetricFamily, "lateness_seconds", pace.lateness_s),
                (CounterMetricFamily, "late_steps", pace.late_steps),
                (CounterMetricFamily, "lost_seconds", pace.lost_s),
            ):
                yield kind(f"controller_{name}", PACE_TEXTS[name], value=float(value))

        self.registry.register(_Collected(collect))


@dataclass(frozen=True)
class _Collected:
    """Metrics whose values are asked for at each scrape."""

    collect: Callable[[], Iterable[Metric]]


class RecordMetrics:
    """Metrics of the record of a run, which exist if the run is recorded."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.stopped = Gauge(
            "controller_record_stopped", "1: an error has ended the record; 0: it is written", registry=registry
        )
        self.steps = Counter("controller_recorded_steps", "Steps in the record's files", registry=registry)
        self.dropped_steps = Counter(
            "controller_record_dropped_steps",
            "Steps missing in the record because its folder is too slow",
            registry=registry,
        )
        self.bytes = Counter("controller_recorded_bytes", "Bytes of the record's files", registry=registry)
