"""Status of an SLO for people: one state, and the numbers it follows from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from ...store import Reader
from ..objectives.maintenance import ActiveMaintenance
from ..objectives.slo import Slo
from ..policies import BurnRatePolicy, MinimumBadRequests
from .burn_rate import FAST, RECENT, Tier, is_pending
from .measurement import Measurement, measure_slo

SloState = Literal["burning", "at_risk", "stale", "healthy", "maintenance", "no_data"]

# The order in which states ask for somebody: what nobody can judge comes before what is fine, and what nobody has to do
# anything about after it.
URGENCY: dict[SloState, int] = {
    "burning": 0,
    "at_risk": 1,
    "stale": 2,
    "healthy": 3,
    "maintenance": 4,
    "no_data": 5,
}


@dataclass(frozen=True, slots=True)
class RuleStatus:
    """How one alert rule of an SLO stands.

    Args:
        tier: The rule.
        long_burn: The burn rate over its long window.
        short_burn: The one over its short window.
        fires: Whether it tells somebody; both windows at its burn rate is not enough while hardly any request was bad.
        pending: Whether it is about to: the short window burns, by more than a few bad requests, the long one not yet.
    """

    tier: Tier
    long_burn: float
    short_burn: float
    fires: bool
    pending: bool = False


@dataclass(frozen=True, slots=True)
class SloStatus:
    """How one SLO stands; where it is stale, how it stood when it last could be judged.

    Args:
        slo: The promise.
        total: Requests of its window. [count]
        bad: How many of them broke it; not whole when the threshold splits a bucket. [count]
        attained: The share of good requests, or None without requests. [ratio]
        budget_left: The share of the window's error budget still unspent; below zero when overspent. None without requests. [ratio]
        bad_left: How many more bad requests fit into the budget. [count]
        burn_1h: The burn rate of the last hour; 1 spends exactly the budget.
        burn_5m: The burn rate of the last five minutes.
        state: `burning` a page fires; `at_risk` a ticket fires, the budget is spent, or the promise is broken so far, by more
            than a few requests; `stale` nothing can be judged because the collector does not work; `maintenance` work is
            under way; `no_data` no request in the last hour.
        exhausted_in: When the budget is spent at the last hour's pace; zero when it is, None when it never will be.
        rules: The alert rules that can fire for it, pages first.
        stale_since: Since when the collector has neither taken in nor rolled up anything; None while it works.
        work: The planned work that is under way: its requests do not count, and nobody is told. None where there is none.
    """

    slo: Slo
    total: float
    bad: float
    attained: float | None
    budget_left: float | None
    bad_left: float
    burn_1h: float
    burn_5m: float
    state: SloState
    exhausted_in: timedelta | None
    rules: tuple[RuleStatus, ...] = ()
    stale_since: datetime | None = None
    work: ActiveMaintenance | None = None


def read_slo_status(read: Reader, slo: Slo, policy: BurnRatePolicy, now: datetime) -> SloStatus:
    """Return how *slo* stands at *now*.

    Raises:
        StoreError: The store cannot be read.
    """
    measured = measure_slo(read, slo, policy, now)
    if measured.stale_since is not None:
        # From then on windows only forget.
        then = measure_slo(read, slo, policy, measured.stale_since)
        measured = replace(then, stale_since=measured.stale_since, work=measured.work)
    return status_of(measured, policy.guard)


def status_of(measured: Measurement, guard: MinimumBadRequests) -> SloStatus:
    """Return how the SLO that was *measured* stands; *guard* says how many bad requests are no accident."""
    counts = measured.counts[measured.slo.window]
    known = counts.total > 0
    return SloStatus(
        slo=measured.slo,
        total=counts.total,
        bad=counts.bad,
        attained=1 - counts.bad / counts.total if known else None,
        budget_left=measured.budget.left if known else None,
        bad_left=measured.budget.bad_left,
        burn_1h=measured.burn(RECENT),
        burn_5m=measured.burn(FAST),
        state=_slo_state(measured, guard),
        exhausted_in=measured.exhausted_in,
        rules=tuple(
            RuleStatus(
                tier,
                measured.burn(tier.long),
                measured.burn(tier.short),
                tier in measured.firing,
                is_pending(tier, measured.counts, measured.slo.objective, guard),
            )
            for tier in measured.tiers
        ),
        stale_since=measured.stale_since,
        work=measured.work,
    )


def _slo_state(measured: Measurement, guard: MinimumBadRequests) -> SloState:
    if measured.stale_since is not None:
        return "stale"
    if measured.work is not None:
        return "maintenance"
    if any(tier.severity == "page" for tier in measured.firing):
        return "burning"
    if measured.counts[RECENT].total == 0:
        return "no_data"
    return "at_risk" if measured.firing or measured.budget.left <= 0 or _is_broken(measured, guard) else "healthy"


def _is_broken(measured: Measurement, guard: MinimumBadRequests) -> bool:
    """Say whether less was good so far than is promised: what is younger than its window has most of its budget even then."""
    whole = measured.counts[measured.slo.window]
    return whole.bad >= guard.bad and whole.bad > whole.total * measured.slo.budget
