"""The relational database: dialects, engine, transactions, migrations, errors with their fixes, and storage of points.

The modules `sqlite` and `postgresql` implement `SqlDialect`. Rows of points are fetched with the driver's own cursor: a row
object of SQLAlchemy costs more than decoding its histogram.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import ColumnElement, Connection, Engine, Executable, TextClause, bindparam, delete, func, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from ...core.columns import Ints, no_buckets
from ...core.errors import StoreError
from .. import schema
from ..bucket_blobs import decode_buckets
from ..points import PointRow, PointTable
from ..schema import Segment
from ..storage import Columns, PointQuery, PreparedWrite, SeriesSeen, Steps
from . import postgresql, sqlite

# Lowest bucket of one metric from a time on. To build a statement takes longer than to execute it.
_FIRST_BUCKET = select(
    func.min(
        select(func.min(schema.points.c.bucket))
        .where(
            schema.points.c.tier == bindparam("tier"),
            schema.points.c.service_id == schema.services.c.id,
            schema.points.c.metric == bindparam("code"),
            schema.points.c.bucket >= bindparam("since"),
        )
        .scalar_subquery()
    )
).select_from(schema.services)
_DEFAULT_FIX = "see the error of the database"
_URL_FORMS = "sqlite:///path/to/stagelens.db or postgresql://user:password@host/database"
# Number of rows fetched at once, some tens of megabytes when decoded.
PIECE_ROWS = 5_000
# Number of rows fetched at once that may be blocks.
PIECE_BLOCKS = 64
_LATEST = np.iinfo(np.int64).max
_POINTS = "sum(CASE WHEN series_id <= 0 THEN zero ELSE 1 END)"
# Number of segments read by one statement; SQLite allows 500.
_SEGMENTS_AT_ONCE = 100


class SqlDialect(Protocol):
    """Interface to one kind of relational database."""

    @property
    def FIXES(self) -> Sequence[tuple[str, str]]:  # noqa: N802 - a constant of the module
        """Parts of the driver's error messages, in lower case, and the fix for each."""
        ...

    @property
    def GENERATION(self) -> ColumnElement[str]:  # noqa: N802 - a constant of the module
        """Column whose value differs when the ids in the database may mean something else."""
        ...

    @property
    def FREED_SECONDS(self) -> Mapping[int, int]:  # noqa: N802 - a constant of the module
        """Length of time that `free` deletes at once, by tier of `points`, in seconds."""
        ...

    def open_engine(self, url: URL, budget_bytes: int | None) -> Engine:
        """Return the engine of the database at *url*, not yet open; *budget_bytes* limits the size if the database can."""
        ...

    def location(self, url: URL) -> str:
        """Return the name of the database at *url* for messages, without its password."""
        ...

    def for_reading(self, connection: Connection) -> Connection: ...

    def for_writing(self, connection: Connection) -> Connection:
        """Return *connection* with transactions that wait for the write lock at their start, and hold it until their end."""
        ...

    def confirm(self, connection: Connection, /) -> None:
        """Raise StoreError if the next start would open another database than *connection*, which lacks its writes."""
        ...

    def exclusive(self, connection: Connection) -> AbstractContextManager[None]: ...

    def insert_points(self, connection: Connection, rows: Sequence[PointRow]) -> None: ...

    def insert_rows(
        self, connection: Connection, table: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
    ) -> None:
        """Insert *rows* of *columns* into *table* without SQLAlchemy, which would take longer than the database."""
        ...

    def free(self, connection: Connection, tier: int, until: int) -> None:
        """Delete the rows of *tier* before *until*, or only those that can be deleted at once.

        Raises:
            InUseError: Another transaction reads the rows.
        """
        ...

    def compact_traces(self, connection: Connection, /) -> bool:
        """Reclaim the space of deleted traces; return whether any space was reclaimed."""
        ...

    def used_bytes(self, connection: Connection) -> int:
        """Return the size of the tables, without reusable free space."""
        ...


_MIGRATIONS = Path(__file__).parents[1] / "migrations"
_DIALECTS: dict[str, SqlDialect] = {"sqlite": sqlite, "postgresql": postgresql}


def dialect(url: URL) -> SqlDialect:
    sql_dialect = _DIALECTS.get(url.get_backend_name())
    if sql_dialect is None:
        msg = f"the database URL is {url.render_as_string()!r}; write {_URL_FORMS}"
        raise StoreError(msg)
    return sql_dialect


def location(url: URL) -> str:
    return dialect(url).location(url)


def open_engine(url: str, budget_bytes: int | None = None) -> Engine:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        # The part before the last "@" may contain a password.
        msg = f"the database URL {url.rpartition('@')[2]!r} cannot be read; write {_URL_FORMS}"
        raise StoreError(msg) from error
    return dialect(parsed).open_engine(parsed, budget_bytes)


@contextmanager
def explain_errors(engine: Engine, doing: str) -> Generator[None]:
    """Convert errors of the database to `StoreError` with the database, what it was *doing*, such as "cannot open", and the fix."""
    try:
        yield
    # The driver's own cursors, used for points, raise the driver's own errors.
    except (SQLAlchemyError, engine.dialect.loaded_dbapi.Error) as error:
        text = str(error.orig if isinstance(error, DBAPIError) else error).strip()
        # PostgreSQL quotes the statement below the error; operators and clients of /readyz do not need it.
        text = text.partition("\nLINE ")[0]
        fix = next((fix for sign, fix in dialect(engine.url).FIXES if sign in text.lower()), _DEFAULT_FIX)
        msg = f"{doing} {location(engine.url)}: {fix} ({text})"
        raise StoreError(msg) from error


@contextmanager
def reading(engine: Engine) -> Generator[Connection]:
    """Provide a connection with a consistent snapshot for the block."""
    sql_dialect = dialect(engine.url)
    with explain_errors(engine, "cannot read"), engine.connect() as plain:
        connection = sql_dialect.for_reading(plain)
        with connection.begin():
            yield connection


@contextmanager
def writing(engine: Engine, doing: str) -> Generator[Connection]:
    """Provide a connection in an exclusive write transaction, which is committed at the end of the block or rolled back.

    Raises:
        StoreError: The database cannot begin, write or commit; nothing was written.
    """
    sql_dialect = dialect(engine.url)
    with explain_errors(engine, doing), engine.connect() as plain:
        connection = sql_dialect.for_writing(plain)
        with connection.begin():
            yield connection
        sql_dialect.confirm(connection)


@contextmanager
def exclusively(engine: Engine, doing: str) -> Generator[Connection]:
    """Provide a connection for several transactions under a lock that excludes other writers."""
    sql_dialect = dialect(engine.url)
    with explain_errors(engine, doing), engine.connect() as plain:
        connection = sql_dialect.for_writing(plain)
        with sql_dialect.exclusive(connection):
            yield connection
        sql_dialect.confirm(connection)


def generation(connection: Connection) -> ColumnElement[str]:
    """Return the column whose value differs when cached ids are no longer valid, because the database was replaced."""
    return dialect(connection.engine.url).GENERATION


def used_bytes(connection: Connection) -> int:
    """Return the size of the tables, without reusable free space."""
    return dialect(connection.engine.url).used_bytes(connection)


def migrate(engine: Engine) -> None:
    """Create the tables, or migrate those of an earlier version, in one transaction."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    script = ScriptDirectory.from_config(config)
    with writing(engine, "cannot open") as connection:
        present = MigrationContext.configure(connection).get_current_revision()
        if present not in (None, *(step.revision for step in script.walk_revisions())):
            msg = (
                f"cannot open {location(engine.url)}: it was written by a newer Stagelens (schema {present}); "
                "upgrade Stagelens, or use another database"
            )
            raise StoreError(msg)
        if present != script.get_current_head():
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
        # A transaction on a read-only file begins without an error; this statement changes nothing, but raises it.
        connection.exec_driver_sql("DELETE FROM alembic_version WHERE version_num IS NULL")


# Columns of a row of the finest tier, and the number of points in rows; see `points` for blocks.
_ROW = ", ".join((str(schema.FINEST), *PointRow._fields[1:]))


class SqlPoints:
    def __init__(self, dialect: SqlDialect) -> None:
        self._dialect = dialect

    def apply(self, engine: Engine, prepare: Callable[[Connection], PreparedWrite | None]) -> bool:
        with writing(engine, "cannot write to") as connection:
            change = prepare(connection)
            if change is None:
                return False
            if change.rows:
                self._dialect.insert_points(connection, stored_rows(change.rows))
            change.finish(connection)
            return True

    def finest_rows(self, table: PointTable, part: int) -> list[PointRow]:
        return table.blocks(schema.FINEST, part)

    def read(
        self, connection: Connection, question: PointQuery, segments: Sequence[Segment], steps: Steps | None
    ) -> Iterator[Columns]:
        finest, coarser = _divided(segments)
        for table in _finest_tables(connection, question, finest):
            yield _columns_of_table(table, counts_only=question.counts_only)
        # A constant in place of unused numbers: the driver creates an object for each value.
        series = "series_id" if question.by else "0"
        wanted, then = f"{series}, bucket, metric, stage, scale, zero, sum, histogram", ""
        if question.counts_only:
            # Buckets are not longer than steps.
            apart = ("series_id",) * bool(question.by) + ("bucket",) * (steps is not None and steps.width is not None)
            wanted = f"{series}, max(bucket), metric, stage, min(scale), CAST(sum(count) AS BIGINT), sum(sum)"
            then = f"GROUP BY {', '.join((*apart, 'metric', 'stage'))}"
        for statement in _of_segments(question, coarser, lambda _: wanted, then):
            yield from map(_columns, _raw_rows(connection, statement))

    def read_each(
        self, connection: Connection, asked: Sequence[tuple[PointQuery, Sequence[Segment]]]
    ) -> Iterator[Columns]:
        selects: list[_Select] = []
        for number, (question, segments) in enumerate(asked):
            finest, coarser = _divided(segments)
            for table in _finest_tables(connection, question, finest):
                yield replace(_columns_of_table(table, counts_only=False), series=np.full(len(table), number))
            wanted = f"{number}, bucket, metric, stage, scale, zero, sum, histogram"
            selects += _selects(question, coarser, lambda _, wanted=wanted: wanted, suffix=f"_{number}")
        for statement in _statements(selects):
            yield from map(_columns, _raw_rows(connection, statement))

    def seen(self, connection: Connection, question: PointQuery, segments: Sequence[Segment]) -> list[SeriesSeen]:
        finest, coarser = _divided(segments)

        def wanted(segment: Segment) -> str:
            return f"series_id, sum(count), min(bucket), max(bucket) + {segment.tier - schema.FINEST}"

        return _seen_in(_finest_tables(connection, question, finest)) + [
            SeriesSeen(series_id, int(requests), first, last)
            for statement in _of_segments(question, coarser, wanted, "GROUP BY series_id")
            for series_id, requests, first, last in connection.execute(statement)
        ]

    def number(self, connection: Connection, question: PointQuery, segments: Sequence[Segment]) -> int:
        """Return the number of points; of a block all of them, because all of them are read."""
        statements = _of_segments(
            question, segments, lambda segment: _POINTS if segment.tier == schema.FINEST else "count(*)"
        )
        return sum(int(number or 0) for statement in statements for number in connection.scalars(statement))

    def load(self, connection: Connection, tier: int, start: int, stop: int) -> PointTable:
        points = schema.points
        statement = select(*(points.c[name] for name in PointRow._fields[1:])).where(
            points.c.tier == tier,
            # List all values, so that the whole key is used.
            points.c.service_id.in_(select(schema.services.c.id)),
            points.c.metric.in_(schema.ALL_METRIC_CODES),
            points.c.bucket >= start,
            points.c.bucket < stop,
        )
        return PointTable.of(PointRow(tier, *row) for piece in _raw_rows(connection, statement) for row in piece)

    def first_bucket(self, connection: Connection, tier: int, since: int) -> int | None:
        buckets: list[int] = []
        for code in schema.METRIC_CODES.values():
            where = {"tier": tier, "code": code, "since": since}
            lowest = connection.execute(_FIRST_BUCKET, where).scalar()
            if lowest is not None:
                buckets.append(lowest)
        return min(buckets, default=None)

    def cut(self, connection: Connection, tier: int, until: int) -> None:
        self._dialect.free(connection, tier, until)

    def forget(self, connection: Connection, services: Sequence[int]) -> list[tuple[int, int, int]]:
        points = schema.points
        theirs = points.c.service_id.in_(services)
        counted = select(points.c.tier, points.c.bucket, func.count()).where(theirs)
        rows = connection.execute(counted.group_by(points.c.tier, points.c.bucket)).all()
        connection.execute(delete(points).where(theirs))
        return [(tier, bucket, number) for tier, bucket, number in rows]

    def freed_seconds(self, tier: int) -> int:
        return self._dialect.FREED_SECONDS[tier]

    def used_bytes(self, connection: Connection) -> int:  # noqa: ARG002 - the database counts them
        return 0

    def tidy(self, connection: Connection, now: int) -> None:
        """Implement `Points.tidy`: nothing to do, because transactions leave no remains."""

    def close(self) -> None:
        """Implement `Points.close`: nothing to do, because the connections belong to the database."""


class _Select(NamedTuple):
    text: str
    values: dict[str, str]


def _of_segments(
    question: PointQuery, segments: Sequence[Segment], what: Callable[[Segment], str], then: str = ""
) -> Iterator[TextClause]:
    return _statements(_selects(question, segments, what, then))


def _statements(selects: Sequence[_Select]) -> Iterator[TextClause]:
    for first in range(0, len(selects), _SEGMENTS_AT_ONCE):
        part = selects[first : first + _SEGMENTS_AT_ONCE]
        values = {name: value for query in part for name, value in query.values.items()}
        yield text(" UNION ALL ".join(query.text for query in part)).bindparams(**values)


def _selects(
    question: PointQuery, segments: Sequence[Segment], what: Callable[[Segment], str], then: str = "", suffix: str = ""
) -> list[_Select]:
    """Return a select of the columns *what* from the rows of *question* in each of *segments*.

    They are text, because to build them from their parts takes longer than to execute them. No part of the text comes from data.
    Text is not restricted by `reader.filtered_engine`, so the conditions include the environments of the reader.
    """
    owners, values = _owners(question, suffix)
    return [
        _Select(
            f"SELECT {what(segment)} FROM points "  # noqa: S608 - see above
            f"WHERE tier = {schema.tier_code(segment.tier)} AND service_id IN (SELECT service_id {owners}) "
            f"AND metric IN ({', '.join(map(str, question.codes(segment.tier)))}) "
            f"AND bucket >= {segment.start} AND bucket < {segment.end}"
            f"{_of_points(question, segment, owners, suffix)} {then}",
            values | ({f"prefix{suffix}": f"{question.prefix}%"} if _has_prefix(question, segment) else {}),
        )
        for segment in segments
    ]


def _owners(question: PointQuery, suffix: str = "") -> tuple[str, dict[str, str]]:
    dimensions = question.selection.dimensions
    conditions = [f"{name} = :{name}{suffix}" for name in dimensions]
    values = {f"{name}{suffix}": value for name, value in dimensions.items()}
    if question.visible is not None:
        seen = {f"visible_{number}{suffix}": name for number, name in enumerate(sorted(question.visible))}
        conditions.append(f"environment IN ({', '.join(f':{name}' for name in seen)})" if seen else "1 = 0")
        values |= seen
    return (f"FROM series WHERE {' AND '.join(conditions)}" if conditions else "FROM series"), values


def _has_prefix(question: PointQuery, segment: Segment) -> bool:
    return bool(question.prefix) and segment.tier != schema.FINEST


def _of_points(question: PointQuery, segment: Segment, owners: str, suffix: str) -> str:
    if segment.tier == schema.FINEST:
        return ""
    stages = f" AND stage LIKE :prefix{suffix}" if _has_prefix(question, segment) else ""
    if question.is_of_services:
        return stages
    number = "total_id" if question.asks_totals(segment.tier) else "id"
    return f"{stages} AND series_id IN (SELECT {number} {owners})"


def _divided(segments: Sequence[Segment]) -> tuple[list[Segment], list[Segment]]:
    finest = [segment for segment in segments if segment.tier == schema.FINEST]
    return finest, [segment for segment in segments if segment.tier != schema.FINEST]


def _finest_tables(connection: Connection, question: PointQuery, segments: Sequence[Segment]) -> Iterator[PointTable]:
    if not segments:
        return
    numbers: Ints | None = None
    if not question.is_of_services:
        owners, values = _owners(question)
        ids = connection.scalars(text(f"SELECT id {owners}").bindparams(**values))
        numbers = np.array(ids.all(), np.int64)
    for statement in _of_segments(question, segments, lambda _: _ROW):
        for rows in _pieces(connection, statement):
            table = PointTable.of(rows)
            if numbers is not None:
                table = table.where(np.isin(table.series, numbers))
            if question.prefix:
                table = table.where(table.of_stages(lambda stage: stage.startswith(question.prefix)))
            yield table


def _pieces(connection: Connection, statement: Executable) -> Iterator[list[PointRow]]:
    held: list[PointRow] = []
    points = 0
    for rows in _raw_rows(connection, statement, PIECE_BLOCKS):
        added = [PointRow(*row) for row in rows]
        held += added
        points += sum(row.points for row in added)
        if points >= PIECE_ROWS:
            yield held
            held, points = [], 0
    if held:
        yield held


def _seen_in(tables: Iterable[PointTable]) -> list[SeriesSeen]:
    seen: dict[int, SeriesSeen] = {}
    for table in tables:
        series, index = np.unique(table.series, return_inverse=True)
        count, first, last = (
            np.zeros(len(series), np.int64),
            np.full(len(series), _LATEST),
            np.zeros(len(series), np.int64),
        )
        np.add.at(count, index, table.histograms.count)
        np.minimum.at(first, index, table.bucket)
        np.maximum.at(last, index, table.bucket)
        for one in map(SeriesSeen, series.tolist(), count.tolist(), first.tolist(), last.tolist()):
            previous = seen.get(one.series_id, one)
            requests = one.requests if previous is one else previous.requests + one.requests
            seen[one.series_id] = SeriesSeen(
                one.series_id, requests, min(previous.first, one.first), max(previous.last, one.last)
            )
    return list(seen.values())


def _raw_rows(connection: Connection, statement: Executable, at_once: int = PIECE_ROWS) -> Generator[Sequence[Any]]:
    result = connection.execute(statement)
    if result.cursor is None:
        raise AssertionError  # a select has a cursor
    while rows := result.cursor.fetchmany(at_once):
        yield rows
    result.close()


def _columns_of_table(table: PointTable, *, counts_only: bool) -> Columns:
    present, index = np.unique(table.stage, return_inverse=True)
    names = [table.stages[number] for number in present.tolist()]
    stages = sorted(names)
    position = {name: number for number, name in enumerate(stages)}
    histograms = table.histograms
    return Columns(
        times=table.bucket,
        series=table.series,
        metric=np.abs(table.metric),
        stage=np.array([position[name] for name in names], np.int64)[index],
        stages=tuple(stages),
        scale=histograms.scale,
        zero=histograms.count if counts_only else histograms.zero,
        sum=histograms.sum,
        buckets=no_buckets(len(table)) if counts_only else histograms.buckets,
    )


def stored_rows(rows: Sequence[PointRow]) -> Sequence[PointRow]:
    """Return *rows* as the database stores them: with the numbers of their tiers."""
    return [row if (code := schema.tier_code(row.tier)) == row.tier else row._replace(tier=code) for row in rows]


def _columns(rows: Sequence[Any]) -> Columns:
    series, times, metric, stage, scale, zero, total, *blobs = (
        map(itemgetter(index), rows) for index in range(len(rows[0]))
    )
    names = list(stage)
    stages = sorted(set(names))
    position = {name: index for index, name in enumerate(stages)}
    return Columns(
        times=np.fromiter(times, np.int64, len(rows)),
        series=np.fromiter(series, np.int64, len(rows)),
        metric=np.abs(np.fromiter(metric, np.int64, len(rows))),
        stage=np.fromiter(map(position.__getitem__, names), np.int64, len(rows)),
        stages=tuple(stages),
        scale=np.fromiter(scale, np.int64, len(rows)),
        zero=np.fromiter(zero, np.int64, len(rows)),
        sum=np.fromiter(total, np.float64, len(rows)),
        buckets=decode_buckets(list(blobs[0])) if blobs else no_buckets(len(rows)),
    )
