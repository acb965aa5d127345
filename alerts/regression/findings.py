"""Findings of the regression search: latency change with error bounds, onset, suspected stage and release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np

from ...analysis.comparison import StageGrowth, compare_means, compare_quantile, mean_latency
from ...analysis.regression.policy import At, TailPolicy, WatchPolicy, Window
from ...analysis.regression.scoring import TailScore, WindowScore
from ...analysis.regression.stage_attribution import StageBaseline, Suspect, rank_growth, rank_suspects
from ...analysis.regression.statistic import MEAN, Expectation, PrefixSums, Row, TailCounts, block_excess
from ...core.histogram import Estimate, Histogram
from ...store import Group, Reader, Selection
from .. import formatting
from ..delivery.message import Exemplar, Finding, Trend
from ..delivery.message import LatencyRegression as Slower
from ..evaluation.evidence import CALM_BEFORE, exemplar_of, filters_of
from ..evaluation.evidence import dashboard_link as link_of
from ..objectives.slo import Slo
from .canary import VersionPair, rank_canary_suspects, version_group
from .series import DAY, LearntBaseline, WatchedSeries, minute_start, select_minutes, stage_seconds
from .traffic import (
    TrafficShift,
    all_shifts,
    describe_shifts,
    load_shift,
    merged_latency,
    quantile_on_common_mix,
    requests_by_dimension,
    same_hours_before,
    stage_means,
)

# Number of slow requests shown, number of slowest requests searched, and number of points of a trend.
_SHOWN, _LOOKED_AT, _POINTS = 3, 30, 60
# Quantile that the dashboard page shows for a regression of the mean.
_SHOWN_AT = 0.99


@dataclass(frozen=True, slots=True)
class TailVerdict:
    """Measured latency regression.

    Args:
        at: Quantile with the highest score, or the mean.
        before: Latency in the reference hours; None without requests. [seconds]
        after: Latency in the window; None without requests. [seconds]
        change: after / before, with error bounds; None if unknown. [ratio]
        before_n: Requests in the reference hours. [count]
        after_n: Requests in the window. [count]
        z: Distance from the baseline in robust standard deviations.
        stage: Most suspect stage; None if no stage grew.
        runner_up: Second most suspect stage.
        shifts: Traffic changes; empty for none.
        on_common_mix: after / before on a common mix; None without traffic changes or common groups. [ratio]
    """

    at: At
    before: float | None
    after: float | None
    change: Estimate | None
    before_n: int
    after_n: int
    z: float
    stage: Suspect | None
    runner_up: Suspect | None
    shifts: tuple[TrafficShift, ...] = ()
    on_common_mix: float | None = None

    @property
    def traffic_changed(self) -> bool:
        """Whether the traffic changed at the same time."""
        return bool(self.shifts)


def make_verdict(
    row: Row,
    cell: WindowScore,
    before: Histogram,
    after: Histogram,
    suspects: Sequence[Suspect],
    *,
    shifts: tuple[TrafficShift, ...] = (),
    on_common_mix: tuple[float, float] | None = None,
) -> TailVerdict:
    """Combine the measurements of a regression into a verdict.

    Args:
        row: Row with the highest score.
        cell: Score of that row.
        before: Latencies of the reference hours, or of the older version.
        after: Latencies of the window.
        suspects: Stages, most suspect first.
        shifts: Traffic changes.
        on_common_mix: Result of `traffic.on_common_mix`, if any.
    """
    grown = [one for one in suspects if one.seconds > 0]
    a, b, change = _compare(before, after, row.at)
    return TailVerdict(
        at=row.at,
        before=a,
        after=b,
        change=change,
        before_n=before.count,
        after_n=after.count,
        z=cell.z,
        stage=grown[0] if grown else None,
        runner_up=grown[1] if len(grown) > 1 else None,
        shifts=shifts,
        on_common_mix=on_common_mix[1] / on_common_mix[0] if on_common_mix and on_common_mix[0] > 0 else None,
    )


def _compare(before: Histogram, after: Histogram, at: At) -> tuple[float | None, float | None, Estimate | None]:
    """Return latency before and after in seconds, and their ratio with its confidence interval; None if unknown."""
    if at == MEAN:
        return mean_latency(before), mean_latency(after), compare_means(before, after)
    found = compare_quantile(before, after, float(at))
    if found.ratio is None or found.ratio_low is None or found.ratio_high is None:
        return found.a_value, found.b_value, None
    return found.a_value, found.b_value, Estimate(found.ratio, found.ratio_low, found.ratio_high)


def pseudo_slo(group: Group, quantile: float) -> Slo:
    """Return an SLO for the requests of *group*, which serves to build links and selections."""
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


def requests_above(
    read: Reader, slo: Slo, times: tuple[int, int, int], usual_seconds: float, dashboard_url: str
) -> tuple[Exemplar, ...]:
    """Return the slowest retained trace for each cause among those slower than usual, slowest first."""
    found = read.one_per_cause(slo.select(minute_start(times[0]), minute_start(times[2])), _LOOKED_AT)
    shown = found[found["duration_seconds"] > usual_seconds].head(_SHOWN)
    return tuple(exemplar_of(row, dashboard_url) for row in shown.to_dict("records"))


def latency_trend(read: Reader, slo: Slo, times: tuple[int, int, int], quantile: float | None) -> Trend | None:
    """Return the latency trend over the incident and at least the same time before it; None without requests."""
    began, _, now = times
    length = max(2 * (now - began), now - began + round(CALM_BEFORE / timedelta(minutes=1)))
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
    """Inputs shared by all findings of one evaluation.

    Args:
        read: The store's queries.
        policy: Policy of the statistics.
        watching: Policy of the watcher.
        dashboard_url: Base URL of the dashboard; empty for no links.
    """

    read: Reader
    policy: TailPolicy
    watching: WatchPolicy
    dashboard_url: str


def describe_regression(
    context: RegressionContext, watched: WatchedSeries, releases: Mapping[str, int], before: Finding | None
) -> Finding | None:
    """Return the finding of a firing series, or None if there are too few data yet.

    Args:
        context: Shared inputs.
        watched: The series.
        releases: Versions of the service with the minute of their first request.
        before: Last finding of the open incident; None without an open incident.
    """
    answer, recent = _strongest_window(watched.judged, watched.learnt.reference.rows), watched.lately
    if answer is None or recent is None:
        return before
    number, cell, row = answer
    at = watched.progress.at
    window = context.policy.windows[number]
    began = round(before.since / 60) if before else regression_onset(watched.learnt, recent, window, cell)
    # The onset may be within the first block above the baseline, or late in the block before.
    between = (began - window.block, began + window.block)
    if before and before.between:
        between = round(before.between[0] / 60), round(before.between[1] / 60)
    start = max(began, at - _minutes(context.watching.blamed))
    then = _reference_hours(context, watched, (began, start, at))
    now = select_minutes(watched.group, start, at)
    suspects = _suspects(context, watched, row, then, now)
    verdict = _verdict(context, watched, (row, cell), (then, now), suspects)
    return _finding(
        context,
        watched.group,
        verdict,
        suspects,
        (began, start, at),
        version=release_at_onset(context.watching, releases, between),
        between=between,
    )


def describe_canary(
    context: RegressionContext, pair: VersionPair, rows: Sequence[Row], usual: StageBaseline
) -> Finding | None:
    """Return the finding of a canary that is slower than the older version, or None if there are too few data yet.

    Args:
        context: Shared inputs.
        pair: The two versions.
        rows: Rows of the series' reference: stages and thresholds.
        usual: Stage baseline of the service.
    """
    answer = _strongest_window(pair.judged, rows)
    if answer is None or pair.judged is None:
        return None
    _, cell, row = answer
    at = pair.progress.at
    start = max(pair.since, at - _minutes(context.watching.blamed))
    old, new = (version_group(pair.whole, version) for version in (pair.old, pair.new))
    beside, slower = (stage_seconds(context.read, group, start, at) for group in (old, new))
    suspects = rank_canary_suspects(context.policy, usual, beside, slower, pair.judged.moved)
    verdict = make_verdict(
        row,
        cell,
        merged_latency(context.read, [select_minutes(old, start, at)]),
        merged_latency(context.read, [select_minutes(new, start, at)]),
        suspects,
    )
    return _finding(context, new, verdict, suspects, (pair.since, start, at), against=pair.old)


def regression_onset(learnt: LearntBaseline, recent: TailCounts, window: Window, cell: WindowScore) -> int:
    """Return the minute of the onset: the start of the latest stretch of blocks with at least half the excess."""
    reference = learnt.reference
    ends = np.arange(len(recent), window.block - 1, -window.block)
    asked = Expectation(reference.model, reference.rows, (cell.row,))
    _, logs, _ = block_excess(PrefixSums(recent), asked, ends, np.full(len(ends), window.block))
    out = logs[0] >= cell.excess / 2
    # Two consecutive blocks below that level end the stretch; a single one may be chance.
    calm = np.flatnonzero(~out & ~np.append(out[1:], False))
    blocks = max(int(calm[0]) if len(calm) else len(ends), 1)
    return recent.end - blocks * window.block


def _strongest_window(judged: TailScore | None, rows: Sequence[Row]) -> tuple[int, WindowScore, Row] | None:
    """Return index, score and row of the window with the highest score."""
    if judged is None or judged.best is None:
        return None
    cell = judged.cells[judged.best]
    return None if cell is None else (judged.best, cell, rows[cell.row])


def _reference_hours(
    context: RegressionContext, watched: WatchedSeries, times: tuple[int, int, int]
) -> list[Selection]:
    """Return the same hours of the days before, or, if these have no requests, the day before the onset."""
    group, (began, start, end) = watched.group, times
    days = context.policy.reference.length // DAY
    then = same_hours_before(group, start, end, began, days, since=watched.normal_from)
    if merged_latency(context.read, then).count:
        return then
    return [select_minutes(group, max(began - DAY, watched.normal_from), began)]


def _suspects(
    context: RegressionContext, watched: WatchedSeries, row: Row, then: Sequence[Selection], now: Selection
) -> tuple[Suspect, ...]:
    """Return the growth of stages in the slowest requests or, for a regression of the mean, in all requests."""
    moved = watched.judged.moved if watched.judged else {}
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
    answer: tuple[Row, WindowScore],
    sides: tuple[Sequence[Selection], Selection],
    suspects: Sequence[Suspect],
) -> TailVerdict:
    """Return the comparison of the latest requests with the requests in the reference hours."""
    group, (row, cell), (then, now) = watched.group, answer, sides
    before, after = merged_latency(context.read, then), merged_latency(context.read, [now])
    minutes = round((now.end - now.start) / timedelta(minutes=1))
    load = load_shift(watched.learnt.reference.model.load, after.count, minutes)
    shifts = all_shifts(
        context.policy,
        requests_by_dimension(context.read, then, group),
        requests_by_dimension(context.read, [now], group),
        load,
    )
    mix = next((each.dimension for each in shifts if each.dimension in ("route", "model")), "")
    mixed = quantile_on_common_mix(context.read, float(row.at), mix, then, [now]) if mix and row.at != MEAN else None
    return make_verdict(row, cell, before, after, suspects, shifts=shifts, on_common_mix=mixed)


def _finding(
    context: RegressionContext,
    group: Group,
    verdict: TailVerdict,
    suspects: Sequence[Suspect],
    times: tuple[int, int, int],
    *,
    version: str = "",
    against: str = "",
    between: tuple[int, int] | None = None,
) -> Finding | None:
    """Build the finding of *verdict*; None if latencies are unknown.

    *times* are the onset, the start of the measured window and now; *between* are the bounds of the onset. All are in minutes since
    the epoch.
    """
    slower = _shift(verdict, times[2] - times[1], against)
    if slower is None:
        return None
    quantile = _SHOWN_AT if slower.at == MEAN else float(slower.at)
    about = pseudo_slo(group, quantile)
    usual = f"with version {against} at the same time" if against else "in the same hours of the days before"
    return Finding(
        name="canary" if against else "tail",
        service=group.service,
        promise=f"{usual}, {_statistic_name(slower)} was {formatting.latency(slower.before_seconds)}",
        kind="tail",
        severity=context.watching.severity,
        since=minute_start(times[0]).timestamp(),
        between=None if between is None else (60.0 * between[0], 60.0 * between[1]),
        shift=slower,
        growth=tuple(StageGrowth(each.stage, each.seconds, each.share) for each in suspects if each.seconds > 0),
        version=version,
        exemplars=requests_above(context.read, about, times, slower.before_seconds, context.dashboard_url),
        course=latency_trend(context.read, about, times, None if slower.at == MEAN else quantile),
        link=regression_link(context.dashboard_url, about, times, quantile),
        where=filters_of(about),
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
        requests=verdict.after_n,
        window_seconds=60.0 * minutes,
        z=verdict.z,
        mix=describe_shifts(verdict.shifts, verdict.on_common_mix),
        against=against,
    )


def _statistic_name(slower: Slower) -> str:
    return "the mean" if slower.at == MEAN else f"p{100 * float(slower.at):g}"


def release_at_onset(watching: WatchPolicy, releases: Mapping[str, int], began: tuple[int, int]) -> str:
    """Return the newest version if its first request is near the onset and an older version exists; else "".

    *began* are the bounds of the onset in minutes since the epoch.
    """
    if len(releases) < 2:  # noqa: PLR2004 - an old one and a new one
        return ""
    version, first = max(releases.items(), key=lambda item: item[1])
    before, after = _minutes(watching.released_before), _minutes(watching.released_after)
    return version if began[0] - before <= first <= began[1] + after else ""


def _minutes(length: timedelta) -> int:
    return round(length / timedelta(minutes=1))
