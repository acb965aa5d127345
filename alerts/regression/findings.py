"""Findings of the regression search: latency change with error bounds, onset, suspected stage and release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from ...analysis.attributes import AttributeCounts
from ...analysis.comparison import StageGrowth
from ...analysis.regression.canary import rank_canary_suspects
from ...analysis.regression.hosts import share_explained_by_hosts
from ...analysis.regression.policy import TailPolicy, WatchPolicy
from ...analysis.regression.scoring import WindowScore
from ...analysis.regression.stage_attribution import StageBaseline, Suspect, rank_growth, rank_suspects
from ...analysis.regression.statistic import MEAN, Row
from ...analysis.regression.strata import Strata
from ...analysis.regression.verdict import (
    TailVerdict,
    Traffic,
    TrafficShift,
    load_shift,
    make_verdict,
    on_common_mix,
    regression_onset,
    release_at_onset,
    share_explained_by_traffic,
    strongest_window,
    traffic_shifts,
)
from ...core.histogram import Histogram
from ...questions.changed import explain_regression
from ...store import Group, Reader, Selection
from .. import formatting
from ..delivery.message import Finding, Trend
from ..delivery.message import LatencyRegression as Slower
from ..evaluation import evidence
from ..evaluation.evidence import dashboard_link as link_of
from ..objectives.slo import Slo
from .canary import VersionPair, version_group
from .record import AlertRecord
from .series import DAY, SPENT_STEP, WatchedSeries, minute_start, select_minutes, stage_seconds

# Compared dimensions, without the version, because releases are reported separately.
_DIMENSIONS = ("route", "model", "device", "status")
# Number of slow requests shown, and number of points of a trend.
_SHOWN, _POINTS = 3, 60
# Quantile that the dashboard page shows for a regression of the mean.
_SHOWN_AT = 0.99
# Steps of the requests by attribute, and the highest quantile at which the traffic is compared: beyond it are too few requests.
_TRAFFIC_STEPS, _TRAFFIC_AT = 60, 0.95
# Maximum number of steps of the requests by host.
_HOST_STEPS = 240


def same_hours_before(group: Group, start: int, end: int, began: int, days: int, *, since: int = 0) -> list[Selection]:
    calm = [day for day in range(1, days + 1) if end - day * DAY <= began and start - day * DAY >= since]
    return [select_minutes(group, start - day * DAY, end - day * DAY) for day in calm]


def merged_latency(read: Reader, selections: Sequence[Selection]) -> Histogram:
    whole = Histogram()
    for selection in selections:
        whole.merge(read.latency(selection))
    return whole


def stage_means(read: Reader, selections: Sequence[Selection]) -> dict[str, float]:
    counted = [read.spent(selection, SPENT_STEP) for selection in selections]
    requests = max(sum(int(spent.total.sum()) for spent in counted), 1)
    means: dict[str, float] = {}
    for spent_times in counted:
        for stage, seconds in zip(spent_times.stages, spent_times.seconds.sum(axis=(1, 2)).tolist(), strict=True):
            means[stage] = means.get(stage, 0.0) + seconds / requests
    return means


def requests_by_dimension(read: Reader, selections: Sequence[Selection], group: Group) -> Traffic:
    requests: dict[str, dict[str, float]] = {}
    for selection in selections:
        for name, values in read.dimensions(selection).items():
            if name in _DIMENSIONS and name != group.dimension:
                for value, n in values.items():
                    mine = requests.setdefault(name, {})
                    mine[value] = mine.get(value, 0) + n
    return requests


def quantile_on_common_mix(
    read: Reader, at: float, dimension: str, before: Sequence[Selection], after: Sequence[Selection]
) -> tuple[float, float] | None:
    values = {value for selection in before for value in read.dimensions(selection).get(dimension, {})}
    sides = [
        {
            value: merged_latency(read, [replace(selection, **{dimension: value}) for selection in side])
            for value in values
        }
        for side in (before, after)
    ]
    return on_common_mix(sides[0], sides[1], at)


def pseudo_slo(group: Group, quantile: float) -> Slo:
    whole = select_minutes(group, 0, 0)
    return Slo(
        "tail",
        group.service,
        quantile,
        timedelta(days=1),
        environment=whole.environment,
        route=whole.route,
        model=whole.model,
        version=whole.version,
    )


def regression_link(dashboard_url: str, slo: Slo, times: tuple[int, int, int], quantile: float) -> str:
    """Return the URL of the finding's dashboard page; without an environment, the page shows all environments."""
    began, _, now = times
    shown = replace(slo, environment=slo.environment or None)
    return link_of(dashboard_url, shown, minute_start(began), minute_start(now), quantile)


def explain_slower(
    read: Reader,
    slo: Slo,
    times: tuple[int, int, int],
    usual_seconds: float,
    growth: tuple[StageGrowth, ...],
    *,
    dashboard_url: str,
) -> dict[str, Any]:
    """Return the fields of a finding about requests slower than usual: the cause, what they called, and the slowest ones."""
    about, reader = slo.select(minute_start(times[0]), minute_start(times[2])), evidence.reader_of(read, slo)
    change = explain_regression(reader, replace(about, start=minute_start(times[1])), usual_seconds, growth)
    requests = evidence.bad_requests(read, about, None, cause=change.kind, limit=_SHOWN, above_seconds=usual_seconds)
    usual, counted = (
        formatting.latency(usual_seconds),
        [formatting.count(number) for number in (change.bad, change.requests)],
    )
    none = f"No retained request is slower than the usual {usual}: {' of '.join(counted)} are, and none was sampled."
    return {
        "cause": change.kind,
        "failures": change.failures,
        "growth": change.growth,
        "exemplars": tuple(evidence.exemplar_of(row, dashboard_url) for row in requests.to_dict("records")),
        "no_exemplars": "" if len(requests) else none,
        "called": evidence.called_text(reader, evidence.slow_selection(about, change), change.growth),
    }


def latency_trend(read: Reader, slo: Slo, times: tuple[int, int, int], quantile: float | None) -> Trend | None:
    """Return the latency trend over the incident and at least the same time before it; None without requests."""
    began, _, now = times
    length = max(2 * (now - began), now - began + round(evidence.CALM_BEFORE / timedelta(minutes=1)))
    step = -(-length // _POINTS)
    start = (now - length) // step * step
    frame = read.breakdown_over_time(
        slo.select(minute_start(start), minute_start(now)), quantile, timedelta(minutes=step)
    )
    width = round(frame.attrs["step_seconds"])
    if frame.empty:
        return None
    numbers = [(round(at.timestamp()) - 60 * start) // width for at in frame["at"]]
    values = dict(zip(numbers, frame["value_seconds"].tolist(), strict=True))
    began_at = round(frame["at"].iloc[0].timestamp()) - width * numbers[0]
    return Trend(tuple(values.get(number) for number in range(max(values) + 1)), float(width), float(began_at))


@dataclass(frozen=True, slots=True)
class RegressionContext:
    read: Reader
    policy: TailPolicy
    watching: WatchPolicy
    dashboard_url: str
    record: AlertRecord
    services: tuple[Group, ...] = ()


def describe_regression(
    context: RegressionContext, watched: WatchedSeries, releases: Mapping[str, int], before: Finding | None
) -> Finding | None:
    """Return the finding of a firing series, or None if there are too few data yet."""
    strongest, recent = strongest_window(watched.last_score, watched.learnt.reference.rows), watched.lately
    if strongest is None or recent is None:
        return before
    number, cell, row = strongest
    at = watched.progress.at
    window = context.policy.windows[number]
    began = round(before.since / 60) if before else regression_onset(watched.learnt.reference, recent, window, cell)
    # The onset may be within the first block above the baseline, or late in the block before.
    between = (began - window.block, began + window.block)
    if before and before.between:
        between = round(before.between[0] / 60), round(before.between[1] / 60)
    start = max(began, at - whole_minutes(context.watching.blamed))
    then = _reference_hours(context, watched, (began, start, at))
    now = select_minutes(watched.group, start, at)
    suspects = _suspects(context, watched, row, then, now)
    verdict = _verdict(context, watched, (row, cell), (then, now))
    finding = _finding(
        context,
        watched.group,
        verdict,
        suspects,
        (began, start, at),
        calm=select_minutes(watched.group, max(began - DAY, watched.normal_from), began),
        version=release_at_onset(context.watching, releases, between),
        between=between,
    )
    if finding is None or finding.shift is None or not (watched.has_lasted and is_explained_by_hosts(context, watched)):
        return finding
    return replace(finding, shift=replace(finding.shift, slow_hosts=True))


def is_explained_by_traffic(context: RegressionContext, watched: WatchedSeries) -> bool:
    growth = _growth(context, watched)
    if growth is None:
        return False
    row, (began, start, at) = growth
    then = _reference_hours(context, watched, (began, start, at))
    before = [context.read.attributes(selection, _TRAFFIC_STEPS) for selection in then]
    now = context.read.attributes(select_minutes(watched.group, start, at), _TRAFFIC_STEPS)
    quantile = _TRAFFIC_AT if row.at == MEAN else min(float(row.at), _TRAFFIC_AT)
    pooled = pooled_attribute(watched.learnt.reference.strata, now, context.policy.confounders.share)
    return share_explained_by_traffic(before, now, quantile, pooled)[0] >= context.watching.by_traffic


def pooled_attribute(strata: Strata | None, now: AttributeCounts, share: float) -> str:
    if strata is None:
        return ""
    requests = {value: int(counts.sum()) for value, counts in now.requests.get(strata.dimension, {}).items()}
    others = sum(number for value, number in requests.items() if value not in strata.shifts)
    return "" if others > share * sum(requests.values()) else strata.dimension


def is_explained_by_hosts(context: RegressionContext, watched: WatchedSeries) -> bool:
    """Return whether other services on the same hosts got slower like a firing series, see `analysis.regression.hosts`."""
    growth = _growth(context, watched)
    if growth is None:
        return False
    _, (began, _, at) = growth
    first = began - whole_minutes(context.watching.blamed)
    replicas = context.read.replica_counts(select_minutes(watched.group, first, at), _HOST_STEPS)
    others = [
        context.read.replica_counts(select_minutes(service, first, at), _HOST_STEPS)
        for service in (context.services if replicas.replicas else ())
        if service.service != watched.group.service
    ]
    return share_explained_by_hosts(replicas, others, 60 * began) >= context.watching.by_hosts


def _growth(context: RegressionContext, watched: WatchedSeries) -> tuple[Row, tuple[int, int, int]] | None:
    strongest, recent = strongest_window(watched.last_score, watched.learnt.reference.rows), watched.lately
    if strongest is None or recent is None:
        return None
    number, cell, row = strongest
    at = watched.progress.at
    began = regression_onset(watched.learnt.reference, recent, context.policy.windows[number], cell)
    return row, (began, max(began, at - whole_minutes(context.watching.blamed)), at)


def describe_canary(
    context: RegressionContext, pair: VersionPair, rows: Sequence[Row], usual: StageBaseline
) -> Finding | None:
    """Return the finding of a canary that is slower than the older version, or None if there are too few data yet."""
    strongest = strongest_window(pair.last_score, rows)
    if strongest is None or pair.last_score is None:
        return None
    _, cell, row = strongest
    at = pair.progress.at
    start = max(pair.since, at - whole_minutes(context.watching.blamed))
    old, new = (version_group(pair.whole, version) for version in (pair.old, pair.new))
    beside, slower = (stage_seconds(context.read, group, start, at) for group in (old, new))
    suspects = rank_canary_suspects(context.policy, usual, beside, slower, pair.last_score.moved)
    verdict = make_verdict(
        row,
        cell,
        merged_latency(context.read, [select_minutes(old, start, at)]),
        merged_latency(context.read, [select_minutes(new, start, at)]),
    )
    calm = select_minutes(old, start, at)
    return _finding(context, new, verdict, suspects, (pair.since, start, at), calm=calm, against=pair.old)


def _reference_hours(
    context: RegressionContext, watched: WatchedSeries, times: tuple[int, int, int]
) -> list[Selection]:
    group, (began, start, end) = watched.group, times
    days = context.policy.reference.length // DAY
    then = same_hours_before(group, start, end, began, days, since=watched.normal_from)
    if merged_latency(context.read, then).count:
        return then
    return [select_minutes(group, max(began - DAY, watched.normal_from), began)]


def _suspects(
    context: RegressionContext, watched: WatchedSeries, row: Row, then: Sequence[Selection], now: Selection
) -> tuple[Suspect, ...]:
    moved = watched.last_score.moved if watched.last_score else {}
    if row.at != MEAN:
        start, end = (round(at.timestamp()) // 60 for at in (now.start, now.end))
        return rank_suspects(
            context.policy, watched.learnt.habits, stage_seconds(context.read, watched.group, start, end), moved
        )
    before, after = stage_means(context.read, then), stage_means(context.read, [now])
    grown = {stage: after.get(stage, 0.0) - before.get(stage, 0.0) for stage in sorted({*before, *after})}
    return rank_growth(context.policy, watched.learnt.habits, grown, moved)


def _verdict(
    context: RegressionContext,
    watched: WatchedSeries,
    strongest: tuple[Row, WindowScore],
    sides: tuple[Sequence[Selection], Selection],
) -> TailVerdict:
    group, (row, cell), (then, now) = watched.group, strongest, sides
    before, after = merged_latency(context.read, then), merged_latency(context.read, [now])
    minutes = round((now.end - now.start) / timedelta(minutes=1))
    load = load_shift(watched.learnt.reference.model.load, after.count, minutes)
    shifts = traffic_shifts(
        context.policy.confounders,
        requests_by_dimension(context.read, then, group),
        requests_by_dimension(context.read, [now], group),
    )
    mix = next((shift.dimension for shift in shifts if shift.dimension in ("route", "model")), "")
    mixed = quantile_on_common_mix(context.read, float(row.at), mix, then, [now]) if mix and row.at != MEAN else None
    shifts = (*shifts, load) if load else shifts
    return make_verdict(row, cell, before, after, shifts=shifts, mixed=mixed)


def _finding(
    context: RegressionContext,
    group: Group,
    verdict: TailVerdict,
    suspects: Sequence[Suspect],
    times: tuple[int, int, int],
    *,
    calm: Selection,
    version: str = "",
    against: str = "",
    between: tuple[int, int] | None = None,
) -> Finding | None:
    """Build the finding of *verdict*; None if latencies are unknown.

    *times* are the onset, the start of the measured window and now; *between* are the bounds of the onset. All are in minutes since
    the epoch. *calm* are requests without the regression, whose functions are compared.
    """
    slower = _shift(verdict, times[2] - times[1], against)
    if slower is None:
        return None
    quantile = _SHOWN_AT if slower.at == MEAN else float(slower.at)
    about = pseudo_slo(group, quantile)
    growth = tuple(
        StageGrowth(suspect.stage, suspect.seconds, suspect.share) for suspect in suspects if suspect.seconds > 0
    )
    slow = select_minutes(group, times[1], times[2])
    usual = f"with version {against} at the same time" if against else "in the same hours of previous days"
    explained = explain_slower(
        context.read, about, times, slower.before_seconds, growth, dashboard_url=context.dashboard_url
    )
    return Finding(
        name="canary" if against else "tail",
        service=group.service,
        promise=f"{usual}, {_statistic_name(slower)} was {formatting.latency(slower.before_seconds)}",
        kind="tail",
        severity=context.watching.severity,
        since=minute_start(times[0]).timestamp(),
        between=None if between is None else (60.0 * between[0], 60.0 * between[1]),
        shift=slower,
        **explained,
        # A regression of the mean is one of most requests.
        functions=evidence.code_growth(
            context.read, calm, slow, explained["growth"], 0.5 if slower.at == MEAN else quantile
        ),
        shared=evidence.shared_attributes(context.read, (slow, quantile)),
        replica=evidence.slow_replica_text(context.read, replace(slow, start=slow.start - evidence.CALM_BEFORE)),
        record=context.record.in_words(group.service, group.environment),
        version=version,
        course=latency_trend(context.read, about, times, None if slower.at == MEAN else quantile),
        link=regression_link(context.dashboard_url, about, times, quantile),
        where=evidence.filters_of(about),
    )


def _shift(verdict: TailVerdict, minutes: int, against: str) -> Slower | None:
    if verdict.before is None or verdict.after is None or verdict.change is None:
        return None
    return Slower(
        at=verdict.at,
        before_seconds=verdict.before,
        after_seconds=verdict.after,
        low=verdict.change.low,
        high=verdict.change.high,
        requests=verdict.requests,
        window_seconds=60.0 * minutes,
        z=verdict.z,
        mix=describe_shifts(verdict.shifts, verdict.on_common_mix),
        against=against,
    )


def describe_shifts(shifts: Sequence[TrafficShift], mixed: float | None) -> str:
    """Return the traffic changes as text, with the latency change on a common mix.

    >>> describe_shifts([TrafficShift("route", "/search", 0.12, 0.41)], 1.02)
    'route /search has 41 % of requests, before 12 %; with the same mix the change is +2 %'
    """
    texts = [_describe_shift(shift) for shift in shifts]
    if shifts and mixed is not None:
        sign = "+" if mixed >= 1 else ""
        texts.append(f"with the same mix the change is {sign}{formatting.percent(formatting.whole(mixed - 1))}")
    return "; ".join(texts)


def _describe_shift(shift: TrafficShift) -> str:
    if shift.dimension == "load":
        limit = "at most" if shift.after > shift.before else "at least"
        return f"{formatting.count(shift.after)} requests per minute, before {limit} {formatting.count(shift.before)}"
    now, was = formatting.percent(formatting.whole(shift.after)), formatting.percent(formatting.whole(shift.before))
    return f"{shift.dimension} {shift.value} has {now} of requests, before {was}"


def _statistic_name(slower: Slower) -> str:
    return "the mean" if slower.at == MEAN else f"p{100 * float(slower.at):g}"


def whole_minutes(length: timedelta) -> int:
    return round(length / timedelta(minutes=1))
