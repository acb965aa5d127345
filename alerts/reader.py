"""What the dashboard may ask about alerts: how each SLO stands now, and the incidents with what was sent about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Connection, Row, select

from ..collector.store import Store
from . import incidents as records
from .burn import FAST, RECENT
from .incidents import Record
from .measure import Measurement, measure
from .message import headline
from .policy_file import Policy, default_policy
from .regression import StageGrowth
from .schema import outbox
from .slo import Slo
from .slo_file import LiveFile

SloState = Literal["healthy", "at_risk", "burning", "no_data"]
DeliveryState = Literal["waiting", "sending", "sent", "dead", "superseded"]


@dataclass(frozen=True, slots=True)
class SloStatus:
    """How one SLO stands.

    Args:
        slo: The promise.
        total: Requests of its window. [count]
        bad: How many of them broke it; not whole when the threshold splits a bucket. [count]
        attained: The share of good requests, or None without requests. [ratio]
        budget_left: The share of the window's error budget still unspent; below zero when overspent. None without requests. [ratio]
        bad_left: How many more bad requests fit into the budget. [count]
        burn_1h: The burn rate of the last hour; 1 spends exactly the budget.
        burn_5m: The burn rate of the last five minutes.
        state: `burning` a page fires, `at_risk` a ticket fires or the budget is spent, `no_data` no request in the last hour.
        exhausted_in: When the budget is spent at the last hour's pace; zero when it is, None when it never will be.
    """

    slo: Slo
    total: float
    bad: float
    attained: float | None
    budget_left: float | None
    bad_left: float
    burn_1h: float
    burn_5m: float
    state: SloState
    exhausted_in: timedelta | None


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of one message to one channel.

    Args:
        channel: The channel's name.
        transition: `opened`, `updated`, `resolved` or `reopened`.
        state: `dead` was given up, `superseded` was overtaken by a newer message before it could be sent.
        attempts: How often it was tried.
        at: When it reached that state.
        error: What the receiver said last; empty when it accepted.
        next_attempt: When it is tried again, while it waits.
    """

    channel: str
    transition: str
    state: DeliveryState
    attempts: int
    at: datetime
    error: str
    next_attempt: datetime | None


@dataclass(frozen=True, slots=True)
class Incident:
    """One cause of trouble, from its opening to its end.

    Args:
        id: Its name everywhere, PagerDuty included.
        slo: The name of the SLO that burns.
        service: Whose.
        severity: `page` or `ticket`, as it is now.
        state: `open` or `resolved`.
        opened_at: When it was noticed.
        since: When the trouble began, as far as the counts show.
        resolved_at: When it was over.
        headline: One sentence: what, how bad, which stage.
        burn: The burn rate when last looked at while open.
        peak_burn: The highest one.
        stages: What the slow requests spend more time in, worst first; empty when no stage stands out.
        version: The release it came with, or empty.
        link: The dashboard page that shows it.
        deliveries: What was sent to whom and when, oldest first.
    """

    id: str
    slo: str
    service: str
    severity: str
    state: str
    opened_at: datetime
    since: datetime
    resolved_at: datetime | None
    headline: str
    burn: float
    peak_burn: float
    stages: tuple[StageGrowth, ...]
    version: str
    link: str
    deliveries: tuple[Delivery, ...]


class AlertsReader:
    """Reads alerts for people; writes nothing.

    Args:
        store: Where requests and incidents are.
        file: The SLO file; a dashboard that runs alone gives its own.
        policy: What burning means.
    """

    def __init__(self, store: Store, file: LiveFile, policy: Policy | None = None) -> None:
        self._store = store
        self._policy = policy or default_policy()
        self.file = file

    def slos(self, now: datetime | None = None) -> list[SloStatus]:
        """Return how every SLO stands at *now*, worst first.

        Raises:
            StoreError: The store cannot be read.
        """
        now = now or datetime.now(UTC)
        # Where no alerts run in this process, as beside a dashboard that runs alone, nobody else reads the file.
        self.file.refresh(now)
        found = self.file.current.slos if self.file.current else ()
        measured = [measure(self._store.read, slo, self._policy, now) for slo in found]
        return sorted((_status(one) for one in measured), key=lambda status: (_ORDER[status.state], -status.burn_1h))

    def incidents(self, limit: int = 50, open_only: bool = False) -> list[Incident]:
        """Return the newest incidents, newest first, each with its deliveries."""
        with self._store.engine.connect() as connection:
            found = records.newest(connection, limit, open_only=open_only)
            sent = _deliveries(connection, [record.id for record in found])
        return [_incident(record, sent.get(record.id, ())) for record in found]


_ORDER: dict[SloState, int] = {"burning": 0, "at_risk": 1, "no_data": 2, "healthy": 3}


def _status(measured: Measurement) -> SloStatus:
    counts = measured.counts[measured.slo.window]
    known = counts.total > 0
    return SloStatus(
        slo=measured.slo,
        total=counts.total,
        bad=counts.bad,
        attained=1 - counts.bad / counts.total if known else None,
        budget_left=measured.budget.left if known else None,
        bad_left=measured.budget.bad_left,
        burn_1h=measured.burn(RECENT),
        burn_5m=measured.burn(FAST),
        state=_state(measured),
        exhausted_in=measured.exhausted_in,
    )


def _state(measured: Measurement) -> SloState:
    if any(tier.severity == "page" for tier in measured.firing):
        return "burning"
    if measured.counts[RECENT].total == 0:
        return "no_data"
    return "at_risk" if measured.firing or measured.budget.left <= 0 else "healthy"


def _deliveries(connection: Connection, ids: Sequence[str]) -> dict[str, tuple[Delivery, ...]]:
    rows = connection.execute(
        select(outbox).where(outbox.c.incident.in_(ids)).order_by(outbox.c.sequence, outbox.c.id)
    ).all()
    return {incident: tuple(_delivery(row) for row in rows if row.incident == incident) for incident in ids}


def _delivery(row: Row[Any]) -> Delivery:
    return Delivery(
        channel=row.channel,
        transition=row.transition,
        state=row.state,
        attempts=row.attempts,
        at=_utc(row.changed_at),
        error=row.error,
        next_attempt=_utc(row.next_at) if row.state == "waiting" else None,
    )


def _incident(record: Record, deliveries: Iterable[Delivery]) -> Incident:
    finding = record.finding
    ended = record.resolved_at
    message = records.message_of(record, "opened" if ended is None else "resolved", ended or record.seen_at)
    return Incident(
        id=record.id,
        slo=finding.slo,
        service=finding.service,
        severity=finding.severity,
        state="open" if ended is None else "resolved",
        opened_at=_utc(record.opened_at),
        since=_utc(finding.since),
        resolved_at=None if ended is None else _utc(ended),
        headline=headline(message),
        burn=finding.burn,
        peak_burn=record.peak_burn,
        stages=finding.growth,
        version=finding.version,
        link=finding.link,
        deliveries=tuple(deliveries),
    )


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
