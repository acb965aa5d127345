"""Status of SLOs and of services: the state that follows from counts, error budget, firing tiers, incidents and releases."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, get_args

from .burn_rate import FAST, RECENT, AlertTier, Counts, ErrorBudget, burn_rate, is_pending
from .policies import MinimumBadRequests, Severity

# By urgency: unknown states before healthy ones, and states that need no action last.
SloState = Literal["burning", "at_risk", "stale", "healthy", "maintenance", "no_data"]
URGENCY: dict[SloState, int] = {state: index for index, state in enumerate(get_args(SloState))}
# Finest time bucket of the store, and therefore the minimum time for which a service has data.
_BUCKET = timedelta(seconds=10)
# A service is silent after this time without requests, if at least this many were expected meanwhile.
_SILENT, _MISSED = timedelta(minutes=5), 20


def slo_state(
    counts: Mapping[timedelta, Counts],
    firing: Collection[AlertTier],
    budget: ErrorBudget,
    *,
    rules: Collection[RuleStatus] = (),
    objective: float,
    window: timedelta,
    guard: MinimumBadRequests,
    is_stale: bool = False,
    in_maintenance: bool = False,
) -> SloState:
    """Return the state of an SLO; the most severe doubt about its numbers has priority.

    `burning`: a page fires; `at_risk`: a ticket fires, the budget is spent, or the objective is violated so far by more than a few
    requests; `stale`: the collector does not work, so the state is unknown; `no_data`: no request in the last hour, traffic that has
    stopped, or a rule whose long window is above its threshold while its short window has no request.
    """
    if is_stale:
        return "stale"
    if in_maintenance:
        return "maintenance"
    if has_stopped(counts):
        return "no_data"
    if any(tier.severity == "page" for tier in firing):
        return "burning"
    if counts[RECENT].total == 0 or any(rule.is_unknown for rule in rules):
        return "no_data"
    return "at_risk" if firing or budget.left <= 0 or _is_violated(counts[window], objective, guard) else "healthy"


def has_stopped(counts: Mapping[timedelta, Counts]) -> bool:
    """Return whether there was no request in the last five minutes, and the last hour had too many for that to be usual."""
    recent, fast = counts[RECENT], counts.get(FAST)
    return fast is not None and not fast.total and missed_requests(FAST, RECENT - FAST, recent.total) is not None


def _is_violated(counts: Counts, objective: float, guard: MinimumBadRequests) -> bool:
    """Return whether the objective is violated so far, which is possible for a new service with remaining budget."""
    return counts.bad >= guard.bad and counts.bad > counts.total * (1 - objective)


def covered_share(age: timedelta, window: timedelta, maintenance: timedelta = timedelta(0)) -> float:
    """Return the share of an SLO window that is covered by data [ratio, 0 < x <= 1].

    >>> covered_share(timedelta(days=10), timedelta(days=30), maintenance=timedelta(days=1))
    0.3
    """
    return min(1.0, max(min(age, window) - maintenance, _BUCKET) / window)


RuleState = Literal["firing", "too_few", "short_only", "long_only", "quiet", "no_data"]


@dataclass(frozen=True, slots=True)
class RuleStatus:
    """Status of one alert tier of an SLO; *pending* if the short window reaches the burn rate, and the long window does not yet."""

    tier: AlertTier
    long_burn: float | None
    short_burn: float | None
    fires: bool
    pending: bool = False

    @property
    def state(self) -> RuleState:
        """State of both windows; with `too_few`, they reach the burn rate with too few bad requests or too recent data."""
        if self.fires:
            return "firing"
        if self.short_burn is None:
            return "no_data"
        long, short = (burn is not None and burn >= self.tier.burn for burn in (self.long_burn, self.short_burn))
        if short:
            return "too_few" if long else "short_only"
        return "long_only" if long else "quiet"

    @property
    def is_unknown(self) -> bool:
        """Whether the long window reaches the burn rate, and no request shows whether the problem continues."""
        return self.state == "no_data" and (self.long_burn or 0.0) >= self.tier.burn


def rule_status(
    tier: AlertTier,
    firing: Collection[AlertTier],
    counts: Mapping[timedelta, Counts],
    objective: float,
    guard: MinimumBadRequests,
) -> RuleStatus:
    long, short = (known_burn_rate(counts[window], objective) for window in (tier.long, tier.short))
    return RuleStatus(tier, long, short, tier in firing, is_pending(tier, counts, objective, guard))


def known_burn_rate(counts: Counts, objective: float) -> float | None:
    """Return the burn rate of a window; None without requests, which is no rate of zero."""
    return burn_rate(counts.bad, counts.total, objective) if counts.total else None


# What determines the state of a service.
Reason = Literal["slo", "incident", "pending", "release", "none"]


def service_state(
    slo: SloState | None, incident: Severity | None, *, is_pending: bool, is_slower: bool
) -> tuple[SloState | Literal[""], Reason]:
    """Return the state of a service and the reason for it; the state is "" if unknown.

    *slo* is the state of its most urgent SLO, *incident* the highest severity of its open ones, without those in maintenance.
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
    """Return the number of requests that a silent service would usually have had, given *requests* in its *active* time; else None."""
    missed = requests / max(active.total_seconds(), 1.0) * silence.total_seconds()
    return missed if silence >= _SILENT and missed >= _MISSED else None


def most_urgent(states: Collection[str]) -> SloState | Literal[""]:
    """Return the most urgent of *states*; "" if there is none."""
    for state in URGENCY:
        if state in states:
            return state
    return ""
