"""Measuring an SLO: the counts of every window its tiers look at, and of the window it is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ..collector.store import Reader
from . import burn
from .burn import Budget, Counts, Tier
from .policy_file import Policy
from .slo import Slo

# The finest bucket of the store: a service was seen for at least that long.
_BUCKET = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Measurement:
    """How an SLO stands, in numbers.

    Args:
        slo: Which.
        counts: The requests of each window up to now, the SLO's own among them.
        tiers: The tiers that can fire for it.
        firing: Those that do, pages first.
        budget: What is left of its error budget.
    """

    slo: Slo
    counts: Mapping[timedelta, Counts]
    tiers: tuple[Tier, ...]
    firing: tuple[Tier, ...]
    budget: Budget

    def burn(self, window: timedelta) -> float:
        """Return the burn rate over *window*."""
        counts = self.counts[window]
        return burn.burn_rate(counts.bad, counts.total, self.slo.objective)

    @property
    def exhausted_in(self) -> timedelta | None:
        """When the budget is gone at the last hour's pace; None when it never will be."""
        return burn.exhausted_in(self.budget.left, self.burn(burn.RECENT), self.slo.window)


def tiers_of(slo: Slo, policy: Policy) -> tuple[Tier, ...]:
    """Return the tiers that can fire for *slo*."""
    return tuple(tier for tier in burn.tiers(policy, slo.window) if burn.reachable(tier, slo.objective))


def measure(read: Reader, slo: Slo, policy: Policy, now: datetime, *, already: bool = False) -> Measurement:
    """Count the requests of every window up to *now* and judge them.

    Args:
        read: The store's queries.
        slo: Which SLO.
        policy: The tiers and their guard.
        now: The end of the windows.
        already: Whether an incident is open, so that less is enough to go on.
    """
    watched = tiers_of(slo, policy)
    lengths = {*burn.windows(policy, watched), slo.window}
    counts = {length: _count(read, slo, now - length, now) for length in lengths}
    covered = _covered(read, slo, now) if counts[slo.window].total else 1.0
    return Measurement(
        slo=slo,
        counts=counts,
        tiers=watched,
        firing=burn.firing(watched, counts, slo.objective, policy, already=already),
        budget=burn.budget(counts[slo.window], slo.objective, covered=covered),
    )


def _count(read: Reader, slo: Slo, start: datetime, end: datetime) -> Counts:
    found = read.slo_counts(slo.select(start, end), slo.threshold_seconds)
    return Counts(total=found.total, bad=found.bad)


def _covered(read: Reader, slo: Slo, now: datetime) -> float:
    """Return the share of the SLO's window in which what it is about was seen."""
    seen = read.versions(slo.select(now - slo.window, now))
    if slo.version is not None:
        seen = seen[seen["version"] == slo.version]
    if seen.empty:
        return 1.0
    first = seen["first_seen"].min().to_pydatetime().astimezone(UTC)
    return min(1.0, max(now - first, _BUCKET) / slo.window)
