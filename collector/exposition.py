"""Exposition formats of /metrics: text with classic buckets, and protobuf with native and classic buckets.

Schema 5 of native histograms is scale 5 of `core.histogram`; Prometheus numbers a bucket by its upper edge, `core.histogram` by its
lower edge.

Sources: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format,
https://prometheus.io/docs/specs/native_histograms/, io/prometheus/client/metrics.proto of github.com/prometheus/client_model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from google.protobuf import descriptor_pool
from prometheus_client import Metric
from prometheus_client.samples import Sample

from ..core.columns import Ints
from ..core.histogram import SCALE, ZERO_THRESHOLD
from ..core.prometheus_names import format_labels
from ..core.varint import encode_varint
from .otlp.message_classes import Messages, message_classes
from .prometheus import FIRST_INDEX, HistogramFamily, cumulative_counts

_MESSAGES: Messages = {
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


# Created at run time, so its fields are not known to type checkers.
# A separate pool: another package may register the generated classes with these names.
MetricFamily: Any = message_classes("io.prometheus.client", _MESSAGES, descriptor_pool.DescriptorPool())["MetricFamily"]


TEXT_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PROTOBUF_MEDIA_TYPE = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
_TYPES = {"counter": COUNTER, "gauge": GAUGE, "histogram": HISTOGRAM}
_FIELDS = {COUNTER: "counter", GAUGE: "gauge", UNTYPED: "untyped"}
_WANTED = {"proto": "io.prometheus.client.MetricFamily", "encoding": "delimited"}


def write_text(counted: Iterable[HistogramFamily]) -> bytes:
    """Return the histograms *counted* in the text format; metric families without histograms are left out."""
    return "".join(line for family in counted if family.labels for line in _text_family(family)).encode()


def _text_family(counted: HistogramFamily) -> Iterator[str]:
    name = counted.family.name
    yield f"# HELP {name} {counted.family.text}\n# TYPE {name} histogram\n"
    total = (counted.counts.sum(axis=1) + counted.zero).tolist()
    classic = (cumulative_counts(counted.counts, counted.bounds) + counted.zero[:, None]).tolist()
    ends = [f'le="{bound!r}"}} ' for bound in counted.bounds]
    for labels, held, number, spent in zip(counted.labels, classic, total, counted.sum.tolist(), strict=True):
        text = format_labels(labels)
        begin = f"{name}_bucket{{{text},"
        for end, count in zip(ends, held, strict=True):
            yield f"{begin}{end}{count}\n"
        yield f'{begin}le="+Inf"}} {number}\n{name}_count{{{text}}} {number}\n{name}_sum{{{text}}} {spent!r}\n'


def write_protobuf(metrics: Iterable[Metric], counted: Iterable[HistogramFamily]) -> bytes:
    families = [*map(_plain, metrics), *map(_native, counted)]
    return b"".join(map(_delimited, (family.SerializeToString() for family in families if family.metric)))


def _delimited(message: bytes) -> bytes:
    return encode_varint(len(message)) + message


def _label(metric: Any, labels: Iterable[tuple[str, str]]) -> None:
    for name, value in labels:
        metric.label.add(name=name, value=value)


def _plain(metric: Metric) -> Any:
    suffix = "_total" if metric.type == "counter" else ""
    kind = _TYPES.get(metric.type, UNTYPED)
    family = MetricFamily(name=metric.name + suffix, help=metric.documentation, type=kind)
    if kind == HISTOGRAM:
        _classic(family, metric.samples)
        return family
    for sample in metric.samples:
        # The creation time of a counter, a separate sample, is left out.
        if sample.name == family.name:
            exported = family.metric.add()
            _label(exported, sample.labels.items())
            getattr(exported, _FIELDS[kind]).value = sample.value
    return family


def _classic(family: Any, samples: Sequence[Sample]) -> None:
    histogram = family.metric.add().histogram
    for sample in samples:
        if sample.name.endswith("_bucket"):
            histogram.bucket.add(cumulative_count=int(sample.value), upper_bound=float(sample.labels["le"]))
        elif sample.name.endswith("_count"):
            histogram.sample_count = int(sample.value)
        elif sample.name.endswith("_sum"):
            histogram.sample_sum = sample.value


def _native(counted: HistogramFamily) -> Any:
    family = MetricFamily(name=counted.family.name, help=counted.family.text, type=HISTOGRAM)
    classic = (cumulative_counts(counted.counts, counted.bounds) + counted.zero[:, None]).tolist()
    numbers = zip(counted.zero.tolist(), counted.sum.tolist(), strict=True)
    for labels, counts, held, (zero, total) in zip(counted.labels, counted.counts, classic, numbers, strict=True):
        metric = family.metric.add()
        _label(metric, labels)
        histogram = metric.histogram
        histogram.sample_count, histogram.sample_sum = int(counts.sum()) + zero, total
        # The threshold also distinguishes an empty native histogram from a classic one.
        histogram.schema, histogram.zero_threshold, histogram.zero_count = SCALE, ZERO_THRESHOLD, zero
        _fill(histogram, counts)
        for bound, count in zip(counted.bounds, held, strict=True):
            histogram.bucket.add(upper_bound=bound, cumulative_count=count)
    return family


def _fill(histogram: Any, counts: Ints) -> None:
    """Write *counts* by bucket into a native histogram: spans of non-empty buckets, and differences between neighbours."""
    filled = np.flatnonzero(counts)
    starts = np.flatnonzero(np.diff(filled, prepend=-2) > 1).tolist()
    end = -FIRST_INDEX - 1
    for low, high in pairwise([*starts, len(filled)]):
        first, last = int(filled[low]), int(filled[high - 1])
        histogram.positive_span.add(offset=first - end, length=last - first + 1)
        end = last + 1
    histogram.positive_delta.extend(np.diff(counts[filled], prepend=0).tolist())


def negotiate(accept: str) -> str:
    """Return the media type of the response for the header Accept.

    >>> negotiate("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,*/*;q=0.1")
    'application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited'
    >>> negotiate("text/html")
    'text/plain; version=0.0.4; charset=utf-8'
    """
    native = plain = 0.0
    for offer in accept.split(","):
        kind, *given = (part.strip() for part in offer.split(";"))
        parameters = {
            key.strip(): value.strip(' "') for key, _, value in (parameter.partition("=") for parameter in given)
        }
        weight = _weight(parameters.get("q", "1"))
        if kind == "application/vnd.google.protobuf" and parameters.items() >= _WANTED.items():
            native = max(native, weight)
        elif kind in ("text/plain", "text/*", "*/*"):
            plain = max(plain, weight)
    return PROTOBUF_MEDIA_TYPE if native > plain else TEXT_MEDIA_TYPE


def _weight(written: str) -> float:
    try:
        return min(max(float(written), 0.0), 1.0)
    except ValueError:
        return 0.0
