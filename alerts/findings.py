"""From "it burns" to what people are told: since when, which stage, with which release, and where to look."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, urlencode

from ..collector.store import Reader, Selection
from . import burn
from .burn import Tier
from .measure import Measurement
from .message import Finding
from .regression import StageGrowth, blame, culprit, highest_quantile, verdict
from .slo import Slo

# How far back the beginning of the trouble, and its cause, are looked for.
_LOOK_BACK = timedelta(hours=6)
# The page opens on some of the calm before it.
_CALM_BEFORE = timedelta(minutes=15)
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
    read: Reader, measured: Measurement, now: datetime, *, since: datetime | None, dashboard_url: str
) -> Finding | None:
    """Return what is to be told about *measured*, or None when nothing fires.

    Args:
        read: The store's queries.
        measured: The counts and the tiers that fire.
        now: The end of the windows.
        since: When the trouble began, if that is known already.
        dashboard_url: Where the dashboard is; empty for no link.
    """
    if not measured.firing:
        return None
    slo, tier = measured.slo, measured.firing[0]
    began = since or _onset(read, slo, tier, now)
    growth = _growth(read, slo, began, now)
    short, left = measured.counts[tier.short], measured.exhausted_in
    return Finding(
        slo=slo.name,
        service=slo.service,
        promise=slo.in_words(),
        kind=slo.kind,
        severity=tier.severity,
        burn=measured.burn(tier.short),
        threshold_burn=tier.burn,
        long_seconds=tier.long.total_seconds(),
        short_seconds=tier.short.total_seconds(),
        bad=short.bad,
        total=short.total,
        since=began.timestamp(),
        budget_left=measured.budget.left,
        bad_left=measured.budget.bad_left,
        window_seconds=slo.window.total_seconds(),
        exhausted_in_seconds=None if left is None else left.total_seconds(),
        growth=growth.stages,
        version=growth.version,
        quantile=growth.quantile,
        description=slo.description,
        runbook=slo.runbook,
        link=link(dashboard_url, slo.service, began, now),
    )


def link(dashboard_url: str, service: str, began: datetime, now: datetime) -> str:
    """Return the page that shows the trouble and the calm before it, or nothing without a dashboard.

    >>> link("http://127.0.0.1:8600/", "shop", datetime.fromtimestamp(900, UTC), datetime.fromtimestamp(1000, UTC))
    'http://127.0.0.1:8600/s/shop?from=0&to=1000000&p=99'
    """
    if not dashboard_url:
        return ""
    span = {"from": _milliseconds(began - _CALM_BEFORE), "to": _milliseconds(now), "p": 99}
    return f"{dashboard_url.rstrip('/')}/s/{quote(service, safe='')}?{urlencode(span)}"


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
    series = read.slo_series(slo.select(now - reach, now), slo.threshold_seconds, timedelta(minutes=1))
    buckets = [
        (at.to_pydatetime().astimezone(UTC), float(total), float(bad))
        for at, total, bad in zip(series["at"], series["total"], series["bad"], strict=True)
    ]
    # Half of what fires: the first bad minute is rarely bad as a whole.
    return onset(buckets, slo.objective, tier.burn / 2, otherwise=now - min(reach, tier.short))


def _growth(read: Reader, slo: Slo, began: datetime, now: datetime) -> Growth:
    """Return which stages grew: with a release if one fits, else in bad requests against good ones.

    Soon after a release only a low percentile can be judged, which few of its slow requests have reached: where no stage
    stands out there, the bad requests are asked too, and the release is still named.
    """
    if slo.threshold_seconds is None:
        return Growth()
    release = _release(read, slo, began, now) or Growth()
    if culprit(release.stages):
        return release
    frame = read.bad_breakdown(slo.select(began - _CALM_BEFORE, now), slo.threshold_seconds)
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


def _milliseconds(at: datetime) -> int:
    return round(at.timestamp() * 1000)
