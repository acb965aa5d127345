"""Points as they are written: alone, in columns, and as rows of `points`.

Exports of one service repeat the same few identities. An `Identity` is therefore one object, created once and shared by all
points with the same series, metric and stage; points compare by the identity of that object.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..core.attributes import REPLICA, split_attribute_key
from ..core.columns import Columnar, HistogramArrays, Ints
from ..core.histogram import Histogram
from ..core.names import OPEN_TIME, REPLICA_STAGE_TIME
from .bucket_blobs import decode_buckets
from .schema import METRIC_CODES, WITHOUT_TOTALS
from .series import Series

_WITHOUT_TOTALS = frozenset(METRIC_CODES[name] for name in WITHOUT_TOTALS)


@dataclass(slots=True)
class Point:
    """One data point: a histogram of one series, metric and stage."""

    series: Series
    metric: str  # Name of the metric, one of `names.METRICS`
    stage: str  # The stage; for `inference.request.duration` the dominant stage
    at: int  # Time; the store rounds it down to the start of its bucket. [Unix seconds]
    histogram: Histogram  # Counts (or microseconds) by bucket


@dataclass(frozen=True, slots=True, eq=False)
class Identity:
    """Series, metric and stage of points, as in `Point`; compared by identity."""

    series: Series
    metric: str
    stage: str


@dataclass(frozen=True, slots=True)
class PointColumns(Columnar):
    """Points in columns; iterating yields a `Point` for each."""

    identities: Sequence[Identity]  # Identity of each point
    at: Ints  # Time of each point; shape (n,). [Unix seconds]
    histograms: HistogramArrays  # Histogram of each point

    @classmethod
    def of(cls, points: Sequence[Point]) -> PointColumns:
        identities: dict[tuple[Series, str, str], Identity] = {}
        keys = [(point.series, point.metric, point.stage) for point in points]
        return cls(
            [identities.setdefault(key, Identity(*key)) for key in keys],
            np.array([point.at for point in points], np.int64),
            HistogramArrays.of([point.histogram for point in points]),
        )

    def __iter__(self) -> Iterator[Point]:
        for about, at, histogram in zip(self.identities, self.at.tolist(), self.histograms, strict=True):
            yield Point(about.series, about.metric, about.stage, at, histogram)


def as_columns(points: Sequence[Point] | PointColumns) -> PointColumns:
    return points if isinstance(points, PointColumns) else PointColumns.of(points)


class PointRow(NamedTuple):
    """Row of `points`, in the order of the table's columns: a point, or a block of points as `point_table` describes.

    Args:
        tier: Width of the bucket of time. [seconds]
        bucket: Start of the bucket of time. [Unix seconds]
        sum: Sum of the values. [seconds]
    """

    tier: int
    service_id: int
    metric: int
    bucket: int
    series_id: int
    stage: str
    part: int
    scale: int
    zero: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride] - the column has this name, and rows are not searched
    sum: float
    histogram: bytes

    @property
    def is_block(self) -> bool:
        return self.series_id <= 0

    @property
    def points(self) -> int:
        return self.zero if self.is_block else 1

    def in_total(self, total_id: int) -> PointRow | None:
        return None if self.metric in _WITHOUT_TOTALS else self._replace(metric=-self.metric, series_id=total_id)

    @property
    def is_of_replica(self) -> bool:
        """Whether the row describes one replica; see `schema.WITHOUT_REPLICAS`."""
        return is_kind_of_replica(self.metric, self.stage)


def is_kind_of_replica(metric: int, stage: str) -> bool:
    return metric in _WITHOUT_TOTALS and (
        metric in (METRIC_CODES[REPLICA_STAGE_TIME], METRIC_CODES[OPEN_TIME])
        or split_attribute_key(stage)[0] == REPLICA.key
    )


def histograms_of(rows: Sequence[PointRow]) -> HistogramArrays:
    return HistogramArrays(
        np.array([row.scale for row in rows], np.int64),
        np.array([row.zero for row in rows], np.int64),
        np.array([row.sum for row in rows], np.float64),
        decode_buckets([row.histogram for row in rows]),
    )
