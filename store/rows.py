"""Rows of `points`, as they are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from .encoding import decode, encode
from .histograms import Histograms
from .tiers import floor


class PointKey(NamedTuple):
    """What a row of one tier is about; in the order of the table's key, so that sorted rows are appended.

    Args:
        service_id: Service number.
        metric: Metric code; negative for a total.
        bucket: Start of the bucket. [Unix seconds]
        series_id: Number of the series or total.
        stage: Stage, or dominant stage.
    """

    service_id: int
    metric: int
    bucket: int
    series_id: int
    stage: str

    def at_tier(self, width: int) -> PointKey:
        """Return the key of the row in which a tier of *width* seconds counts this one."""
        return self._replace(bucket=floor(self.bucket, width))


class PointRow(NamedTuple):
    """A row, in the order of the table's columns.

    Args:
        tier: Width of its bucket. [seconds]
        service_id: Service number.
        metric: Metric code; negative for a total.
        bucket: Start of the bucket. [Unix seconds]
        series_id: Number of the series or total.
        stage: Stage, or dominant stage.
        part: Which write it came with.
        scale: Of the buckets.
        zero: Values below a nanosecond.
        count: All values, or microseconds.
        sum: Of the values. [seconds]
        histogram: The buckets, encoded.
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
    def key(self) -> PointKey:
        """What it is about."""
        return PointKey(self.service_id, self.metric, self.bucket, self.series_id, self.stage)

    def in_total(self, total_id: int) -> PointRow:
        """Return the row as total *total_id* counts it."""
        return self._replace(metric=-self.metric, series_id=total_id)


def point_rows(tier: int, keys: Iterable[PointKey], part: int, histograms: Histograms) -> list[PointRow]:
    """Return *histograms* as rows of *keys*, one for each."""
    said = zip(
        histograms.scale.tolist(),
        histograms.zero.tolist(),
        histograms.count.tolist(),
        histograms.sum.tolist(),
        encode(histograms.buckets),
        strict=True,
    )
    return [PointRow(tier, *key, part, *one) for key, one in zip(keys, said, strict=True)]


def histograms_of(rows: Sequence[PointRow]) -> Histograms:
    """Return what *rows* hold, one for each."""
    return Histograms(
        np.array([row.scale for row in rows], np.int64),
        np.array([row.zero for row in rows], np.int64),
        np.array([row.sum for row in rows], np.float64),
        decode([row.histogram for row in rows]),
    )
