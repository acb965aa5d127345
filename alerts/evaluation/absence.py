"""Services without requests: never good, and where there usually are some, trouble of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial

from ...store import Reader
from ..delivery.finding_parts import Absence
from ..delivery.message import Finding
from ..incidents.policy import NoData
from ..objectives.slo import Slo
from ..objectives.slo_file import Definitions
from ..policy_file import Policy
from .alert_rules import Verdict, planned
from .links import link


def causes(slos: Iterable[Slo]) -> dict[str, Slo]:
    """Return one cause for each service and environment that *slos* are about, with one of its SLOs."""
    found: dict[str, Slo] = {}
    for slo in slos:
        found.setdefault(f"no_data:{slo.environment or ''}:{slo.service}", slo)
    return found


class AbsenceJudge:
    """Judges whether requests still come.

    Args:
        read: The store's queries.
        policy: When their absence is trouble.
        patience: When the collector is not believed, and when a service is given up.
    """

    def __init__(self, read: Reader, policy: NoData, patience: Policy) -> None:
        self._read = read
        self._policy = policy
        self._patience = patience

    def __call__(
        self, definitions: Definitions, now: datetime, before: Mapping[str, Finding]
    ) -> Iterable[tuple[str, Callable[[], Verdict | None]]]:
        """Judge every service that has an SLO."""
        if self._policy.severity == "none":
            return
        for cause, slo in causes(definitions.slos).items():
            yield cause, partial(self._judge, cause, slo, now, before.get(cause), definitions.dashboard_url)

    def _judge(self, cause: str, slo: Slo, now: datetime, before: Finding | None, url: str) -> Verdict | None:
        if self._requests(slo, now - self._policy.after, now):
            return Verdict(cause, None)
        if self._read.stale_since(now, self._patience.stale) is not None:
            return None
        finding = before if before is not None else self._missed(slo, now, url)
        if finding is None or self._given_up(finding, now):
            return Verdict(cause, None, has_data=False)
        return Verdict(cause, finding, excuse=planned(slo.maintenance, now))

    def _given_up(self, finding: Finding, now: datetime) -> bool:
        return now.timestamp() - finding.since > self._patience.patience.abandon.total_seconds()

    def _missed(self, slo: Slo, now: datetime, url: str) -> Finding | None:
        """Return what is missed, where there were requests at all the times that are looked at and known."""
        policy, first = self._policy, self._first_seen(slo, now)
        backs = [back for back in policy.before if first is not None and first <= now - back - policy.after]
        counts = {back: self._requests(slo, now - back - policy.after, now - back) for back in backs}
        if not counts or min(counts.values()) < policy.expected or policy.severity == "none":
            return None
        back = min(counts, key=lambda back: counts[back])
        since = self._last_seen(slo, now) or now - policy.after
        return Finding(
            name="traffic",
            service=slo.service,
            promise="requests come, as they did at this time before",
            kind="no_data",
            severity=policy.severity,
            since=since.timestamp(),
            absence=Absence(counts[back], back.total_seconds(), policy.after.total_seconds()),
            link=link(url, _all_of(slo), since, now, slo.objective),
            where={"environment": slo.environment} if slo.environment else {},
        )

    def _requests(self, slo: Slo, start: datetime, end: datetime) -> int:
        return self._read.slo_counts(_all_of(slo).select(start, end), None).total

    def _last_seen(self, slo: Slo, now: datetime) -> datetime | None:
        longest = max(self._policy.before, default=timedelta(days=1))
        return self._read.slo_counts(_all_of(slo).select(now - longest, now), None).last_at

    def _first_seen(self, slo: Slo, now: datetime) -> datetime | None:
        longest = max(self._policy.before, default=timedelta(0)) + 2 * self._policy.after
        seen = self._read.versions(_all_of(slo).select(now - longest, now))
        return None if seen.empty else seen["first_seen"].min().to_pydatetime().astimezone(UTC)


def _all_of(slo: Slo) -> Slo:
    """Return *slo* about all requests of its service and environment."""
    return Slo(slo.name, slo.service, slo.objective, slo.window, environment=slo.environment)
