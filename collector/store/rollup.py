"""Rolling up: each tier is the sum of the next finer one, taken once for each stretch of time.

The rows and the watermark that says they are there are written in one transaction: a process that dies in between leaves
nothing. A row that arrives later than the watermark is written to the coarser tier as well when it comes (see `ingest`),
so a tier always equals its recomputation from the finest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, func, insert, select, update

from . import schema
from .encoding import Buckets, Ints, decode, encode
from .merging import merge
from .rows import PointCounts, PointKey, point_row
from .tiers import Tier, floor, read

# Agents send every 10 s, a request's own 10 s bucket lies in the past by then: rows that come while a bucket waits here
# need no second row in the coarser tiers. [seconds]
SETTLE_SECONDS = 60
# How much is rolled up in one transaction: acknowledgements wait behind it. [buckets of the coarser tier]
_CHUNK_BUCKETS = {60: 5, 3600: 1}


@dataclass(frozen=True, slots=True)
class _Source:
    """Rows of a finer tier, as columns."""

    keys: list[PointKey]
    scale: Ints
    zero: Ints
    sum: np.ndarray[Any, np.dtype[np.float64]]
    buckets: Buckets


def roll_up(connection: Connection, now: int) -> bool:
    """Roll up one chunk of the first tier that needs it.

    Returns:
        Whether something was done: there may be more.
    """
    finest, *coarser = read(connection)
    complete, source = now - SETTLE_SECONDS, finest
    for tier in coarser:
        target = floor(complete, tier.seconds)
        if target > tier.watermark:
            _advance(connection, source, tier, target)
            return True
        complete, source = tier.watermark, tier
    return False


def _advance(connection: Connection, source: Tier, tier: Tier, target: int) -> None:
    first = _first_bucket(connection, source.seconds, tier.watermark)
    if first is None or first >= target:
        stop = target
    else:
        start = floor(first, tier.seconds)
        stop = min(target, start + _CHUNK_BUCKETS[tier.seconds] * tier.seconds)
        rows = _summed(_load(connection, source.seconds, start, stop), tier.seconds)
        connection.execute(insert(schema.points), rows)
    table = schema.rollups
    connection.execute(update(table).where(table.c.tier == tier.seconds).values(watermark=stop))


def _first_bucket(connection: Connection, tier: int, since: int) -> int | None:
    """Return the first bucket of *tier* from *since* on, by one look into the key for each service and metric."""
    points = schema.points
    found: list[int] = []
    for code in schema.METRIC_CODES.values():
        first = select(func.min(points.c.bucket)).where(
            points.c.tier == tier,
            points.c.service_id == schema.services.c.id,
            points.c.metric == code,
            points.c.bucket >= since,
        )
        lowest = connection.execute(select(func.min(first.scalar_subquery())).select_from(schema.services)).scalar()
        if lowest is not None:
            found.append(lowest)
    return min(found, default=None)


def _load(connection: Connection, tier: int, start: int, stop: int) -> _Source:
    points = schema.points
    statement = select(
        points.c.service_id,
        points.c.metric,
        points.c.bucket,
        points.c.series_id,
        points.c.stage,
        points.c.scale,
        points.c.zero,
        points.c.sum,
        points.c.histogram,
    ).where(
        points.c.tier == tier,
        # All of them, spelled out, so that the key is used to its end.
        points.c.service_id.in_(select(schema.services.c.id)),
        points.c.metric.in_(schema.METRIC_CODES.values()),
        points.c.bucket >= start,
        points.c.bucket < stop,
    )
    rows = connection.execute(statement).all()
    return _Source(
        keys=[PointKey(*row[:5]) for row in rows],
        scale=np.array([row[5] for row in rows], np.int64),
        zero=np.array([row[6] for row in rows], np.int64),
        sum=np.array([row[7] for row in rows], np.float64),
        buckets=decode([row[8] for row in rows]),
    )


def _summed(source: _Source, width: int) -> list[dict[str, Any]]:
    """Return the rows of the coarser tier: one for each key and bucket of *width* seconds."""
    groups: dict[PointKey, int] = {}
    group = np.array([groups.setdefault(key.at_tier(width), len(groups)) for key in source.keys], np.int64)
    scale = np.full(len(groups), np.iinfo(np.int64).max)
    np.minimum.at(scale, group, source.scale)
    zero = np.zeros(len(groups), np.int64)
    np.add.at(zero, group, source.zero)
    total = np.zeros(len(groups), np.float64)
    np.add.at(total, group, source.sum)
    merged = merge(source.buckets, group, source.scale - scale[group], len(groups))
    count = zero + np.add.reduceat(np.append(merged.amount, 0), merged.offsets[:-1]) * (merged.lengths > 0)
    counts = map(PointCounts, scale.tolist(), zero.tolist(), count.tolist(), total.tolist(), encode(merged))
    return [point_row(width, 0, key, said) for key, said in zip(groups, counts, strict=True)]
