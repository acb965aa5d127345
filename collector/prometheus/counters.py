"""Latency counters of one collector process since its start, for Prometheus.

Each batch is counted by one of the collectors that share a database, so their counters add up; a restart is a counter reset. A
histogram is shown empty at first: Prometheus only sees increases after the first scrape of a counter, and the first failure of a
service must not be lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from ...core.prometheus_names import FAMILIES, LABELS, LADDER, MetricFamily
from ...core.stages import OTHER
from ...store.columns import Floats, Ints
from ...store.records import Identity, PointColumns
from ...store.schema import storable_name
from .config import BUCKETS, PrometheusSettings, bucket_positions

# A scrape every minute, the default of Prometheus, sees it empty once, even if it is late.
EMPTY_SECONDS = 75.0
# Histograms without new values for this time are removed, for example of an old version.
IDLE_SECONDS = 3600.0


_BY_SOURCE = {family.source: number for number, family in enumerate(FAMILIES)}


@dataclass(frozen=True, slots=True)
class HistogramFamily:
    """The histograms of one metric family.

    Args:
        family: The metric family.
        labels: Label names and values of each of the n histograms.
        counts: Counts by bucket; shape (n, BUCKETS).
        zero: Values below a nanosecond; shape (n,).
        sum: Sum of the values; shape (n,). [seconds]
        bounds: Bounds of the classic buckets. [seconds]
    """

    family: MetricFamily
    labels: Sequence[Sequence[tuple[str, str]]]
    counts: Ints
    zero: Ints
    sum: Floats
    bounds: tuple[float, ...]


# Key of a histogram: index of its family, and its label values.
_Key = tuple[int, tuple[str, ...]]


class Counters:
    """Counts committed points. Thread-safe.

    Args:
        settings: Returns the current settings; a change resets all counters.
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
        self._free = list(range(size))[::-1]

    def count(self, points: PointColumns) -> None:
        """Add *points*, which were just committed."""
        settings = self._settings()
        with self._lock:
            if settings != self._in_force:
                self._begin(settings)
            if settings.histograms and len(points):
                self._add(points)

    def _add(self, points: PointColumns) -> None:
        known: dict[Identity, int] = {}
        for identity in points.identities:
            if identity not in known:
                known[identity] = self._row(identity)
        row = np.fromiter(map(known.__getitem__, points.identities), np.int64, len(points))
        histograms = points.histograms
        chosen = row >= 0
        np.add.at(self._zero, row[chosen], histograms.zero[chosen])
        np.add.at(self._sum, row[chosen], histograms.sum[chosen])
        self._grown[row[chosen]] = self._clock()
        lengths = histograms.buckets.lengths
        wide, scale = np.repeat(row, lengths), np.repeat(histograms.scale, lengths)
        within = wide >= 0
        place = bucket_positions(histograms.buckets.index[within], scale[within])
        np.add.at(self._counts.reshape(-1), wide[within] * BUCKETS + place, histograms.buckets.amount[within])

    def _row(self, about: Identity) -> int:
        """Return the row of *about*, -1 for a metric that is not exported."""
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
        # The status label is kept, so failures stay separate.
        rest = family, (OTHER, values[1], *(OTHER for _ in values[2:]))
        row = self._rows.get(rest)
        return self._take(rest) if row is None else row

    def _take(self, key: _Key) -> int:
        row = self._rows[key] = self._free.pop()
        self._born[row] = self._clock()
        return row

    @property
    def used(self) -> int:
        """Number of histograms, including those beyond the limit."""
        return len(self._rows)

    @property
    def limit(self) -> int:
        """Limit of histograms."""
        return self._in_force.histograms

    def read(self) -> list[HistogramFamily]:
        """Return the histograms to show now, by metric family."""
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
        found: list[HistogramFamily] = []
        for number, family in enumerate(FAMILIES):
            own = [place for place, key in enumerate(keys) if key[0] == number]
            named = (*names, family.key) if family.key else names
            labels = [tuple(zip(named, keys[place][1], strict=True)) for place in own]
            found.append(HistogramFamily(family, labels, counts[own], zero[own], total[own], bounds))
        return found

    def _forget(self) -> None:
        since = self._clock() - IDLE_SECONDS
        for key in [key for key, row in self._rows.items() if self._grown[row] < since]:
            row = self._rows.pop(key)
            self._counts[row], self._zero[row], self._sum[row] = 0, 0, 0
            self._free.append(row)
