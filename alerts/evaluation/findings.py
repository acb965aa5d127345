"""From "it burns" to what people are told: since when, which stage, with which release, and where to look."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from ...core.confidence import compare_failures
from ...store import Reader
from ..delivery.finding_parts import Burn, Overrun
from ..delivery.message import Finding
from ..objectives.slo import Slo
from .bad_requests import bad_excess
from .burn_rate import Counts, Tier
from .evidence import counted, course, slow_requests
from .links import link, where
from .measurement import Measurement, counts_of
from .onset import Onset, onset
from .stage_budgets import stage_budgets

# How far back the beginning of the trouble, and its cause, are looked for.
_LOOK_BACK = timedelta(hours=6)
# Trouble that begins so long before or after the first requests of a release came with it; a release that was fine for
# longer is not what made it slow.
_BEFORE_RELEASE, _AFTER_RELEASE = timedelta(minutes=2), timedelta(minutes=30)


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
    trouble = _onset(read, slo, tier, now) if before is None else _known(before)
    began = trouble.at
    return Finding(
        name=slo.name,
        service=slo.service,
        promise=slo.in_words(),
        kind=slo.kind,
        severity=tier.severity,
        since=began.timestamp(),
        burn=_burn(measured, tier),
        between=(trouble.earliest.timestamp(), trouble.latest.timestamp()),
        growth=bad_excess(read, slo, began, now),
        version=_release(read, slo, trouble, now),
        stage=slo.stage or "",
        exemplars=slow_requests(read, slo, began, now, dashboard_url),
        overruns=_overruns(read, slo, began, now),
        course=course(read, slo, began, now),
        description=slo.description,
        runbook=slo.runbook,
        link=link(dashboard_url, slo, began, now),
        where=where(slo),
    )


def _known(before: Finding) -> Onset:
    """Return when the trouble of an open incident began, as it was found then."""
    early, late = before.between or (before.since, before.since)
    at, earliest, latest = (datetime.fromtimestamp(each, UTC) for each in (before.since, early, late))
    return Onset(at, earliest, latest)


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


def _onset(read: Reader, slo: Slo, tier: Tier, now: datetime) -> Onset:
    reach = min(tier.long, _LOOK_BACK)
    buckets = counted(read, slo, now - reach, now, timedelta(minutes=1))
    # Half of what fires: the first bad minute is rarely bad as a whole.
    return onset(buckets, slo.objective, tier.burn / 2, otherwise=now - min(reach, tier.short))


def _release(read: Reader, slo: Slo, began: Onset, now: datetime) -> str:
    """Return the newest version if the trouble came with it; else "".

    It came when the trouble began, as far as that is known; more of its requests are bad than of the version before, and that one,
    where it still serves, did not become worse at the same time.
    """
    if slo.version is not None or slo.kind == "freshness":
        return ""
    versions = read.versions(slo.select(began.earliest - _LOOK_BACK, now))
    if len(versions) < 2:  # noqa: PLR2004 - an old one and a new one
        return ""
    newest, before = versions.iloc[-1], versions.iloc[-2]
    released = newest["first_seen"].to_pydatetime().astimezone(UTC)
    if not newest["version"] or not began.earliest - _AFTER_RELEASE <= released <= began.latest + _BEFORE_RELEASE:
        return ""
    old = slo.select(released - _LOOK_BACK, released), slo.select(released, now)
    sides = [replace(each, version=str(before["version"])) for each in old]
    sides.append(replace(slo.select(released, now), version=str(newest["version"])))
    earlier, beside, new = (
        counts_of(each.requests, each.total, each.bad) for each in read.tallies(sides, slo.indicator)
    )
    return str(newest["version"]) if _is_worse(earlier, new) and not _is_worse(earlier, beside) else ""


def _is_worse(a: Counts, b: Counts) -> bool:
    if not a.total or not b.total:
        return False
    return compare_failures(round(a.bad), round(a.total), round(b.bad), round(b.total)).are_more
