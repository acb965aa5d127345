"""Read access to alerts for the dashboard and the command line: SLO status, incidents and their deliveries."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import Connection, Row, select

from ..analysis.comparison import StageGrowth, dominant_growth
from ..analysis.policies import Severity, default_burn_rate_policy
from ..analysis.profile import FunctionGrowth
from ..analysis.slo_status import URGENCY
from ..questions.changed import CauseKind, Failures
from ..store import Store, lease
from ..store.selection import moment
from .delivery.message import BudgetOverrun, Ending, Exemplar, Message, SharedAttribute, Trend
from .delivery.message_text import cause_text, headline, impact_text, worst_impact
from .evaluation.slo_status import SloStatus, read_slo_status
from .incidents import lifecycle
from .incidents.journal import build_message
from .incidents.notification_rules import group_lead
from .incidents.silences import Silence, list_silences
from .objectives.slo_file import LiveSloFile
from .schema import EVALUATION_LEASE, outbox, transitions

# Number of incidents in which similar ones are searched.
_SEARCHED = 1000
# Number of incidents of a list that is not limited to open ones.
_NEWEST = 50
DeliveryState = Literal["waiting", "sending", "sent", "dead", "superseded"]


@dataclass(frozen=True, slots=True)
class Delivery:
    channel: str
    transition: str
    state: DeliveryState
    attempts: int
    at: datetime
    error: str
    next_attempt: datetime | None


@dataclass(frozen=True, slots=True)
class Transition:
    event: str
    at: datetime
    headline: str
    note: str
    notified: int


@dataclass(frozen=True, slots=True)
class Incident:
    id: str
    name: str
    service: str
    severity: Severity
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
    notified_with: str = ""
    story: str = ""
    transitions: tuple[Transition, ...] = ()
    ending: Ending = ""
    overruns: tuple[BudgetOverrun, ...] = ()
    where: Mapping[str, str] = field(default_factory=dict[str, str])
    functions: tuple[FunctionGrowth, ...] = ()
    runbook: str = ""
    course: Trend | None = None
    shared: tuple[SharedAttribute, ...] = ()
    replica: str = ""
    limit: float | None = None
    between: tuple[datetime, datetime] | None = None
    cause: str = ""
    cause_kind: CauseKind = "none"
    failures: Failures | None = None
    silent_since: datetime | None = None
    exemplars: tuple[Exemplar, ...] = ()
    no_exemplars: str = ""
    called: str = ""

    @property
    def blamed(self) -> StageGrowth | None:
        return dominant_growth(self.stages) if self.cause_kind == "latency" else None

    status: lifecycle.IncidentStatus = "open"

    @property
    def order(self) -> tuple[bool, bool, float, float, str]:
        """Sort key of lists: pages before tickets, then open ones before others, then the newest onset or opening first."""
        age = -self.since.timestamp(), -self.opened_at.timestamp()
        return self.severity != "page", self.state != "open", *age, self.id


@dataclass(frozen=True, slots=True)
class IncidentGroup:
    lead: Incident
    others: tuple[Incident, ...] = ()


def group_incidents(incidents: Sequence[Incident]) -> list[IncidentGroup]:
    groups: defaultdict[str, list[Incident]] = defaultdict(list)
    for incident in incidents:
        groups[incident.story or incident.id].append(incident)
    groups_sorted: list[IncidentGroup] = []
    for members in groups.values():
        ranks = {
            member.id: (member.state != "open", member.severity != "page", bool(member.notified_with), member.opened_at)
            for member in members
        }
        lead = min(members, key=lambda member: ranks[member.id])
        others = sorted((member for member in members if member is not lead), key=lambda incident: incident.order)
        groups_sorted.append(IncidentGroup(lead, tuple(others)))
    return sorted(groups_sorted, key=lambda group: group.lead.order)


class AlertsReader:
    def __init__(self, store: Store, file: LiveSloFile) -> None:
        self._store = store
        self._policy = default_burn_rate_policy()
        self.file = file

    def slos(self, now: datetime | None = None) -> list[SloStatus]:
        now = now or datetime.now(UTC)
        # In a standalone dashboard nothing else reloads the file.
        self.file.refresh(now)
        slos = self.file.current.slos if self.file.current else ()
        with self._store.read.together() as read:
            stood = [read_slo_status(read, slo, self._policy, now) for slo in slos]
        return sorted(stood, key=lambda status: (URGENCY[status.state], -(status.burn_1h or 0.0)))

    def problems(self) -> tuple[str, ...]:
        return self.file.errors

    def incidents(self, limit: int | None = None, open_only: bool = False) -> list[Incident]:
        """Return the newest *limit* incidents, newest first, with history and deliveries; by default all open ones and 50."""
        with self._store.engine.connect() as connection:
            records = lifecycle.newest_incidents(connection, limit or _NEWEST, open_only=open_only)
            if limit is None:
                listed_ids = {record.id for record in records}
                older = lifecycle.newest_incidents(connection, _SEARCHED, open_only=True)
                records += [record for record in older if record.id not in listed_ids]
            return _complete_incidents(connection, records)

    def between(
        self, start: datetime, end: datetime | None, limit: int, cause: str = "", *, history: bool = True
    ) -> list[Incident]:
        """Return at most *limit* incidents of *cause* ("" for all) that were open at any time in `[start, end)`, in their order."""
        with self._store.engine.connect() as connection:
            records = lifecycle.incidents_between(connection, start.timestamp(), end and end.timestamp(), limit, cause)
            return sorted(
                _complete_incidents(connection, records, history=history), key=lambda incident: incident.order
            )

    def outside(self, start: datetime, end: datetime | None) -> list[tuple[str, str, bool, int]]:
        """Return the numbers of all other incidents, see `count_outside`."""
        with self._store.engine.connect() as connection:
            return lifecycle.count_outside(connection, start.timestamp(), end and end.timestamp())

    def incident(self, name: str) -> Incident | None:
        """Return the incident with the id *name*, or None if there is none."""
        with self._store.engine.connect() as connection:
            record = lifecycle.get_incident(connection, name)
            return None if record is None else _complete_incidents(connection, [record])[0]

    def similar(self, about: Incident) -> list[Incident]:
        """Return earlier incidents of the same service that ended, with the same rule or the same stage, newest first."""
        earlier = (
            incident for incident in self.incidents(_SEARCHED) if incident.resolved_at and incident.since < about.since
        )
        stage = about.blamed and about.blamed.stage
        return [
            incident
            for incident in earlier
            if incident.service == about.service
            and (
                incident.name == about.name
                or (stage is not None and incident.blamed and incident.blamed.stage == stage)
            )
        ]

    def silences(self, now: datetime | None = None, *, over: bool = False) -> list[Silence]:
        with self._store.engine.connect() as connection:
            return list_silences(connection, now or datetime.now(UTC), over=over)


def _complete_incidents(
    connection: Connection, records: Sequence[lifecycle.IncidentRecord], *, history: bool = True
) -> list[Incident]:
    ids = [record.id for record in records] if history else []
    sent, happened = defaultdict[str, list[Row[Any]]](list), defaultdict[str, list[Row[Any]]](list)
    for rows, table, last in ((sent, outbox, outbox.c.id), (happened, transitions, transitions.c.at)):
        query = select(table).where(table.c.incident.in_(ids)).order_by(table.c.sequence, last)
        for row in connection.execute(query):
            rows[row.incident].append(row)
    evaluated_at = lease.done_at(connection, EVALUATION_LEASE)
    return [_incident(record, sent[record.id], happened[record.id], evaluated_at) for record in records]


def _transition(row: Row[Any], sent: Sequence[Row[Any]]) -> Transition:
    message = Message.from_json(row.message)
    return Transition(
        event=row.transition,
        at=moment(row.at),
        headline=message.note if row.transition == "note" else headline(message),
        note=row.note,
        notified=sum(delivery.sequence == row.sequence for delivery in sent),
    )


def _delivery(row: Row[Any]) -> Delivery:
    return Delivery(
        channel=row.channel,
        transition=row.transition,
        state=row.state,
        attempts=row.attempts,
        at=moment(row.changed_at),
        error=row.error,
        next_attempt=moment(row.next_at) if row.state == "waiting" else None,
    )


def _incident(
    record: lifecycle.IncidentRecord, sent: Sequence[Row[Any]], happened: Sequence[Row[Any]], evaluated_at: float | None
) -> Incident:
    finding = record.finding
    ended = record.resolved_at
    message = build_message(record, "opened" if ended is None else "resolved", ended or record.seen_at)
    return Incident(
        id=record.id,
        name=finding.name,
        service=finding.service,
        severity=finding.severity,
        state="open" if ended is None else "resolved",
        opened_at=moment(record.opened_at),
        since=moment(finding.since),
        resolved_at=None if ended is None else moment(ended),
        headline=headline(message),
        worst=worst_impact(finding, record.peak),
        stages=finding.growth,
        version=finding.version,
        link=finding.link,
        deliveries=tuple(_delivery(row) for row in sent),
        kind=finding.kind,
        impact=impact_text(finding),
        acked_at=None if record.acked_at is None else moment(record.acked_at),
        acked_by=record.acked_by,
        muted=record.muted,
        notified_with=group_lead(record.muted),
        story=record.story,
        transitions=tuple(_transition(row, sent) for row in happened),
        ending=record.ending,
        overruns=finding.overruns,
        where=finding.where,
        functions=finding.functions,
        runbook=finding.runbook,
        course=finding.course,
        shared=finding.shared,
        replica=finding.replica,
        limit=finding.burn.threshold if finding.burn else finding.shift and finding.shift.before_seconds,
        between=finding.between and (moment(finding.between[0]), moment(finding.between[1])),
        cause=cause_text(message),
        cause_kind=finding.cause_kind if ended is None else finding.known_cause,
        failures=finding.failures,
        silent_since=None if finding.silent_since is None or ended else moment(finding.silent_since),
        exemplars=finding.exemplars,
        no_exemplars=finding.no_exemplars,
        called=finding.called,
        status=record.status(evaluated_at),
    )
