"""From "it burns" to what people are told: since when, which stage, with which release, and where to look."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from ...collector.store import Reader, Selection
from ..delivery.finding_parts import Burn, Overrun
from ..delivery.message import Finding
from ..objectives.slo import Slo
from ..tail.regression import StageGrowth, blame, culprit, highest_quantile, verdict
from . import burn
from .budgets import stage_budgets
from .burn import Tier
from .evidence import counted, course, slow_requests
from .links import CALM_BEFORE, link, where
from .measure import Measurement

# How far back the beginning of the trouble, and its cause, are looked for.
_LOOK_BACK = timedelta(hours=6)
# Trouble that begins so long before or after the first requests of a release came with it; a release that was fine for
# longer is not what made it slow.
_BEFORE_RELEASE, _AFTER_RELEASE = timedelta(minutes=2), timedelta(minutes=30)
# Two bad stretches with less between them are one.
_MAX_GAP = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Growth:
    """Which stages grew, and how that was found.

    Args:
        stages: Worst first.
        version: The release they grew with, or empty.
        quantile: Where two releases were compared; 0 when bad requests were compared to good ones.
    """

    stages: tuple[StageGrowth, ...] = ()
    version: str = ""
    quantile: float = 0.0


def describe(
    read: Reader, measured: Measurement, now: datetime, *, before: Finding | None, dashboard_url: str
) -> Finding | None:
    """Return what is to be told about *measured*, or None when nothing fires.

    Args:
        read: The store's queries.
        measured: The counts and the tiers that fire.
        now: The end of the windows.
        before: What was found last, if it is open: when the trouble began is known then.
        dashboard_url: Where the dashboard is; empty for no link.
    """
    if not measured.firing:
        return None
    slo, tier = measured.slo, measured.firing[0]
    began = _onset(read, slo, tier, now) if before is None else datetime.fromtimestamp(before.since, UTC)
    growth = _growth(read, slo, began, now)
    return Finding(
        name=slo.name,
        service=slo.service,
        promise=slo.in_words(),
        kind=slo.kind,
        severity=tier.severity,
        since=began.timestamp(),
        burn=_burn(measured, tier),
        growth=growth.stages,
        version=growth.version,
        quantile=growth.quantile,
        exemplars=slow_requests(read, slo, began, now, dashboard_url),
        overruns=_overruns(read, slo, began, now),
        course=course(read, slo, began, now),
        description=slo.description,
        runbook=slo.runbook,
        link=link(dashboard_url, slo, began, now, growth.quantile),
        where=where(slo),
    )


def _burn(measured: Measurement, tier: Tier) -> Burn:
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


def _overruns(read: Reader, slo: Slo, began: datetime, now: datetime) -> tuple[Overrun, ...]:
    split = stage_budgets(read, slo, began, now)
    return tuple(Overrun(use.stage, use.seconds, use.budget_seconds) for use in split.broken) if split else ()


def onset(
    buckets: Iterable[tuple[datetime, float, float]], objective: float, threshold: float, otherwise: datetime
) -> datetime:
    """Return when the last stretch of bad buckets began.

    Args:
        buckets: (start, total, bad) in order of time.
        objective: The share of good requests promised. [ratio]
        threshold: The burn rate from which a bucket is bad.
        otherwise: The answer when no bucket is.
    """
    began: datetime | None = None
    last: datetime | None = None
    for at, total, bad in buckets:
        if burn.burn_rate(bad, total, objective) < threshold:
            continue
        if began is None or last is None or at - last > _MAX_GAP:
            began = at
        last = at
    return began or otherwise


def _onset(read: Reader, slo: Slo, tier: Tier, now: datetime) -> datetime:
    reach = min(tier.long, _LOOK_BACK)
    buckets = counted(read, slo, now - reach, now, timedelta(minutes=1))
    # Half of what fires: the first bad minute is rarely bad as a whole.
    return onset(buckets, slo.objective, tier.burn / 2, otherwise=now - min(reach, tier.short))


def _growth(read: Reader, slo: Slo, began: datetime, now: datetime) -> Growth:
    """Return which stages grew: with a release if one fits, else in bad requests against good ones.

    Soon after a release only a low percentile can be judged, which few of its slow requests have reached: where no stage
    stands out there, the bad requests are asked too, and the release is still named.
    """
    if slo.kind != "latency":
        return Growth()
    release = _release(read, slo, began, now) or Growth()
    if culprit(release.stages):
        return release
    frame = read.bad_breakdown(slo.select(began - CALM_BEFORE, now), slo.threshold_seconds)
    return Growth(blame(frame.rename(columns={"excess_seconds": "delta_seconds"})), release.version)


def _release(read: Reader, slo: Slo, began: datetime, now: datetime) -> Growth | None:
    """Return what grew with the newest version, when the trouble came with it and it is slower than the one before."""
    if slo.version is not None:
        return None
    versions = read.versions(slo.select(began - _LOOK_BACK, now))
    if len(versions) < 2:  # noqa: PLR2004 - an old one and a new one
        return None
    newest, before = versions.iloc[-1], versions.iloc[-2]
    released = newest["first_seen"].to_pydatetime().astimezone(UTC)
    if not newest["version"] or not began - _AFTER_RELEASE <= released <= began + _BEFORE_RELEASE:
        return None
    new = replace(slo.select(released, now), version=str(newest["version"]))
    old = replace(slo.select(released - _LOOK_BACK, now), version=str(before["version"]))
    return _compare(read, old, new, slo)


def _compare(read: Reader, old: Selection, new: Selection, slo: Slo) -> Growth | None:
    slower, faster = read.latency(new), read.latency(old)
    quantile = highest_quantile(min(slower.count, faster.count), slo.objective)
    if quantile is None or verdict(faster, slower, quantile).kind != "regression":
        return None
    return Growth(blame(read.compare(old, new, quantile)), str(new.version), quantile)
