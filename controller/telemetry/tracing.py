"""OpenTelemetry traces of decision steps: one a step, with spans sumo, observe, predict and apply.

They are on if OTEL_* name an exporter, as for any program, and need the extra `tracing`. The model server gets the
context of a step's `predict` as metadata `traceparent` of its Predicts.
"""

import logging
import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from city.errors import InputError
from controller.events import DecisionEvent, Subscriber
from signals.observation import Observation
from signals.policy import Answer, Policies

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

# each turns traces on, unless the exporter is `none`
VARIABLES = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def provider_of_environment() -> "TracerProvider | None":
    """The tracer provider that OTEL_* ask for; None, without an import, if they ask for none. Raises InputError."""
    name = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    if name == "none" or not any(map(os.environ.get, VARIABLES)):
        return None
    try:
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider, export
    except ImportError:
        logging.getLogger("controller").warning(
            "OTEL_* ask for traces, which need the extra tracing: pip install 'greenserve[tracing]'"
        )
        return None
    if name == "otlp":
        variables = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        protocol = next(filter(None, map(os.environ.get, variables)), "grpc")
        name = f"otlp_proto_{protocol.removesuffix('/protobuf')}"
    exporters = {point.name: point for point in entry_points(group="opentelemetry_traces_exporter")}
    if name not in exporters:
        raise InputError(
            f"OTEL_TRACES_EXPORTER: exporter {name!r} is not installed; "
            f"set it to one of {', '.join(sorted({'none', *exporters}))}"
        )
    named = {"service.name": "greenserve-controller", **OTELResourceDetector().detect().attributes}
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(export.BatchSpanProcessor(exporters[name].load()()))
    return provider


def metadata() -> list[tuple[str, str]]:
    """The gRPC metadata with the current span's context."""
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return list(carrier.items())


class TracedPolicies(Subscriber):
    """Policies whose requests are spans; as a subscriber of the loop, it ends the trace of each step.

    A step's trace begins with the wait for SUMO, when the step before is published, and ends when it is published. The
    provider sends the spans that are left when it is shut down, which may take seconds.
    """

    def __init__(self, policies: Policies, provider: "TracerProvider") -> None:
        self._policies, self._tracer = policies, provider.get_tracer("greenserve")
        self._step: Any = self._tracer.start_span("decision step")
        self._predict: Any = None

    def ask(
        self, observations: Mapping[str, Observation], observed_s: float | None = None
    ) -> dict[str, Answer | Exception]:
        from opentelemetry import trace

        context = trace.set_span_in_context(self._step)
        with self._tracer.start_as_current_span("predict", context, trace.SpanKind.CLIENT) as self._predict:
            return self._policies.ask(observations, observed_s)

    def add(self, event: DecisionEvent) -> None:
        """End the trace of a step with decisions; without any, the wait for SUMO begins anew."""
        if (times := event.times) is not None and self._step.is_recording():
            self._add_stage("sumo", self._step.start_time, times.sumo_s)
            self._add_stage("observe", self._predict.start_time - int(1e9 * times.observe_s), times.observe_s)
            self._add_stage("apply", self._predict.end_time, times.apply_s)
            self._step.set_attributes(
                {
                    "simulation.second": event.at_s,
                    "tls": len(event.decisions),
                    "missing_answers": sum(bool(decision.failure) for decision in event.decisions),
                }
            )
            self._step.end()
        self._step = self._tracer.start_span("decision step")

    def _add_stage(self, name: str, begin_ns: int, duration_s: float) -> None:
        from opentelemetry import trace

        span = self._tracer.start_span(name, trace.set_span_in_context(self._step), start_time=begin_ns)
        span.end(begin_ns + int(1e9 * duration_s))
