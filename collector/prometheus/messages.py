"""Message classes that write what Prometheus reads as protobuf.

Source: io/prometheus/client/metrics.proto of github.com/prometheus/client_model.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

_PACKAGE = "io.prometheus.client"
# Messages, their fields by number, and their types: with "*" where repeated, and a capital where they are messages.
_MESSAGES: dict[str, dict[int, tuple[str, str]]] = {
    "LabelPair": {1: ("name", "string"), 2: ("value", "string")},
    "Number": {1: ("value", "double")},
    "Bucket": {1: ("cumulative_count", "uint64"), 2: ("upper_bound", "double")},
    "BucketSpan": {1: ("offset", "sint32"), 2: ("length", "uint32")},
    "Histogram": {
        1: ("sample_count", "uint64"),
        2: ("sample_sum", "double"),
        3: ("bucket", "*Bucket"),
        5: ("schema", "sint32"),
        6: ("zero_threshold", "double"),
        7: ("zero_count", "uint64"),
        12: ("positive_span", "*BucketSpan"),
        13: ("positive_delta", "*sint64"),
    },
    "Metric": {
        1: ("label", "*LabelPair"),
        2: ("gauge", "Number"),
        3: ("counter", "Number"),
        5: ("untyped", "Number"),
        7: ("histogram", "Histogram"),
    },
    "MetricFamily": {1: ("name", "string"), 2: ("help", "string"), 3: ("type", "int32"), 4: ("metric", "*Metric")},
}
# MetricType.
COUNTER, GAUGE, UNTYPED, HISTOGRAM = 0, 1, 3, 4


def _make() -> Any:
    file = FileDescriptorProto(name="stagelens/prometheus.proto", package=_PACKAGE, syntax="proto3")
    for message, fields in _MESSAGES.items():
        made = file.message_type.add(name=message)
        for number, (name, kind) in fields.items():
            made.field.add(name=name, number=number, **_type(kind))
    # A pool of its own: another package may have the generated classes of these names.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.MetricFamily"))


def _type(kind: str) -> dict[str, Any]:
    label = FieldDescriptorProto.LABEL_REPEATED if kind.startswith("*") else FieldDescriptorProto.LABEL_OPTIONAL
    kind = kind.removeprefix("*")
    if kind.islower():
        return {"label": label, "type": getattr(FieldDescriptorProto, f"TYPE_{kind.upper()}")}
    return {"label": label, "type": FieldDescriptorProto.TYPE_MESSAGE, "type_name": f".{_PACKAGE}.{kind}"}


# It is made while the program runs: no type checker knows its fields.
MetricFamily: Any = _make()
