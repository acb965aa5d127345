"""Rows of `points`, as they are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from .tiers import floor


class PointKey(NamedTuple):
    """What a row of one tier is about; in the order of the table's key, so that sorted rows are appended.

    Args:
        service_id: Service number.
        metric: Metric code.
        bucket: Start of the bucket. [Unix seconds]
        series_id: Series number.
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


@dataclass(frozen=True, slots=True)
class PointCounts:
    """What a row says.

    Args:
        scale: Of the buckets.
        zero: Values below a nanosecond.
        count: All values, or microseconds.
        sum: Of the values. [seconds]
        histogram: The buckets, encoded.
    """

    scale: int
    zero: int
    count: int
    sum: float
    histogram: bytes


def point_row(tier: int, part: int, key: PointKey, counts: PointCounts) -> dict[str, Any]:
    """Return the row as the database takes it."""
    return {
        "tier": tier,
        "part": part,
        **key._asdict(),
        "scale": counts.scale,
        "zero": counts.zero,
        "count": counts.count,
        "sum": counts.sum,
        "histogram": counts.histogram,
    }
