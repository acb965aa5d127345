"""Burn rates: how fast an error budget is spent, which tiers fire, the remaining budget, and the onset of a problem.

Source: Google, The Site Reliability Workbook, ch. 5 "Alerting on SLOs" (multiwindow, multi-burn-rate alerts).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from .policies import BurnRatePolicy, CalmRule, MinimumBadRequests, Severity

FAST, RECENT = timedelta(minutes=5), timedelta(hours=1)
# Durations of ten years or more count as "never".
_FOREVER_DAYS = 3650
# Bad periods closer together than this are merged.
_MAX_GAP = timedelta(minutes=5)
# Half the 95 % quantile of chi squared with one degree of freedom: the interval contains the change points whose
# log-likelihood is within this distance of the maximum.
# D. V. Hinkley, "Inference about the change-point in a sequence of random variables", Biometrika 57 (1970).
_LOG_LIKELIHOOD = 1.92
# Limits of a share: exactly 0 or 1 would give a likelihood of zero.
_DUST = 1e-9
# Width of a time step.
_STEP = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Counts:
    """Request counts of one window; *bad* is fractional when the threshold splits a bucket."""

    total: float
    bad: float


def as_requests(requests: float, total: float, bad: float) -> Counts:
    """Return counts in requests, with the share of bad ones taken from *bad* / *total* in any unit.

    >>> as_requests(requests=100, total=8.0, bad=2.0)
    Counts(total=100, bad=25.0)
    """
    return Counts(requests, bad if requests == total else requests * bad / total if total else 0.0)


@dataclass(frozen=True, slots=True)
class AlertTier:
    """Alert tier that fires when the burn rate reaches *burn* in both windows: the short one shows that the problem continues."""

    severity: Severity
    burn: float
    long: timedelta
    short: timedelta


@dataclass(frozen=True, slots=True)
class ErrorBudget:
    """Unspent share of the error budget, below zero when overspent, and number of further bad requests that it allows."""

    left: float
    bad_left: float


def burn_rate(bad: float, total: float, objective: float) -> float:
    """Return how many times faster than sustainable the error budget is being spent.

    1.0 spends exactly the whole budget by the end of the SLO window. No traffic spends none; missing traffic has its own alert.

    Args:
        bad: Requests in the window that violated the objective. [count, >= 0]
        total: All requests in the window. [count, >= bad]
        objective: Share of good requests required. [ratio, 0 < x < 1]

    >>> burn_rate(bad=2, total=4, objective=0.75)
    2.0
    """
    return (bad / total) / (1 - objective) if total else 0.0


def policy_tiers(policy: BurnRatePolicy, window: timedelta) -> tuple[AlertTier, ...]:
    """Return the tiers of *policy* for an SLO over *window*, pages before tickets, fastest first.

    2 % of 30 days' budget within one hour is a burn rate of 0.02 * 720 h / 1 h = 14.4. A threshold below one would
    alert although the budget is not overspent, so it is raised to one.
    """
    return tuple(
        sorted(
            (
                AlertTier(rule.severity, max(1.0, rule.budget * (window / rule.long)), rule.long, rule.short)
                for rule in policy.rules
            ),
            key=lambda tier: (tier.severity, tier.long, -tier.burn),
        )
    )


def is_reachable(tier: AlertTier, objective: float) -> bool:
    """Return whether *tier* can fire at all; the maximum burn rate is 1 / (1 - *objective*), with only bad requests."""
    return tier.burn * (1 - objective) <= 1


def needed_windows(policy: BurnRatePolicy, watched: Collection[AlertTier]) -> tuple[timedelta, ...]:
    """Return the windows whose counts are needed to evaluate the *watched* tiers, shortest first."""
    lengths = {tier.long for tier in watched} | {tier.short for tier in watched}
    return tuple(sorted(lengths | {policy.calm.window, FAST, RECENT}))


def is_firing(
    tier: AlertTier,
    counts: Mapping[timedelta, Counts],
    objective: float,
    guard: MinimumBadRequests,
    *,
    keep: float = 1.0,
    seen: timedelta = timedelta.max,
) -> bool:
    """Return whether *tier* fires: both windows at or above its burn rate, with enough bad requests.

    A firing tier continues above the share *keep* of its threshold. While the first request was *seen* more recently than the short
    window is long, the rest of that window counts as good.
    """
    long, short = counts[tier.long], counts[tier.short]
    whole = min(1.0, seen / (guard.seen * tier.short))
    needed = tier.burn * keep * (1 - _DUST)
    rates = burn_rate(long.bad, long.total, objective), whole * burn_rate(short.bad, short.total, objective)
    all_bad = whole == 1 and short.bad == short.total >= guard.all_bad
    return min(rates) >= needed and (long.bad >= guard.bad or all_bad)


def may_fire(tier: AlertTier, short: Counts, objective: float) -> bool:
    """Return whether *tier* can fire with the counts of its *short* window, whatever those of its long window are."""
    return burn_rate(short.bad, short.total, objective) >= tier.burn * (1 - _DUST)


def is_pending(
    tier: AlertTier, counts: Mapping[timedelta, Counts], objective: float, guard: MinimumBadRequests
) -> bool:
    """Return whether *tier* is about to fire: its short window reaches the burn rate, its long window does not yet.

    A tier at the sustainable rate is never pending, because services spend slightly faster in some hours of every day.
    """
    long, short = counts[tier.long], counts[tier.short]
    rates = burn_rate(long.bad, long.total, objective), burn_rate(short.bad, short.total, objective)
    needed = tier.burn * (1 - _DUST)
    return tier.burn > 1 and rates[0] < needed <= rates[1] and short.bad >= guard.bad


def is_calm(tier: AlertTier, counts: Mapping[timedelta, Counts], objective: float, rule: CalmRule) -> bool:
    """Return whether the problem is over although the windows of *tier* still contain its bad requests."""
    recent = counts[rule.window]
    expected_bad = recent.total * min(1.0, tier.burn * (1 - objective))
    return (
        tier.short > rule.window
        and expected_bad >= rule.evidence
        and burn_rate(recent.bad, recent.total, objective) < 1
    )


def firing_tiers(
    watched: Sequence[AlertTier],
    counts: Mapping[timedelta, Counts],
    objective: float,
    policy: BurnRatePolicy,
    *,
    already: bool = False,
    seen: timedelta = timedelta.max,
) -> tuple[AlertTier, ...]:
    """Return the tiers that fire and are not suppressed as over; an incident that is open *already* lowers the threshold."""
    keep, seen = (policy.hysteresis.keep, timedelta.max) if already else (1.0, seen)
    return tuple(
        tier
        for tier in watched
        if is_firing(tier, counts, objective, policy.guard, keep=keep, seen=seen)
        and not is_calm(tier, counts, objective, policy.calm)
    )


def time_to_fire(tier: AlertTier, objective: float, error_ratio: float) -> timedelta | None:
    """Return the time until *tier* fires at a constant *error_ratio* after error-free history; None if it never fires.

    Formula: (1 - objective) / error ratio * burn * long window.
    """
    if error_ratio < tier.burn * (1 - objective) * (1 - _DUST):
        return None
    return tier.long * ((1 - objective) * tier.burn / error_ratio)


def remaining_budget(counts: Counts, objective: float, *, covered: float = 1.0) -> ErrorBudget:
    """Return the remaining error budget.

    *covered* is the share of the window since the service's first request. A newer service gets the budget of a whole window at its
    traffic so far, so that its first minutes cannot spend everything.

    >>> remaining_budget(Counts(total=1000, bad=4), objective=0.99)
    ErrorBudget(left=0.6, bad_left=6.0)
    """
    allowed = counts.total * (1 - objective) / covered
    if allowed == 0:
        return ErrorBudget(1.0, 0.0)
    return ErrorBudget(round(1 - counts.bad / allowed, 12), round(allowed - counts.bad, 6))


def exhausted_in(left: float, burn: float, window: timedelta) -> timedelta | None:
    """Return the time until the budget is exhausted at rate *burn*; zero if exhausted, None if no budget is spent.

    >>> exhausted_in(left=0.5, burn=10, window=timedelta(days=30))
    datetime.timedelta(days=1, seconds=43200)
    """
    if left <= 0:
        return timedelta(0)
    if burn <= 0:
        return None
    days = left * window.total_seconds() / burn / 86_400
    return timedelta(days=days) if days < _FOREVER_DAYS else None


@dataclass(frozen=True, slots=True)
class Onset:
    """Estimated onset of a problem, with its 95 % confidence bounds."""

    at: datetime
    earliest: datetime
    latest: datetime


# Start of a time step, its requests, and its bad requests (fractional when the threshold splits a bucket).
Counted = tuple[datetime, float, float]


def find_onset(buckets: Iterable[Counted], objective: float, threshold: float, otherwise: datetime) -> Onset:
    """Return the onset of the latest bad period: the time from which the share of bad requests was higher than before.

    *buckets* are time steps with requests, in order; those with a burn rate of *threshold* are bad.
    """
    stretch = _last_stretch(list(buckets), objective, threshold)
    if not stretch:
        return Onset(otherwise, otherwise, otherwise)
    total, bad = (np.array(column, float) for column in tuple(zip(*stretch, strict=True))[1:])
    # Split k: the problem started with step k; k is 0 if the problem covers all steps.
    total_after, bad_after = np.cumsum(total[::-1])[::-1], np.cumsum(bad[::-1])[::-1]
    total_before, bad_before = total_after[0] - total_after, bad_after[0] - bad_after
    likelihood = _log_likelihood(total_before, bad_before) + _log_likelihood(total_after, bad_after)
    likelihood[bad_after * total_before < bad_before * total_after] = -np.inf
    best = int(np.argmax(likelihood))
    # A split fits two shares, and the best of many splits may fit by chance: hence the Bayesian information criterion.
    if likelihood[best] - likelihood[0] < math.log(len(stretch)):
        best = 0
    near = np.flatnonzero(likelihood >= likelihood[best] - _LOG_LIKELIHOOD)
    # The onset may be within the first bad step, or late in the preceding step.
    return Onset(
        stretch[best][0], stretch[min(best, int(near[0]))][0] - _STEP, stretch[max(best, int(near[-1]))][0] + _STEP
    )


def _last_stretch(buckets: Sequence[Counted], objective: float, threshold: float) -> Sequence[Counted]:
    """Return the steps since the end of the previous bad period; empty if no step is bad."""
    over, last = 0, None
    for number, (at, total, bad) in enumerate(buckets):
        if burn_rate(bad, total, objective) < threshold:
            continue
        if last is not None and at - buckets[last][0] > _MAX_GAP:
            over = last + 1
        last = number
    return [] if last is None else buckets[over:]


def _log_likelihood(total: np.ndarray, bad: np.ndarray) -> np.ndarray:
    share = np.clip(bad / np.maximum(total, _DUST), _DUST, 1 - _DUST)
    return bad * np.log(share) + (total - bad) * np.log1p(-share)
