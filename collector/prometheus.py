"""Latency histograms of a collector process since its start, for Prometheus.

Each batch is counted by one of the collectors that share a database, so their counters add up; a restart is a counter reset. A
histogram is shown empty at first: Prometheus only sees increases after the first scrape of a counter, and the first failure of a
service must not be lost.

Values are counted in a fixed range of the buckets of `core.histogram`. A classic bucket counts the values up to its bound. Bounds of
the ladder are powers of two, which are edges of these buckets, so their counts are exact. Another bound splits a bucket log-linearly;
its count is wrong by at most the values of that bucket, which is 2.2 % wide.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log2
from operator import attrgetter

import numpy as np

from ..core.columns import Floats, Ints
from ..core.histogram import SCALE
from ..core.prometheus_names import FAMILIES, LABELS, LADDER, MetricFamily
from ..core.stages import OTHER
from ..store.points import Identity, PointColumns
from ..store.schema import storable_name
from .prometheus_config import HIGHEST_SECONDS, LOWEST_SECONDS, PrometheusSettings

BUCKETS_PER_DOUBLING = 2**SCALE
# Index of the first bucket in `core.histogram`. Shorter values count in the first bucket, longer values in the last bucket.
FIRST_INDEX = round(log2(LOWEST_SECONDS)) * BUCKETS_PER_DOUBLING
BUCKETS = round(log2(HIGHEST_SECONDS / LOWEST_SECONDS)) * BUCKETS_PER_DOUBLING
# A new histogram stays empty long enough for one scrape at the default interval of Prometheus, a minute, even if it is late.
EMPTY_SECONDS = 75.0
# Time without new values after which a histogram is removed, for example that of an old version.
IDLE_SECONDS = 3600.0


_BY_SOURCE = {family.source: number for number, family in enumerate(FAMILIES)}
# Number of identities whose row is cached.
_MAX_KNOWN = 50_000
# Key of a histogram: index of its family, and its label values.
_Key = tuple[int, tuple[str, ...]]


def bucket_positions(index: Ints, scale: Ints) -> Ints:
    """Return the positions of buckets of *scale*; coarser buckets map to their upper edge, so no cumulative count is too high."""
    finer, coarser = np.maximum(SCALE - scale, 0), np.maximum(scale - SCALE, 0)
    ours = ((index >> coarser) + 1 << finer) - 1
    return np.clip(ours - FIRST_INDEX, 0, BUCKETS - 1)


def cumulative_counts(counts: Ints, bounds: tuple[float, ...]) -> Ints:
    """Return the number of values up to each bound, rounded down.

    Args:
        counts: Counts by bucket; shape (n, BUCKETS).
        bounds: Ascending bounds. [seconds]

    Returns:
        Cumulative counts; shape (n, len(bounds)).
    """
    position = np.log2(np.array(bounds)) * BUCKETS_PER_DOUBLING - FIRST_INDEX
    whole = np.floor(position).astype(np.int64)
    below = np.zeros((len(counts), BUCKETS + 1), np.int64)
    np.cumsum(counts, axis=1, out=below[:, 1:])
    split = counts[:, np.minimum(whole, BUCKETS - 1)] * (position - whole)
    return below[:, whole] + split.astype(np.int64)


@dataclass(frozen=True, slots=True)
class HistogramFamily:
    family: MetricFamily  # the metric family
    labels: Sequence[Sequence[tuple[str, str]]]  # label names and values of each of the n histograms
    counts: Ints  # counts by bucket; shape (n, BUCKETS)
    zero: Ints  # number of values below a nanosecond; shape (n,)
    sum: Floats  # sum of the values; shape (n,) [seconds]
    bounds: tuple[float, ...]  # bounds of the classic buckets [seconds]


class Counters:
    """Latency histograms of all committed points. Thread-safe.

    Args:
        settings: Function that returns the current settings; a change resets all histograms.
        clock: Monotonic time. [seconds]
    """

    def __init__(
        self,
        settings: Callable[[], PrometheusSettings] = PrometheusSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._clock = settings, clock
        self._lock = threading.Lock()
        self._begin(settings())

    def _begin(self, settings: PrometheusSettings) -> None:
        self._in_force = settings
        self._dimensions = attrgetter("service", "status", *settings.labels)
        # The last rows are for histograms beyond the limit: one for each metric and status.
        size = settings.histograms + 2 * len(FAMILIES)
        # The operating system allocates memory only for rows that are written.
        self._counts = np.zeros((size, BUCKETS), np.int64)
        self._zero, self._sum = np.zeros(size, np.int64), np.zeros(size)
        self._born, self._grown = np.zeros(size), np.zeros(size)
        self._rows: dict[_Key, int] = {}
        # Rows of identities, until rows are removed; some identities share a row.
        self._known: dict[Identity, int] = {}
        self._free = list(range(size))[::-1]

    def count(self, points: PointColumns) -> None:
        settings = self._settings()
        with self._lock:
            if settings != self._in_force:
                self._begin(settings)
            if settings.histograms and len(points):
                self._add(points)

    def _add(self, points: PointColumns) -> None:
        rows = self._known
        if len(rows) > _MAX_KNOWN:
            rows.clear()
        for identity in {*points.identities}.difference(rows):
            rows[identity] = self._row(identity)
        row = np.fromiter(map(rows.__getitem__, points.identities), np.int64, len(points))
        chosen = row >= 0
        row, histograms = row[chosen], points.histograms.where(chosen)
        np.add.at(self._zero, row, histograms.zero)
        np.add.at(self._sum, row, histograms.sum)
        self._grown[row] = self._clock()
        lengths = histograms.buckets.lengths
        position = bucket_positions(histograms.buckets.index, np.repeat(histograms.scale, lengths))
        np.add.at(self._counts.reshape(-1), np.repeat(row * BUCKETS, lengths) + position, histograms.buckets.amount)

    def _row(self, about: Identity) -> int:
        family = _BY_SOURCE.get(about.metric)
        if family is None:
            return -1
        keyed = (about.stage,) if FAMILIES[family].key else ()
        values = tuple(map(storable_name, (*self._dimensions(about.series), *keyed)))
        row = self._rows.get((family, values))
        if row is None and len(self._rows) < self._in_force.histograms:
            row = self._take((family, values))
        if row is not None:
            return row
        # The status label is preserved, so failures stay separate.
        rest = family, (OTHER, values[1], *(OTHER for _ in values[2:]))
        row = self._rows.get(rest)
        return self._take(rest) if row is None else row

    def _take(self, key: _Key) -> int:
        row = self._rows[key] = self._free.pop()
        self._born[row] = self._clock()
        return row

    @property
    def used(self) -> int:
        return len(self._rows)

    @property
    def limit(self) -> int:
        return self._in_force.histograms

    def read(self) -> list[HistogramFamily]:
        with self._lock:
            self._forget()
            keys = sorted(self._rows)
            rows = np.array([self._rows[key] for key in keys], np.int64)
            shown = self._clock() - self._born[rows] >= EMPTY_SECONDS
            counts = self._counts[rows] * shown[:, np.newaxis]
            zero, total = self._zero[rows] * shown, self._sum[rows] * shown
            settings = self._in_force
        bounds = tuple(sorted({*LADDER, *settings.buckets}))
        names = ("service_name", "status", *(LABELS[label] for label in settings.labels))
        families: list[HistogramFamily] = []
        for number, family in enumerate(FAMILIES):
            family_rows = [row for row, key in enumerate(keys) if key[0] == number]
            named = (*names, family.key) if family.key else names
            labels = [tuple(zip(named, keys[row][1], strict=True)) for row in family_rows]
            families.append(
                HistogramFamily(family, labels, counts[family_rows], zero[family_rows], total[family_rows], bounds)
            )
        return families

    def _forget(self) -> None:
        since = self._clock() - IDLE_SECONDS
        for key in [key for key, row in self._rows.items() if self._grown[row] < since]:
            self._known.clear()
            row = self._rows.pop(key)
            self._counts[row], self._zero[row], self._sum[row] = 0, 0, 0
            self._free.append(row)
