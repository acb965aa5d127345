"""Alert rules for SLO burn rates and missing traffic, and their verdicts.

A rule yields each cause that it watches, with a function that returns the verdict. The verdict of a firing burn rate contains the
finding for notifications: onset, stages, release and links.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from ...analysis.burn_rate import AlertTier, Counts, ErrorBudget, Onset, as_requests, find_onset
from ...analysis.comparison import compare_failures
from ...analysis.policies import BurnRatePolicy, NoData
from ...analysis.regression.verdict import is_near_onset
from ...analysis.slo_status import has_stopped
from ...questions.changed import explain_violations
from ...store import Indicator, Reader
from ...store.schema import FINEST, storable_name
from ..delivery.message import BudgetOverrun, Burn, Finding, MissingTraffic
from ..objectives.maintenance import MaintenanceCalendar
from ..objectives.slo import Slo
from ..objectives.slo_file import Definitions
from . import evidence
from .slo_status import Measurement, can_fire, measure_slo

_FAILURES = Indicator("availability")
# Length of the search for the onset and its cause.
_LOOKBACK = timedelta(hours=6)
# Maximum age of the evidence of an open incident.
_EVIDENCE_AGE = timedelta(minutes=5)
# An onset within this time before or after the first request of a release is attributed to that release.
_BEFORE_RELEASE, _AFTER_RELEASE = timedelta(minutes=2), timedelta(minutes=30)


def describe_burn(
    read: Reader, measured: Measurement, now: datetime, *, before: Finding | None, dashboard_url: str
) -> Finding | None:
    if not measured.firing:
        return None
    slo, tier = measured.slo, measured.firing[0]
    reader = evidence.reader_of(read, slo)
    trouble = _onset(read, slo, tier, now) if before is None else _known_onset(before)
    began = trouble.at
    bad = slo.select(began, now)
    change = explain_violations(reader, bad, slo.indicator, began - evidence.CALM_BEFORE)
    calm = slo.select(trouble.earliest - _LOOKBACK, trouble.earliest)
    exemplars = evidence.exemplars_of(read, slo, began, now, dashboard_url, cause=change.kind)
    slow = evidence.slow_selection(bad, change, slo.objective)
    # Without slow requests that matter, neither a slow replica nor what slow requests share is a cause.
    is_slow = slo.kind == "latency" and (change.kind != "failures" or bool(change.growth))
    return Finding(
        name=slo.name,
        service=slo.service,
        promise=slo.in_words(),
        kind=slo.kind,
        severity=tier.severity,
        since=began.timestamp(),
        burn=_burn_of(measured, tier),
        between=(trouble.earliest.timestamp(), trouble.latest.timestamp()),
        cause=change.kind,
        failures=change.failures,
        growth=change.growth,
        functions=evidence.code_growth(read, calm, bad, change.growth, slo.objective),
        shared=evidence.shared_attributes(read, slow) if is_slow else (),
        called=evidence.called_text(reader, slow, change.growth, slo.stage or ""),
        replica=evidence.slow_replica_text(read, slo.select(began - evidence.CALM_BEFORE, now)) if is_slow else "",
        version=_suspected_release(read, slo, trouble, now),
        stage=slo.stage or "",
        exemplars=exemplars,
        no_exemplars="" if exemplars else evidence.no_exemplar_text(slo.indicator, change),
        overruns=_overruns(read, slo, began, now),
        course=evidence.burn_rate_trend(read, slo, began, now),
        description=slo.description,
        runbook=slo.runbook,
        link=evidence.dashboard_link(dashboard_url, slo, began, now, failed=change.kind == "failures"),
        where=evidence.filters_of(slo),
    )


def _known_onset(before: Finding) -> Onset:
    early, late = before.between or (before.since, before.since)
    at, earliest, latest = (datetime.fromtimestamp(moment, UTC) for moment in (before.since, early, late))
    return Onset(at, earliest, latest)


def _burn_of(measured: Measurement, tier: AlertTier) -> Burn:
    short, left = measured.counts[tier.short], measured.exhausted_in
    return Burn(
        rate=measured.burn(tier.short),
        threshold=tier.burn,
        long_seconds=tier.long.total_seconds(),
        short_seconds=tier.short.total_seconds(),
        bad=short.bad,
        total=short.total,
        budget_left=measured.budget.left,
        bad_left=measured.budget.bad_left,
        window_seconds=measured.slo.window.total_seconds(),
        exhausted_in_seconds=None if left is None else left.total_seconds(),
    )


def _overruns(read: Reader, slo: Slo, began: datetime, now: datetime) -> tuple[BudgetOverrun, ...]:
    split = evidence.stage_budgets(read, slo, began, now)
    return tuple(BudgetOverrun(use.stage, use.seconds, use.budget_seconds) for use in split.broken) if split else ()


def _onset(read: Reader, slo: Slo, tier: AlertTier, now: datetime) -> Onset:
    reach = min(tier.long, _LOOKBACK)
    buckets = evidence.counts_by_step(read, slo, now - reach, now, timedelta(minutes=1))
    # Half of the threshold, because the problem rarely covers the whole first minute.
    return find_onset(buckets, slo.objective, tier.burn / 2, otherwise=now - min(reach, tier.short))


def _suspected_release(read: Reader, slo: Slo, began: Onset, now: datetime) -> str:
    """Return the newest version if the problem started with it; else "".

    The conditions are: the first request of the newest version is near the onset, the version has a larger share of bad requests
    than its predecessor, and the predecessor, if it still serves, did not become worse at the same time.
    """
    if slo.version is not None or slo.kind == "freshness":
        return ""
    versions = read.versions(slo.select(began.earliest - _LOOKBACK, now))
    if len(versions) < 2:  # noqa: PLR2004 - an old one and a new one
        return ""
    newest, before = versions.iloc[-1], versions.iloc[-2]
    released = newest["first_seen"].to_pydatetime().astimezone(UTC)
    margins = _AFTER_RELEASE.total_seconds(), _BEFORE_RELEASE.total_seconds()
    between = began.earliest.timestamp(), began.latest.timestamp()
    if not newest["version"] or not is_near_onset(released.timestamp(), between, *margins):
        return ""
    old = slo.select(released - _LOOKBACK, released), slo.select(released, now)
    sides = [replace(selection, version=str(before["version"])) for selection in old]
    sides.append(replace(slo.select(released, now), version=str(newest["version"])))
    earlier, beside, new = (
        as_requests(tally.requests, tally.total, tally.bad) for tally in read.tallies(sides, slo.indicator)
    )
    return (
        str(newest["version"]) if _has_more_failures(earlier, new) and not _has_more_failures(earlier, beside) else ""
    )


def _has_more_failures(a: Counts, b: Counts) -> bool:
    if not a.total or not b.total:
        return False
    return compare_failures(round(a.bad), round(a.total), round(b.bad), round(b.total)).are_more


@dataclass(frozen=True, slots=True)
class Verdict:
    cause: str
    finding: Finding | None
    has_data: bool = True
    excuse: str = ""
    budget: ErrorBudget | None = None
    silent_since: float | None = None


# Function that yields each cause with a function that evaluates it, so that an error in one cause does not stop the others.
# Arguments: the definitions, the time, and the findings of open incidents by cause. A verdict of None means "unknown": the
# incident stays unchanged. An open incident whose cause is no longer yielded by any rule is closed.
AlertRule = Callable[[Definitions, datetime, Mapping[str, Finding]], Iterable[tuple[str, Callable[[], Verdict | None]]]]


def cause_of_slo(slo: Slo) -> str:
    return f"slo:{slo.name}"


def evaluate_slo(
    read: Reader,
    slo: Slo,
    policy: BurnRatePolicy,
    now: datetime,
    *,
    before: Finding | None,
    dashboard_url: str,
    described_at: dict[str, datetime],
    paused_at: datetime | None = None,
) -> Verdict | None:
    """Evaluate *slo* and return None if the collector's data are stale."""
    cause = cause_of_slo(slo)
    if before is None and not can_fire(read, slo, policy, now):
        return Verdict(cause, None)
    measured = measure_slo(read, slo, policy, now, already=before is not None)
    if measured.stale_since is not None:
        return None
    reach = max((tier.short for tier in measured.firing), default=timedelta(0))
    # Before the pause, no rule fired. A jump of the clock empties the windows that showed that a problem was over.
    if (
        before is None
        and paused_at is not None
        and now - paused_at < reach
        and not read.tally(slo.select(paused_at, now), slo.indicator).bad
    ):
        return Verdict(cause, None)
    finding = None
    if measured.firing:
        tier = measured.firing[0]
        if before is not None and not _is_evidence_due(before, tier, described_at.get(cause), now):
            finding = replace(before, severity=tier.severity, burn=_burn_of(measured, tier))
        else:
            finding = describe_burn(read, measured, now, before=before, dashboard_url=dashboard_url)
            described_at[cause] = now
        if finding is not None and before is not None and has_stopped(measured.counts):
            # The rule still fires because of requests before the silence.
            finding = replace(finding, silent_since=before.silent_since or _last_request(read, slo, now))
        elif finding is not None:
            finding = replace(finding, silent_since=None)
    return Verdict(
        cause=cause,
        finding=finding,
        has_data=measured.has_data,
        excuse=maintenance_reason(slo.maintenance, now),
        budget=measured.budget,
        silent_since=None if measured.has_data or before is None else _last_request(read, slo, now),
    )


def _last_request(read: Reader, slo: Slo, now: datetime) -> float | None:
    """Return the time of the last request of *slo* in the last day in Unix seconds; None without one, and for freshness."""
    last = read.tally(slo.select(now - timedelta(days=1), now), slo.indicator).last_at
    return None if last is None else last.timestamp() + FINEST


def _is_evidence_due(before: Finding, tier: AlertTier, described_at: datetime | None, now: datetime) -> bool:
    if described_at is None or (tier.severity, before.severity) == ("page", "ticket"):
        return True
    age = timedelta(seconds=now.timestamp() - before.since)
    return now - described_at >= min(age / 20, _EVIDENCE_AGE)


def maintenance_reason(calendar: MaintenanceCalendar, now: datetime) -> str:
    """Return the maintenance window in progress as text; "" if there is none."""
    work = calendar.under_way(now)
    if work is None:
        return ""
    return f"maintenance window: {work.why}" if work.why else "maintenance window"


def no_verdict() -> None:
    """Return None, the verdict for an unknown or unchanged state."""


def absence_causes(slos: Iterable[Slo]) -> dict[str, Slo]:
    slo_by_cause: dict[str, Slo] = {}
    for slo in slos:
        slo_by_cause.setdefault(f"no_data:{slo.environment or ''}:{slo.service}", slo)
    return slo_by_cause


class DueCauses:
    """Selects the causes to evaluate: those with new data, and all others once a minute, because their windows move on."""

    def __init__(self) -> None:
        self._evaluated: dict[str, tuple[Hashable, datetime]] = {}

    def is_due(self, cause: str, about: Hashable, data: tuple[int, int] | None, now: datetime) -> bool:
        revision, end = data or (0, 0)
        state = about, revision, now.replace(second=0, microsecond=0)
        evaluated_state, evaluated_at = self._evaluated.get(cause, (None, now))
        if evaluated_state == state and end <= evaluated_at.timestamp():
            return False
        self._evaluated[cause] = state, now
        return True

    def clear(self) -> None:
        """Make all causes due, because the results of an evaluation were lost."""
        self._evaluated.clear()


class AbsenceRule:
    """Alert rule for missing traffic: fires when a service with an SLO receives no requests at a time when it usually does."""

    def __init__(self, read: Reader, policy: NoData, burn_rates: BurnRatePolicy, due_causes: DueCauses) -> None:
        self._read = read
        self._policy = policy
        self._burn_rates = burn_rates
        self._due_causes = due_causes
        # Time of the first evaluation after a gap: before, the time of the data is unknown.
        self.resumed_at: datetime | None = None

    def __call__(
        self, definitions: Definitions, now: datetime, before: Mapping[str, Finding]
    ) -> Iterable[tuple[str, Callable[[], Verdict | None]]]:
        if self._policy.severity == "none":
            return
        with self._read.together() as read:
            revisions = read.revisions()
            for cause, slo in absence_causes(definitions.slos).items():
                # New data matter to an open incident only.
                data = revisions.get(storable_name(slo.service)) if cause in before else None
                if not self._due_causes.is_due(cause, cause in before, data, now):
                    yield cause, no_verdict
                    continue
                yield (
                    cause,
                    partial(
                        self._evaluate_slo,
                        read,
                        cause,
                        slo,
                        now,
                        before=before.get(cause),
                        url=definitions.dashboard_url,
                    ),
                )

    def _evaluate_slo(
        self, read: Reader, cause: str, slo: Slo, now: datetime, *, before: Finding | None, url: str
    ) -> Verdict | None:
        if _requests(read, slo, now - self._policy.after, now):
            return Verdict(cause, None)
        is_early = before is None and self.resumed_at is not None and now - self.resumed_at < self._policy.after
        if is_early or self._read.stale_since(now, self._burn_rates.stale) is not None:
            return None
        finding = before if before is not None else self._missed(slo, now, url)
        if finding is None or now.timestamp() - finding.since > self._burn_rates.hysteresis.abandon.total_seconds():
            return Verdict(cause, None, has_data=False)
        return Verdict(cause, finding, excuse=maintenance_reason(slo.maintenance, now))

    def _missed(self, slo: Slo, now: datetime, url: str) -> Finding | None:
        policy, first = self._policy, self._first_seen(slo, now)
        backs = [back for back in policy.before if first is not None and first <= now - back - policy.after]
        counts = {back: _requests(self._read, slo, now - back - policy.after, now - back) for back in backs}
        if not counts or min(counts.values()) < policy.expected or policy.severity == "none":
            return None
        back = min(counts, key=lambda back: counts[back])
        since = self._last_seen(slo, now) or now - policy.after
        return Finding(
            name="traffic",
            service=slo.service,
            promise="requests arrive, as before at this time of day",
            kind="no_data",
            severity=policy.severity,
            since=since.timestamp(),
            absence=MissingTraffic(counts[back], back.total_seconds(), policy.after.total_seconds()),
            link=evidence.dashboard_link(url, _without_filters(slo), since, now, slo.objective),
            where={"environment": slo.environment} if slo.environment else {},
        )

    def _last_seen(self, slo: Slo, now: datetime) -> datetime | None:
        longest = max(self._policy.before, default=timedelta(days=1))
        return self._read.tally(_without_filters(slo).select(now - longest, now), _FAILURES).last_at

    def _first_seen(self, slo: Slo, now: datetime) -> datetime | None:
        longest = max(self._policy.before, default=timedelta(0)) + 2 * self._policy.after
        seen = self._read.versions(_without_filters(slo).select(now - longest, now))
        return None if seen.empty else seen["first_seen"].min().to_pydatetime().astimezone(UTC)


def _requests(read: Reader, slo: Slo, start: datetime, end: datetime) -> float:
    return read.tally(_without_filters(slo).select(start, end), _FAILURES).total


def _without_filters(slo: Slo) -> Slo:
    return Slo(slo.name, slo.service, slo.objective, slo.window, environment=slo.environment)
