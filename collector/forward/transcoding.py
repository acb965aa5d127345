"""An OTLP export in its JSON form, written as protobuf, with everything that is in it.

OTLP departs from protobuf's JSON mapping in one thing that matters here: the ids of traces and spans are hexadecimal and not
base64. What is bytes elsewhere (an attribute's `bytesValue`) is base64 in both. Fields nobody knows are left out.

Source: OpenTelemetry protocol specification, "JSON Protobuf Encoding".
"""

from __future__ import annotations

import base64
import json
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import EncodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ...core.errors import WireError
from ..otlp.json_fields import identifier

_REQUESTS: dict[str, type[Message]] = {
    "metrics": ExportMetricsServiceRequest,
    "traces": ExportTraceServiceRequest,
    "logs": ExportLogsServiceRequest,
}
# Of spans, links, log records and exemplars. No attribute is a key of an object: its name is the value of `key`.
_IDS = {"traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"}


def protobuf_of(signal: str, body: bytes) -> bytes:
    """Return the JSON *body* of *signal* as protobuf.

    Raises:
        WireError: A field has the wrong type, or an id is not hexadecimal.
    """
    try:
        root = json.loads(body, object_hook=_with_base64)
        return json_format.ParseDict(root, _REQUESTS[signal](), ignore_unknown_fields=True).SerializeToString()
    except (ValueError, RecursionError, json_format.ParseError, EncodeError) as error:
        raise WireError(str(error)) from error


def _with_base64(node: dict[str, Any]) -> dict[str, Any]:
    for key in _IDS & node.keys():
        node[key] = base64.b64encode(bytes.fromhex(identifier(node, key))).decode()
    return node
