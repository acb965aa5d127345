"""Tables of the store in SQLAlchemy Core, metric codes, conversion of text that not every engine can store, and tiers of points.

Rows of `points` are only added and, when they expire, deleted; readers sum them. Times are integers: Unix seconds in
`points`, `series`, `batches` and `inbox`, milliseconds in `events`, nanoseconds in `traces` and `loads`.

A tier holds all data in `[kept_from, watermark)`; the finest tier is always complete up to now. `plan_segments` reads a stretch
of time from the coarsest tier that fits; the edges of the stretch that are no whole buckets, and the part that is not rolled up
yet, are read from finer tiers. A bucket belongs to the stretch in which it starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from ..core import names

# Maximum length of a name: all dimensions of a series together must fit into an index entry of PostgreSQL, which has
# at most 2704 bytes.
MAX_NAME_BYTES = 256
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
# Columns of `series` that identify a series.
DIMENSIONS = ("service", "version", "environment", "model", "model_version", "route", "device", "status", "cold")
# Dimensions of a total, which adds up all series with equal values of them. Coarser tiers hold totals beside the series, and
# nearly every query reads totals, so its cost does not depend on the number of routes or devices of a service.
TOTAL_DIMENSIONS = ("service", "version", "environment", "status", "cold")


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


class TierNumber(sa.TypeDecorator[int]):
    """Column of tiers: widths of buckets in seconds, stored as `tier_code`."""

    impl = sa.SmallInteger
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:  # noqa: ARG002 - the same for every dialect
        return None if value is None else tier_code(value)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> Any:  # noqa: ARG002 - the same for every dialect
        return None if value is None else tier_width(value)


ALL_METRIC_CODES = (*(-code for code in METRIC_CODES.values()), *METRIC_CODES.values())


metadata = sa.MetaData()

# Single row: state shared by all writers.
store = sa.Table(
    "store",
    metadata,
    sa.Column("id", sa.SmallInteger, primary_key=True, autoincrement=False),
    # The number of the last write.
    sa.Column("last_part", sa.BigInteger, nullable=False),
    # Increases when series are deleted; ids cached by other processes are then invalid.
    sa.Column("series_epoch", sa.BigInteger, nullable=False),
)

services = sa.Table(
    "services",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    # The `part` of the last write that touched the service.
    sa.Column("revision", sa.BigInteger, nullable=False),
)

series = sa.Table(
    "series",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("service_id", sa.Integer, sa.ForeignKey("services.id"), nullable=False),
    *(sa.Column(dimension, sa.Text, nullable=False) for dimension in DIMENSIONS[:-1]),
    # "1" for requests in which something was loaded or warmed up, "0" otherwise or if unknown.
    sa.Column(DIMENSIONS[-1], sa.Text, nullable=False, server_default="0"),
    # Id of the total that the series belongs to, which is the id of the first series of the total.
    sa.Column("total_id", sa.Integer, nullable=False, server_default="0"),
    # Starts of the first and the last 10 s bucket with data. [Unix seconds]
    sa.Column("first_seen", sa.BigInteger, nullable=False),
    sa.Column("last_seen", sa.BigInteger, nullable=False),
    sa.UniqueConstraint(*DIMENSIONS, name="series_dimensions"),
    # Ids are never reused: a remaining row of a deleted series must not appear in another series.
    sqlite_autoincrement=True,
)

stages = sa.Table(
    "stages",
    metadata,
    sa.Column("service_id", sa.Integer, sa.ForeignKey("services.id"), primary_key=True),
    sa.Column("stage", sa.Text, primary_key=True),
)

# Texts of the call stacks in points of the tail profiler, whose rows have only the hash; see `series.stack_row`.
code_stacks = sa.Table(
    "code_stacks",
    metadata,
    sa.Column("hash", sa.Text, primary_key=True),
    sa.Column("service_id", sa.Integer, sa.ForeignKey("services.id"), primary_key=True),
    # Frames as in `core.code_stack.stack_key`, without the stage.
    sa.Column("text", sa.Text, nullable=False),
    # Day of the last use. [Unix seconds]
    sa.Column("last_seen", sa.BigInteger, nullable=False),
    # A covering index for deletion, so that the texts are not read.
    sa.Index("code_stacks_by_use", "last_seen", "hash", "service_id"),
)

# The order of the key follows the queries of pages: one service, one or two metrics, and a stretch of time. A batch comes from
# one service, so its rows are appended in three places of the index and not in one for each series.
points = sa.Table(
    "points",
    metadata,
    sa.Column("tier", TierNumber, primary_key=True),
    sa.Column("service_id", sa.Integer, primary_key=True),
    # Metric code; negative for a total.
    sa.Column("metric", sa.SmallInteger, primary_key=True),
    sa.Column("bucket", sa.BigInteger, primary_key=True),
    sa.Column("series_id", sa.Integer, primary_key=True),
    sa.Column("stage", sa.Text, primary_key=True),
    # Number of the write that added the row.
    sa.Column("part", sa.BigInteger, primary_key=True),
    sa.Column("scale", sa.SmallInteger, nullable=False),
    sa.Column("zero", sa.BigInteger, nullable=False),
    sa.Column("count", sa.BigInteger, nullable=False),
    sa.Column("sum", sa.Double, nullable=False),
    sa.Column("histogram", sa.LargeBinary, nullable=False),
    sqlite_with_rowid=False,
    # Retention drops whole partitions, which frees their space at once.
    postgresql_partition_by="RANGE (tier, bucket)",
)

# Parts that are being written while points are in another database; readers ignore them.
intents = sa.Table(
    "intents",
    metadata,
    sa.Column("part", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("taken_at", sa.BigInteger, nullable=False),
)

# Number of rows of `points` in each slot of each tier, updated with every write, because counting would read the whole table.
ledger = sa.Table(
    "ledger",
    metadata,
    sa.Column("tier", TierNumber, primary_key=True, autoincrement=False),
    sa.Column("slot", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    # Size of the encoded histograms alone.
    sa.Column("bytes", sa.BigInteger, nullable=False),
)

traces = sa.Table(
    "traces",
    metadata,
    # Requests of one distributed trace share its id (retries, fan-out); their root spans distinguish them.
    sa.Column("trace_id", sa.Text, primary_key=True),
    sa.Column("span_id", sa.Text, primary_key=True),
    sa.Column("series_id", sa.Integer, sa.ForeignKey("series.id"), nullable=False),
    sa.Column("started", sa.BigInteger, nullable=False),
    sa.Column("duration", sa.BigInteger, nullable=False),
    sa.Column("because", sa.Text, nullable=False),
    sa.Column("dominant", sa.Text, nullable=False),
    # JSON: nanoseconds by stage.
    sa.Column("stages", sa.Text, nullable=False),
    # Compressed JSON: the spans and the attributes of the root.
    sa.Column("spans", sa.LargeBinary, nullable=False),
    sa.Index("traces_by_series", "series_id", "started"),
    sa.Index("traces_by_time", "started"),
)

batches = sa.Table(
    "batches",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("received", sa.BigInteger, nullable=False),
    sa.Column("instance", sa.Text, nullable=False),
    sa.Column("dropped", sa.BigInteger, nullable=False),
    sa.Index("batches_by_time", "received"),
)
# There are millions of batches; few of them have dropped requests.
sa.Index(
    "batches_dropped", batches.c.dropped, sqlite_where=batches.c.dropped > 0, postgresql_where=batches.c.dropped > 0
)

# Spans that wait until their requests are complete, and the roots of counted requests.
inbox = sa.Table(
    "inbox",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("received", sa.BigInteger, nullable=False),
    # 1 for roots of counted requests, by which late spans are recognised.
    sa.Column("counted", sa.SmallInteger, nullable=False),
    # Size of the spans. [bytes]
    sa.Column("size", sa.BigInteger, nullable=False),
    # See `collector.traces.columns`.
    sa.Column("spans", sa.LargeBinary, nullable=False),
    sa.Index("inbox_by_time", "counted", "received", "id"),
    # Ids are never reused: an id that was read must stay valid.
    sqlite_autoincrement=True,
)

# Events reported by people and pipelines.
events = sa.Table(
    "events",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    # Unix milliseconds, so that two events of one second have an order.
    sa.Column("at", sa.BigInteger, nullable=False),
    # "" for all services.
    sa.Column("service", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("link", sa.Text, nullable=False),
    # "" for all environments.
    sa.Column("environment", sa.Text, nullable=False, server_default=""),
    sa.Index("events_by_time", "at"),
)

# Audit log: rows are only added, and deleted after `audit.AUDIT_RETENTION`.
audit = sa.Table(
    "audit",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    # Unix milliseconds.
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("person", sa.Text, nullable=False),
    # Place of the action, one of `audit.Origin`.
    sa.Column("origin", sa.Text, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    # Subject: incident, silence or event, with its service and environment; "" if unknown.
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("service", sa.Text, nullable=False),
    sa.Column("environment", sa.Text, nullable=False),
    # `done`, `refused` or `failed`, with the reason.
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Index("audit_by_time", "at"),
    sqlite_autoincrement=True,
)

# Phases of the cold starts of replicas; see `store.events`.
loads = sa.Table(
    "loads",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("service", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("environment", sa.Text, nullable=False),
    # `service.instance.id`.
    sa.Column("instance", sa.Text, nullable=False),
    # Host and process id of the replica.
    sa.Column("place", sa.Text, nullable=False),
    sa.Column("phase", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("shape", sa.Text, nullable=False),
    # Unix nanoseconds; `own` is the time not spent in any other phase. `events.STOPPED` says what they are for a stopped process.
    sa.Column("started", sa.BigInteger, nullable=False),
    sa.Column("ended", sa.BigInteger, nullable=False),
    sa.Column("own", sa.BigInteger, nullable=False),
    sa.Index("loads_by_service", "service", "ended"),
    sa.Index("loads_by_time", "ended"),
)

rollups = sa.Table(
    "rollups",
    metadata,
    sa.Column("tier", TierNumber, primary_key=True, autoincrement=False),
    # All data before the watermark are in the tier. The finest tier is always complete, so its watermark is not used.
    sa.Column("watermark", sa.BigInteger, nullable=False),
    # All data before this time were deleted from the tier. [Unix seconds]
    sa.Column("kept_from", sa.BigInteger, nullable=False),
)

# Leases: one holder at a time. `done_at` is the time at which any process last finished the work. [Unix seconds]
leases = sa.Table(
    "leases",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("holder", sa.String(64), nullable=False),
    sa.Column("until", sa.Float, nullable=False),
    sa.Column("done_at", sa.Float),
)

# Last readings of scrape targets; see `store.collectors`.
scrapes = sa.Table(
    "scrapes",
    metadata,
    sa.Column("target", sa.Text, primary_key=True),
    # The next reading is compared to it.
    sa.Column("reading", sa.LargeBinary, nullable=False),
)

# Status reports of the collectors; see `store.collectors`.
collectors = sa.Table(
    "collectors",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    # Unix seconds.
    sa.Column("started", sa.Double, nullable=False),
    sa.Column("seen", sa.Double, nullable=False),
    # JSON.
    sa.Column("vitals", sa.Text, nullable=False),
)


@dataclass(frozen=True, slots=True)
class Tier:
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


def read_tiers(connection: sa.Connection) -> list[Tier]:
    """Return the state of the tiers, finest first."""
    table = rollups
    rows = connection.execute(sa.select(table.c.tier, table.c.watermark, table.c.kept_from))
    return sorted((Tier(*row) for row in rows), key=lambda tier: tier.seconds)


def take_part(connection: sa.Connection) -> int:
    """Return a new write number, for the write that begins."""
    connection.execute(sa.update(store).values(last_part=store.c.last_part + 1))
    return connection.execute(sa.select(store.c.last_part)).scalar_one()


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
