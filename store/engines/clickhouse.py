"""Points in ClickHouse, beside a relational database; connection to ClickHouse, and its errors with the fix for the operator.

A write has three steps: the relational database assigns a part number and records the intent; the rows are inserted into
ClickHouse with that part; the relational database removes the intent together with everything else the write does. Readers
see the parts known to their database snapshot, without those that are still intents, so that both databases show the same
moment. Rows of a process that died in between are deleted later.
"""

from __future__ import annotations

import time
from ast import literal_eval
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from sqlalchemy import Connection, Engine, delete, insert, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from ...core.columns import Buckets, offsets_of
from ...core.errors import StoreError
from .. import schema
from ..bucket_blobs import decode_buckets, encode_buckets
from ..points import PointRow, PointTable
from ..retention import Retention
from ..schema import Segment, tier_code, tier_width
from ..storage import Columns, PointQuery, PreparedWrite, SeriesSeen, Steps
from . import clickhouse_sql as sql
from . import database
from .clickhouse_sql import COLUMNS, Array, TableLocation, read_native

try:
    import clickhouse_connect
    from clickhouse_connect.driver.client import Client
    from clickhouse_connect.driver.exceptions import ClickHouseError
except ModuleNotFoundError as missing:
    _MESSAGE = f'points in ClickHouse need its driver, which is not installed ({missing}).\n    pip install "stagelens[clickhouse]"'
    raise StoreError(_MESSAGE) from missing

_URL_FORM = "clickhousedb://user:password@host:8123/database, with ?cluster=NAME for a cluster"
_DATABASE = "stagelens"
_CONNECT_SECONDS, _RESPONSE_SECONDS = 10, 60

# Parts of error messages, in lower case, and the fix for each.
_FIXES = (
    ("authentication failed", "the server rejects this user or password; check both in STAGELENS_POINTS"),
    (
        "not enough privileges",
        "this user lacks a right; grant it CREATE, ALTER, INSERT, SELECT and DELETE on the database",
    ),
    ("cluster_doesnt_exist", "the server has no such cluster; correct ?cluster= or the server's remote_servers"),
    ("without zookeeper", "a replicated table needs Keeper; configure it on the server, or remove ?cluster="),
    ("readonly", "the server rejects writes; check its disks and system.replicas"),
    ("read-only", "the server rejects writes; check its disks and system.replicas"),
    ("no space", "the server's disk is full; free some space, writing then continues automatically"),
    ("not_enough_space", "the server's disk is full; free some space, writing then continues automatically"),
    ("memory_limit_exceeded", "the server is out of memory; raise max_memory_usage, or use a shorter time"),
    ("too_many_parts", "the server merges slower than it receives writes; check system.merges and its disks"),
    ("chdb engine", "chDB is in use: one directory per process, one process per directory; stop the other process"),
    (
        "connection",
        "the server cannot be reached; check that it runs, its address and its HTTP port (8123, or 8443 with TLS)",
    ),
    ("resolve", "there is no such host; correct STAGELENS_POINTS"),
    ("timed out", "the server did not respond in time; check system.processes"),
)
# Settings that the server's profile might override.
_SETTINGS = {
    # Lists of series may be long.
    "max_query_size": 1 << 24,
    # An acknowledged insert must be written.
    "async_insert": 0,
    "insert_deduplicate": 1,
    # Late rows and copies of whole stores span many partitions.
    "max_partitions_per_insert_block": 0,
    "max_partition_size_to_drop": 0,
    "lightweight_deletes_sync": 2,
}
_CLUSTER_SETTINGS = {
    # An acknowledged insert must have reached its shard.
    "insert_distributed_sync": 1,
    # Read and write the same replica of each shard while it lives, so that reads see previous writes.
    "load_balancing": "in_order",
}
# Age at which an intent is orphaned, longer than any insert takes. [seconds]
ORPHANED_SECONDS = 600
_PLAIN = PointRow._fields[:-1]
_NUMBER_COLUMNS = tuple(name for name in _PLAIN if name != "stage")
# Columns sent as strings; the server converts them.
_KINDS = {name: "String" if name == "stage" else kind for name, kind, _ in sql.COLUMNS}


class ClickHouseServer:
    """A ClickHouse server, cluster or embedded directory. Thread-safe."""

    def __init__(self, client: Client, url: URL, tables: TableLocation) -> None:
        self._client = client
        self._url = url
        self.place = tables

    @classmethod
    def open(cls, url: URL) -> ClickHouseServer:
        options = {name: str(value) for name, value in url.query.items() if name not in {"cluster", "ttl"}}
        cluster = url.query.get("cluster")
        tables = TableLocation(url.database or _DATABASE, str(cluster) if cluster else None)
        settings = _SETTINGS | (_CLUSTER_SETTINGS if cluster else {})
        with _explain_errors(url, "cannot open"):
            return cls(_client(url, options, settings), url, tables)

    def check(self) -> None:
        self.command("SELECT 1", "cannot reach")

    def command(self, statement: str, doing: str = "cannot change") -> None:
        """Execute *statement*, which has no result; *doing* describes the action in errors."""
        with _explain_errors(self._url, doing):
            self._client.command(statement)

    def rows(self, query: str) -> Sequence[Sequence[Any]]:
        with _explain_errors(self._url, "cannot read"):
            return self._client.query(query).result_rows

    def table(self, query: str) -> dict[str, Array]:
        """Return the result of *query*, numbers and arrays, as columns; see `read_native`."""
        with _explain_errors(self._url, "cannot read"):
            return read_native(self._client.raw_query(query, fmt="Native"))

    def insert(self, block: bytes, token: str) -> None:
        """Insert rows from `write_native`; a repeated insert with the same *token* has no effect."""
        with _explain_errors(self._url, "cannot write to"):
            self._client.raw_insert(
                self.place.points,
                [name for name, _, _ in COLUMNS],
                block,
                fmt="Native",
                settings={"insert_deduplication_token": token},
            )

    def close(self) -> None:
        self._client.close()

    def location(self) -> str:
        return _location(self._url)


def parse_url(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        msg = f"the URL of the points {url!r} cannot be read; write {_URL_FORM}"
        raise StoreError(msg) from error
    if parsed.drivername != "clickhousedb":
        msg = f"the URL of the points is {_location(parsed)!r}; write {_URL_FORM}"
        raise StoreError(msg)
    return parsed


def _location(url: URL) -> str:
    return url.render_as_string(hide_password=True)


def _client(url: URL, options: dict[str, str], settings: dict[str, Any]) -> Client:
    if options.get("interface") == "chdb":
        return clickhouse_connect.get_client(interface="chdb", path=options.get("path"), settings=settings)
    # Without the database, which may not exist yet.
    dsn = url._replace(database=None, query=options).render_as_string(hide_password=False)  # pyright: ignore[reportArgumentType] - None is allowed
    return clickhouse_connect.get_client(
        dsn=dsn,
        settings=settings,
        client_name="stagelens",
        connect_timeout=_CONNECT_SECONDS,
        send_receive_timeout=_RESPONSE_SECONDS,
        # Threads query concurrently, which one session does not allow.
        autogenerate_session_id=False,
    )


@contextmanager
def _explain_errors(url: URL, doing: str) -> Generator[None]:
    """Convert errors of the driver to `StoreError` with the server and the fix; *doing* is the action, as in "cannot open"."""
    try:
        yield
    except (ClickHouseError, ImportError) as error:
        text = " ".join(str(error).split())
        fix = next((fix for sign, fix in _FIXES if sign in text.lower()), "see the error of the server")
        msg = f"{doing} {_location(url)}: {fix} ({text})"
        raise StoreError(msg) from error


_KEY = _PLAIN[: 1 + _PLAIN.index("part")]


class ClickHousePoints:
    def __init__(self, server: ClickHouseServer, clock: Callable[[], float] = time.time) -> None:
        self.server = server
        self._place = server.place
        self._clock = clock
        # Identity of the relational database whose rows the table has; None before the first write.
        self._owner: str | None = None

    @classmethod
    def open(cls, url: str, retention: Retention, clock: Callable[[], float] = time.time) -> ClickHousePoints:
        """Open the table at *url*; if needed, create the table or change its TTL to that of *retention*.

        Args:
            url: `clickhousedb://user:password@host:8123/database`. `?cluster=NAME` distributes the table over a cluster,
                `?ttl=off` leaves all deletion to the store; other parameters are options of the driver.
        """
        parsed = parse_url(url)
        server = ClickHouseServer.open(parsed)
        try:
            _create_tables(server, None if parsed.query.get("ttl") == "off" else sql.time_to_live(retention))
        except BaseException:
            server.close()
            raise
        return cls(server, clock)

    def apply(self, engine: Engine, prepare: Callable[[Connection], PreparedWrite | None]) -> bool:
        """Apply the write in the three steps of the module docstring, under a lock that excludes other writes."""
        # Check first, so that a write that cannot succeed leaves no intent.
        self.server.check()
        with database.exclusively(engine, "cannot write to") as connection:
            with connection.begin():
                change = prepare(connection)
                if change is None:
                    return False
                if not change.rows:
                    change.finish(connection)
                    return True
                self._check_owner(connection, change.part)
                connection.execute(insert(schema.intents).values(part=change.part, taken_at=int(self._clock())))
            self._insert(change)
            with connection.begin():
                self._strike_out(connection, change.part)
                change.finish(connection)
        return True

    def read(
        self, connection: Connection, question: PointQuery, segments: Sequence[Segment], steps: Steps | None
    ) -> Iterator[Columns]:
        where = _where_clause(connection, question, segments)
        if where is None:
            return
        stages = self._stages(where)
        if stages:
            query = sql.sum_query(self._place.points, where, stages, steps, question)
            yield sql.columns_of_result(self.server.table(query), stages)

    def read_each(
        self, connection: Connection, asked: Sequence[tuple[PointQuery, Sequence[Segment]]]
    ) -> Iterator[Columns]:
        for number, (question, segments) in enumerate(asked):
            for columns in self.read(connection, replace(question, by=None), segments, None):
                yield replace(columns, series=np.full(len(columns), number))

    def seen(self, connection: Connection, question: PointQuery, segments: Sequence[Segment]) -> list[SeriesSeen]:
        where = _where_clause(connection, question, segments)
        if where is None:
            return []
        what = "tier, series_id, sum(count), min(bucket), max(bucket)"
        query = sql.select_query(what, self._place.points, where, "GROUP BY tier, series_id")
        return [
            SeriesSeen(series_id, requests, first, last + tier_width(code) - schema.FINEST)
            for code, series_id, requests, first, last in self.server.rows(query)
        ]

    def number(self, connection: Connection, question: PointQuery, segments: Sequence[Segment]) -> int:
        where = _where_clause(connection, question, segments)
        if where is None:
            return 0
        return self.server.rows(sql.select_query("count()", self._place.points, where))[0][0]

    def finest_rows(self, table: PointTable, part: int) -> list[PointRow]:
        return table.rows(schema.FINEST, part)

    def load(self, connection: Connection, tier: int, start: int, stop: int) -> PointTable:
        where = f"tier = {tier_code(tier)} AND bucket >= {start} AND bucket < {stop} AND {_visible_parts(connection)}"
        stages = self._stages(where)
        if not stages:
            return PointTable.of(())
        what = f"{', '.join(_NUMBER_COLUMNS)}, {sql.stage_column(stages)}, gaps, amounts"
        table = self.server.table(sql.select_query(what, self._place.points, where, f"ORDER BY {', '.join(_KEY)}"))
        plain = {name: column.tolist() for name, column in table.items() if name in _NUMBER_COLUMNS}
        plain["tier"] = [tier] * len(plain["tier"])
        plain["stage"] = [stages[number - 1] for number in table["place"].tolist()]
        gaps, amounts = table["gaps"].astype(np.int64), table["amounts"].astype(np.int64)
        blobs = encode_buckets(Buckets.of_gaps(gaps, offsets_of(table["gaps.lengths"]), amounts))
        return PointTable.of(PointRow(*row) for row in zip(*(plain[name] for name in _PLAIN), blobs, strict=True))

    def first_bucket(self, connection: Connection, tier: int, since: int) -> int | None:
        where = f"tier = {tier_code(tier)} AND bucket >= {since} AND {_visible_parts(connection)}"
        return self.server.rows(sql.select_query("minOrNull(bucket)", self._place.points, where))[0][0]

    def cut(self, connection: Connection, tier: int, until: int) -> None:  # noqa: ARG002 - no row of the database goes with it
        width = sql.FREED_SECONDS[tier]
        query = sql.select_query("DISTINCT partition", self._place.parts, self._place.own_parts)
        for (partition,) in self.server.rows(query):
            owner, slot = literal_eval(partition)
            if owner == tier_code(tier) and (slot + 1) * width <= until:
                self.server.command(
                    f"ALTER TABLE {self._place.local}{self._place.everywhere} DROP PARTITION {partition}"
                )

    def forget(self, connection: Connection, services: Sequence[int]) -> list[tuple[int, int, int]]:
        """Delete all rows of *services*; after a rollback of the transaction it must be repeated."""
        theirs = f"service_id IN {sql.in_list(services)}"
        counted = f"{theirs} AND {_visible_parts(connection)}"
        rows = self.server.rows(
            sql.select_query("tier, bucket, count()", self._place.points, counted, "GROUP BY tier, bucket")
        )
        self.server.command(f"DELETE FROM {self._place.local}{self._place.everywhere} WHERE {theirs}")  # noqa: S608 - numbers
        return [(tier_width(code), bucket, number) for code, bucket, number in rows]

    def freed_seconds(self, tier: int) -> int:
        return sql.FREED_SECONDS[tier]

    def used_bytes(self, connection: Connection) -> int:  # noqa: ARG002 - the server counts them
        return self.server.rows(sql.select_query("sum(bytes_on_disk)", self._place.parts, self._place.own_parts))[0][0]

    def tidy(self, connection: Connection, now: int) -> None:
        intents = schema.intents
        orphans = connection.scalars(select(intents.c.part).where(intents.c.taken_at < now - ORPHANED_SECONDS)).all()
        if orphans:
            which = f"part IN {sql.in_list(orphans)}"
            self.server.command(f"DELETE FROM {self._place.local}{self._place.everywhere} WHERE {which}")  # noqa: S608 - numbers
            connection.execute(delete(intents).where(intents.c.part.in_(orphans)))

    def close(self) -> None:
        self.server.close()

    def _check_owner(self, connection: Connection, part: int) -> None:
        """Raise StoreError if the table belongs to another database, whose numbers identify other services and series."""
        owner = connection.scalars(select(database.generation(connection))).one()
        if owner == self._owner:
            return
        newest = self.server.rows(sql.select_query("max(part)", self._place.points))[0][0]
        if newest >= part:
            msg = (
                f"cannot write to {self.server.location()}: its last write has number {newest}, but the next number of the database is "
                f"{part}; it belongs to another database, or the database is an older copy. Use the right or an empty "
                f"ClickHouse database; or delete the parts that the copy lacks, from {self._place.local} all with part >= {part}"
            )
            raise StoreError(msg)
        self._owner = owner

    def _stages(self, where: str) -> list[str]:
        rows = self.server.rows(sql.select_query("DISTINCT stage", self._place.points, where, "ORDER BY stage"))
        return [row[0] for row in rows]

    def _insert(self, change: PreparedWrite) -> None:
        *plain, blobs = zip(*database.stored_rows(change.rows), strict=True)
        buckets = decode_buckets(blobs)
        values = [*plain, (buckets.lengths, buckets.gaps), (buckets.lengths, buckets.amount)]
        columns = {name: (_KINDS[name], column) for name, column in zip(_KINDS, values, strict=True)}
        self.server.insert(sql.write_native(columns, len(change.rows)), str(change.part))

    def _strike_out(self, connection: Connection, part: int) -> None:
        struck = connection.execute(delete(schema.intents).where(schema.intents.c.part == part))
        if not struck.rowcount:
            msg = f"a write to {self.server.location()} took longer than {ORPHANED_SECONDS} s and was cancelled; it can be repeated"
            raise StoreError(msg)


def _create_tables(server: ClickHouseServer, ttl: str | None) -> None:
    tables = server.place
    which = f"database = {sql.quote_text(tables.database)} AND name = {sql.quote_text(tables.local_name)}"
    rows = server.rows(sql.select_query("comment, engine_full", "system.tables", which))
    if not rows:
        for statement in sql.create_statements(tables, ttl):
            server.command(statement, "cannot make the tables of")
        return
    comment, engine = rows[0]
    if comment != f"{sql.COMMENT}{sql.VERSION}":
        msg = (
            f"cannot open {server.location()}: its table {tables.local} is not of this version ({comment!r}); upgrade Stagelens, "
            "or use another database"
        )
        raise StoreError(msg)
    if (ttl not in engine) if ttl else (" TTL " in engine):
        server.command(sql.ttl_statement(tables, ttl))


def _where_clause(connection: Connection, question: PointQuery, segments: Sequence[Segment]) -> str | None:
    owners = sql.Owners.of(connection, question)
    if not owners.services or not segments:
        return None
    return f"{sql.conditions(question, segments, owners)} AND {_visible_parts(connection)}"


def _visible_parts(connection: Connection) -> str:
    last = connection.scalars(select(schema.store.c.last_part)).one()
    pending = connection.scalars(select(schema.intents.c.part)).all()
    return f"part <= {last}" + (f" AND part NOT IN {sql.in_list(pending)}" if pending else "")
