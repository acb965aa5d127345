"""State that collectors share: status reports and leases of scrape targets.

Each collector overwrites its own report every ten seconds.

Several collectors may be configured with the same scrape targets; one of them holds a target under a lease that every reading
(snapshot of the target) renews. Its counts are committed together with the reading they were computed from, and only if it still
holds the target. So the time between two readings is counted once, even if a collector dies or is slow, or clocks differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from ..core.errors import StagelensError
from ..core.histogram import Histogram
from ..core.names import COLLECTOR_LOST
from . import lease
from .points import Point, PointColumns
from .schema import collectors, scrapes
from .series import Series

_TARGET_LEASES = "target:"
# Collectors may be configured with different intervals of a target. [seconds]
_LONGEST_LEASE_SECONDS = 86_400.0
_SMALLER = "send smaller batches (`OTEL_BSP_MAX_EXPORT_BATCH_SIZE`) without prompts, or raise `STAGELENS_MAX_BODY`"
# Age after which a report is deleted, because its collector will not return. [seconds]
FORGOTTEN_AFTER = 86_400
# Age of a report after three missed ones. [seconds]
SILENT_AFTER = 45.0


class TargetLostError(StagelensError):
    """Another collector has acquired the scrape target, so the counts were not committed."""


def take_target(connection: Connection, target: str, holder: str, now: float, seconds: float) -> bytes | None:
    """Acquire or renew the lease of *target* for *seconds*, and return its last reading (empty before the first); None if another has it."""
    if not lease.hold(connection, _lease_of(target), holder, now, seconds, longest=_LONGEST_LEASE_SECONDS):
        return None
    return connection.execute(select(scrapes.c.reading).where(scrapes.c.target == target)).scalar() or b""


def save_reading(connection: Connection, target: str, holder: str, until: float, snapshot: bytes) -> None:
    """Save the *snapshot* of *target*, and extend the lease of *holder* to *until*, in Unix seconds.

    Raises:
        TargetLostError: Another collector has acquired the target.
    """
    if not lease.renew(connection, _lease_of(target), holder, until):
        msg = f"another collector reads {target} now"
        raise TargetLostError(msg)
    if not connection.execute(update(scrapes).where(scrapes.c.target == target).values(reading=snapshot)).rowcount:
        connection.execute(insert(scrapes).values(target=target, reading=snapshot))


def release_targets(connection: Connection, holder: str) -> None:
    lease.release_all(connection, _TARGET_LEASES, holder)


def _lease_of(target: str) -> str:
    return lease.name_of(_TARGET_LEASES, target.encode())


@dataclass(frozen=True, slots=True)
class Loss:
    """Reason for which a collector did not count spans or exports."""

    unit: str  # what was lost, in the singular
    text: str  # what happened to it
    fix: str  # what the sender can do


# Keys of the metric `names.COLLECTOR_LOST`.
LOSSES = {
    "late_spans": Loss(
        "span",
        "later than the request was counted, so that the stages miss their time",
        "export spans at least every 10 s (`OTEL_BSP_SCHEDULE_DELAY`)",
    ),
    "orphaned_spans": Loss(
        "span", "without the end of the request for up to an hour", "do not sample traces; end each root span"
    ),
    "rejected": Loss(
        "item", "rejected: no valid data point or span", "see the partial_success in the log of the sender"
    ),
    "too_large": Loss("export", "refused: too large", _SMALLER),
    "invalid": Loss("export", "refused: not valid", "see the response in the log of the sender"),
    "overloaded": Loss("export", "refused: a buffer was full", "raise the limit, or start another collector"),
    "slow": Loss("export", "refused: not received within 10 s", "check the network of the sender"),
    "not_stored": Loss("export", "refused: not stored in time", "check the database; senders retry"),
}


def lost_points(series: Series, reason: str, number: int, at: int) -> PointColumns:
    """Return the point that counts *number* losses of a *reason* of `LOSSES` at the time *at*, in Unix seconds."""
    return PointColumns.of([Point(series, COLLECTOR_LOST, reason, at, Histogram(zero=number))])


@dataclass(frozen=True, slots=True)
class Vitals:
    """Status of a collector; rates are averages of the last minute."""

    exports_per_second: Mapping[str, float] = field(default_factory=dict[str, float])  # accepted exports, by signal
    # Refused requests, by HTTP status.
    refused_per_second: Mapping[str, float] = field(default_factory=dict[str, float])
    # Data points and spans rejected since the start, by signal and reason: `metrics too_old`.
    rejected: Mapping[str, float] = field(default_factory=dict[str, float])
    queue_batches: float = 0
    queue_bytes: float = 0
    receiving_bytes: float = 0  # size of the bodies that are being received or wait to be parsed
    commit_p99_seconds: float | None = None  # 99th percentile of the transaction time; None without transactions
    store_bytes: float = 0
    store_budget_bytes: float = 0  # storage budget; 0 for no budget
    memory_bytes: float = 0  # memory of the process; 0 if unknown
    cpu_ratio: float = 0  # CPU use of the process [cores]
    targets_up: int = 0
    # Scrape targets that do not respond: address and reason.
    targets_down: Mapping[str, str] = field(default_factory=dict[str, str])
    # Size of the spans in the whole store that wait for the completion of their requests.
    spans_waiting_bytes: float = 0
    spans_waiting_seconds: float = 0  # age of the oldest waiting span
    failing: tuple[tuple[str, str, float], ...] = ()  # failing tasks: name, reason and start [Unix seconds]
    file_errors: tuple[str, ...] = ()
    greedy: tuple[str, ...] = ()  # senders that exceeded their limit of services within a day
    # Exports of unknown services that were refused since the start, by sender and reason.
    refused: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Report:
    id: str  # Id of the collector, new after each start
    name: str  # Host and port of the collector
    version: str  # Version of Stagelens
    started: float  # Start of the process. [Unix seconds]
    seen: float  # Time of the report. [Unix seconds]
    vitals: Vitals = field(default_factory=Vitals)


def write_report(connection: Connection, report: Report) -> None:
    table, now = collectors, report.seen
    dead = (table.c.name == report.name) & (table.c.seen < now - SILENT_AFTER)
    old = (table.c.id == report.id) | dead | (table.c.seen < now - FORGOTTEN_AFTER)
    connection.execute(delete(table).where(old))
    row = {name: getattr(report, name) for name in ("id", "name", "version", "started", "seen")}
    connection.execute(insert(table).values(row | {"vitals": json.dumps(asdict(report.vitals))}))


def remove_collector(connection: Connection, collector: str) -> None:
    connection.execute(delete(collectors).where(collectors.c.id == collector))


def read_reports(connection: Connection) -> list[Report]:
    rows = connection.execute(select(collectors).order_by(collectors.c.name, collectors.c.id))
    return [Report(row.id, row.name, row.version, row.started, row.seen, _vitals(row.vitals)) for row in rows]


def _vitals(text: str) -> Vitals:
    values: dict[str, Any] = json.loads(text)
    vitals = {field.name: values[field.name] for field in fields(Vitals) if field.name in values}
    for name in ("failing", "file_errors", "greedy"):
        vitals[name] = tuple(tuple(pair) if isinstance(pair, list) else pair for pair in vitals.get(name, ()))
    return Vitals(**vitals)
