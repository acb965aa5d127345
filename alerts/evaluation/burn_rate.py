"""Burn rates: how fast an error budget is spent, which tiers fire, what is left, and when the problem began.

Pure functions of counts. The thresholds are in `policy/multiwindow.yaml`.

Source: Google, The Site Reliability Workbook, ch. 5 "Alerting on SLOs" (multiwindow, multi-burn-rate alerts).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from ..policies import BurnRatePolicy, BurnRateRule, CalmRule, MinimumBadRequests, Severity

FAST, RECENT = timedelta(minutes=5), timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Counts:
    """The requests of one window.

    Args:
        total: All of them. [count]
        bad: Those that broke the promise; not whole when the threshold splits a bucket. [count]
    """

    total: float
    bad: float


@dataclass(frozen=True, slots=True)
class Tier:
    """A burn rate to watch for: *burn* over both windows.

    Args:
        severity: Who is to be told, and when.
        burn: The threshold: how many times too fast.
        long: The window that must prove it.
        short: The window that must prove it still goes on, so that the alert resets.
    """

    severity: Severity
    burn: float
    long: timedelta
    short: timedelta


@dataclass(frozen=True, slots=True)
class Budget:
    """What is left of an error budget.

    Args:
        left: The unspent share; below zero when overspent. [ratio]
        bad_left: How many more bad requests it bears. [count]
    """

    left: float
    bad_left: float


def burn_rate(bad: float, total: float, objective: float) -> float:
    """Say how many times too fast the error budget is being spent.

    1.0 spends exactly the whole budget by the end of the SLO's window. No traffic spends none: silence is the
    business of another alert.

    Args:
        bad: Requests of the window that broke the promise. [count, >= 0]
        total: All requests of the same window. [count, >= bad]
        objective: The share of good requests promised. [ratio, 0 < x < 1]

    >>> burn_rate(bad=2, total=4, objective=0.75)
    2.0
    """
    return (bad / total) / (1 - objective) if total else 0.0


def policy_tiers(policy: BurnRatePolicy, window: timedelta) -> tuple[Tier, ...]:
    """Return the policy's tiers for an SLO over *window*, pages first, fastest first.

    2 % of 30 days' budget within one hour is a burn rate of 0.02 * 720 h / 1 h = 14.4. A threshold below one would
    alert on a budget that is not overspent, so it is raised to one.
    """
    return tuple(
        sorted(
            (Tier(rule.severity, max(1.0, _threshold(rule, window)), rule.long, rule.short) for rule in policy.rules),
            key=lambda tier: (tier.severity, tier.long, -tier.burn),
        )
    )


def is_reachable(tier: Tier, objective: float) -> bool:
    """Say whether *tier* can ever fire: with every request bad the burn rate is 1 / (1 - objective), and no higher."""
    return tier.burn * (1 - objective) <= 1


def needed_windows(policy: BurnRatePolicy, watched: Collection[Tier]) -> tuple[timedelta, ...]:
    """Return every window whose counts are needed to judge *watched* tiers, shortest first."""
    lengths = {tier.long for tier in watched} | {tier.short for tier in watched}
    return tuple(sorted(lengths | {policy.calm.window, FAST, RECENT}))


def is_firing(
    tier: Tier,
    counts: Mapping[timedelta, Counts],
    objective: float,
    guard: MinimumBadRequests,
    *,
    keep: float = 1.0,
    seen: timedelta = timedelta.max,
) -> bool:
    """Say whether *tier* fires: both windows at or above its burn rate, and enough bad requests to be sure.

    Args:
        tier: The tier.
        counts: The counts of its two windows.
        objective: The share of good requests promised. [ratio]
        guard: How many bad requests are enough.
        keep: The share of the threshold that is enough to go on, for a tier that fires already. [ratio]
        seen: How long ago the first of the requests was; until the short window is whole, the rest of it counts as good.
    """
    long, short = counts[tier.long], counts[tier.short]
    whole = min(1.0, seen / (guard.seen * tier.short))
    needed = tier.burn * keep * (1 - _DUST)
    rates = burn_rate(long.bad, long.total, objective), whole * burn_rate(short.bad, short.total, objective)
    all_bad = whole == 1 and short.bad == short.total >= guard.all_bad
    return min(rates) >= needed and (long.bad >= guard.bad or all_bad)


def is_pending(tier: Tier, counts: Mapping[timedelta, Counts], objective: float, guard: MinimumBadRequests) -> bool:
    """Say whether *tier* is about to fire: its short window burns fast enough, by enough bad requests, its long one not yet.

    A tier at the sustainable rate never is: services spend their budget a little faster for some hours of every day.
    """
    long, short = counts[tier.long], counts[tier.short]
    rates = burn_rate(long.bad, long.total, objective), burn_rate(short.bad, short.total, objective)
    needed = tier.burn * (1 - _DUST)
    return tier.burn > 1 and rates[0] < needed <= rates[1] and short.bad >= guard.bad


def is_calm(tier: Tier, counts: Mapping[timedelta, Counts], objective: float, rule: CalmRule) -> bool:
    """Say whether the trouble is over although *tier* still remembers it."""
    recent = counts[rule.window]
    expected_bad = recent.total * min(1.0, tier.burn * (1 - objective))
    return (
        tier.short > rule.window
        and expected_bad >= rule.evidence
        and burn_rate(recent.bad, recent.total, objective) < 1
    )


def firing_tiers(
    watched: Sequence[Tier],
    counts: Mapping[timedelta, Counts],
    objective: float,
    policy: BurnRatePolicy,
    *,
    already: bool = False,
    seen: timedelta = timedelta.max,
) -> tuple[Tier, ...]:
    """Return the tiers that fire and are not calm, in the order of *watched*.

    Args:
        watched: The tiers to judge.
        counts: The counts of all their `needed_windows`.
        objective: The share of good requests promised. [ratio]
        policy: Guard, calm and hysteresis.
        already: Whether an incident is open, so that less is enough to go on.
        seen: How long ago the first of the requests was.
    """
    keep, seen = (policy.patience.keep, timedelta.max) if already else (1.0, seen)
    return tuple(
        tier
        for tier in watched
        if is_firing(tier, counts, objective, policy.guard, keep=keep, seen=seen)
        and not is_calm(tier, counts, objective, policy.calm)
    )


def time_to_fire(tier: Tier, objective: float, error_ratio: float) -> timedelta | None:
    """Return how long a constant *error_ratio* lasts before *tier* fires, from a clean history; None when it never does.

    (1 - objective) / error ratio * burn * long window.
    """
    if error_ratio < tier.burn * (1 - objective) * (1 - _DUST):
        return None
    return tier.long * ((1 - objective) * tier.burn / error_ratio)


def remaining_budget(counts: Counts, objective: float, *, covered: float = 1.0) -> Budget:
    """Return what is left of the error budget.

    Args:
        counts: The requests of the SLO's window.
        objective: The share of good requests promised. [ratio]
        covered: The share of the window in which the service was seen: one that is younger than the window has the
            budget of a whole one at its traffic so far, or its first minute would look like its ruin. [ratio, 0 < x <= 1]

    >>> remaining_budget(Counts(total=1000, bad=4), objective=0.99)
    Budget(left=0.6, bad_left=6.0)
    """
    allowed = counts.total * (1 - objective) / covered
    if allowed == 0:
        return Budget(1.0, 0.0)
    return Budget(round(1 - counts.bad / allowed, 12), round(allowed - counts.bad, 6))


def exhausted_in(left: float, burn: float, window: timedelta) -> timedelta | None:
    """Return when the budget is spent at this pace: zero when it is, None when nothing is being spent.

    >>> exhausted_in(left=0.5, burn=10, window=timedelta(days=30))
    datetime.timedelta(days=1, seconds=43200)
    """
    if left <= 0:
        return timedelta(0)
    if burn <= 0:
        return None
    days = left * window.total_seconds() / burn / 86_400
    return timedelta(days=days) if days < _FOREVER_DAYS else None


# Ten years at this pace is "never" to everyone who reads it.
_FOREVER_DAYS = 3650


def _threshold(rule: BurnRateRule, window: timedelta) -> float:
    return rule.budget * (window / rule.long)


# Two bad stretches with less between them are one.
_MAX_GAP = timedelta(minutes=5)
# Half the 95 % quantile of chi squared with one degree of freedom: change points that are likelier than that below the likeliest one
# are in the interval. D. V. Hinkley, "Inference about the change-point in a sequence of random variables", Biometrika 57 (1970).
_LOG_LIKELIHOOD = 1.92
# The chance of a bad request is never taken for 0 or 1: the likelihood of one more would be none.
_DUST = 1e-9


@dataclass(frozen=True, slots=True)
class Onset:
    """When trouble began.

    Args:
        at: The likeliest time.
        earliest: Not before this time, with 95 % confidence.
        latest: Not after this time.
    """

    at: datetime
    earliest: datetime
    latest: datetime


# The start of a step of time, its requests, and how many of them broke the objective; not whole when the threshold splits a bucket.
Counted = tuple[datetime, float, float]


def find_onset(
    buckets: Iterable[Counted],
    objective: float,
    threshold: float,
    otherwise: datetime,
    step: timedelta = timedelta(minutes=1),
) -> Onset:
    """Return when the last stretch of trouble began: from when on more requests were bad than before.

    Args:
        buckets: In order of time, those with requests; from before the trouble until now.
        objective: The share of requests that must be good. [ratio]
        threshold: The burn rate from which a bucket is bad.
        otherwise: The answer when no bucket is.
        step: The length of a bucket.
    """
    known = _last_stretch(list(buckets), objective, threshold)
    if not known:
        return Onset(otherwise, otherwise, otherwise)
    total, bad = (np.array(column, float) for column in tuple(zip(*known, strict=True))[1:])
    # Split k: the trouble began with bucket k; 0 where it went on all the time.
    total_after, bad_after = np.cumsum(total[::-1])[::-1], np.cumsum(bad[::-1])[::-1]
    total_before, bad_before = total_after[0] - total_after, bad_after[0] - bad_after
    likelihood = _log_likelihood(total_before, bad_before) + _log_likelihood(total_after, bad_after)
    likelihood[bad_after * total_before < bad_before * total_after] = -np.inf
    best = int(np.argmax(likelihood))
    # A split has two shares to fit, and one of as many is the best by chance (Bayesian information criterion).
    if likelihood[best] - likelihood[0] < math.log(len(known)):
        best = 0
    near = np.flatnonzero(likelihood >= likelihood[best] - _LOG_LIKELIHOOD)
    # It may have begun within the first bad bucket, or late in the one before.
    return Onset(known[best][0], known[min(best, int(near[0]))][0] - step, known[max(best, int(near[-1]))][0] + step)


def _last_stretch(buckets: Sequence[Counted], objective: float, threshold: float) -> Sequence[Counted]:
    """Return the buckets since the trouble before the last one was over; nothing where no bucket is bad."""
    over, last = 0, None
    for number, (at, total, bad) in enumerate(buckets):
        if burn_rate(bad, total, objective) < threshold:
            continue
        if last is not None and at - buckets[last][0] > _MAX_GAP:
            over = last + 1
        last = number
    return [] if last is None else buckets[over:]


def _log_likelihood(total: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """Return the logarithm of the binomial likelihood of *bad* among *total*, at the share that was seen."""
    share = np.clip(bad / np.maximum(total, _DUST), _DUST, 1 - _DUST)
    return bad * np.log(share) + (total - bad) * np.log1p(-share)
