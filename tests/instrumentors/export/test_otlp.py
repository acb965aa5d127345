"""Bodies in OTLP: OpenTelemetry's own classes decode exactly the counted and retained data."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.json_format import ParseDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from stagelens.core import names
from stagelens.instrumentors.agent.aggregate import Delta, Dimensions
from stagelens.instrumentors.agent.sample import Sampler
from stagelens.instrumentors.agent.spans import Span, Trace, series_attributes
from stagelens.instrumentors.config import SamplingLimits
from stagelens.instrumentors.export.otlp import Encoder, ExportInterval

texts = st.text(max_size=20)
nanoseconds = st.integers(0, 2**62)
keys = st.sampled_from(["forward", "queue", "overhead", "my own ü"])
seconds = st.one_of(st.just(0.0), st.floats(1e-12, 1e9))
losses = st.dictionaries(texts, st.integers(1, 2**63 - 1), max_size=4)
fields = st.dictionaries(texts, st.one_of(texts, st.integers(0, 2**63 - 1)), max_size=4)
spans = st.builds(
    Span,
    name=texts,
    span_id=st.binary(min_size=8, max_size=8).map(bytes.hex),
    parent_id=st.one_of(st.just(""), st.binary(min_size=8, max_size=8).map(bytes.hex)),
    kind=st.sampled_from(["server", "internal"]),
    start=nanoseconds,
    end=nanoseconds,
    attributes=fields,
    failed=st.booleans(),
)
traces = st.builds(
    Trace, st.binary(min_size=16, max_size=16).map(bytes.hex), st.booleans(), st.lists(spans, max_size=3)
)


@st.composite
def deltas(draw: st.DrawFn) -> Delta:
    delta = Delta(Sampler(SamplingLimits()))
    for own in draw(st.lists(st.dictionaries(keys, nanoseconds, min_size=1), max_size=5)):
        delta.counts.add(own, sum(own.values()))
    for metric in draw(st.lists(st.sampled_from([names.TOKENS, names.FIRST_TOKEN, names.FAILED_CALL]), max_size=3)):
        delta.counts.add_stream(metric, draw(texts), draw(seconds))
    return delta


def as_json(values: Mapping[str, str | int]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
    ]


def points_of(metric: str, counted: dict[Dimensions, Delta]) -> Iterator[dict[str, Any]]:
    for dimensions, delta in counted.items():
        for name, key, histogram in delta.counts.histograms():
            if name == metric:
                numbers = histogram.to_otlp()
                if metric in names.TIME_METRICS:
                    del numbers["sum"]
                yield {"attributes": as_json(series_attributes(dimensions) | {names.METRICS[metric]: key}), **numbers}


# A machine that is busy is slow to draw examples, and to read them.
patient = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])


@patient
@given(st.dictionaries(st.builds(Dimensions, *[texts] * 5), deltas(), max_size=3), nanoseconds, losses)
def test_every_backend_decodes_the_counted_numbers(
    counted: dict[Dimensions, Delta], start: int, lost: dict[str, int]
) -> None:
    written = Encoder({"service.name": "shop"}, lambda: None).metrics(ExportInterval(start, start + 7), counted, lost)
    times = {"startTimeUnixNano": str(start), "timeUnixNano": str(start + 7)}
    metrics: list[dict[str, Any]] = []
    for name in names.METRICS:
        points = [point | times for point in points_of(name, counted)]
        histograms = {"aggregationTemporality": 1, "dataPoints": points}
        if points:
            metrics.append({"name": name, "unit": names.UNITS.get(name, "s"), "exponentialHistogram": histograms})
    if lost:
        points = [{"attributes": as_json({"reason": key}), "asInt": str(n), **times} for key, n in lost.items()]
        total = {"aggregationTemporality": 1, "isMonotonic": True, "dataPoints": points}
        metrics.append({"name": names.REQUESTS_DROPPED, "unit": "{request}", "sum": total})
    resource = {"attributes": as_json({"service.name": "shop"})}
    scopes = [{"scope": {"name": names.SCOPE}, "metrics": metrics}]
    expected = {"resourceMetrics": [{"resource": resource, "scopeMetrics": scopes}]}

    assert ExportMetricsServiceRequest.FromString(gzip.decompress(written)) == ParseDict(
        expected, ExportMetricsServiceRequest()
    )


@patient
@given(st.lists(traces, max_size=12), nanoseconds)
def test_every_backend_decodes_the_retained_spans(retained: list[Trace], anchor: int) -> None:
    written = Encoder({"service.name": "shop"}, lambda: None).traces(retained, anchor)
    expected = ExportTraceServiceRequest()
    resource = expected.resource_spans.add()
    ParseDict({"attributes": as_json({"service.name": "shop"})}, resource.resource)
    scope = resource.scope_spans.add()
    scope.scope.name = names.SCOPE
    for trace in retained:
        for span in trace.spans:
            message = scope.spans.add(
                trace_id=bytes.fromhex(trace.trace_id),
                span_id=bytes.fromhex(span.span_id),
                parent_span_id=bytes.fromhex(span.parent_id),
                name=span.name,
                kind=Message.SPAN_KIND_SERVER if span.kind == "server" else Message.SPAN_KIND_INTERNAL,
                start_time_unix_nano=anchor + span.start,
                end_time_unix_nano=anchor + span.end,
                status={"code": Status.STATUS_CODE_ERROR} if span.failed else None,
            )
            ParseDict({"attributes": as_json(span.attributes)}, message)

    assert ExportTraceServiceRequest.FromString(gzip.decompress(written)) == expected
