"""Rolling up: each tier is the sum of the next finer one, taken once for each stretch of time.

The rows and the watermark that says they are there are one write: a process that dies in between leaves nothing. A row
that arrives later than the watermark is written to the coarser tier as well when it comes (see `ingest`), so a tier always
equals its recomputation from the finest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sqlalchemy import Connection, select, update

from . import ledger, schema
from .points import Change, Points
from .rows import PointKey, PointRow, histograms_of, point_rows
from .tiers import Tier, floor, read

# Agents send every 10 s, a request's own 10 s bucket lies in the past by then: rows that come while a bucket waits here
# need no second row in the coarser tiers. [seconds]
SETTLE_SECONDS = 60
# How much is rolled up in one transaction: acknowledgements wait behind it. [buckets of the coarser tier]
_CHUNK_BUCKETS = {60: 5, 3600: 1}


def prepare(connection: Connection, points: Points, now: int) -> Change | None:
    """Return the write that rolls up one chunk of the first tier that needs it; None if none does."""
    finest, *coarser = read(connection)
    complete, source = now - SETTLE_SECONDS, finest
    for tier in coarser:
        target = floor(complete, tier.seconds)
        if target > tier.watermark:
            return _advance(connection, points, source, tier, target)
        complete, source = tier.watermark, tier
    return None


def _advance(connection: Connection, points: Points, source: Tier, tier: Tier, target: int) -> Change:
    first = points.first_bucket(connection, source.seconds, max(tier.watermark, tier.kept_from, source.kept_from))
    part = ledger.take_part(connection)
    stop, rows = target, list[PointRow]()
    if first is not None and first < target:
        start = floor(first, tier.seconds)
        stop = min(target, start + _CHUNK_BUCKETS[tier.seconds] * tier.seconds)
        rows = summed(points.load(connection, source.seconds, start, stop), tier.seconds, part)
        if source.seconds == schema.FINEST:
            rows += summed(_in_totals(connection, rows), tier.seconds, part)

    def finish(connection: Connection) -> None:
        ledger.add(connection, rows)
        table = schema.rollups
        connection.execute(update(table).where(table.c.tier == tier.seconds).values(watermark=stop))

    return Change(part, rows, finish)


def _in_totals(connection: Connection, rows: Sequence[PointRow]) -> list[PointRow]:
    """Return *rows* as their totals count them."""
    series = schema.series
    totals = {row.id: row.total_id for row in connection.execute(select(series.c.id, series.c.total_id))}
    return [row.in_total(totals[row.series_id]) for row in rows]


def summed(rows: Sequence[PointRow], width: int, part: int) -> list[PointRow]:
    """Return *rows* added up: one for each key and bucket of *width* seconds, as part *part*."""
    groups: dict[PointKey, int] = {}
    group = np.array([groups.setdefault(row.key.at_tier(width), len(groups)) for row in rows], np.int64)
    return point_rows(width, groups, part, histograms_of(rows).added_up(group, len(groups)))
