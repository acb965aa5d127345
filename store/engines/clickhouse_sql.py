"""Statements, queries and the Native wire format of points in ClickHouse.

The table is on one node, or replicated and distributed over a cluster. Buckets are two arrays, which the server can sum: the
distance of each bucket to the previous bucket (of the first bucket to zero), and its count. With T64 before ZSTD they take as
little space as the blobs of the other engines.

A Native block consists of the number of columns and of rows, then of each column: name, type, values. Counts and lengths are
varints; an array column begins with the end of each row. Numbers become numpy arrays without a Python object for each.

Source: https://clickhouse.com/docs/interfaces/formats/Native and `NativeReader.cpp`
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from ...core.columns import Buckets, offsets_of
from ...core.varint import decode_varint, encode_varint
from .. import schema
from ..retention import Retention
from ..schema import Segment, tier_code
from ..storage import Columns, PointQuery, Steps

Array = NDArray[Any]
# Array column: number of elements in each row, and the elements of all rows.
Arrays = tuple[Array, Array]

_NUMBERS = {
    **{f"Int{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"UInt{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
    "Float64": np.dtype("<f8"),
}
_ENDS = np.dtype("<u8")
# Version of the table's schema; written into the comment of the table.
VERSION = 1
COMMENT = "stagelens points "
_DAY = 86_400
# Delay of the server's TTL after the retention, for tables without a running store. The store usually drops partitions
# first, and never before they are rolled up. [seconds]
TTL_GRACE_SECONDS = 7 * _DAY
# Number of deduplication tokens that a table remembers, those of the last hours.
_REMEMBERED_INSERTS = 10_000
COLUMNS = (
    ("tier", "UInt16", "ZSTD(1)"),
    ("service_id", "UInt32", "ZSTD(1)"),
    # Metric code; negative for a total.
    ("metric", "Int8", "ZSTD(1)"),
    ("bucket", "UInt32", "DoubleDelta, ZSTD(1)"),
    ("series_id", "UInt32", "ZSTD(1)"),
    ("stage", "LowCardinality(String)", "ZSTD(1)"),
    ("part", "UInt64", "Delta, ZSTD(1)"),
    ("scale", "Int8", "ZSTD(1)"),
    ("zero", "UInt64", "T64, ZSTD(1)"),
    ("count", "UInt64", "T64, ZSTD(1)"),
    ("sum", "Float64", "ZSTD(1)"),
    ("gaps", "Array(Int32)", "T64, ZSTD(1)"),
    ("amounts", "Array(UInt64)", "T64, ZSTD(1)"),
)
# Stands in place of a bucket index in the row with the totals of a point; it is no valid index, and sorts first.
_HEAD = -(2**31)


def read_native(data: bytes) -> dict[str, Array]:
    """Return the columns of a result, empty if it has no rows; an array column `name` becomes `name` and `name.lengths`."""
    pieces: defaultdict[str, list[Array]] = defaultdict(list)
    source = _NativeReader(data)
    while source.more:
        n_columns, n_rows = source.varint(), source.varint()
        for _ in range(n_columns):
            name, kind = source.text(), source.text()
            element = kind.removeprefix("Array(").removesuffix(")")
            if element == kind:
                pieces[name].append(source.numbers(_NUMBERS[kind], n_rows))
            else:
                ends = source.numbers(_ENDS, n_rows).astype(np.int64)
                pieces[f"{name}.lengths"].append(np.diff(ends, prepend=0))
                pieces[name].append(source.numbers(_NUMBERS[element], int(ends[-1]) if n_rows else 0))
    return {name: np.concatenate(parts) for name, parts in pieces.items()} if any(map(len, pieces.values())) else {}


def write_native(columns: Mapping[str, tuple[str, Sequence[Any] | Arrays]], n_rows: int) -> bytes:
    parts = [encode_varint(len(columns)), encode_varint(n_rows)]
    for name, (kind, values) in columns.items():
        parts += [_encode_text(name), _encode_text(kind)]
        if kind == "String":
            parts += map(_encode_text, values)
        elif isinstance(values, tuple) and kind.startswith("Array("):
            lengths, flat = values
            element = kind.removeprefix("Array(").removesuffix(")")
            parts += [np.cumsum(lengths).astype(_ENDS).tobytes(), flat.astype(_NUMBERS[element]).tobytes()]
        else:
            parts.append(np.asarray(values).astype(_NUMBERS[kind]).tobytes())
    return b"".join(parts)


class _NativeReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def more(self) -> bool:
        return self._at < len(self._data)

    def varint(self) -> int:
        value, self._at = decode_varint(self._data, self._at)
        return value

    def text(self) -> str:
        size = self.varint()
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def numbers(self, kind: np.dtype[Any], count: int) -> Array:
        numbers = np.frombuffer(self._data, kind, count, self._at)
        self._at += numbers.nbytes
        return numbers


def _encode_text(value: str) -> bytes:
    data = value.encode()
    return encode_varint(len(data)) + data


# Length of a partition, by tier: the unit of deletion. A few dozen partitions in all. [seconds]
FREED_SECONDS = {tier: {10: 6 * 3600, 60: _DAY}.get(tier, 32 * _DAY) for tier in schema.TIERS}


def quote_name(name: str) -> str:
    """Return *name* as a quoted identifier.

    >>> quote_name("a`b")
    '`a``b`'
    """
    return "`" + name.replace("\\", "\\\\").replace("`", "``") + "`"


def quote_text(value: str) -> str:
    r"""Return *value* as a string literal.

    >>> quote_text("it's")
    "'it\\'s'"
    """
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def in_list(values: Sequence[int]) -> str:
    """Return *values* as the list of an IN condition.

    >>> in_list([1, 2])
    '(1, 2)'
    """
    return f"({', '.join(map(str, values))})"


@dataclass(frozen=True, slots=True)
class TableLocation:
    database: str
    cluster: str | None = None

    @property
    def points(self) -> str:
        return f"{quote_name(self.database)}.points"

    @property
    def local_name(self) -> str:
        return "points_local" if self.cluster else "points"

    @property
    def local(self) -> str:
        return f"{quote_name(self.database)}.{self.local_name}"

    @property
    def everywhere(self) -> str:
        return f" ON CLUSTER {quote_name(self.cluster)}" if self.cluster else ""

    @property
    def parts(self) -> str:
        return f"clusterAllReplicas({quote_text(self.cluster)}, system.parts)" if self.cluster else "system.parts"

    @property
    def own_parts(self) -> str:
        return f"active AND database = {quote_text(self.database)} AND table = {quote_text(self.local_name)}"


def time_to_live(retention: Retention) -> str:
    """Return the TTL of the rows, exactly as ClickHouse shows it."""
    seconds = [int(retention.of_tier(tier).total_seconds()) + TTL_GRACE_SECONDS for tier in schema.TIERS]
    return f"toDateTime(bucket) + toIntervalSecond({_by_tier(seconds)})"


def create_statements(tables: TableLocation, ttl: str | None) -> list[str]:
    """Return the statements that create the database and its tables if they do not exist."""
    columns = ", ".join(f"{name} {kind} CODEC({codec})" for name, kind, codec in COLUMNS)
    slot = f"intDiv(bucket, {_by_tier([FREED_SECONDS[tier] for tier in schema.TIERS])})"
    settings = {
        # A row expires together with nearly all of its partition, so expiry rewrites no data.
        "ttl_only_drop_parts": 1,
        "materialize_ttl_recalculate_only": 1,
        "non_replicated_deduplication_window": _REMEMBERED_INSERTS,
    }
    database = f"CREATE DATABASE IF NOT EXISTS {quote_name(tables.database)}{tables.everywhere}"
    rows = (
        f"CREATE TABLE IF NOT EXISTS {tables.local}{tables.everywhere} ({columns}) "
        f"ENGINE = {'ReplicatedMergeTree' if tables.cluster else 'MergeTree'} "
        f"PARTITION BY (tier, {slot}) ORDER BY (tier, service_id, metric, bucket, series_id, stage) "
        f"{f'TTL {ttl} ' if ttl else ''}"
        f"SETTINGS {', '.join(f'{name} = {value}' for name, value in settings.items())} "
        f"COMMENT {quote_text(f'{COMMENT}{VERSION}')}"
    )
    if not tables.cluster:
        return [database, rows]
    target = f"{quote_text(tables.cluster)}, {quote_text(tables.database)}, {tables.local_name}, cityHash64(series_id)"
    over_all = f"CREATE TABLE IF NOT EXISTS {tables.points}{tables.everywhere} AS {tables.local} ENGINE = Distributed({target})"
    return [database, rows, over_all]


def ttl_statement(tables: TableLocation, ttl: str | None) -> str:
    return f"ALTER TABLE {tables.local}{tables.everywhere} {f'MODIFY TTL {ttl}' if ttl else 'REMOVE TTL'}"


def _by_tier(values: Sequence[int]) -> str:
    *finer, coarsest = values
    return f"transform(tier, {[tier_code(tier) for tier in schema.TIERS[:-1]]}, {finer}, {coarsest})"


def select_query(what: str, source: str, where: str = "true", then: str = "") -> str:
    """Return a SELECT query. All inserted text must be a number, a quoted name or a constant of this package.

    >>> select_query("count()", "points", "tier = 10")
    'SELECT count() FROM points WHERE tier = 10'
    """
    return f"SELECT {what} FROM {source} WHERE {where} {then}".rstrip()  # noqa: S608 - see above


@dataclass(frozen=True, slots=True)
class Owners:
    """Services and series of a query, by id."""

    services: list[int]
    series: list[int] | None
    totals: list[int] | None

    @classmethod
    def of(cls, connection: Connection, question: PointQuery) -> Owners:
        series = schema.series.c
        statement = select(series.service_id, series.id, series.total_id).where(*question.selection.conditions())
        rows = connection.execute(statement).all()
        services = sorted({row[0] for row in rows})
        if question.is_of_services:
            return cls(services, None, None)
        return cls(services, sorted({row[1] for row in rows}), sorted({row[2] for row in rows}))


def conditions(question: PointQuery, segments: Sequence[Segment], owners: Owners) -> str:
    wanted = [f"service_id IN {in_list(owners.services)}"]
    if question.prefix:
        wanted.append(f"startsWith(stage, {quote_text(question.prefix)})")
    by_segment = " OR ".join(f"({_of_segment(question, segment, owners)})" for segment in segments)
    return " AND ".join([*wanted, f"({by_segment})"])


def _of_segment(question: PointQuery, segment: Segment, owners: Owners) -> str:
    wanted = [
        f"tier = {tier_code(segment.tier)}",
        f"metric IN {in_list(question.codes(segment.tier))}",
        f"bucket >= {segment.start} AND bucket < {segment.end}",
    ]
    numbers = owners.totals if question.asks_totals(segment.tier) else owners.series
    if numbers is not None:
        wanted.append(f"series_id IN {in_list(numbers)}")
    return " AND ".join(wanted)


def stage_column(stages: Sequence[str]) -> str:
    return f"toUInt16(indexOf([{', '.join(map(quote_text, stages))}], stage)) AS place"


def sum_query(table: str, where: str, stages: Sequence[str], steps: Steps | None, question: PointQuery) -> str:
    """Return the query for points summed by step, metric, stage and scale, and by series if requested.

    The result has a row for the totals of a point, followed by a row for each bucket. All columns are numbers, because a text
    column among the keys makes summing three times slower.
    """
    step = "0"
    if steps is not None and steps.width is not None:
        step = f"greatest(bucket - bucket % {steps.width}, {steps.start})"
    keys = (
        f"toUInt32({step}) AS step, toUInt32({'series_id' if question.by else '0'}) AS owner, metric, "
        f"{stage_column(stages)}, scale"
    )
    group = "step, owner, metric, place, scale"
    held = "count" if question.counts_only else "zero"
    heads = select_query(
        f"{keys}, toInt32({_HEAD}) AS index, toInt64(sum({held})) AS held, sum(sum) AS total, max(bucket) AS last",
        table,
        where,
        f"GROUP BY {group}",
    )
    if question.counts_only:
        return select_query("*", f"({heads})", then=f"ORDER BY {group}")
    buckets = select_query(
        f"{keys}, toInt32(at) AS index, toInt64(sum(amount)) AS held, toFloat64(0) AS total, toUInt32(0) AS last",
        f"{table} ARRAY JOIN arrayCumSum(gaps) AS at, amounts AS amount",
        where,
        f"GROUP BY {group}, index",
    )
    return select_query("*", f"({buckets} UNION ALL {heads})", then=f"ORDER BY {group}, index")


def columns_of_result(result: Mapping[str, Array], stages: Sequence[str]) -> Columns:
    """Return the result of `sum_query`, which has at least one point, as columns sorted by time."""
    index = result["index"]
    heads = np.flatnonzero(index == _HEAD)
    lengths = np.diff(heads, append=len(index)) - 1
    order = np.argsort(result["last"][heads], kind="stable")
    heads, lengths = heads[order], lengths[order]
    offsets = offsets_of(lengths)
    filled = np.arange(offsets[-1]) + np.repeat(heads + 1 - offsets[:-1], lengths)
    points = {name: column[heads] for name, column in result.items()}
    return Columns(
        times=points["last"].astype(np.int64),
        series=points["owner"].astype(np.int64),
        metric=np.abs(points["metric"].astype(np.int64)),
        stage=points["place"].astype(np.int64) - 1,
        stages=tuple(stages),
        scale=points["scale"].astype(np.int64),
        zero=points["held"].astype(np.int64),
        sum=points["total"].astype(np.float64),
        buckets=Buckets(offsets, index[filled].astype(np.int64), result["held"][filled].astype(np.int64)),
    )
