"""How long things are kept, and forgetting them when their time is over."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

from sqlalchemy import Connection, delete, func, select, tuple_, update

from . import schema
from .tiers import Tier, floor, read

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Retention:
    """How long the store keeps what it has.

    Args:
        seconds_10: Points at 10 s.
        minutes: Points at 1 min.
        hours: Points at 1 h; nothing older is left, and a series without any is forgotten.
        traces: Kept traces.
        traces_per_service: Kept traces of a service; the oldest go first. [count]
        batches: The names of batches: how late a retry is still recognised, and how late data may come.
    """

    seconds_10: timedelta = timedelta(hours=24)
    minutes: timedelta = timedelta(days=14)
    hours: timedelta = timedelta(days=395)
    traces: timedelta = timedelta(days=7)
    traces_per_service: int = 20_000
    batches: timedelta = timedelta(hours=24)

    def of_tier(self, seconds: int) -> timedelta:
        """Return how long the tier with buckets of *seconds* is kept."""
        return (self.seconds_10, self.minutes, self.hours)[schema.TIERS.index(seconds)]


def forget(connection: Connection, retention: Retention, now: int) -> bool:
    """Delete what is past its time, *now* being in Unix seconds.

    Returns:
        Whether series were deleted: numbers held in memory are no longer valid.
    """
    tiers = read(connection)
    for finer, coarser in pairwise(tiers):
        # Never before it is rolled up, and cut where the coarser tier can take over.
        age = now - int(retention.of_tier(finer.seconds).total_seconds())
        _cut(connection, finer, floor(min(age, coarser.watermark), coarser.seconds))
    oldest = floor(now - int(retention.hours.total_seconds()), schema.COARSEST)
    _cut(connection, tiers[-1], min(oldest, tiers[-1].watermark))
    _forget_traces(connection, retention, now)
    table = schema.batches
    connection.execute(delete(table).where(table.c.received < now - int(retention.batches.total_seconds())))
    return _forget_series(connection, oldest)


def _cut(connection: Connection, tier: Tier, until: int) -> None:
    if until <= tier.kept_from:
        return
    points, rollups = schema.points, schema.rollups
    connection.execute(
        delete(points).where(
            points.c.tier == tier.seconds,
            points.c.service_id.in_(select(schema.services.c.id)),
            points.c.metric.in_(schema.METRIC_CODES.values()),
            points.c.bucket < until,
        )
    )
    connection.execute(update(rollups).where(rollups.c.tier == tier.seconds).values(kept_from=until))


def _forget_traces(connection: Connection, retention: Retention, now: int) -> None:
    traces, series = schema.traces, schema.series
    connection.execute(delete(traces).where(traces.c.started < (now - int(retention.traces.total_seconds())) * _NS))
    counts = (
        select(series.c.service_id, func.count())
        .join_from(traces, series, traces.c.series_id == series.c.id)
        .group_by(series.c.service_id)
        .having(func.count() > retention.traces_per_service)
    )
    for service_id, count in connection.execute(counts).all():
        oldest = (
            select(traces.c.trace_id, traces.c.span_id)
            .join_from(traces, series, traces.c.series_id == series.c.id)
            .where(series.c.service_id == service_id)
            .order_by(traces.c.started)
            .limit(count - retention.traces_per_service)
        )
        connection.execute(delete(traces).where(tuple_(traces.c.trace_id, traces.c.span_id).in_(oldest)))


def _forget_series(connection: Connection, oldest: int) -> bool:
    series, traces = schema.series, schema.traces
    kept = select(traces.c.trace_id).where(traces.c.series_id == series.c.id).exists()
    return connection.execute(delete(series).where(series.c.last_seen < oldest, ~kept)).rowcount > 0
