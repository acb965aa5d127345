"""The table of points in ClickHouse: for one node, or replicated and spread over the nodes of a cluster.

Buckets are two arrays, which the server adds up itself: the distance of each bucket to the one before it (of the first to
zero) and its count. With T64 before ZSTD they take as little room as the blobs of the other engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .. import schema
from ..retention import Retention

# Of the table's form; written into its comment.
VERSION = 1
COMMENT = "stagelens points "

_DAY = 86_400
# Time in one partition, by tier: what is dropped at once. A few dozen partitions in all. [seconds]
FREED_SECONDS = {10: 6 * 3600, 60: _DAY, 3600: 32 * _DAY}
# The store drops partitions itself, and never before they are rolled up. The server's own clock gets its say this much later:
# for a table that nobody tends any more. [seconds]
TTL_GRACE_SECONDS = 7 * _DAY
# Inserts a table remembers the tokens of: those of the last hours.
_REMEMBERED_INSERTS = 10_000

COLUMNS = (
    ("tier", "UInt16", "ZSTD(1)"),
    ("service_id", "UInt32", "ZSTD(1)"),
    # Negative for a total.
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


def quoted(name: str) -> str:
    """Return *name* as an identifier.

    >>> quoted("a`b")
    '`a``b`'
    """
    return "`" + name.replace("\\", "\\\\").replace("`", "``") + "`"


def text(value: str) -> str:
    r"""Return *value* as a string of SQL.

    >>> text("it's")
    "'it\\'s'"
    """
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def listed(values: Sequence[int]) -> str:
    """Return *values* as the list of an IN.

    >>> listed([1, 2])
    '(1, 2)'
    """
    return f"({', '.join(map(str, values))})"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the table is.

    Args:
        database: Its database.
        cluster: The cluster it is spread over; None for one node.
    """

    database: str
    cluster: str | None = None

    @property
    def points(self) -> str:
        """The table that is written to and read from."""
        return f"{quoted(self.database)}.points"

    @property
    def local_name(self) -> str:
        """The name of the table that holds the rows, on each node."""
        return "points_local" if self.cluster else "points"

    @property
    def local(self) -> str:
        """The table that holds the rows, on each node."""
        return f"{quoted(self.database)}.{self.local_name}"

    @property
    def everywhere(self) -> str:
        """What makes a statement run on all nodes."""
        return f" ON CLUSTER {quoted(self.cluster)}" if self.cluster else ""

    @property
    def parts(self) -> str:
        """The server's list of the pieces in which tables are stored."""
        return f"clusterAllReplicas({text(self.cluster)}, system.parts)" if self.cluster else "system.parts"

    @property
    def own_parts(self) -> str:
        """Which of them are in use, and of the table that holds the rows."""
        return f"active AND database = {text(self.database)} AND table = {text(self.local_name)}"


def time_to_live(retention: Retention) -> str:
    """Return the TTL of the rows; in the words in which ClickHouse repeats it."""
    seconds = [int(retention.of_tier(tier).total_seconds()) + TTL_GRACE_SECONDS for tier in schema.TIERS]
    return f"toDateTime(bucket) + toIntervalSecond({_by_tier(seconds)})"


def create(place: Place, ttl: str | None) -> list[str]:
    """Return the statements that make the database and its tables, where they are not there yet.

    Args:
        place: Where.
        ttl: The TTL of the rows, see `time_to_live`; None to leave all deleting to the store.
    """
    columns = ", ".join(f"{name} {kind} CODEC({codec})" for name, kind, codec in COLUMNS)
    slot = f"intDiv(bucket, {_by_tier([FREED_SECONDS[tier] for tier in schema.TIERS])})"
    settings = {
        # A row is past its time together with all of its partition, nearly: nothing is rewritten for it.
        "ttl_only_drop_parts": 1,
        "materialize_ttl_recalculate_only": 1,
        "non_replicated_deduplication_window": _REMEMBERED_INSERTS,
    }
    database = f"CREATE DATABASE IF NOT EXISTS {quoted(place.database)}{place.everywhere}"
    rows = (
        f"CREATE TABLE IF NOT EXISTS {place.local}{place.everywhere} ({columns}) "
        f"ENGINE = {'ReplicatedMergeTree' if place.cluster else 'MergeTree'} "
        f"PARTITION BY (tier, {slot}) ORDER BY (tier, service_id, metric, bucket, series_id, stage) "
        f"{f'TTL {ttl} ' if ttl else ''}"
        f"SETTINGS {', '.join(f'{name} = {value}' for name, value in settings.items())} "
        f"COMMENT {text(f'{COMMENT}{VERSION}')}"
    )
    if not place.cluster:
        return [database, rows]
    target = f"{text(place.cluster)}, {text(place.database)}, {place.local_name}, cityHash64(series_id)"
    over_all = (
        f"CREATE TABLE IF NOT EXISTS {place.points}{place.everywhere} AS {place.local} ENGINE = Distributed({target})"
    )
    return [database, rows, over_all]


def change_ttl(place: Place, ttl: str | None) -> str:
    """Return the statement that gives the rows another TTL, or none."""
    return f"ALTER TABLE {place.local}{place.everywhere} {f'MODIFY TTL {ttl}' if ttl else 'REMOVE TTL'}"


def _by_tier(values: Sequence[int]) -> str:
    *finer, coarsest = values
    return f"transform(tier, {list(schema.TIERS[:-1])}, {finer}, {coarsest})"
