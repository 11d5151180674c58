"""Prometheus metrics of a controller; the registry is passed in."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from controller.monitor import Rule

_SECONDS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0)


class Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.steps = Counter("controller_decision_steps", "Moments at which at least one TL was due", registry=registry)
        self.decisions = Counter("controller_decisions", "Actions taken", registry=registry)
        self.failures = Counter("controller_failures", "Answers that were no decision", ["tl"], registry=registry)
        self.overrides = Counter("controller_safety_overrides", "Wishes the safety rules replaced", ["reason"], registry=registry)
        self.alarms = Counter(
            "controller_safety_alarms", "Rules that a state really shown has broken; must stay at 0", ["rule"], registry=registry
        )
        for rule in Rule:
            self.alarms.labels(rule.value)
        self.refusals = Counter("controller_sumo_refusals", "Commands that SUMO refused", registry=registry)
        self.rung = Gauge("controller_rung", "What controls a TL: 0 served, 1 hold, 2 plan, 3 probing", ["tl"], registry=registry)
        self.decision_s = Histogram(
            "controller_decision_seconds", "Wall time of a decision step, reading to choice", registry=registry, buckets=_SECONDS
        )
        self.inference_s = Histogram(
            "controller_inference_seconds", "Part of it spent waiting for the policies", registry=registry, buckets=_SECONDS
        )
        self.simulated_s = Gauge("controller_simulation_seconds", "Simulation time", registry=registry)
