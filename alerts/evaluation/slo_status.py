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

# Order of states by urgency: unknown states come before healthy ones, states that need no action after them.
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
    """Status of one alert tier of an SLO.

    Args:
        tier: The tier.
        long_burn: Burn rate over its long window.
        short_burn: Burn rate over its short window.
        fires: Whether it fires, which also takes a minimum number of bad requests.
        pending: Whether it is about to fire: the short window reaches the burn rate, the long one not yet.
    """

    tier: Tier
    long_burn: float
    short_burn: float
    fires: bool
    pending: bool = False


@dataclass(frozen=True, slots=True)
class SloStatus:
    """Status of one SLO; if stale, the status at its last evaluation.

    Args:
        slo: The SLO.
        total: Requests of its window. [count]
        bad: Requests that violated it; fractional when the threshold splits a bucket. [count]
        attained: Share of good requests, or None without requests. [ratio]
        budget_left: Unspent share of the error budget; below zero when overspent, None without requests. [ratio]
        bad_left: Bad requests that still fit into the budget. [count]
        burn_1h: Burn rate of the last hour; 1 spends exactly the budget.
        burn_5m: Burn rate of the last five minutes.
        state: `burning` a page fires; `at_risk` a ticket fires, the budget is spent, or the objective is violated so far by
            more than a few requests; `stale` the collector does not work, so the state is unknown; `maintenance` a window
            is in progress; `no_data` no request in the last hour.
        exhausted_in: Time until the budget is spent at the last hour's burn rate; zero if spent, None for never.
        rules: Status of the tiers that can fire, pages first.
        stale_since: Time since which the collector has neither ingested nor rolled up data; None while it works.
        work: Maintenance window in progress: its requests do not count and nothing is notified. None for none.
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
    """Read the status of *slo* at *now*.

    Raises:
        StoreError: The store cannot be read.
    """
    measured = measure_slo(read, slo, policy, now)
    if measured.stale_since is not None:
        # After that time windows only lose requests.
        then = measure_slo(read, slo, policy, measured.stale_since)
        measured = replace(then, stale_since=measured.stale_since, work=measured.work)
    return status_of(measured, policy.guard)


def status_of(measured: Measurement, guard: MinimumBadRequests) -> SloStatus:
    """Return the status of a *measured* SLO; *guard* has the minimum number of bad requests."""
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
    """Return whether the objective is violated so far; a new service may have budget left even then."""
    whole = measured.counts[measured.slo.window]
    return whole.bad >= guard.bad and whole.bad > whole.total * measured.slo.budget
