"""Regression watcher: reads all series once a minute, and evaluates services, routes, models and version pairs.

The store returns all series in one query, and the database stores the state. A verdict reports that a series is firing, not that
it started to fire. So a process that continues after a crash returns the same verdict, and nothing is notified twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial

from ...analysis.policies import default_burn_rate_policy
from ...analysis.regression.policy import TailPolicy, WatchPolicy, default_tail_policy, default_watch_policy
from ...analysis.regression.scoring import AlarmState
from ...store import Group, Store
from ..delivery.message import Finding
from ..evaluation.alert_rules import Verdict, maintenance_reason, no_verdict
from ..objectives.slo_file import ALL_SERVICES, Definitions, WatchedServices
from . import series
from .acceptance import rebase_on_accepted
from .canary import ServiceVersions, VersionPair
from .findings import (
    RegressionContext,
    describe_canary,
    describe_regression,
    is_explained_by_hosts,
    is_explained_by_traffic,
    whole_minutes,
)
from .record import AlertRecord, read_record
from .series import (
    DAY,
    AcceptedLevel,
    WatchedSeries,
    cause_of_group,
    learn_group,
    longest_window,
    minute_start,
    whole_service,
)

# Time after which a series without requests is dropped; longer than the time for which an incident waits for data.
_KNOWN_MINUTES = 2 * DAY
# Cause under which the search runs before all verdicts; this cause never has an incident.
SEARCH_CAUSE = "tail:"
_KINDS = (SEARCH_CAUSE, "canary:")


class RegressionSearch:
    """Search for regressions: evaluates the minutes of all series, up to `read_until` (since the epoch), and learns their baselines."""

    def __init__(self, store: Store, policy: TailPolicy, watching: WatchPolicy) -> None:
        self._store = store
        self._policy = policy
        self._watching = watching
        self._regressions = ALL_SERVICES
        self.series: dict[str, WatchedSeries] = {}
        self.canaries: dict[Group, ServiceVersions] = {}
        self.read_until: int | None = None
        self.record = AlertRecord(watching.record)
        self.services: tuple[Group, ...] = ()
        self._groups: dict[Group, int] = {}
        self._tried: dict[Group, int] = {}
        self._standing: dict[str, AlarmState] = {}
        self._accepted: dict[str, AcceptedLevel] = {}
        # Last minute for which this process wrote the state.
        self._written: int | None = None

    def advance(self, regressions: WatchedServices, last: int, now: datetime) -> None:
        """Read and evaluate the next stretch of minutes, at most up to *last*, unless the collector's data are stale."""
        self._regressions = regressions
        with self._store.transaction() as connection:
            others = series.last_evaluated_minute(connection)
            self._accepted = series.load_accepted(connection)
        if self._store.read.stale_since(now, default_burn_rate_policy().stale) is not None:
            return
        if now.timestamp() - self.record.at >= self._watching.refresh.total_seconds():
            self.record = read_record(self._store, self._watching.record, regressions, now)
        if self.read_until is None or (others is not None and others != self._written and others > self.read_until):
            self._load(last)
        start = self.read_until
        if start is None or start >= last:
            return
        end = min(start + round(self._watching.stretch / timedelta(minutes=1)), last)
        broken = self._stretch(start, end)
        if end == last:
            self._write(last)
        self.read_until = end
        if broken:
            raise broken[0]

    def learn(self, last: int, firing: Collection[str]) -> None:
        """Learn the baseline of one series if it is due; skip the causes in *firing*."""
        group = self._to_learn(last, firing)
        if group is None:
            return
        self._tried[group] = last
        span = self._known_from(group), last
        learning = learn_group(self._store.read, self._policy, self._watching.busy, group, span)
        if learning is None:
            return
        learnt, recent = learning
        cause = cause_of_group(group)
        with self._store.transaction() as connection:
            series.save_learnt(connection, cause, learnt)
        if cause in self.series:
            self.series[cause].renew(learnt, recent)
        else:
            self.series[cause] = self._watched(group, learnt, AlarmState(at=last))
            self.series[cause].recent = recent

    def unsettled(self) -> list[WatchedSeries]:
        """Return the series whose baseline is older than an accepted level; their state is unknown."""
        return [series for series in self.series.values() if self.is_unsettled(series)]

    def is_unsettled(self, watched: WatchedSeries) -> bool:
        accepted = self._accepted_of(watched.group)
        return accepted is not None and accepted.at > watched.learnt.at

    def settle(self, watched: WatchedSeries, last: int) -> None:
        accepted = self._accepted_of(watched.group)
        if accepted is None or accepted.at > last:
            return
        least = self._watching.accepted_beyond
        learnt, recent = rebase_on_accepted(self._store.read, self._policy, least, watched, accepted)
        watched.renew(learnt, recent)
        watched.restart(accepted.at)
        watched.normal_from = accepted.since
        with self._store.transaction() as connection:
            series.save_learnt(connection, watched.cause, learnt)
            series.save_progress(connection, {watched.cause: watched.progress}, last)

    def is_accepted(self, pair: VersionPair) -> bool:
        return pair.key in self._accepted

    def versions(self) -> dict[Group, dict[str, int]]:
        versions: dict[Group, dict[str, int]] = {}
        for group, first in self._groups.items():
            if group.dimension == "version":
                versions.setdefault(whole_service(group), {})[group.value] = first
        return versions

    def _load(self, last: int) -> None:
        with self._store.transaction() as connection:
            learnt, self._standing = series.load_learnt(connection), series.load_progress(connection)
            self._written = series.last_evaluated_minute(connection)
        earliest = last - round(self._watching.catch_up / timedelta(minutes=1))
        self._groups = self._known(last)
        self.series, self.canaries = {}, {}
        for group in self._groups:
            cause = cause_of_group(group)
            if cause in learnt and group.dimension != "version":
                progress = _skip_missed(self._standing.get(cause, AlarmState(at=last)), earliest)
                self.series[cause] = self._watched(group, learnt[cause], progress)
        evaluated = [series.progress.at for series in self.series.values()]
        self.read_until = min(evaluated) - longest_window(self._policy) if evaluated else last

    def _watched(self, group: Group, learnt: series.LearntBaseline, progress: AlarmState) -> WatchedSeries:
        accepted = self._accepted_of(group)
        return WatchedSeries(group, self._policy, learnt, progress, normal_from=accepted.since if accepted else 0)

    def _known(self, last: int) -> dict[Group, int]:
        groups = self._store.read.groups(minute_start(last - _KNOWN_MINUTES))
        self.services = tuple(dict.fromkeys(whole_service(group) for group in groups))
        return {
            group: int(first.timestamp()) // 60
            for group, first in groups.items()
            if self._regressions.watches(group.service)
        }

    def _stretch(self, start: int, end: int) -> list[Exception]:
        self._groups = self._known(end)
        minutes = self._store.read.all_minutes(minute_start(start), minute_start(end))
        versions = self.versions()
        self.series = {cause: series for cause, series in self.series.items() if series.group in self._groups}
        self.canaries = {whole: canary for whole, canary in self.canaries.items() if whole in versions}
        broken: list[Exception] = []
        for watched in self.series.values():
            seen = versions.get(whole_service(watched.group), {})
            watched.strictness = self.record.strictness(watched.group.service, watched.group.environment)
            try:
                watched.advance(minutes, start, end, frozenset(sorted(seen.values())[1:]))
                if seen and not watched.group.dimension:
                    self._canaries_of(watched).advance(minutes, seen, (start, end), self._standing)
            except Exception as error:  # noqa: BLE001 - raised after all other series are evaluated
                broken.append(error)
        return broken

    def _canaries_of(self, whole: WatchedSeries) -> ServiceVersions:
        reference = whole.learnt.reference
        rows = reference.version_rows or reference.rows
        created = ServiceVersions(whole.group, rows, self._policy, self._watching)
        canaries = self.canaries.setdefault(whole.group, created)
        canaries.strictness = whole.strictness
        return canaries

    def _write(self, last: int) -> None:
        pairs = [canary.pair for canary in self.canaries.values() if canary.pair is not None]
        standing = {cause: series.progress for cause, series in self.series.items()}
        standing.update({pair.key: pair.progress for pair in pairs})
        with self._store.transaction() as connection:
            series.save_progress(connection, standing, last)
            series.delete_stale(connection, last - self._policy.reference.length)
        self._written = last

    def _to_learn(self, last: int, firing: Collection[str]) -> Group | None:
        span = self._policy.reference
        waiting: dict[Group, int] = {}
        for group in self._groups:
            cause = cause_of_group(group)
            series = self.series.get(cause)
            learnt_at = series.learnt.at if series else 0
            due = last - max(learnt_at, self._tried.get(group, 0)) >= span.renew
            enough = last - self._known_from(group) >= span.least
            fires = series is not None and (cause in firing or series.progress.fired_at is not None)
            if due and enough and not fires and group.dimension != "version":
                waiting[group] = learnt_at
        return min(
            waiting,
            key=lambda group: (waiting[group], group.dimension, group.service, group.environment, group.value),
            default=None,
        )

    def _known_from(self, group: Group) -> int:
        accepted = self._accepted_of(group)
        return max(self._groups[group], accepted.since if accepted else 0)

    def _accepted_of(self, group: Group) -> AcceptedLevel | None:
        causes = (cause_of_group(group), cause_of_group(whole_service(group)))
        accepted = [self._accepted[cause] for cause in causes if cause in self._accepted]
        return max(accepted, key=lambda acceptance: acceptance.at, default=None)


def _skip_missed(progress: AlarmState, earliest: int) -> AlarmState:
    if progress.at >= earliest:
        return progress
    return AlarmState(earliest, progress.since, fired_at=progress.fired_at, released_at=progress.released_at)


NamedEvaluations = Iterable[tuple[str, Callable[[], Verdict | None]]]


class RegressionRule:
    def __init__(self, store: Store) -> None:
        self._read = store.read
        self._policy = default_tail_policy()
        self._watching = default_watch_policy()
        self.search = RegressionSearch(store, self._policy, self._watching)

    def __call__(self, definitions: Definitions, now: datetime, before: Mapping[str, Finding]) -> NamedEvaluations:
        if definitions.regressions is None:
            return
        search, last = self.search, int((now - self._watching.delay).timestamp()) // 60
        yield SEARCH_CAUSE, partial(search.advance, definitions.regressions, last, now)
        ready = search.read_until == last
        if ready:
            yield from ((SEARCH_CAUSE, partial(search.settle, series, last)) for series in search.unsettled())
            yield SEARCH_CAUSE, partial(search.learn, last, before)
        context = RegressionContext(
            self._read, self._policy, self._watching, definitions.dashboard_url, search.record, search.services
        )
        for cause, verdict in self._verdicts(context, definitions, now, before):
            yield cause, verdict if ready else no_verdict
        if not ready:
            # Open incidents stay unchanged until all data are read.
            yield from ((cause, no_verdict) for cause in before if cause.startswith(_KINDS))

    def _verdicts(
        self, context: RegressionContext, definitions: Definitions, now: datetime, before: Mapping[str, Finding]
    ) -> NamedEvaluations:
        for cause, watched in self.search.series.items():
            excuse = planned_maintenance(definitions, watched.group, now)
            yield cause, partial(self._evaluate_series, context, watched, before.get(cause), excuse)
        for canary in self.search.canaries.values():
            excuse = planned_maintenance(definitions, canary.whole, now)
            yield canary.cause, partial(self._evaluate_canary, context, canary, before.get(canary.cause), excuse)

    def _evaluate_series(
        self, context: RegressionContext, watched: WatchedSeries, before: Finding | None, excuse: str
    ) -> Verdict | None:
        has_requests = watched.requests(whole_minutes(self._watching.silence)) > 0
        if watched.progress.fired_at is None or not has_requests:
            return Verdict(watched.cause, None, has_data=has_requests)
        if self.search.is_unsettled(watched):
            return Verdict(watched.cause, None)
        whole, at = whole_service(watched.group), watched.progress.at
        if before is not None and self._is_gone(whole, before.version):
            watched.restart(at - whole_minutes(self._watching.together))
            return Verdict(watched.cause, None)
        score = watched.last_score.score if watched.last_score else 0.0
        if before is None and is_explained_by_traffic(context, watched):
            # Only a growth that lasts beyond the other traffic, or exceeds it, fires again.
            watched.restart(at)
            return Verdict(watched.cause, None)
        if before is None and not watched.has_lasted and is_explained_by_hosts(context, watched):
            watched.hold()
            return Verdict(watched.cause, None)
        if before is None or (score >= 1 and at - watched.described_at >= whole_minutes(self._watching.refresh)):
            watched.described_at = at
            before = describe_regression(context, watched, self.search.versions().get(whole, {}), before)
        return None if before is None else Verdict(watched.cause, before, excuse=excuse)

    def _is_gone(self, whole: Group, version: str) -> bool:
        canaries = self.search.canaries.get(whole)
        serving = canaries.serving() if canaries else set[str]()
        return bool(version and serving) and version not in serving

    def _evaluate_canary(
        self, context: RegressionContext, versions: ServiceVersions, before: Finding | None, excuse: str
    ) -> Verdict | None:
        pair, whole = versions.pair, self.search.series.get(cause_of_group(versions.whole))
        if whole is not None and not whole.requests(whole_minutes(self._watching.silence)):
            return Verdict(versions.cause, None, has_data=False)
        if pair is None or pair.progress.fired_at is None or self.search.is_accepted(pair):
            return Verdict(versions.cause, None)
        if whole is not None and not _is_same_pair(before, pair.old, pair.new):
            before = describe_canary(context, pair, versions.rows, whole.learnt.habits)
        return None if before is None else Verdict(versions.cause, before, excuse=excuse)


def _is_same_pair(finding: Finding | None, old: str, new: str) -> bool:
    if finding is None or finding.shift is None:
        return False
    return (finding.shift.against, finding.where.get("version")) == (old, new)


def planned_maintenance(definitions: Definitions, group: Group, now: datetime) -> str:
    """Return the maintenance window in progress for the service and environment of *group* as text; "" if none."""
    slos = (slo for slo in definitions.slos if slo.service == group.service)
    here = (slo.maintenance for slo in slos if slo.environment in (None, group.environment))
    return next((why for group in here if (why := maintenance_reason(group, now))), "")
