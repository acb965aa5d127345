"""The section `prometheus:` of the collector's file: which labels the latency histograms have, and how many there may be.

The buckets that are counted in, a fixed stretch of those of `core.histogram`, and what classic buckets are made of.

A classic bucket counts what is at most its bound. Bounds of the ladder are powers of two, which are edges of our own buckets:
their counts are exact. A bound between two edges splits its bucket log-linearly, as everywhere: its count is wrong by the
requests of that one bucket, 2.2 % wide, at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.histogram import SCALE
from ...core.settings.yaml_document import Document, Place
from ...core.settings.yaml_fields import Fields, meant
from ...store.encoding import Ints

BUCKETS_PER_DOUBLING = 2**SCALE
# From a microsecond to a day and a half. What is shorter counts in the first bucket, what is longer in the last.
_LOWEST, _HIGHEST = -20, 17
LOWEST_SECONDS, HIGHEST_SECONDS = 2.0**_LOWEST, 2.0**_HIGHEST
# The index that the first of them has in `core.histogram`.
FIRST_INDEX = _LOWEST * BUCKETS_PER_DOUBLING
BUCKETS = (_HIGHEST - _LOWEST) * BUCKETS_PER_DOUBLING
# From a millisecond to four minutes.
LADDER_BOUNDS = tuple(2.0**power for power in range(-10, 9))


def bucket_positions(index: Ints, scale: Ints) -> Ints:
    """Return where buckets of *scale* count: coarser ones at their upper edge, so that no count below it is too high."""
    finer, coarser = np.maximum(SCALE - scale, 0), np.maximum(scale - SCALE, 0)
    ours = ((index >> coarser) + 1 << finer) - 1
    return np.clip(ours - FIRST_INDEX, 0, BUCKETS - 1)


def cumulative_counts(counts: Ints, bounds: tuple[float, ...]) -> Ints:
    """Return how many values are at most each bound, rounded down.

    Args:
        counts: By bucket; shape (n, NUMBER).
        bounds: Rising. [seconds]

    Returns:
        Shape (n, len(bounds)).
    """
    position = np.log2(np.array(bounds)) * BUCKETS_PER_DOUBLING - FIRST_INDEX
    whole = np.floor(position).astype(np.int64)
    below = np.zeros((len(counts), BUCKETS + 1), np.int64)
    np.cumsum(counts, axis=1, out=below[:, 1:])
    split = counts[:, np.minimum(whole, BUCKETS - 1)] * (position - whole)
    return below[:, whole] + split.astype(np.int64)


# What may be told apart besides service and status, which always are: the names Prometheus has for it. `service` and
# `namespace` are what Kubernetes' own discovery calls the targets it found.
LABELS = {
    "version": "service_version",
    "environment": "environment",
    "model": "model",
    "model_version": "model_version",
    "route": "route",
    "device": "device",
}
# What totals of the store tell apart: a service has few of them, however many routes and models it has.
DEFAULT_LABELS = ("version", "environment")
# Of 28 lines each, and 9.5 kB of memory.
DEFAULT_HISTOGRAMS, MAX_HISTOGRAMS = 1000, 20_000
MAX_BUCKETS = 30


@dataclass(frozen=True, slots=True)
class PrometheusSettings:
    """What is told.

    Args:
        labels: What is told apart besides service and status; keys of `LABELS`.
        histograms: How many histograms there may be; 0 for none at all.
        buckets: Bounds of classic buckets besides the ladder. [seconds]
    """

    labels: tuple[str, ...] = DEFAULT_LABELS
    histograms: int = DEFAULT_HISTOGRAMS
    buckets: tuple[float, ...] = ()

    def in_words(self) -> str:
        """Say it as a sentence would.

        >>> Settings().in_words()
        'Prometheus of service, status, version, environment, in 1000 histograms at most'
        """
        told = ", ".join(("service", "status", *self.labels))
        return (
            f"Prometheus of {told}, in {self.histograms} histograms at most"
            if self.histograms
            else "Prometheus nothing"
        )


def read_prometheus(document: Document, place: Place, value: Any) -> PrometheusSettings:
    """Read the section; what is wrong with it is in the document's problems, and its default stands."""
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
