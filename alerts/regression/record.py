"""Record of past regression alerts: which were right, and the stricter search that keeps the budget of wrong ones.

The record is derived from the incidents and silences, so it needs no table. Incidents of one group and service are one alert.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Literal

from ...analysis.regression.policy import AlertBudget, RecordPolicy
from ...store import Reader, Store
from ..incidents.lifecycle import IncidentRecord, find_incidents_of
from ..incidents.notification_rules import group_lead
from ..incidents.silences import ANY, Silence, list_silences
from ..objectives.slo_file import WatchedServices
from .series import DAY, whole_service

REGRESSION_KINDS = ("tail:", "canary:", "drift:")
_WEEK = timedelta(weeks=1)
# Time without requests before the end of an incident from which its version counts as removed.
_GONE_SECONDS = 300.0
# Time for which a service without requests counts as one of the fleet.
_KNOWN = timedelta(minutes=2 * DAY)
Outcome = Literal["right", "wrong", ""]
_Deployment = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PastAlert:
    service: str
    environment: str
    at: float
    outcome: Outcome = ""
    accepted: bool = False


@dataclass(frozen=True, slots=True)
class AlertCounts:
    alerts: int
    accepted: int
    right: int
    wrong: int

    @property
    def decided(self) -> int:
        return self.right + self.wrong

    @property
    def precision(self) -> float | None:
        """Share of right alerts among those with a known outcome; None without any."""
        return self.right / self.decided if self.decided else None


def count_alerts(alerts: Iterable[PastAlert]) -> AlertCounts:
    listed = list(alerts)
    right, wrong = (sum(alert.outcome == outcome for alert in listed) for outcome in ("right", "wrong"))
    return AlertCounts(len(listed), sum(alert.accepted for alert in listed), right, wrong)


@dataclass(frozen=True)
class AlertRecord:
    policy: RecordPolicy
    at: float = 0.0
    services: int = 0
    alerts: tuple[PastAlert, ...] = ()

    @cached_property
    def by_service(self) -> Mapping[_Deployment, Sequence[PastAlert]]:
        alerts_by_service: dict[_Deployment, list[PastAlert]] = {}
        for alert in self.alerts:
            alerts_by_service.setdefault((alert.service, alert.environment), []).append(alert)
        return alerts_by_service

    def strictness(self, service: str, environment: str) -> float:
        """Return the factor on the scores that an alert of the service requires; 1 within the budget.

        Each budget is a leaky bucket (ITU-T I.371): a wrong alert adds 1, and the budget leaks out over time. In the long run the
        wrong alerts of all services are at most the budget, unless their scores exceed `AlertBudget.most`.
        """
        budget = self.policy.budget
        steps = self._own_steps.get((service, environment), 0.0) + self._fleet_steps
        return min(budget.most, budget.step**steps)

    @cached_property
    def _own_steps(self) -> Mapping[_Deployment, float]:
        budget = self.policy.budget
        weekly, most = _WEEK / budget.service, _most_steps(budget)
        return {where: _bucket_level(mine, weekly, most, self.at) for where, mine in self.by_service.items()}

    @cached_property
    def _fleet_steps(self) -> float:
        budget, counted = self.policy.budget, list[PastAlert]()
        last: dict[_Deployment, float] = {}
        for alert in self.alerts:
            where = alert.service, alert.environment
            if alert.outcome == "wrong" and alert.at >= last.get(where, 0.0) + budget.service.total_seconds():
                counted.append(alert)
                last[where] = alert.at
        weekly = budget.fleet * self.services
        burst = max(budget.burst, weekly)
        level = _bucket_level(counted, weekly, burst * (1 + _most_steps(budget)), self.at)
        return max(0.0, level / burst - 1)

    def in_words(self, service: str, environment: str) -> str:
        """Return how many alerts of the service were right as a sentence; if too few are known, of all services; else ""."""
        for alerts, scope in (
            (self.by_service.get((service, environment), ()), "this service"),
            (self.alerts, "all services"),
        ):
            counts = count_alerts(alerts)
            if counts.decided >= self.policy.shown:
                return f"{counts.right} of the last {counts.decided} such alerts of {scope} were right."
        return ""


def _most_steps(budget: AlertBudget) -> float:
    return math.log(budget.most) / math.log(budget.step)


def _bucket_level(alerts: Iterable[PastAlert], weekly: float, most: float, at: float) -> float:
    level, last = 0.0, 0.0
    for alert in alerts:
        if alert.outcome == "wrong":
            level = min(_leaked(level, weekly, alert.at - last) + 1, most)
            last = alert.at
    return _leaked(level, weekly, at - last)


def _leaked(level: float, weekly: float, seconds: float) -> float:
    return max(0.0, level - weekly * seconds / _WEEK.total_seconds())


def read_record(store: Store, policy: RecordPolicy, settings: WatchedServices, now: datetime) -> AlertRecord:
    with store.engine.connect() as connection:
        records = find_incidents_of(connection, REGRESSION_KINDS, (now - policy.over).timestamp())
        silences = list_silences(connection, now, over=True) if records else []
    groups = store.read.groups(now - _KNOWN)
    services = {whole_service(group) for group in groups if settings.watches(group.service)}
    last_seen = _last_seen(store.read, records)
    alerts: dict[tuple[str, str, str], PastAlert] = {}
    for record in records:
        # No channel was notified of an incident during an earlier silence or a maintenance window.
        if record.heard or group_lead(record.muted):
            outcome = _outcome(record, silences, last_seen, policy, now.timestamp())
            service, environment = _deployment(record)
            alert = PastAlert(service, environment, record.opened_at, outcome, record.ending == "accepted")
            key = service, environment, record.story or record.id
            alerts[key] = _merged(alerts[key], alert) if key in alerts else alert
    return AlertRecord(policy, now.timestamp(), len(services), tuple(alerts.values()))


def _merged(one: PastAlert, other: PastAlert) -> PastAlert:
    outcomes = {one.outcome, other.outcome}
    outcome: Outcome = "right" if "right" in outcomes else "wrong" if "wrong" in outcomes else ""
    return replace(one, outcome=outcome, accepted=one.accepted or other.accepted)


def _outcome(
    record: IncidentRecord,
    silences: Sequence[Silence],
    last_seen: Mapping[tuple[str, str, str], float],
    policy: RecordPolicy,
    now: float,
) -> Outcome:
    if record.ending == "accepted":
        return "right"
    end = record.resolved_at
    if any(_is_silenced_by(record, silence, now if end is None else end) for silence in silences):
        return "wrong"
    if end is None:
        return ""
    lasted = record.seen_at - record.opened_at >= policy.lasting.total_seconds()
    is_rolled_back = last_seen.get((*_deployment(record), _version(record)), end) < end - _GONE_SECONDS
    if record.acked_at is not None or lasted or is_rolled_back:
        return "right"
    return "wrong" if record.ending == "recovered" else ""


def _is_silenced_by(record: IncidentRecord, silence: Silence, end: float) -> bool:
    named = silence.matchers.get("slo", ANY) != ANY
    return named and record.opened_at <= silence.starts_at.timestamp() <= end and silence.matches(record.finding)


def _deployment(record: IncidentRecord) -> _Deployment:
    return record.finding.service, record.finding.where.get("environment", "")


def _version(record: IncidentRecord) -> str:
    return record.finding.where.get("version", record.finding.version)


def _last_seen(read: Reader, records: Sequence[IncidentRecord]) -> dict[tuple[str, str, str], float]:
    """Return the time of the last request of each service, environment and version in *records*, in Unix seconds."""
    seen: dict[tuple[str, str, str], float] = {}
    for environment in {_deployment(record)[1] for record in records if _version(record)}:
        rows = read.releases(environment or None)
        for service, version, last in zip(rows["service"], rows["version"], rows["last_seen"], strict=True):
            seen[str(service), environment, str(version)] = last.timestamp()
    return seen
