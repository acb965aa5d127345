"""The same request of six stages, recorded by us and by what people use today, each as its documentation says.

Three attributes go with each of OpenTelemetry's and the others' spans; ours are facts of the request. Exporters are the
default ones and post to the sink. Whoever is imported by one process only is imported when it is set up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

STAGES = ("serialize", "preprocess", "tokenize", "forward", "postprocess", "network")
ATTRIBUTES = {"model": "resnet50", "device": "cpu", "provider": "CPUExecutionProvider"}

BARE = "bare"
AGAIN = "bare, again (A/A)"
OURS = "stagelens"
OURS_WITH = "stagelens, with blocks"
SPANS = "opentelemetry-sdk spans"
SAMPLED_OUT = "opentelemetry-sdk spans, sampled out"
EXPLICIT = "opentelemetry-sdk histogram"
EXPONENTIAL = "opentelemetry-sdk histogram, exponential"
DDTRACE = "ddtrace"
SENTRY = "sentry-sdk"
PROMETHEUS = "prometheus-client"

Call = Callable[[], object]


class Peer(NamedTuple):
    """One way to record a request.

    Args:
        serve: Serve one request.
        settle: Deliver what waits to be; called between measurements.
    """

    serve: Call
    settle: Call


def work() -> None:
    """Do nothing: the stage itself is not what is measured."""


def _bare(_: str) -> Peer:
    def serve() -> None:
        for _ in STAGES:
            work()

    return Peer(serve, work)


def _ours(address: str) -> Peer:
    """Open and close the request as a server integration does; the stages as a patched function writes them down."""
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = address
    from stagelens import stage  # noqa: PLC0415
    from stagelens.instrumentors import recorder, records  # noqa: PLC0415

    timed = [stage(name)(work) for name in STAGES]
    facts = [part for key, value in ATTRIBUTES.items() for part in (f"@{key}", value, 0)]
    begin, end, finish, clock = recorder.begin, recorder.end, recorder.finish, records.clock

    def serve() -> None:
        scope = begin()
        if scope is None:
            return
        marks, token = scope
        marks.extend(facts)
        for call in timed:
            call()
        end(token)
        finish(marks, marks[1], clock(), "/predict", "", 200)

    return Peer(serve, recorder.flush)


def _ours_with(address: str) -> Peer:
    settle = _ours(address).settle
    from stagelens import request, stage  # noqa: PLC0415

    def serve() -> None:
        with request("predict", **ATTRIBUTES_OF_OURS):
            for name in STAGES:
                with stage(name):
                    work()

    return Peer(serve, settle)


ATTRIBUTES_OF_OURS: Any = {key: ATTRIBUTES[key] for key in ("model", "device")}


def _spans(address: str, *, sampled: bool = True) -> Peer:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON, TraceIdRatioBased  # noqa: PLC0415

    provider = TracerProvider(sampler=ALWAYS_ON if sampled else TraceIdRatioBased(0), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{address}/v1/traces")))
    span = provider.get_tracer("benchmark").start_as_current_span

    def serve() -> None:
        with span("request", attributes=ATTRIBUTES):
            for name in STAGES:
                with span(name, attributes=ATTRIBUTES):
                    work()

    return Peer(serve, provider.force_flush)


def _sampled_out(address: str) -> Peer:
    return _spans(address, sampled=False)


def _histogram(address: str, *, exponential: bool = False) -> Peer:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415
    from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View  # noqa: PLC0415

    view = View(instrument_name="*", aggregation=ExponentialBucketHistogramAggregation())
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{address}/v1/metrics"))
    provider = MeterProvider([reader], shutdown_on_exit=False, views=[view] if exponential else [])
    record = provider.get_meter("benchmark").create_histogram("stage", "s").record
    clock = time.perf_counter_ns
    series = [{**ATTRIBUTES, "stage": name} for name in STAGES]

    def serve() -> None:
        for attributes in series:
            started = clock()
            work()
            record((clock() - started) / 1e9, attributes)

    return Peer(serve, provider.force_flush)


def _exponential(address: str) -> Peer:
    return _histogram(address, exponential=True)


def _ddtrace(address: str) -> Peer:
    os.environ.update(
        DD_TRACE_AGENT_URL=address,
        DD_INSTRUMENTATION_TELEMETRY_ENABLED="false",
        DD_REMOTE_CONFIGURATION_ENABLED="false",
        DD_TRACE_STARTUP_LOGS="false",
    )
    from ddtrace.trace import tracer  # noqa: PLC0415

    def serve() -> None:
        with tracer.trace("request") as root:
            root.set_tags(ATTRIBUTES)
            for name in STAGES:
                with tracer.trace(name) as span:
                    span.set_tags(ATTRIBUTES)
                    work()

    return Peer(serve, tracer.flush)


def _sentry(address: str) -> Peer:
    import sentry_sdk  # noqa: PLC0415

    sentry_sdk.init(
        dsn=f"http://key@{urlsplit(address).netloc}/1",
        traces_sample_rate=1.0,
        # They would patch the exporters of the others.
        default_integrations=False,
        auto_enabling_integrations=False,
    )

    def serve() -> None:
        with sentry_sdk.start_transaction(op="http.server", name="request"):
            for name in STAGES:
                with sentry_sdk.start_span(op=name, name=name) as span:
                    for key, value in ATTRIBUTES.items():
                        span.set_data(key, value)
                    work()

    return Peer(serve, sentry_sdk.flush)


def _prometheus(_: str) -> Peer:
    from prometheus_client import CollectorRegistry, Histogram  # noqa: PLC0415

    histogram = Histogram("stage", "By stage.", ["stage", *ATTRIBUTES], registry=CollectorRegistry())
    observers = [histogram.labels(name, *ATTRIBUTES.values()).observe for name in STAGES]
    clock = time.perf_counter_ns

    def serve() -> None:
        for observe in observers:
            started = clock()
            work()
            observe((clock() - started) / 1e9)

    return Peer(serve, work)


# How each is set up, given the address of the sink.
PEERS: dict[str, Callable[[str], Peer]] = {
    BARE: _bare,
    AGAIN: _bare,
    OURS: _ours,
    OURS_WITH: _ours_with,
    SPANS: _spans,
    SAMPLED_OUT: _sampled_out,
    EXPLICIT: _histogram,
    EXPONENTIAL: _exponential,
    DDTRACE: _ddtrace,
    SENTRY: _sentry,
    PROMETHEUS: _prometheus,
}


def set_up(name: str, address: str) -> Peer | None:
    """Return the peer called *name*, None where it is not installed.

    Args:
        name: A key of `PEERS`.
        address: Of the sink.
    """
    try:
        return PEERS[name](address)
    except ImportError:
        return None
