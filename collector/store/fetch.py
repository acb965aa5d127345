"""From a selection to columns: which rows of which tiers, and getting them cheaply.

Rows come over the driver's own cursor: a row object of SQLAlchemy's costs more than decoding the histogram in it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from operator import itemgetter
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, Connection, Select, func, select

from . import merging, schema, tiers
from .columns import Columns, Steps
from .encoding import decode
from .selection import Selection, step_seconds

# More rows than this take longer than a person waits for a page: a chart is drawn with wider steps then.
MAX_ROWS = 100_000
# Rows read at once: with what they are decoded to, some tens of megabytes.
PIECE_ROWS = 5_000


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the points.

    Args:
        selection: Whose requests.
        metrics: Which histograms, as in `names.METRICS`.
    """

    selection: Selection
    metrics: Sequence[str]

    def conditions(self, segment: tiers.Segment) -> list[ColumnElement[bool]]:
        """Return what the rows of `points` in *segment* must fulfil, in the order of their key."""
        points, series = schema.points, schema.series
        owners = self.selection.conditions()
        conditions = [
            points.c.tier == segment.tier,
            points.c.service_id.in_(select(series.c.service_id).where(*owners)),
            points.c.metric.in_([schema.METRIC_CODES[name] for name in self.metrics]),
            points.c.bucket >= segment.start,
            points.c.bucket < segment.end,
        ]
        if owners:
            conditions.append(points.c.series_id.in_(select(series.c.id).where(*owners)))
        return conditions


def fetch(connection: Connection, question: Question) -> Columns:
    """Return the points of the whole selection, added up over time: a month of a large service is gigabytes otherwise."""
    pieces = [merging.over_time(_columns(rows)) for rows in _raw_rows(connection, question, schema.COARSEST)]
    return merging.over_time(merging.join(pieces or [_columns([])]))


def fetch_steps(connection: Connection, question: Question, step: timedelta) -> tuple[Columns, Steps]:
    """Return the points, and how to cut them into steps of *step*: wider where only wider buckets are kept or affordable."""
    start, _ = question.selection.seconds
    width = _step_width(connection, question, step_seconds(step))
    if width is None:
        return fetch(connection, question), Steps(start, None)
    rows = [row for some in _raw_rows(connection, question, width) for row in some]
    rows.sort(key=itemgetter(0))
    return _columns(rows), Steps(start, width)


def _step_width(connection: Connection, question: Question, wanted: int) -> int | None:
    start, end = question.selection.seconds
    known = tiers.read(connection)
    width = max(wanted, tiers.finest_kept(known, start))
    widest = max(tier for tier in schema.TIERS if tier <= width)
    while widest != schema.COARSEST and width < end - start and _rows(connection, question, widest) > MAX_ROWS:
        widest = schema.TIERS[schema.TIERS.index(widest) + 1]
        width = tiers.ceil(width, widest)
    return width if width < end - start else None


def _rows(connection: Connection, question: Question, tier: int) -> int:
    """Return at most how many rows of *tier* there are, from the number of rows that cover an hour each."""
    start, end = question.selection.seconds
    hours = tiers.Segment(schema.COARSEST, start, end)
    count = connection.execute(select(func.count()).select_from(schema.points).where(*question.conditions(hours)))
    return count.scalar_one() * schema.COARSEST // tier


def _statement(question: Question, segment: tiers.Segment) -> Select[Any]:
    points = schema.points
    wanted = ("bucket", "series_id", "metric", "stage", "scale", "zero", "sum", "histogram")
    return select(*(points.c[name] for name in wanted)).where(*question.conditions(segment))


def _raw_rows(connection: Connection, question: Question, widest: int) -> Generator[Sequence[Any]]:
    """Yield the rows in pieces, from buckets not wider than *widest* seconds where such are kept."""
    start, end = question.selection.seconds
    for segment in tiers.plan(tiers.read(connection), start, end, widest):
        result = connection.execute(_statement(question, segment))
        if result.cursor is None:
            raise AssertionError  # a select has a cursor
        while rows := result.cursor.fetchmany(PIECE_ROWS):
            yield rows
        result.close()


def _columns(rows: Sequence[Any]) -> Columns:
    times, series, metric, stage, scale, zero, total, blobs = zip(*rows, strict=True) if rows else ((),) * 8
    stages = sorted(set(stage))
    position = {name: place for place, name in enumerate(stages)}
    return Columns(
        times=np.array(times, np.int64),
        series=np.array(series, np.int64),
        metric=np.array(metric, np.int64),
        stage=np.fromiter(map(position.__getitem__, stage), np.int64, len(rows)),
        stages=tuple(stages),
        scale=np.array(scale, np.int64),
        zero=np.array(zero, np.int64),
        sum=np.array(total, np.float64),
        buckets=decode(blobs),
    )
