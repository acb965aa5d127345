"""Status of SLOs and of services: the state that follows from counts, error budget, firing tiers, incidents and releases."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, get_args

from .burn_rate import RECENT, AlertTier, Counts, ErrorBudget, burn_rate, is_pending
from .policies import MinimumBadRequests, Severity

# By urgency: unknown states before healthy ones, and states that need no action last.
SloState = Literal["burning", "at_risk", "stale", "healthy", "maintenance", "no_data"]
URGENCY: dict[SloState, int] = {state: place for place, state in enumerate(get_args(SloState))}
# Finest time bucket of the store, and therefore the minimum time for which a service has data.
_BUCKET = timedelta(seconds=10)
# A service is silent after this time without requests, if at least this many were expected meanwhile.
_SILENT, _MISSED = timedelta(minutes=5), 20


def slo_state(
    counts: Mapping[timedelta, Counts],
    firing: Collection[AlertTier],
    budget: ErrorBudget,
    *,
    objective: float,
    window: timedelta,
    guard: MinimumBadRequests,
    is_stale: bool = False,
    in_maintenance: bool = False,
) -> SloState:
    """Return the state of an SLO; the most severe doubt about its numbers has priority.

    `burning`: a page fires; `at_risk`: a ticket fires, the budget is spent, or the objective is violated so far by more than a few
    requests; `stale`: the collector does not work, so the state is unknown; `maintenance`: a maintenance window is in progress;
    `no_data`: no request in the last hour.

    Args:
        counts: Counts of the last hour and of the SLO window.
        firing: Tiers that fire.
        budget: Remaining error budget.
        objective: Share of good requests required. [ratio]
        window: Length of the SLO window.
        guard: Minimum number of bad requests.
        is_stale: Whether the collector has stopped writing data.
        in_maintenance: Whether a maintenance window is in progress.
    """
    if is_stale:
        return "stale"
    if in_maintenance:
        return "maintenance"
    if any(tier.severity == "page" for tier in firing):
        return "burning"
    if counts[RECENT].total == 0:
        return "no_data"
    return "at_risk" if firing or budget.left <= 0 or _is_violated(counts[window], objective, guard) else "healthy"


def _is_violated(counts: Counts, objective: float, guard: MinimumBadRequests) -> bool:
    """Return whether the objective is violated so far, which is possible for a new service with remaining budget."""
    return counts.bad >= guard.bad and counts.bad > counts.total * (1 - objective)


def covered_share(age: timedelta, window: timedelta, maintenance: timedelta = timedelta(0)) -> float:
    """Return the share of an SLO window that is covered by data [ratio, 0 < x <= 1].

    Args:
        age: Time since the first request.
        window: Length of the SLO window.
        maintenance: Maintenance windows within the covered time.

    >>> covered_share(timedelta(days=10), timedelta(days=30), maintenance=timedelta(days=1))
    0.3
    """
    return min(1.0, max(min(age, window) - maintenance, _BUCKET) / window)


RuleState = Literal["firing", "too_few", "short_only", "long_only", "quiet"]


@dataclass(frozen=True, slots=True)
class RuleStatus:
    """Status of one alert tier of an SLO.

    Args:
        tier: The tier.
        long_burn: Burn rate over the long window.
        short_burn: Burn rate over the short window.
        fires: Whether the tier fires, which also requires a minimum number of bad requests.
        pending: Whether the tier may fire soon: the short window reaches the burn rate, the long window does not yet.
    """

    tier: AlertTier
    long_burn: float
    short_burn: float
    fires: bool
    pending: bool = False

    @property
    def state(self) -> RuleState:
        """State of both windows; with `too_few`, they reach the burn rate with too few bad requests or too recent data."""
        if self.fires:
            return "firing"
        long, short = (burn >= self.tier.burn for burn in (self.long_burn, self.short_burn))
        if short:
            return "too_few" if long else "short_only"
        return "long_only" if long else "quiet"


def rule_status(
    tier: AlertTier,
    firing: Collection[AlertTier],
    counts: Mapping[timedelta, Counts],
    objective: float,
    guard: MinimumBadRequests,
) -> RuleStatus:
    """Return the status of *tier*; arguments as in `slo_state`, with the counts of both windows of the tier."""
    long, short = (burn_rate(each.bad, each.total, objective) for each in (counts[tier.long], counts[tier.short]))
    return RuleStatus(tier, long, short, tier in firing, is_pending(tier, counts, objective, guard))


# What determines the state of a service.
Reason = Literal["slo", "incident", "pending", "release", "none"]


def service_state(
    slo: SloState | None, incident: Severity | None, *, is_pending: bool, is_slower: bool
) -> tuple[SloState | Literal[""], Reason]:
    """Return the state of a service and the reason for it; the state is "" if unknown.

    Args:
        slo: State of its most urgent SLO; None without SLOs.
        incident: Highest severity of its open incidents, without those of SLOs in maintenance; None without incidents.
        is_pending: Whether an alert tier of its SLOs may fire soon.
        is_slower: Whether its newest version is clearly slower than the version before.
    """
    if slo == "burning":
        return slo, "slo"
    if incident is not None and (incident == "page" or slo != "at_risk"):
        return "burning" if incident == "page" else "at_risk", "incident"
    if slo in ("at_risk", "maintenance"):
        return slo, "slo"
    if is_pending or is_slower:
        return "at_risk", "pending" if is_pending else "release"
    return (slo, "slo") if slo else ("", "none")


def missed_requests(silence: timedelta, active: timedelta, requests: float) -> float | None:
    """Return the number of requests that a silent service would usually have had; None if it is not silent.

    Args:
        silence: Time since its last request.
        active: Time in which it had *requests*.
        requests: Number of requests. [count]
    """
    missed = requests / max(active.total_seconds(), 1.0) * silence.total_seconds()
    return missed if silence >= _SILENT and missed >= _MISSED else None


def most_urgent(states: Collection[str]) -> SloState | Literal[""]:
    """Return the most urgent of *states*; "" if there is none."""
    for state in URGENCY:
        if state in states:
            return state
    return ""
