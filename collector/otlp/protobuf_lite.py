"""A message class that reads an OTLP export of metrics without reading its data points.

It has the field numbers of ExportMetricsServiceRequest, so it reads the same bytes; a data point stays the bytes it came as.

Source: opentelemetry/proto/metrics/v1/metrics.proto.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from opentelemetry.proto.resource.v1 import resource_pb2

_PACKAGE = "stagelens.lite"
_RESOURCE: str = resource_pb2.DESCRIPTOR.message_types_by_name["Resource"].full_name
# What a metric's `data` may be; all have the same fields here.
DATA = {5: "gauge", 7: "sum", 9: "histogram", 10: "exponential_histogram", 11: "summary"}
# Messages, their fields by number, and their types: with "*" where repeated, and a capital where they are messages.
_MESSAGES: dict[str, dict[int, tuple[str, str]]] = {
    "MetricsExport": {1: ("resource_metrics", "*ResourceMetrics")},
    "ResourceMetrics": {1: ("resource", _RESOURCE), 2: ("scope_metrics", "*ScopeMetrics")},
    "ScopeMetrics": {2: ("metrics", "*Metric")},
    "Metric": {1: ("name", "string")} | {number: (name, "Data") for number, name in DATA.items()},
    "Data": {1: ("data_points", "*bytes"), 2: ("aggregation_temporality", "int32"), 3: ("is_monotonic", "bool")},
}


def _make() -> Any:
    requires = [str(resource_pb2.DESCRIPTOR.name)]
    file = FileDescriptorProto(name="stagelens/lite.proto", package=_PACKAGE, syntax="proto3", dependency=requires)
    for message, fields in _MESSAGES.items():
        made = file.message_type.add(name=message)
        for number, (name, kind) in fields.items():
            field = made.field.add(name=name, number=number, **_type(kind))
            if kind == "Data":
                field.oneof_index = 0
        if message == "Metric":
            made.oneof_decl.add(name="data")
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.MetricsExport"))


def _type(kind: str) -> dict[str, Any]:
    label = FieldDescriptorProto.LABEL_REPEATED if kind.startswith("*") else FieldDescriptorProto.LABEL_OPTIONAL
    kind = kind.removeprefix("*")
    if kind.islower():
        return {"label": label, "type": getattr(FieldDescriptorProto, f"TYPE_{kind.upper()}")}
    full_name = f".{kind}" if "." in kind else f".{_PACKAGE}.{kind}"
    return {"label": label, "type": FieldDescriptorProto.TYPE_MESSAGE, "type_name": full_name}


# Typed as what it stands in for, minus the data points.
MetricsExport: Any = _make()
