"""Export of all histograms and traces, at the finest retained resolution."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, select

from ..core import names
from ..core.histogram import Histogram
from . import backup, schema
from .engines import database
from .points import histograms_of, sum_rows
from .queries import profile, traces
from .records import RetainedTrace
from .series import Series
from .storage import Points, StoreSnapshot
from .store import Store

_NAMES = {code: name for name, code in schema.METRIC_CODES.items()}


@dataclass(frozen=True, slots=True)
class ExportedHistogram:
    """Histogram of one series in one bucket of time."""

    series: Series
    metric: str  # Name of the metric, one of `schema.METRIC_CODES`
    stage: str  # The stage, or another key of the metric
    start: int  # Start of the bucket. [Unix seconds]
    seconds: int  # Width of the bucket, 10 where the finest tier is retained. [seconds]
    histogram: Histogram  # Counts, or microseconds, by histogram bucket


class StoreExport:
    """Contents of a store at one moment."""

    def __init__(self, snapshot: StoreSnapshot, points: Points) -> None:
        self._snapshot = snapshot
        self._points = points

    def counted(self) -> Iterator[list[ExportedHistogram]]:
        connection = self._snapshot.connection
        series = _series(connection)
        until = _finest_until(connection)
        for stretch in backup.stretches_of(connection):
            stop = min(stretch.stop, until[stretch.tier])
            if stretch.start < stop:
                table = self._points.load(connection, stretch.tier, stretch.start, stop)
                # Negative metric codes are totals of series that are exported individually.
                rows = sorted(sum_rows(table.where(table.metric > 0), stretch.tier, 0))
                keys = {row.stage for row in rows if _NAMES[row.metric] == names.PROFILE_TIME}
                texts = profile.read_stacks(connection, sorted(keys))
                yield [
                    ExportedHistogram(
                        series[row.series_id],
                        _NAMES[row.metric],
                        texts.get(row.stage, row.stage),
                        row.bucket,
                        row.tier,
                        histogram,
                    )
                    for row, histogram in zip(rows, histograms_of(rows), strict=True)
                ]

    def traces(self) -> Iterator[RetainedTrace]:
        table = schema.traces
        wanted = select(table.c.trace_id, table.c.span_id).order_by(table.c.started, table.c.trace_id, table.c.span_id)
        for trace_id, span_id in self._snapshot.connection.execute(wanted).all():
            trace = traces.find_trace(self._snapshot, f"{trace_id}-{span_id}")
            if trace is not None:
                yield trace

    def dropped(self) -> int:
        batches = schema.batches
        dropped = select(batches.c.dropped).where(batches.c.dropped > 0)
        return sum(self._snapshot.connection.scalars(dropped))


@contextmanager
def open_export(store: Store) -> Generator[StoreExport]:
    """Provide the current contents of *store* for the block."""
    with database.reading(store.engine) as connection:
        yield StoreExport(StoreSnapshot(connection, store.points), store.points)


def _series(connection: Connection) -> dict[int, Series]:
    table = schema.series
    rows = connection.execute(select(table.c.id, *(table.c[name] for name in schema.DIMENSIONS)))
    return {number: Series(*names) for number, *names in rows}


def _finest_until(connection: Connection) -> dict[int, int]:
    """Return for each tier the end of the time in which it is the finest retained tier, in Unix seconds."""
    until, finest = dict[int, int](), sys.maxsize
    for tier in schema.read_tiers(connection):
        until[tier.seconds] = finest
        finest = min(finest, tier.kept_from)
    return until
