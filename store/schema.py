"""Tables of the store in SQLAlchemy Core, metric codes, conversion of text that not every engine can store, and tiers of points.

Rows of `points` are only added and, when they expire, deleted; readers sum them. Times are integers: Unix seconds in
`points`, `series`, `batches`, `inbox` and `outgoing`, milliseconds in `events`, nanoseconds in `traces` and `loads`.

A tier holds all data in `[kept_from, watermark)`; the finest tier is always complete up to now. `plan_segments` reads a stretch
of time from the coarsest tier that fits; the edges of the stretch that are no whole buckets, and the part that is not rolled up
yet, are read from finer tiers. A bucket belongs to the stretch in which it starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    select,
    update,
)

from ..core import names

# Maximum length of a name: all dimensions of a series together must fit into an index entry of PostgreSQL, which has
# at most 2704 bytes.
MAX_NAME_BYTES = 256


def is_storable(text: str) -> bool:
    """Return whether *text* is certainly unchanged by `storable`; False for any non-ASCII text."""
    return text.isascii() and "\0" not in text


def storable(text: str) -> str:
    r"""Return *text* with U+FFFD for NUL, which PostgreSQL cannot store, and "?" for unpaired surrogates.

    >>> storable("a\0b\ud800")
    'a\ufffdb?'
    """
    return text if is_storable(text) else text.replace("\0", "\ufffd").encode(errors="replace").decode()


def storable_name(text: str) -> str:
    """Return *text* as a name of a dimension or stage: converted by `storable`, and cut to `MAX_NAME_BYTES` bytes.

    >>> storable_name("推論" * 1000) == "推論" * 42 + "推"
    True
    """
    return storable(text).encode()[:MAX_NAME_BYTES].decode(errors="ignore")


_MINUTE, _HOUR, _DAY = 60, 3600, 86_400

# Width of the buckets of each tier, finest first. Each width divides the next, so a bucket lies in one coarser bucket. [seconds]
TIERS = (10, _MINUTE, 10 * _MINUTE, _HOUR, 6 * _HOUR, _DAY)
FINEST, COARSEST = TIERS[0], TIERS[-1]

# Tiers of at least this width have no rows of replicas, because each deployment has new replicas. [seconds]
WITHOUT_REPLICAS = _HOUR

# Length of a slot, the unit of deletion and of the ledger, by tier. [seconds]
SLOT_SECONDS = {tier: _HOUR if tier < _HOUR else _DAY for tier in TIERS}


def tier_code(seconds: int) -> int:
    """Return the number of the tier with buckets of *seconds* in the database, where its column has two bytes: a day is 24 hours."""
    return seconds // _HOUR if seconds == _DAY else seconds


def tier_width(code: int) -> int:
    """Return the width of the buckets of the tier with the number *code*, see `tier_code`; in seconds."""
    return _BY_CODE[code]


_BY_CODE = {tier_code(tier): tier for tier in TIERS}


class TierNumber(TypeDecorator[int]):
    """Column of tiers: widths of buckets in seconds, stored as `tier_code`."""

    impl = SmallInteger
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002 - the same for every dialect
        return None if value is None else tier_code(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002 - the same for every dialect
        return None if value is None else tier_width(value)


# Number of each metric in the database, one byte in every row; the numbers must never change.
METRIC_CODES = {
    names.REQUEST_DURATION: 1,
    names.STAGE_DURATION: 2,
    names.STAGE_TIME: 3,
    names.FIRST_TOKEN: 4,
    names.OUTPUT_TOKEN: 5,
    names.STREAM_GAP: 6,
    names.FIRST_TOKEN_TIME: 7,
    names.TOKENS: 8,
    names.FAILED_CALL: 9,
    names.BATCH_DURATION: 10,
    names.FIRST_TOKEN_BY_INPUT: 11,
    names.OUTPUT_TOKEN_BY_OUTPUT: 12,
    names.ENGINE_REQUEST[0]: 13,
    names.ENGINE_REQUEST[1]: 14,
    names.ENGINE_STAGE[0]: 15,
    names.ENGINE_STAGE[1]: 16,
    names.ENGINE_FIRST_TOKEN[0]: 17,
    names.ENGINE_FIRST_TOKEN[1]: 18,
    names.ENGINE_OUTPUT_TOKEN[0]: 19,
    names.ENGINE_OUTPUT_TOKEN[1]: 20,
    names.ENGINE_TOKENS: 21,
    names.ENGINE_BATCH: 22,
    names.SUSPECT_REPORT: 23,
    names.STALL_TIME: 24,
    names.AGENT_COST: 25,
    names.AGENT_BACKGROUND: 26,
    names.HARDWARE: 27,
    names.PROFILE_TIME: 28,
    names.REQUEST_BY_ATTRIBUTE: 29,
    names.REPLICA_STAGE_TIME: 30,
    names.OPEN_TIME: 31,
    names.PROBE_DURATION: 32,
    names.COLLECTOR_LOST: 33,
}

# Metrics without totals: their rows are the most numerous, and queries read them for one service at a time.
WITHOUT_TOTALS = frozenset({names.REQUEST_BY_ATTRIBUTE, names.REPLICA_STAGE_TIME, names.OPEN_TIME})

ALL_METRIC_CODES = (*(-code for code in METRIC_CODES.values()), *METRIC_CODES.values())

# Columns of `series` that identify a series.
DIMENSIONS = ("service", "version", "environment", "model", "model_version", "route", "device", "status", "cold")

# Dimensions of a total, which adds up all series with equal values of them. Coarser tiers hold totals beside the series, and
# nearly every query reads totals, so its cost does not depend on the number of routes or devices of a service.
TOTAL_DIMENSIONS = ("service", "version", "environment", "status", "cold")

metadata = MetaData()

# Single row: state shared by all writers.
store = Table(
    "store",
    metadata,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    # The number of the last write.
    Column("last_part", BigInteger, nullable=False),
    # Increases when series are deleted; ids cached by other processes are then invalid.
    Column("series_epoch", BigInteger, nullable=False),
    # End of the aggregation lease of the inbox; 0 or past when free. [Unix seconds]
    Column("folding_until", BigInteger, nullable=False, server_default="0"),
)

services = Table(
    "services",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    # The `part` of the last write that touched the service.
    Column("revision", BigInteger, nullable=False),
)

series = Table(
    "series",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("service_id", Integer, ForeignKey("services.id"), nullable=False),
    *(Column(dimension, Text, nullable=False) for dimension in DIMENSIONS[:-1]),
    # "1" for requests in which something was loaded or warmed up, "0" otherwise or if unknown.
    Column(DIMENSIONS[-1], Text, nullable=False, server_default="0"),
    # Id of the total that the series belongs to, which is the id of the first series of the total.
    Column("total_id", Integer, nullable=False, server_default="0"),
    # Starts of the first and the last 10 s bucket with data. [Unix seconds]
    Column("first_seen", BigInteger, nullable=False),
    Column("last_seen", BigInteger, nullable=False),
    UniqueConstraint(*DIMENSIONS, name="series_dimensions"),
    # Ids are never reused: a remaining row of a deleted series must not appear in another series.
    sqlite_autoincrement=True,
)

stages = Table(
    "stages",
    metadata,
    Column("service_id", Integer, ForeignKey("services.id"), primary_key=True),
    Column("stage", Text, primary_key=True),
)

# Texts of the call stacks in points of the tail profiler, whose rows have only the hash; see `series.stack_row`.
code_stacks = Table(
    "code_stacks",
    metadata,
    Column("hash", Text, primary_key=True),
    Column("service_id", Integer, ForeignKey("services.id"), primary_key=True),
    # Frames as in `core.code_stack.stack_key`, without the stage.
    Column("text", Text, nullable=False),
    # Day of the last use. [Unix seconds]
    Column("last_seen", BigInteger, nullable=False),
    # A covering index for deletion, so that the texts are not read.
    Index("code_stacks_by_use", "last_seen", "hash", "service_id"),
)

# The order of the key follows the queries of pages: one service, one or two metrics, and a stretch of time. A batch comes from
# one service, so its rows are appended in three places of the index and not in one for each series.
points = Table(
    "points",
    metadata,
    Column("tier", TierNumber, primary_key=True),
    Column("service_id", Integer, primary_key=True),
    # Metric code; negative for a total.
    Column("metric", SmallInteger, primary_key=True),
    Column("bucket", BigInteger, primary_key=True),
    Column("series_id", Integer, primary_key=True),
    Column("stage", Text, primary_key=True),
    # Number of the write that added the row.
    Column("part", BigInteger, primary_key=True),
    Column("scale", SmallInteger, nullable=False),
    Column("zero", BigInteger, nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("sum", Double, nullable=False),
    Column("histogram", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
    # Retention drops whole partitions, which frees their space at once.
    postgresql_partition_by="RANGE (tier, bucket)",
)

# Parts that are being written while points are in another database; readers ignore them.
intents = Table(
    "intents",
    metadata,
    Column("part", BigInteger, primary_key=True, autoincrement=False),
    Column("taken_at", BigInteger, nullable=False),
)

# Number of rows of `points` in each slot of each tier, updated with every write, because counting would read the whole table.
ledger = Table(
    "ledger",
    metadata,
    Column("tier", TierNumber, primary_key=True, autoincrement=False),
    Column("slot", BigInteger, primary_key=True, autoincrement=False),
    Column("rows", BigInteger, nullable=False),
    # Size of the encoded histograms alone.
    Column("bytes", BigInteger, nullable=False),
)

traces = Table(
    "traces",
    metadata,
    # Requests of one distributed trace share its id (retries, fan-out); their root spans distinguish them.
    Column("trace_id", Text, primary_key=True),
    Column("span_id", Text, primary_key=True),
    Column("series_id", Integer, ForeignKey("series.id"), nullable=False),
    Column("started", BigInteger, nullable=False),
    Column("duration", BigInteger, nullable=False),
    Column("because", Text, nullable=False),
    Column("dominant", Text, nullable=False),
    # JSON: nanoseconds by stage.
    Column("stages", Text, nullable=False),
    # Compressed JSON: the spans and the attributes of the root.
    Column("spans", LargeBinary, nullable=False),
    Index("traces_by_series", "series_id", "started"),
    Index("traces_by_time", "started"),
)

batches = Table(
    "batches",
    metadata,
    Column("id", Text, primary_key=True),
    Column("received", BigInteger, nullable=False),
    Column("instance", Text, nullable=False),
    Column("dropped", BigInteger, nullable=False),
    Index("batches_by_time", "received"),
)
# There are millions of batches; few of them have dropped requests.
Index("batches_dropped", batches.c.dropped, sqlite_where=batches.c.dropped > 0, postgresql_where=batches.c.dropped > 0)

# Spans that wait until their requests are complete, and the roots of counted requests.
inbox = Table(
    "inbox",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("received", BigInteger, nullable=False),
    # 1 for roots of counted requests, by which late spans are recognised.
    Column("counted", SmallInteger, nullable=False),
    # Size of the spans. [bytes]
    Column("size", BigInteger, nullable=False),
    # See `collector.traces.columns`.
    Column("spans", LargeBinary, nullable=False),
    Index("inbox_by_time", "counted", "received", "id"),
    # Ids are never reused: an id that was read must stay valid.
    sqlite_autoincrement=True,
)

# Events reported by people and pipelines.
events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True),
    # Unix milliseconds, so that two events of one second have an order.
    Column("at", BigInteger, nullable=False),
    # "" for all services.
    Column("service", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("link", Text, nullable=False),
    # "" for all environments.
    Column("environment", Text, nullable=False, server_default=""),
    Index("events_by_time", "at"),
)

# Audit log: rows are only added, and deleted after `audit.KEPT`.
audit = Table(
    "audit",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    # Unix milliseconds.
    Column("at", BigInteger, nullable=False),
    Column("person", Text, nullable=False),
    # Place of the action, one of `audit.Origin`.
    Column("origin", Text, nullable=False),
    Column("action", Text, nullable=False),
    # Subject: incident, silence or event, with its service and environment; "" if unknown.
    Column("subject", Text, nullable=False),
    Column("service", Text, nullable=False),
    Column("environment", Text, nullable=False),
    # `done`, `refused` or `failed`, with the reason.
    Column("outcome", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Index("audit_by_time", "at"),
    sqlite_autoincrement=True,
)

# Phases of the cold starts of replicas; see `store.events`.
loads = Table(
    "loads",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("service", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("environment", Text, nullable=False),
    # `service.instance.id`.
    Column("instance", Text, nullable=False),
    # Host and process id of the replica.
    Column("place", Text, nullable=False),
    Column("phase", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("shape", Text, nullable=False),
    # Unix nanoseconds; `own` is the time not spent in any other phase.
    Column("started", BigInteger, nullable=False),
    Column("ended", BigInteger, nullable=False),
    Column("own", BigInteger, nullable=False),
    Index("loads_by_service", "service", "ended"),
    Index("loads_by_time", "ended"),
)

rollups = Table(
    "rollups",
    metadata,
    Column("tier", TierNumber, primary_key=True, autoincrement=False),
    # All data before the watermark are in the tier. The finest tier is always complete, so its watermark is not used.
    Column("watermark", BigInteger, nullable=False),
    # All data before this time were deleted from the tier. [Unix seconds]
    Column("kept_from", BigInteger, nullable=False),
)

# Leases and last readings of scrape targets; see `store.collectors`.
scrapes = Table(
    "scrapes",
    metadata,
    Column("target", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    # [Unix seconds]
    Column("until", Double, nullable=False),
    # Last reading, to which the next reading is compared; empty before the first.
    Column("reading", LargeBinary, nullable=False),
)

# Status reports of the collectors; see `store.collectors`.
collectors = Table(
    "collectors",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("version", Text, nullable=False),
    # Unix seconds.
    Column("started", Double, nullable=False),
    Column("seen", Double, nullable=False),
    # JSON.
    Column("vitals", Text, nullable=False),
)

# Bodies to forward; see `store.collectors`.
outgoing = Table(
    "outgoing",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("destination", Text, nullable=False),
    Column("signal", Text, nullable=False),
    Column("media_type", Text, nullable=False),
    # Collectors that the body has passed.
    Column("via", Text, nullable=False),
    Column("received", BigInteger, nullable=False),
    # Size of the body. [bytes]
    Column("size", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    # A covering index for all queries about waiting bodies, so that the bodies themselves are not read.
    Index("outgoing_by_destination", "destination", "id", "size", "received"),
    # Ids are never reused: an id that was read must stay valid until it is deleted.
    sqlite_autoincrement=True,
)

# Lease of each forwarding destination.
destinations = Table(
    "destinations",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    # [Unix seconds]
    Column("until", Double, nullable=False),
)

# Single row: the unique id of the store. A copy of the store has another id.
identity = Table("identity", metadata, Column("id", Text, primary_key=True))


@dataclass(frozen=True, slots=True)
class Tier:
    """State of one tier."""

    seconds: int  # Width of the buckets. [seconds]
    watermark: int  # Time before which all data are in the tier. [Unix seconds]
    kept_from: int  # Time before which all data were deleted from the tier. [Unix seconds]


@dataclass(frozen=True, slots=True)
class Segment:
    """Stretch of time `[start, end)` to read from one tier; in Unix seconds."""

    tier: int
    start: int
    end: int


def floor_to(at: int, width: int) -> int:
    """Return the start of the bucket of *width* seconds that contains *at*."""
    return at - at % width


def ceil_to(at: int, width: int) -> int:
    """Return the first start of a bucket of *width* seconds at or after *at*."""
    return -(-at // width) * width


def read_tiers(connection: Connection) -> list[Tier]:
    """Return the state of the tiers, finest first."""
    table = rollups
    rows = connection.execute(select(table.c.tier, table.c.watermark, table.c.kept_from))
    return sorted((Tier(*row) for row in rows), key=lambda tier: tier.seconds)


def take_part(connection: Connection) -> int:
    """Return a new write number, for the write that begins."""
    connection.execute(update(store).values(last_part=store.c.last_part + 1))
    return connection.execute(select(store.c.last_part)).scalar_one()


def plan_segments(tiers: Sequence[Tier], start: int, end: int, widest: int = COARSEST) -> list[Segment]:
    """Return the tier to read for each part of `[start, end)`, in order of time; *tiers* are finest first.

    The width of its buckets divides *widest*, except where no finer ones are retained. [seconds]
    """
    segments: list[Segment] = []
    start = max(start, tiers[-1].kept_from)
    # From the oldest part, which only the coarsest tier has, to the newest, which all tiers have.
    for finest in reversed(range(len(tiers))):
        until = tiers[finest - 1].kept_from if finest else end
        stop = min(end, max(until, start))
        fitting = [tier for tier in tiers[finest:] if widest % tier.seconds == 0] or [tiers[finest]]
        segments += _cover(start, stop, fitting)
        start = stop
    return segments


def finest_retained(tiers: Sequence[Tier], start: int) -> int:
    """Return the width of the finest buckets that are retained at *start*, in seconds."""
    return next((tier.seconds for tier in tiers if tier.kept_from <= start), tiers[-1].seconds)


def widest_dividing(width: int) -> int:
    """Return the widest tier whose buckets divide steps of *width*, a multiple of the finest tier; both in seconds."""
    return max(tier for tier in TIERS if width % tier == 0)


def whole_buckets(tiers: Sequence[Tier], start: int, end: int) -> tuple[int, int]:
    """Return `[start, end)` extended to whole buckets of the tiers retained at its ends, in Unix seconds.

    A bucket belongs to the stretch in which it starts, so a window that starts within a bucket would miss the whole bucket.
    """
    return floor_to(start, finest_retained(tiers, start)), ceil_to(end, finest_retained(tiers, end))


def _cover(start: int, end: int, tiers: Sequence[Tier]) -> list[Segment]:
    if start >= end:
        return []
    *finer, widest = tiers
    if not finer:
        return [Segment(widest.seconds, start, end)]
    low = ceil_to(start, widest.seconds)
    high = floor_to(min(end, widest.watermark), widest.seconds)
    if low >= high:
        return _cover(start, end, finer)
    return [*_cover(start, low, finer), Segment(widest.seconds, low, high), *_cover(high, end, finer)]
