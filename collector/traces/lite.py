"""OTLP's trace messages as the reader wants them: the same field numbers, but what it does not look into stays bytes.

Parsing is a tenth of what reading a span costs with the generated classes; looking at each attribute from Python is the rest.
Which attributes a span has repeats from span to span, so only those are looked at that count (`meanings`): that halves it.

Source: opentelemetry/proto/trace/v1/trace.proto, opentelemetry/proto/collector/trace/v1/trace_service.proto.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_F = descriptor_pb2.FieldDescriptorProto
_BYTES, _TEXT, _NUMBER, _TIME = _F.TYPE_BYTES, _F.TYPE_STRING, _F.TYPE_INT32, _F.TYPE_FIXED64
_PACKAGE = "stagelens.lite"
# On the wire a map from a text to bytes is what a repeated KeyValue is, its value left as it came.
_MAP = "map"
_ENTRY = descriptor_pb2.MessageOptions(map_entry=True)

# name, number, type or message, whether it is repeated
_MESSAGES: dict[str, list[tuple[str, int, int | str, bool]]] = {
    "Event": [("time", 1, _TIME, False), ("name", 2, _TEXT, False)],
    "Status": [("code", 3, _NUMBER, False)],
    "Span": [
        ("trace_id", 1, _BYTES, False),
        ("span_id", 2, _BYTES, False),
        ("parent_id", 4, _BYTES, False),
        ("name", 5, _BYTES, False),
        ("kind", 6, _NUMBER, False),
        ("start", 7, _TIME, False),
        ("end", 8, _TIME, False),
        ("attributes", 9, _MAP, True),
        ("events", 11, _BYTES, True),
        ("status", 15, _BYTES, False),
    ],
    # The same, with its attributes in their order.
    "WholeSpan": [],
    "Scope": [("name", 1, _TEXT, False)],
    "ScopeSpans": [("scope", 1, "Scope", False), ("spans", 2, "Span", True)],
    "ResourceSpans": [("resource", 1, _BYTES, False), ("scope_spans", 2, "ScopeSpans", True)],
    "Request": [("resource_spans", 1, "ResourceSpans", True)],
    # The same, for a large body: its spans are parsed a few at a time.
    "LargeScopeSpans": [("scope", 1, "Scope", False), ("spans", 2, _BYTES, True)],
    "LargeResourceSpans": [("resource", 1, _BYTES, False), ("scope_spans", 2, "LargeScopeSpans", True)],
    "LargeRequest": [("resource_spans", 1, "LargeResourceSpans", True)],
}


_MESSAGES["WholeSpan"] = [
    (name, number, _BYTES if kind == _MAP else kind, repeated) for name, number, kind, repeated in _MESSAGES["Span"]
]


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="stagelens_lite.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            added = message.field.add(
                name=field, number=number, label=_F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL
            )
            if kind == _MAP:
                entry = message.nested_type.add(name=f"{field.capitalize()}Entry", options=_ENTRY)
                entry.field.add(name="key", number=1, label=_F.LABEL_OPTIONAL, type=_TEXT)
                entry.field.add(name="value", number=2, label=_F.LABEL_OPTIONAL, type=_BYTES)
                added.type, added.type_name = _F.TYPE_MESSAGE, f".{_PACKAGE}.{name}.{entry.name}"
            elif isinstance(kind, str):
                added.type, added.type_name = _F.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                added.type = _F.Type.ValueType(kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


_made = _classes()
# They are made while the program runs: no type checker knows their fields.
Request: Any = _made["Request"]
LargeRequest: Any = _made["LargeRequest"]
Span: Any = _made["Span"]
WholeSpan: Any = _made["WholeSpan"]
Event: Any = _made["Event"]
Status: Any = _made["Status"]
