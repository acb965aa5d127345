"""The same request of six stages, recorded by us and by what people use today, each as its documentation says.

Three attributes go with each span of the others; ours are facts of the request. Exporters are the default ones and post to the sink.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

STAGES = ("serialize", "preprocess", "tokenize", "forward", "postprocess", "network")
ATTRIBUTES = {"model": "resnet50", "device": "cpu", "provider": "CPUExecutionProvider"}

BARE = "bare"
OURS = "stagelens"
SPANS = "opentelemetry-sdk spans"
DDTRACE = "ddtrace"

Call = Callable[[], object]


class Peer(NamedTuple):
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


def _spans(address: str) -> Peer:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{address}/v1/traces")))
    span = provider.get_tracer("benchmark").start_as_current_span

    def serve() -> None:
        with span("request", attributes=ATTRIBUTES):
            for name in STAGES:
                with span(name, attributes=ATTRIBUTES):
                    work()

    return Peer(serve, provider.force_flush)


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


# How each is set up, given the address of the sink.
PEERS: dict[str, Callable[[str], Peer]] = {
    BARE: _bare,
    OURS: _ours,
    SPANS: _spans,
    DDTRACE: _ddtrace,
}


def set_up(name: str, address: str) -> Peer | None:
    try:
        return PEERS[name](address)
    except ImportError:
        return None
