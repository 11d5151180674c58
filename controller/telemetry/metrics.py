"""Prometheus metrics of a controller; the registry is passed in."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from city.version import VERSION
from controller.alarms import Alarms
from controller.pace import PaceState
from controller.telemetry.traffic import TrafficMeter
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
        self._expiries: list[Callable[[], Mapping[str, float]]] = []

    def report_model_numbers(self, numbers: Callable[[], Mapping[str, int]]) -> None:
        """Add a metric of the model number by TL. `numbers` returns it and is called at each scrape."""
        self.registry.register(_ModelNumbers(numbers))

    def report_certificates(self, expiries: Callable[[], Mapping[str, float]]) -> None:
        """Add certificates to the metric of their expiry by file. `expiries` returns it and is called at each
        scrape."""
        if not self._expiries:
            self.registry.register(_CertificateExpiries(self._expiries))
        self._expiries.append(expiries)

    def report_alarms(self, alarms: Alarms) -> None:
        """Add the metric of active alarms."""
        self.registry.register(alarms)

    def report_pace(self, state: Callable[[], PaceState]) -> None:
        """Add the metrics of the run's pace. `state` returns it and is called at each scrape."""
        self.registry.register(_PaceMetrics(state))

    def report_traffic(self, traffic: TrafficMeter) -> None:
        """Add the metrics of traffic by TL."""
        self.registry.register(traffic)


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


class _ModelNumbers:
    """Collects the model number of each TL's newest answer."""

    def __init__(self, numbers: Callable[[], Mapping[str, int]]) -> None:
        self._numbers = numbers

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily("controller_model_number", "Model number of a TL's newest answer", labels=("tl",))
        for tl, number in dict(self._numbers()).items():
            family.add_metric((tl,), number)
        yield family


class _CertificateExpiries:
    """Collects when the certificates in use expire."""

    def __init__(self, expiries: Iterable[Callable[[], Mapping[str, float]]]) -> None:
        self._expiries = expiries

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "controller_certificate_expiry_timestamp_seconds",
            "When the first certificate of a TLS file expires, in s since 1970",
            labels=("file",),
        )
        for expiries in self._expiries:
            for file, expiry_s in expiries().items():
                family.add_metric((file,), expiry_s)
        yield family


class _PaceMetrics:
    """Collects whether the run is paused, and how late it is."""

    def __init__(self, state: Callable[[], PaceState]) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        state = self._state()
        paused = "1: an operator has paused the run; 0: it runs"
        yield GaugeMetricFamily("controller_paused", paused, value=float(state.is_paused))
        speed = "Simulated seconds per wall second that the run keeps; 0: as fast as possible"
        yield GaugeMetricFamily("controller_speed", speed, value=state.speed)
        lateness = "Wall time by which the newest step began after the schedule of the run's speed"
        yield GaugeMetricFamily("controller_lateness_seconds", lateness, value=state.lateness_s)
        late = "Steps that began more than 0.1 s of wall time after their schedule"
        yield CounterMetricFamily("controller_late_steps", late, value=state.late_steps)
        lost = "Wall time by which the schedule was moved because the run did not keep its speed"
        yield CounterMetricFamily("controller_lost_seconds", lost, value=state.lost_s)
