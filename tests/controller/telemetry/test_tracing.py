"""Traces of decision steps, read from the SDK's in-memory exporter, and their context at a model server."""

import contextlib
import itertools
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from city.errors import InputError
from controller.telemetry import tracing
from serving.client import Client
from signals.policy import Answer
from tests.controller.test_decision_step import SteppedConnection, always, loop_of
from tests.serving import fake_server
from tests.signals.single_signal import one_signal

trace = pytest.importorskip("opentelemetry.sdk.trace")
from opentelemetry.sdk.trace import sampling  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402

X = np.zeros(3, np.float32)


@pytest.fixture
def exported():
    return InMemorySpanExporter()


@pytest.fixture
def provider(exported):
    made = trace.TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(exported))
    return made


@pytest.fixture
def environment(monkeypatch):
    for name in tracing.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_each_decision_step_is_a_trace_of_four_stages(crossing, provider, exported):
    def ask(observations, observed_s):
        time.sleep(0.01)
        return {"SA101": Answer(np.array([1]))} if connection.now < 9 else {}

    connection = SteppedConnection(1.0)
    policies = tracing.TracedPolicies(SimpleNamespace(ask=ask), provider)
    loop = loop_of(connection, [one_signal(crossing)], policies, [policies])
    while loop.now < 12:
        loop.step(12)
    loop.close()
    spans = exported.get_finished_spans()
    steps = [span for span in spans if span.name == "decision step"]
    assert len(steps) == loop.counters.decision_steps > 2 and all(step.parent is None for step in steps)
    assert steps[0].attributes == {"simulation.second": 0.0, "tls": 1, "missing_answers": 0}
    assert steps[-1].attributes["missing_answers"] == 1
    for step in steps:
        inside = [span for span in spans if span.parent and span.parent.span_id == step.context.span_id]
        stages = sorted(inside, key=lambda span: span.start_time)
        assert [span.name for span in stages] == ["sumo", "observe", "predict", "apply"]
        assert step.start_time <= stages[0].start_time and stages[-1].end_time <= step.end_time
        assert all(a.end_time <= b.start_time + 1_000_000 for a, b in itertools.pairwise(stages))
        assert stages[2].end_time - stages[2].start_time >= 10_000_000


def test_steps_that_are_not_sampled_run_without_spans(crossing, exported, caplog):
    provider = trace.TracerProvider(sampler=sampling.ALWAYS_OFF)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    policies = tracing.TracedPolicies(always(1), provider)
    loop = loop_of(SteppedConnection(1.0), [one_signal(crossing)], policies, [policies])
    loop.step(12)
    loop.step(12)
    assert loop.counters.decisions == 2 and exported.get_finished_spans() == () and caplog.text == ""


@pytest.mark.parametrize("many", [False, True])
def test_predicts_carry_the_context_of_their_step(provider, exported, many):
    received = []

    def answer(request, context):
        received.append(dict(context.invocation_metadata()).get("traceparent"))
        return fake_server.answer(action=np.zeros((1, 1), np.float32))

    server = fake_server.Fake()
    server.answer = answer
    with contextlib.ExitStack() as closing, Client(server.address, metadata=tracing.metadata) as client:
        closing.callback(server.stop)
        ask = (lambda *_: client.predict_many({"A": X})) if many else (lambda *_: client.predict("A", X))
        tracing.TracedPolicies(SimpleNamespace(ask=ask), provider).ask({"A": X})
        client.predict("A", X)
    (predict,) = exported.get_finished_spans()
    context = predict.context
    traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    assert received == [traceparent, None], "none outside of a step"


def test_without_otel_variables_nothing_is_imported(environment):
    code = (
        "import sys, controller.__main__, controller.daemon; from controller.telemetry import tracing; "
        "assert tracing.provider_of_environment() is None; "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("variables", "exporter"),
    [
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, "opentelemetry.exporter.otlp.proto.grpc"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "otlp.proto.http"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "opentelemetry.sdk"),
    ],
)
def test_exporter_is_that_of_the_environment(environment, variables, exporter):
    for name, value in variables.items():
        environment.setenv(name, value)
    environment.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    provider = tracing.provider_of_environment()
    if exporter is None:
        assert provider is None
        return
    (processor,) = provider._active_span_processor._span_processors
    assert exporter in type(processor.span_exporter).__module__
    attributes = provider.resource.attributes
    assert (attributes["service.name"], attributes["deployment.environment"]) == ("greenserve-controller", "test")
    provider.shutdown()


def test_unknown_exporter_is_refused(environment):
    environment.setenv("OTEL_TRACES_EXPORTER", "zipkin-of-mine")
    with pytest.raises(InputError, match=r"exporter 'zipkin-of-mine' is not installed; set it to one of .*none, otlp"):
        tracing.provider_of_environment()


def test_missing_extra_is_one_warning_and_no_end(environment, caplog):
    environment.setenv("OTEL_TRACES_EXPORTER", "otlp")
    environment.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    assert tracing.provider_of_environment() is None
    assert "pip install 'greenserve[tracing]'" in caplog.text
