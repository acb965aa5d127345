"""Points in the relational database itself.

Rows are fetched with the driver's own cursor: a row object of SQLAlchemy costs more than decoding its histogram.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, Connection, Engine, Select, delete, func, literal_column, select

from .. import schema
from ..columns import Columns, Steps
from ..encoding import decode
from ..points import PointQuery, PreparedWrite, SeriesSeen
from ..rows import PointRow
from ..tiers import Segment
from . import database
from .dialect import Dialect

# Rows fetched at once: some tens of megabytes when decoded.
PIECE_ROWS = 5_000


class SqlPoints:
    """Implementation of `Points` in the relational database.

    Args:
        dialect: Dialect of the database.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def apply(self, engine: Engine, prepare: Callable[[Connection], PreparedWrite | None]) -> bool:
        """Implement `Points`: one transaction."""
        with database.writing(engine, "cannot write to") as connection:
            change = prepare(connection)
            if change is None:
                return False
            if change.rows:
                self._dialect.insert_points(connection, change.rows)
            change.finish(connection)
            return True

    def read(
        self,
        connection: Connection,
        question: PointQuery,
        segment: Segment,
        steps: Steps | None,  # noqa: ARG002 - nothing is added up here
    ) -> Iterator[Columns]:
        """Implement `Points`."""
        columns = schema.points.c
        # A constant in place of unused numbers: the driver creates an object for each value.
        series = columns.series_id if question.by else literal_column("0")
        wanted = (columns[name] for name in ("bucket", "metric", "stage", "scale", "zero", "sum", "histogram"))
        statement = select(series, *wanted).where(*_conditions(question, segment))
        yield from map(_columns, _raw_rows(connection, statement))

    def seen(self, connection: Connection, question: PointQuery, segment: Segment) -> list[SeriesSeen]:
        """Implement `Points`."""
        points = schema.points
        statement = (
            select(points.c.series_id, func.sum(points.c.count), func.min(points.c.bucket), func.max(points.c.bucket))
            .where(*_conditions(question, segment))
            .group_by(points.c.series_id)
        )
        return [SeriesSeen(row[0], int(row[1]), row[2], row[3]) for row in connection.execute(statement)]

    def number(self, connection: Connection, question: PointQuery, segment: Segment) -> int:
        """Implement `Points`."""
        statement = select(func.count()).select_from(schema.points).where(*_conditions(question, segment))
        return connection.execute(statement).scalar_one()

    def load(self, connection: Connection, tier: int, start: int, stop: int) -> list[PointRow]:
        """Implement `Points`."""
        points = schema.points
        statement = select(*(points.c[name] for name in PointRow._fields)).where(
            points.c.tier == tier,
            # List all values, so that the whole key is used.
            points.c.service_id.in_(select(schema.services.c.id)),
            points.c.metric.in_(schema.ALL_METRIC_CODES),
            points.c.bucket >= start,
            points.c.bucket < stop,
        )
        return [PointRow(*row) for piece in _raw_rows(connection, statement) for row in piece]

    def first_bucket(self, connection: Connection, tier: int, since: int) -> int | None:
        """Implement `Points`: by one look into the key for each service and metric."""
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

    def cut(self, connection: Connection, tier: int, until: int) -> None:
        """Implement `Points`."""
        self._dialect.free(connection, tier, until)

    def forget(self, connection: Connection, services: Sequence[int]) -> list[tuple[int, int, int]]:
        """Implement `Points`."""
        points = schema.points
        theirs = points.c.service_id.in_(services)
        counted = select(points.c.tier, points.c.bucket, func.count()).where(theirs)
        rows = connection.execute(counted.group_by(points.c.tier, points.c.bucket)).all()
        connection.execute(delete(points).where(theirs))
        return [(tier, bucket, number) for tier, bucket, number in rows]

    def freed_seconds(self, tier: int) -> int:
        """Implement `Points`."""
        return self._dialect.FREED_SECONDS[tier]

    def used_bytes(self, connection: Connection) -> int:  # noqa: ARG002 - the database counts them
        """Implement `Points`."""
        return 0

    def tidy(self, connection: Connection, now: int) -> None:
        """Implement `Points`: a transaction leaves nothing."""

    def close(self) -> None:
        """Implement `Points`: the connections are the database's."""


def _conditions(question: PointQuery, segment: Segment) -> list[ColumnElement[bool]]:
    """Return the conditions on the rows of *segment*, in the order of their key."""
    points, series = schema.points, schema.series
    owners = question.selection.conditions()
    conditions = [
        points.c.tier == segment.tier,
        points.c.service_id.in_(select(series.c.service_id).where(*owners)),
        points.c.metric.in_(question.codes(segment.tier)),
        points.c.bucket >= segment.start,
        points.c.bucket < segment.end,
    ]
    if question.selection.is_of_services:
        return conditions
    number = series.c.total_id if question.asks_totals(segment.tier) else series.c.id
    return [*conditions, points.c.series_id.in_(select(number).where(*owners))]


def _raw_rows(connection: Connection, statement: Select[Any]) -> Generator[Sequence[Any]]:
    result = connection.execute(statement)
    if result.cursor is None:
        raise AssertionError  # a select has a cursor
    while rows := result.cursor.fetchmany(PIECE_ROWS):
        yield rows
    result.close()


def _columns(rows: Sequence[Any]) -> Columns:
    series, times, metric, stage, scale, zero, total, blobs = (map(itemgetter(place), rows) for place in range(8))
    names = list(stage)
    stages = sorted(set(names))
    position = {name: place for place, name in enumerate(stages)}
    return Columns(
        times=np.fromiter(times, np.int64, len(rows)),
        series=np.fromiter(series, np.int64, len(rows)),
        metric=np.abs(np.fromiter(metric, np.int64, len(rows))),
        stage=np.fromiter(map(position.__getitem__, names), np.int64, len(rows)),
        stages=tuple(stages),
        scale=np.fromiter(scale, np.int64, len(rows)),
        zero=np.fromiter(zero, np.int64, len(rows)),
        sum=np.fromiter(total, np.float64, len(rows)),
        buckets=decode(list(blobs)),
    )
