"""Alert rule for latencies that grow slowly over weeks.

Each service is evaluated once a day, over whole days (UTC), one service per evaluation. The results are kept in memory: a restart
evaluates all services again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from ...analysis.regression.drift import (
    Drift,
    daily_latency,
    default_drift_policy,
    find_drift,
    stage_growth,
    weekly_latency,
)
from ...analysis.regression.policy import default_tail_policy, default_watch_policy
from ...analysis.regression.statistic import WEEK, StageSeconds
from ...analysis.regression.verdict import traffic_shifts
from ...store import Group, Selection, Store
from .. import formatting
from ..delivery.message import Finding, LatencyRegression, Trend
from ..evaluation.alert_rules import Verdict, no_verdict
from ..evaluation.evidence import filters_of
from ..objectives.slo_file import Definitions
from . import findings, series
from .series import DAY, cause_of_group, make_cause, minute_start, select_minutes, stage_seconds
from .watcher import planned_maintenance

_DAY = timedelta(days=1)


class DriftRule:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._policy = default_drift_policy()
        self._groups: dict[str, Group] = {}
        self._listed: datetime | None = None
        # Day of the last evaluation of each cause, and its result.
        self._evaluated: dict[str, int] = {}
        self._verdicts: dict[str, Verdict] = {}

    def __call__(
        self, definitions: Definitions, now: datetime, before: Mapping[str, Finding]
    ) -> Iterable[tuple[str, Callable[[], Verdict | None]]]:
        settings = definitions.regressions
        if settings is None:
            return
        hour = now.replace(minute=0, second=0, microsecond=0)
        if self._listed != hour:
            groups = self._store.read.groups(now - 2 * _DAY)
            whole = (group for group in groups if not group.dimension)
            self._groups = {make_cause("drift", group.service, environment=group.environment): group for group in whole}
            self._listed = hour
        today = int((now - default_watch_policy().delay).timestamp()) // 60 // DAY
        watched = {cause: group for cause, group in self._groups.items() if settings.watches(group.service)}
        due = next((cause for cause in watched if self._evaluated.get(cause) != today), None)
        for cause, group in watched.items():
            verdict, excuse = self._verdicts.get(cause), planned_maintenance(definitions, group, now)
            if cause == due:
                yield cause, partial(self._evaluate, cause, today, before.get(cause), excuse, definitions.dashboard_url)
            elif verdict is None:
                yield cause, no_verdict
            else:
                yield cause, partial(self._unless_accepted, replace(verdict, excuse=excuse), today)

    def _evaluate(self, cause: str, today: int, before: Finding | None, excuse: str, url: str) -> Verdict:
        # An evaluation that fails is repeated on the next day, so that it does not block those of other services.
        self._evaluated[cause] = today
        group, first = self._groups[cause], today - WEEK * self._policy.weeks
        days = stage_seconds(self._store.read, group, DAY * first, DAY * today, _DAY)
        if before is not None and before.shift is not None:
            finding = self._continued(before, before.shift, days)
            has_data = weekly_latency(days, float(before.shift.at)) is not None
        else:
            drift, has_data = find_drift(self._policy, days), True
            finding = None if drift is None else self._finding(group, drift, days, url)
        verdict = self._verdicts[cause] = Verdict(cause, finding, has_data=has_data, excuse=excuse)
        return self._unless_accepted(verdict, today)

    def _unless_accepted(self, verdict: Verdict, today: int) -> Verdict:
        if verdict.finding is None:
            return verdict
        with self._store.transaction() as connection:
            accepted = series.load_accepted(connection)
        causes = (verdict.cause, cause_of_group(self._groups[verdict.cause]))
        start = DAY * (today - WEEK * self._policy.weeks)
        if any(cause in accepted and accepted[cause].since > start for cause in causes):
            return Verdict(verdict.cause, None)
        return verdict

    def _continued(self, before: Finding, shift: LatencyRegression, days: StageSeconds) -> Finding | None:
        after = weekly_latency(days, float(shift.at))
        if after is None or after / shift.before_seconds < 1 + self._policy.remaining:
            return None
        change = after / shift.after_seconds
        moved = replace(shift, after_seconds=after, low=shift.low * change, high=shift.high * change)
        return replace(before, shift=moved, course=_trend(days, float(shift.at)))

    def _finding(self, group: Group, drift: Drift, days: StageSeconds, url: str) -> Finding:
        start, end = days.start, days.start + DAY * len(days.total)
        first, last = ((low, low + WEEK * DAY) for low in (start, end - WEEK * DAY))
        about = findings.pseudo_slo(group, drift.at)
        growth = stage_growth(days.between(*first), days.between(*last), drift.at)
        name = f"p{100 * drift.at:g}"
        return Finding(
            name="drift",
            service=group.service,
            promise=f"{self._policy.weeks - 1} weeks before, {name} was {formatting.latency(drift.before)}",
            kind="tail",
            severity=default_watch_policy().severity,
            since=minute_start(start).timestamp(),
            shift=LatencyRegression(
                drift.at,
                drift.before,
                drift.after,
                drift.low,
                drift.high,
                int(days.between(*last).total.sum()),
                60.0 * DAY * WEEK,
                drift.z,
                mix=self._traffic_change(
                    group, drift, days, [select_minutes(group, *interval) for interval in (first, last)]
                ),
                weeks=self._policy.weeks,
            ),
            **findings.explain_slower(
                self._store.read, about, (last[0], last[0], end), drift.before, growth, dashboard_url=url
            ),
            course=_trend(days, drift.at),
            link=findings.regression_link(url, about, (start, start, end), drift.at),
            where=filters_of(about),
        )

    def _traffic_change(self, group: Group, drift: Drift, days: StageSeconds, sides: list[Selection]) -> str:
        read, confounders = self._store.read, default_tail_policy().confounders
        first, last = (int(days.total[part].sum()) / WEEK / DAY for part in (slice(WEEK), slice(-WEEK, None)))
        load = f"{formatting.count(last)} requests per minute, before {formatting.count(first)}"
        changed = abs(last / first - 1) >= self._policy.load
        shifts = traffic_shifts(confounders, *(findings.requests_by_dimension(read, [side], group) for side in sides))
        mix = next((shift.dimension for shift in shifts if shift.dimension in ("route", "model")), "")
        mixed = findings.quantile_on_common_mix(read, drift.at, mix, sides[:1], sides[1:]) if mix else None
        ratio = mixed[1] / mixed[0] if mixed and mixed[0] > 0 else None
        return "; ".join(text for text in (load if changed else "", findings.describe_shifts(shifts, ratio)) if text)


def _trend(days: StageSeconds, at: float) -> Trend:
    return Trend(daily_latency(days, at), 60.0 * DAY, 60.0 * days.start)
