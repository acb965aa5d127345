"""What the dashboard may ask about alerts: how each SLO stands now, and the incidents with what was sent about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from sqlalchemy import Connection, Row, select

from ..collector.store import Store
from .burning.burn import FAST, RECENT, Tier
from .burning.measure import Measurement, measure
from .delivery.message import Message
from .delivery.wording import headline, impact, worst
from .incidents import journal, record, silences, telling
from .incidents.record import Record
from .incidents.silences import Silence
from .objectives.slo import Slo
from .objectives.slo_file import LiveFile
from .policy_file import Policy, default_policy
from .schema import outbox, transitions
from .tail.regression import StageGrowth

SloState = Literal["healthy", "at_risk", "burning", "no_data"]
DeliveryState = Literal["waiting", "sending", "sent", "dead", "superseded"]


@dataclass(frozen=True, slots=True)
class RuleStatus:
    """How one alert rule of an SLO stands.

    Args:
        tier: The rule.
        long_burn: The burn rate over its long window.
        short_burn: The one over its short window.
        fires: Whether it tells somebody; both windows at its burn rate is not enough while hardly any request was bad.
    """

    tier: Tier
    long_burn: float
    short_burn: float
    fires: bool


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
        rules: The alert rules that can fire for it, pages first.
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
    rules: tuple[RuleStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of one message to one channel.

    Args:
        channel: The channel's name.
        transition: `opened`, `updated`, `acknowledged`, `resolved` or `reopened`.
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
class Transition:
    """One thing that happened to an incident.

    Args:
        event: `opened`, `updated`, `acknowledged`, `resolved` or `reopened`; `muted` and `unmuted` where only that changed.
        at: When.
        headline: What was true then, in one sentence.
        note: Who did it, or why nobody was told; may be empty.
        told: How many channels were to hear it.
    """

    event: str
    at: datetime
    headline: str
    note: str
    told: int


@dataclass(frozen=True, slots=True)
class Incident:
    """One cause of trouble, from its opening to its end.

    Args:
        id: Its name everywhere, PagerDuty included.
        name: Of the SLO that burns, or what became slower.
        service: Whose.
        severity: `page` or `ticket`, as it is now.
        state: `open` or `resolved`.
        opened_at: When it was noticed.
        since: When the trouble began, as far as the counts show.
        resolved_at: When it was over.
        headline: One sentence: what, how bad, which stage.
        worst: How bad it has been, in words.
        stages: What the slow requests spend more time in, worst first; empty when no stage stands out.
        version: The release it came with, or empty.
        link: The dashboard page that shows it.
        deliveries: What was sent to whom and when, oldest first.
        kind: What was promised, such as `latency`; `tail` when percentiles moved.
        impact: How bad it is, in a sentence.
        acked_at: Since when somebody looks after it; None while nobody does.
        acked_by: Who.
        muted: Why nobody is told; empty when people are.
        told_with: The incident it is told with, if that is why.
        story: The incident that began the story it belongs to; incidents of a story are told as one.
        transitions: What happened to it, oldest first.
    """

    id: str
    name: str
    service: str
    severity: str
    state: str
    opened_at: datetime
    since: datetime
    resolved_at: datetime | None
    headline: str
    worst: str
    stages: tuple[StageGrowth, ...]
    version: str
    link: str
    deliveries: tuple[Delivery, ...]
    kind: str = "latency"
    impact: str = ""
    acked_at: datetime | None = None
    acked_by: str = ""
    muted: str = ""
    told_with: str = ""
    story: str = ""
    transitions: tuple[Transition, ...] = ()


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

    def problems(self) -> tuple[str, ...]:
        """Return what is wrong with the SLO file as it is now, one line each; what was read before stays in force."""
        return self.file.errors

    def incidents(self, limit: int = 50, open_only: bool = False) -> list[Incident]:
        """Return the newest incidents, newest first, each with its history and deliveries."""
        with self._store.engine.connect() as connection:
            return _whole(connection, record.newest(connection, limit, open_only=open_only))

    def incident(self, name: str) -> Incident | None:
        """Return the incident with the id *name*, None where there is none."""
        with self._store.engine.connect() as connection:
            found = record.get(connection, name)
            return None if found is None else _whole(connection, [found])[0]

    def silences(self, now: datetime | None = None, *, over: bool = False) -> list[Silence]:
        """Return the silences in force and to come, with *over* also those that ended."""
        with self._store.engine.connect() as connection:
            return silences.listed(connection, now or datetime.now(UTC), over=over)


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
        rules=tuple(
            RuleStatus(tier, measured.burn(tier.long), measured.burn(tier.short), tier in measured.firing)
            for tier in measured.tiers
        ),
    )


def _state(measured: Measurement) -> SloState:
    if any(tier.severity == "page" for tier in measured.firing):
        return "burning"
    if measured.counts[RECENT].total == 0:
        return "no_data"
    return "at_risk" if measured.firing or measured.budget.left <= 0 else "healthy"


def _whole(connection: Connection, found: Sequence[Record]) -> list[Incident]:
    ids = [each.id for each in found]
    sent = connection.execute(
        select(outbox).where(outbox.c.incident.in_(ids)).order_by(outbox.c.sequence, outbox.c.id)
    ).all()
    happened = connection.execute(
        select(transitions).where(transitions.c.incident.in_(ids)).order_by(transitions.c.sequence)
    ).all()
    return [
        _incident(
            each,
            [row for row in sent if row.incident == each.id],
            [row for row in happened if row.incident == each.id],
        )
        for each in found
    ]


def _transition(row: Row[Any], sent: Iterable[Row[Any]]) -> Transition:
    return Transition(
        event=row.transition,
        at=_utc(row.at),
        headline=headline(Message.from_json(row.message)),
        note=row.note,
        told=sum(each.sequence == row.sequence for each in sent),
    )


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


def _incident(found: Record, sent: Sequence[Row[Any]], happened: Sequence[Row[Any]]) -> Incident:
    finding = found.finding
    ended = found.resolved_at
    message = journal.message_of(found, "opened" if ended is None else "resolved", ended or found.seen_at)
    return Incident(
        id=found.id,
        name=finding.name,
        service=finding.service,
        severity=finding.severity,
        state="open" if ended is None else "resolved",
        opened_at=_utc(found.opened_at),
        since=_utc(finding.since),
        resolved_at=None if ended is None else _utc(ended),
        headline=headline(message),
        worst=worst(finding, found.peak),
        stages=finding.growth,
        version=finding.version,
        link=finding.link,
        deliveries=tuple(_delivery(row) for row in sent),
        kind=finding.kind,
        impact=impact(finding),
        acked_at=None if found.acked_at is None else _utc(found.acked_at),
        acked_by=found.acked_by,
        muted=found.muted,
        told_with=telling.lead_in(found.muted),
        story=found.story,
        transitions=tuple(_transition(row, sent) for row in happened),
    )


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
