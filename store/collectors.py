"""What each collector says about itself, every ten seconds: one row for each, which it writes over and over.

Targets that are scraped: who reads each, and what was read last.

Any number of collectors may be given the same targets. One of them holds a target, for a while that every reading renews; what
it has counted is committed together with the reading it was counted from, and only if it still holds the target then. So the
time between two readings is counted once, whoever dies or is slow in between, and whatever their clocks say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from ..core.errors import StagelensError
from .schema import collectors, scrapes


class TargetLostError(StagelensError):
    """Somebody else reads the target now: what was to be counted here is counted there."""


def take_target(connection: Connection, target: str, holder: str, now: float, seconds: float) -> bytes | None:
    """Take *target* for *holder*, or go on holding it.

    Args:
        connection: In a write transaction.
        target: Its name.
        holder: Who wants it.
        now: The time. [Unix seconds]
        seconds: For how long. [seconds]

    Returns:
        What was read last; empty where nothing was; None if somebody else holds it.
    """
    found = connection.execute(select(scrapes).where(scrapes.c.target == target)).one_or_none()
    if found is None:
        row = {"target": target, "holder": holder, "until": now + seconds, "reading": b""}
        connection.execute(insert(scrapes).values(row))
        return b""
    if found.holder != holder and found.until > now:
        return None
    mine = update(scrapes).where(scrapes.c.target == target)
    connection.execute(mine.values(holder=holder, until=now + seconds))
    return found.reading


def save_reading(connection: Connection, target: str, holder: str, until: float, reading: bytes) -> None:
    """Keep what *holder* has read of *target*, and hold it *until* then, in Unix seconds.

    Raises:
        LostError: It was taken by somebody else meanwhile.
    """
    mine = update(scrapes).where(scrapes.c.target == target, scrapes.c.holder == holder)
    if not connection.execute(mine.values(until=until, reading=reading)).rowcount:
        msg = f"another collector reads {target} now"
        raise TargetLostError(msg)


def release_targets(connection: Connection, holder: str) -> None:
    """Give back everything *holder* holds, so that others need not wait for its end."""
    connection.execute(update(scrapes).where(scrapes.c.holder == holder).values(until=0.0))


# Whoever has not reported for so long is not coming back. [seconds]
FORGOTTEN_AFTER = 86_400
# Whoever has not reported for so long has missed three reports. [seconds]
SILENT_AFTER = 45.0


@dataclass(frozen=True, slots=True)
class Vitals:
    """How a collector is. Rates are of the last minute.

    Args:
        exports_per_second: Exports taken, by signal.
        refused_per_second: Requests not taken, by HTTP status.
        rejected: Data points and spans refused since the start, by signal and reason: `metrics too_old`.
        queue_batches: How many wait to be committed.
        queue_bytes: How much they hold.
        receiving_bytes: Bodies that are being received or wait to be read.
        commit_p99_seconds: Nearly all transactions took no longer; None where there was none.
        store_bytes: The room of the store.
        store_budget_bytes: The room it may take; 0 for as much as it likes.
        memory_bytes: Of the process; 0 where the system does not say.
        cpu_ratio: Of the process, in cores.
        targets_up: Targets of the scraper that answer.
        targets_down: Those that do not: address and why.
        destinations_down: Whom nothing can be sent on to: name and why.
        destinations_lost: How many bodies of those received since the start they will never have.
        spans_waiting_bytes: Spans that wait for the rest of their requests, in the whole store.
        spans_waiting_seconds: How long the oldest of them has waited.
        failing: What it cannot do, why, and since when. [Unix seconds]
        file_errors: What is wrong with its file.
        greedy: Senders that named more services than their share within a day.
    """

    exports_per_second: Mapping[str, float] = field(default_factory=dict[str, float])
    refused_per_second: Mapping[str, float] = field(default_factory=dict[str, float])
    rejected: Mapping[str, float] = field(default_factory=dict[str, float])
    queue_batches: float = 0
    queue_bytes: float = 0
    receiving_bytes: float = 0
    commit_p99_seconds: float | None = None
    store_bytes: float = 0
    store_budget_bytes: float = 0
    memory_bytes: float = 0
    cpu_ratio: float = 0
    targets_up: int = 0
    targets_down: Mapping[str, str] = field(default_factory=dict[str, str])
    destinations_down: Mapping[str, str] = field(default_factory=dict[str, str])
    destinations_lost: Mapping[str, float] = field(default_factory=dict[str, float])
    spans_waiting_bytes: float = 0
    spans_waiting_seconds: float = 0
    failing: tuple[tuple[str, str, float], ...] = ()
    file_errors: tuple[str, ...] = ()
    greedy: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """What one collector said last.

    Args:
        id: Its own, another after each start.
        name: Its host and port.
        version: Of Stagelens.
        started: When it was started. [Unix seconds]
        seen: When it said this. [Unix seconds]
        vitals: How it was.
    """

    id: str
    name: str
    version: str
    started: float
    seen: float
    vitals: Vitals = field(default_factory=Vitals)


def write_report(connection: Connection, report: Report) -> None:
    """Write *report* over the last one of its collector, and over that of a dead one in whose place it was started."""
    table, now = collectors, report.seen
    dead = (table.c.name == report.name) & (table.c.seen < now - SILENT_AFTER)
    old = (table.c.id == report.id) | dead | (table.c.seen < now - FORGOTTEN_AFTER)
    connection.execute(delete(table).where(old))
    row = {name: getattr(report, name) for name in ("id", "name", "version", "started", "seen")}
    connection.execute(insert(table).values(row | {"vitals": json.dumps(asdict(report.vitals))}))


def remove_collector(connection: Connection, collector: str) -> None:
    """Forget the *collector* of that id: it was stopped, and did not die."""
    connection.execute(delete(collectors).where(collectors.c.id == collector))


def read_reports(connection: Connection) -> list[Report]:
    """Return the last report of each collector, by name."""
    rows = connection.execute(select(collectors).order_by(collectors.c.name, collectors.c.id))
    return [Report(row.id, row.name, row.version, row.started, row.seen, _vitals(row.vitals)) for row in rows]


def _vitals(text: str) -> Vitals:
    """Read vitals of another version, too: what is not known here is left out."""
    found: dict[str, Any] = json.loads(text)
    known = {each.name: found[each.name] for each in fields(Vitals) if each.name in found}
    for name in ("failing", "file_errors", "greedy"):
        known[name] = tuple(tuple(each) if isinstance(each, list) else each for each in known.get(name, ()))
    return Vitals(**known)
