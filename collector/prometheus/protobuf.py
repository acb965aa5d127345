"""Prometheus' protobuf format: native histograms, of the very buckets they were counted in, with classic ones beside them.

Schema 5 of native histograms is scale 5 of ours. A bucket goes by the number of its upper edge there, of its lower one here.

Source: https://prometheus.io/docs/specs/native_histograms/
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from prometheus_client import Metric
from prometheus_client.samples import Sample

from ...core.histogram import SCALE, ZERO_THRESHOLD
from ...store.encoding import Ints
from . import buckets
from .counters import Counted
from .messages import COUNTER, GAUGE, HISTOGRAM, UNTYPED, MetricFamily

MEDIA_TYPE = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
_TYPES = {"counter": COUNTER, "gauge": GAUGE, "histogram": HISTOGRAM}
_FIELDS = {COUNTER: "counter", GAUGE: "gauge", UNTYPED: "untyped"}


def write(metrics: Iterable[Metric], counted: Iterable[Counted]) -> bytes:
    """Return *metrics*, the plain ones, and *counted* as messages, each after its length."""
    families = [*map(_plain, metrics), *map(_native, counted)]
    return b"".join(map(_delimited, (family.SerializeToString() for family in families if family.metric)))


def _delimited(message: bytes) -> bytes:
    """Return *message* after its length, which is a varint: seven bits a byte, the lowest first."""
    length, size = bytearray(), len(message)
    while size > 0x7F:  # noqa: PLR2004 - seven bits
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((*length, size)) + message


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
        # When a counter was made is a metric of its own in text; here nobody reads it.
        if sample.name == family.name:
            made = family.metric.add()
            _label(made, sample.labels.items())
            getattr(made, _FIELDS[kind]).value = sample.value
    return family


def _classic(family: Any, samples: Sequence[Sample]) -> None:
    """Add a histogram without labels of its own, as all plain ones are."""
    made = family.metric.add().histogram
    for sample in samples:
        if sample.name.endswith("_bucket"):
            made.bucket.add(cumulative_count=int(sample.value), upper_bound=float(sample.labels["le"]))
        elif sample.name.endswith("_count"):
            made.sample_count = int(sample.value)
        elif sample.name.endswith("_sum"):
            made.sample_sum = sample.value


def _native(counted: Counted) -> Any:
    family = MetricFamily(name=counted.family.name, help=counted.family.text, type=HISTOGRAM)
    classic = (buckets.at_most(counted.counts, counted.bounds) + counted.zero[:, None]).tolist()
    numbers = zip(counted.zero.tolist(), counted.sum.tolist(), strict=True)
    for labels, counts, held, (zero, total) in zip(counted.labels, counted.counts, classic, numbers, strict=True):
        made = family.metric.add()
        _label(made, labels)
        histogram = made.histogram
        histogram.sample_count, histogram.sample_sum = int(counts.sum()) + zero, total
        # The threshold is also what tells an empty one from a classic one.
        histogram.schema, histogram.zero_threshold, histogram.zero_count = SCALE, ZERO_THRESHOLD, zero
        _fill(histogram, counts)
        for bound, count in zip(counted.bounds, held, strict=True):
            histogram.bucket.add(upper_bound=bound, cumulative_count=count)
    return family


def _fill(histogram: Any, counts: Ints) -> None:
    """Write *counts* by bucket as stretches of buckets that have any, and what each has more than the one before."""
    filled = np.flatnonzero(counts)
    starts = np.flatnonzero(np.diff(filled, prepend=-2) > 1).tolist()
    end = -buckets.FIRST_INDEX - 1
    for low, high in pairwise([*starts, len(filled)]):
        first, last = int(filled[low]), int(filled[high - 1])
        histogram.positive_span.add(offset=first - end, length=last - first + 1)
        end = last + 1
    histogram.positive_delta.extend(np.diff(counts[filled], prepend=0).tolist())
