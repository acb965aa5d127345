"""Points as columns, from the decoder to the rows: what each is about, and its numbers in arrays.

Exports of one service say the same few things about themselves again and again. So what a point is about is an object, made
once and shared by all points that mean the same: to tell them apart, one looks at which object it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.histogram import Histogram
from .encoding import Ints
from .histograms import Histograms
from .series import Series


@dataclass(slots=True)
class Point:
    """One histogram of one series.

    Args:
        series: Whose it is.
        metric: One of `names.METRICS`.
        stage: The stage, or for `inference.request.duration` the dominant one.
        at: When; the store floors it to its bucket. [Unix seconds]
        histogram: The counts (or microseconds) by bucket.
    """

    series: Series
    metric: str
    stage: str
    at: int
    histogram: Histogram


@dataclass(frozen=True, slots=True, eq=False)
class Identity:
    """What points are about; equal only to itself. The fields are those of `Point`."""

    series: Series
    metric: str
    stage: str


@dataclass(frozen=True, slots=True)
class PointColumns:
    """Points; iterating over them gives each as a `Point`.

    Args:
        identities: What each is about.
        at: When; shape (n,). [Unix seconds]
        histograms: Of each.
    """

    identities: Sequence[Identity]
    at: Ints
    histograms: Histograms

    @classmethod
    def of(cls, points: Sequence[Point]) -> PointColumns:
        """Return *points* as columns."""
        known: dict[tuple[Series, str, str], Identity] = {}
        keys = [(point.series, point.metric, point.stage) for point in points]
        return cls(
            [known.setdefault(key, Identity(*key)) for key in keys],
            np.array([point.at for point in points], np.int64),
            Histograms.of([point.histogram for point in points]),
        )

    @classmethod
    def join(cls, pieces: Sequence[PointColumns]) -> PointColumns:
        """Return the points of all *pieces*, of which there must be one, in their order."""
        return cls(
            [identity for piece in pieces for identity in piece.identities],
            np.concatenate([piece.at for piece in pieces]),
            Histograms.join([piece.histograms for piece in pieces]),
        )

    def between(self, low: int, high: int) -> PointColumns:
        """Return those from number *low* up to *high*."""
        return PointColumns(self.identities[low:high], self.at[low:high], self.histograms.between(low, high))

    def __len__(self) -> int:
        return len(self.identities)

    def __iter__(self) -> Iterator[Point]:
        for about, at, histogram in zip(self.identities, self.at.tolist(), self.histograms, strict=True):
            yield Point(about.series, about.metric, about.stage, at, histogram)


def as_columns(points: Sequence[Point] | PointColumns) -> PointColumns:
    """Return *points* as columns, which they may be already."""
    return points if isinstance(points, PointColumns) else PointColumns.of(points)
