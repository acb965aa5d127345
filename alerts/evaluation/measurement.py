"""Measuring an SLO: the counts of every window its tiers look at, and of the window it is about."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pandas as pd

from ...store import Reader, Selection, Tally
from ..objectives.maintenance import Work
from ..objectives.slo import Slo
from ..policy_file import Policy
from . import burn_rate as burn
from .burn_rate import Budget, Counts, Tier

# The finest bucket of the store: a service was seen for at least that long.
_BUCKET = timedelta(seconds=10)
_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Measurement:
    """How an SLO stands, in numbers.

    Args:
        slo: Which.
        counts: The requests of each window up to now, the SLO's own among them; without those of planned work, and of
            before the budget was reset.
        tiers: The tiers that can fire for it.
        firing: Those that do, pages first.
        budget: What is left of its error budget.
        work: The planned work that is under way: nobody is told of anything. None where there is none.
        stale_since: Since when the collector has not worked, so that nothing can be judged; None while it does.
    """

    slo: Slo
    counts: Mapping[timedelta, Counts]
    tiers: tuple[Tier, ...]
    firing: tuple[Tier, ...]
    budget: Budget
    work: Work | None = None
    stale_since: datetime | None = None

    def burn(self, window: timedelta) -> float:
        """Return the burn rate over *window*."""
        counts = self.counts[window]
        return burn.burn_rate(counts.bad, counts.total, self.slo.objective)

    @property
    def exhausted_in(self) -> timedelta | None:
        """When the budget is gone at the last hour's pace; None when it never will be."""
        return burn.exhausted_in(self.budget.left, self.burn(burn.RECENT), self.slo.window)

    @property
    def has_data(self) -> bool:
        """Whether there is anything to judge by: without requests of late nothing is good, and nothing is bad."""
        return self.counts[burn.FAST].total > 0


def counts_of(requests: float, total: float, bad: float) -> Counts:
    """Return as requests what may be counted in another unit: so many of *requests* as *bad* is of *total*.

    >>> counts_of(requests=100, total=8.0, bad=2.0)
    Counts(total=100, bad=25.0)
    """
    return Counts(requests, bad if requests == total else requests * bad / total if total else 0.0)


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
    # Freshness is counted in whole minutes.
    end = now.replace(second=0, microsecond=0) if slo.kind == "freshness" else now
    counts = _counts(read, slo, {*burn.windows(policy, watched), slo.window}, end)
    first = read.first_seen(slo.select(now - slo.window, now)) if counts[slo.window].total else None
    since = None if first is None else counted_from(slo, first, now)
    seen = timedelta.max if since is None else now - since
    return Measurement(
        slo=slo,
        counts=counts,
        tiers=watched,
        firing=burn.firing(watched, counts, slo.objective, policy, already=already, seen=seen),
        budget=burn.budget(counts[slo.window], slo.objective, covered=_covered(slo, since, now)),
        work=slo.maintenance.under_way(now),
        stale_since=read.stale_since(now, policy.stale),
    )


def over_time(read: Reader, slo: Slo, start: datetime, end: datetime, step: timedelta) -> pd.DataFrame:
    """Return what `Reader.tally_series` does of `[start, end)`, of those requests only that `measure` counts."""
    stretches = slo.maintenance.without(counted_from(slo, start, end), end)
    found = [read.tally_series(slo.select(low, high), slo.indicator, step) for low, high in stretches]
    seen = [each for each in found if len(each)]
    if not seen:
        return pd.DataFrame(columns=["at", "requests", "total", "bad"])
    series = pd.concat(seen, ignore_index=True)
    series.attrs["step_seconds"] = max(each.attrs["step_seconds"] for each in seen)
    return series


def counted_from(slo: Slo, start: datetime, now: datetime) -> datetime:
    """Return from when on requests count in a window that begins at *start*: not before the budget was reset."""
    return max(start, slo.reset) if slo.reset is not None and slo.reset <= now else start


def _counts(read: Reader, slo: Slo, lengths: Collection[timedelta], now: datetime) -> dict[timedelta, Counts]:
    """Return the counts of windows of *lengths* up to *now*: each stretch between two of their starts is read once."""
    pieces: list[tuple[timedelta, Selection]] = []
    end = now
    for length in sorted(lengths):
        start = counted_from(slo, now - length, now)
        within = slo.maintenance.without(start, end) if start < end else ()
        pieces += [(length, slo.select(*stretch)) for stretch in within]
        end = min(start, end)
    # As of one moment: what is written or rolled up meanwhile must not make windows disagree.
    tallies = read.tallies([selection for _, selection in pieces], slo.indicator)
    counted = [(length, tally) for (length, _), tally in zip(pieces, tallies, strict=True)]
    return {length: _added([tally for reach, tally in counted if reach <= length]) for length in lengths}


def _added(tallies: Sequence[Tally]) -> Counts:
    return counts_of(
        sum(each.requests for each in tallies), sum(each.total for each in tallies), sum(each.bad for each in tallies)
    )


def _covered(slo: Slo, first: datetime | None, now: datetime) -> float:
    """Return the share of the SLO's window in which what it is about was counted, since the *first* of it was."""
    if first is None:
        return 1.0
    since = max(first, now - slo.window)
    worked = sum((high - low for low, high in slo.maintenance.intervals(since, now)), timedelta(0))
    return min(1.0, max(now - since - worked, _BUCKET) / slo.window)
