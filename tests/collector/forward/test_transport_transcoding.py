"""Conversion of OTLP/JSON to protobuf with equal content."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.logs.v1.logs_pb2 import SEVERITY_NUMBER_INFO
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_DELTA,
    Exemplar,
    Metric,
    NumberDataPoint,
    Sum,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from stagelens.collector.forward.transport import protobuf_of
from stagelens.core.errors import WireError

TRACE, SPAN = st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=8)
NAMES = st.sampled_from(["traceId", "spanId", "parentSpanId", "trace_id", "a"])
SCALARS = st.one_of(
    st.builds(AnyValue, string_value=st.text(max_size=9)),
    st.builds(AnyValue, bool_value=st.booleans()),
    st.builds(AnyValue, int_value=st.integers(-(2**63), 2**63 - 1)),
    st.builds(AnyValue, double_value=st.floats(allow_nan=False)),
    st.builds(AnyValue, bytes_value=st.binary(max_size=24)),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.builds(AnyValue, array_value=st.builds(ArrayValue, values=st.lists(inner, max_size=2)))
        | st.builds(
            AnyValue,
            kvlist_value=st.builds(
                KeyValueList, values=st.lists(st.builds(KeyValue, key=NAMES, value=inner), max_size=2)
            ),
        )
    ),
    max_leaves=3,
)
ATTRIBUTES = st.lists(st.builds(KeyValue, key=NAMES, value=VALUES), max_size=3)
LINKS = st.lists(st.builds(Span.Link, trace_id=TRACE, span_id=SPAN, attributes=ATTRIBUTES), max_size=1)


@st.composite
def exports(draw: st.DrawFn) -> tuple[str, Message]:
    """Generate an export of any signal with ids in all possible places."""
    signal = draw(st.sampled_from(["metrics", "traces", "logs"]))
    if signal == "traces":
        traces = ExportTraceServiceRequest()
        span = traces.resource_spans.add().scope_spans.add().spans.add()
        span.trace_id, span.span_id, span.parent_span_id = draw(TRACE), draw(SPAN), draw(SPAN | st.just(b""))
        span.kind, span.start_time_unix_nano = Span.SPAN_KIND_SERVER, draw(st.integers(0, 2**64 - 1))
        span.attributes.extend(draw(ATTRIBUTES))
        span.links.extend(draw(LINKS))
        return signal, traces
    if signal == "logs":
        logs = ExportLogsServiceRequest()
        record = logs.resource_logs.add().scope_logs.add().log_records.add()
        record.trace_id, record.span_id, record.severity_number = (
            draw(TRACE),
            draw(SPAN),
            SEVERITY_NUMBER_INFO,
        )
        record.body.CopyFrom(draw(VALUES))
        return signal, logs
    metrics = ExportMetricsServiceRequest()
    exemplar = Exemplar(trace_id=draw(TRACE), span_id=draw(SPAN), as_int=draw(st.integers(-(2**63), 2**63 - 1)))
    # JSON has one NaN for all bit patterns.
    point = NumberDataPoint(as_double=draw(st.floats(allow_nan=False) | st.just(math.nan)), exemplars=[exemplar])
    metric = Metric(name="x", sum=Sum(data_points=[point], aggregation_temporality=AGGREGATION_TEMPORALITY_DELTA))
    metrics.resource_metrics.add().scope_metrics.add().metrics.append(metric)
    return signal, metrics


def as_otlp(node: Any) -> Any:
    """Convert protobuf's JSON mapping to OTLP/JSON, with hexadecimal ids."""
    if isinstance(node, list):
        return [as_otlp(each) for each in node]
    if not isinstance(node, dict):
        return node
    ids = {"traceId", "spanId", "parentSpanId"}
    return {
        key: base64.b64decode(value).hex() if key in ids and isinstance(value, str) else as_otlp(value)
        for key, value in node.items()
    }


@given(exports())
def test_every_field_is_transcoded(export: tuple[str, Message]) -> None:
    signal, message = export
    body = json.dumps(as_otlp(json_format.MessageToDict(message, use_integers_for_enums=True)))

    # Compared as bytes, because NaN is not equal to itself.
    assert protobuf_of(signal, body.encode()) == message.SerializeToString()


def test_unknown_fields_are_omitted() -> None:
    body = (
        b'{"resourceLogs": [{"new": 1, "scopeLogs": [{"logRecords": [{"traceId": null, "severityNumber": "NEW"}]}]}]}'
    )
    wanted = ExportLogsServiceRequest()
    wanted.resource_logs.add().scope_logs.add().log_records.add()

    assert protobuf_of("logs", body) == wanted.SerializeToString()


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ('[{"traceId": "no digits"}]', "traceId must be hexadecimal digits, got 'no digits'"),
        ('[{"traceId": 5}]', "traceId must be a string, got 5"),
        ('[{"timeUnixNano": "soon"}]', "timeUnixNano"),
        ('"text"', "logRecords"),
        ('[{"body": ' + '{"arrayValue": {"values": [' * 100 + "]}}" * 100 + "}]", "too deep"),
        ('[{"body": {"stringValue": "\\ud800"}}]', "surrogate"),
    ],
)
def test_values_protobuf_cannot_encode_are_reported(records: str, message: str) -> None:
    body = '{"resourceLogs": [{"scopeLogs": [{"logRecords": %s}]}]}' % records  # noqa: UP031 - braces
    with pytest.raises(WireError, match=message):
        protobuf_of("logs", body.encode())
