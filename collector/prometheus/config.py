"""Prometheus configuration: the section `prometheus:` of the collector's file, with labels, limits and buckets of latency histograms.

Values are counted in a fixed range of the buckets of `core.histogram`. A classic bucket counts the values up to its bound. Bounds of
the ladder are powers of two, which are edges of these buckets, so their counts are exact. Another bound splits a bucket log-linearly;
its count is wrong by at most the values of that bucket, which is 2.2 % wide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.histogram import SCALE
from ...core.prometheus_names import DEFAULT_LABELS, LABELS
from ...core.settings.yaml_config import Document, Fields, Place, meant
from ...store.columns import Ints

BUCKETS_PER_DOUBLING = 2**SCALE
# From a microsecond to a day and a half. Shorter values count in the first bucket, longer ones in the last.
_LOWEST, _HIGHEST = -20, 17
LOWEST_SECONDS, HIGHEST_SECONDS = 2.0**_LOWEST, 2.0**_HIGHEST
# Index of the first bucket in `core.histogram`.
FIRST_INDEX = _LOWEST * BUCKETS_PER_DOUBLING
BUCKETS = (_HIGHEST - _LOWEST) * BUCKETS_PER_DOUBLING


def bucket_positions(index: Ints, scale: Ints) -> Ints:
    """Return the positions of buckets of *scale*; coarser ones count at their upper edge, so that no cumulative count is too high."""
    finer, coarser = np.maximum(SCALE - scale, 0), np.maximum(scale - SCALE, 0)
    ours = ((index >> coarser) + 1 << finer) - 1
    return np.clip(ours - FIRST_INDEX, 0, BUCKETS - 1)


def cumulative_counts(counts: Ints, bounds: tuple[float, ...]) -> Ints:
    """Return the number of values up to each bound, rounded down.

    Args:
        counts: Counts by bucket; shape (n, BUCKETS).
        bounds: Ascending bounds. [seconds]

    Returns:
        Shape (n, len(bounds)).
    """
    position = np.log2(np.array(bounds)) * BUCKETS_PER_DOUBLING - FIRST_INDEX
    whole = np.floor(position).astype(np.int64)
    below = np.zeros((len(counts), BUCKETS + 1), np.int64)
    np.cumsum(counts, axis=1, out=below[:, 1:])
    split = counts[:, np.minimum(whole, BUCKETS - 1)] * (position - whole)
    return below[:, whole] + split.astype(np.int64)


# Each has 28 lines and takes 9.5 kB of memory.
DEFAULT_HISTOGRAMS, MAX_HISTOGRAMS = 1000, 20_000
MAX_BUCKETS = 30


@dataclass(frozen=True, slots=True)
class PrometheusSettings:
    """Settings of the latency histograms.

    Args:
        labels: Labels besides service and status; keys of `LABELS`.
        histograms: Limit of histograms; 0 for none.
        buckets: Bounds of classic buckets besides the ladder. [seconds]
    """

    labels: tuple[str, ...] = DEFAULT_LABELS
    histograms: int = DEFAULT_HISTOGRAMS
    buckets: tuple[float, ...] = ()

    def in_words(self) -> str:
        """Return a description for `--check`.

        >>> PrometheusSettings().in_words()
        'Prometheus of service, status, version, environment, in 1000 histograms at most'
        """
        told = ", ".join(("service", "status", *self.labels))
        return (
            f"Prometheus of {told}, in {self.histograms} histograms at most"
            if self.histograms
            else "Prometheus nothing"
        )


def read_prometheus(document: Document, place: Place, value: Any) -> PrometheusSettings:
    """Read the section; errors become problems of the document, and the default applies."""
    fields = Fields(document, place, value, example="labels: [version, route]")
    found = PrometheusSettings(_labels(fields), _histograms(fields), _buckets(fields))
    fields.finish()
    return found


def _labels(fields: Fields) -> tuple[str, ...]:
    if not fields.has("labels"):
        return DEFAULT_LABELS
    written = fields.value("labels")
    if not isinstance(written, list):
        fields.complain(f"{fields.name('labels')} is {written!r}; write a list, such as [version, route]", "labels")
        return DEFAULT_LABELS
    for each in written:
        if not isinstance(each, str) or each not in LABELS:
            cure = f"write any of {', '.join(LABELS)}{meant(str(each), LABELS)}"
            fields.complain(f"{fields.name('labels')} has {each!r}; {cure}", "labels")
    return tuple(label for label in LABELS if label in written)


def _histograms(fields: Fields) -> int:
    if not fields.has("histograms"):
        return DEFAULT_HISTOGRAMS
    written = fields.value("histograms")
    if isinstance(written, bool) or not isinstance(written, int) or not 0 <= written <= MAX_HISTOGRAMS:
        cure = f"write a whole number from 0, for none, to {MAX_HISTOGRAMS}"
        fields.complain(f"{fields.name('histograms')} is {written!r}; {cure}", "histograms")
        return DEFAULT_HISTOGRAMS
    return written


def _buckets(fields: Fields) -> tuple[float, ...]:
    if not fields.has("buckets"):
        return ()
    written = fields.value("buckets")
    if not isinstance(written, list) or len(written) > MAX_BUCKETS:
        cure = f"write a list of at most {MAX_BUCKETS} numbers of seconds, such as [0.3, 1.5]"
        fields.complain(f"{fields.name('buckets')} is {written!r}; {cure}", "buckets")
        return ()
    for each in written:
        if not _is_bound(each):
            cure = f"write seconds from {LOWEST_SECONDS:.0e} to {HIGHEST_SECONDS:.0f}, such as 0.3"
            fields.complain(f"{fields.name('buckets')} has {each!r}; {cure}", "buckets")
    return tuple(sorted({float(each) for each in written if _is_bound(each)}))


def _is_bound(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and LOWEST_SECONDS <= value <= HIGHEST_SECONDS
    )
