"""Counts of an SLO: of all windows up to now, and minute by minute over the past.

`measure_slo` reads the windows that the tiers need. `load_history` reads cumulative counts per minute, so that any window
that ends at any minute is one subtraction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...store import Reader, Selection, Tally
from ..objectives.maintenance import ActiveMaintenance
from ..objectives.slo import Slo
from ..policies import BurnRatePolicy
from .burn_rate import (
    FAST,
    RECENT,
    Budget,
    Counts,
    Tier,
    burn_rate,
    exhausted_in,
    firing_tiers,
    is_reachable,
    needed_windows,
    policy_tiers,
    remaining_budget,
)

# Finest bucket of the store: the minimum time a service was seen.
_BUCKET = timedelta(seconds=10)
_MINUTE = timedelta(minutes=1)
MINUTE = timedelta(minutes=1)
_MINUTE_SECONDS, _DAY_SECONDS, _HOUR_SECONDS = 60, 86_400, 3600


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measured state of an SLO.

    Args:
        slo: The SLO.
        counts: Counts of each window up to now, including the SLO's own; without maintenance windows, and without the
            time before the budget was reset.
        tiers: Tiers that can fire.
        firing: Tiers that fire, pages first.
        budget: Remaining error budget.
        work: Maintenance window in progress; None for none.
        stale_since: Time since which the collector has not worked; None while it does.
    """

    slo: Slo
    counts: Mapping[timedelta, Counts]
    tiers: tuple[Tier, ...]
    firing: tuple[Tier, ...]
    budget: Budget
    work: ActiveMaintenance | None = None
    stale_since: datetime | None = None

    def burn(self, window: timedelta) -> float:
        """Return the burn rate over *window*."""
        counts = self.counts[window]
        return burn_rate(counts.bad, counts.total, self.slo.objective)

    @property
    def exhausted_in(self) -> timedelta | None:
        """Time until the budget is spent at the last hour's burn rate; None for never."""
        return exhausted_in(self.budget.left, self.burn(RECENT), self.slo.window)

    @property
    def has_data(self) -> bool:
        """Whether there were recent requests; without them the state is unknown."""
        return self.counts[FAST].total > 0


def as_requests(requests: float, total: float, bad: float) -> Counts:
    """Return counts in requests: the share *bad* / *total*, in any unit, of *requests*.

    >>> as_requests(requests=100, total=8.0, bad=2.0)
    Counts(total=100, bad=25.0)
    """
    return Counts(requests, bad if requests == total else requests * bad / total if total else 0.0)


def tiers_of(slo: Slo, policy: BurnRatePolicy) -> tuple[Tier, ...]:
    """Return the tiers that can fire for *slo*."""
    return tuple(tier for tier in policy_tiers(policy, slo.window) if is_reachable(tier, slo.objective))


def measure_slo(read: Reader, slo: Slo, policy: BurnRatePolicy, now: datetime, *, already: bool = False) -> Measurement:
    """Count the requests of all windows up to *now* and evaluate the tiers.

    Args:
        read: The store's queries.
        slo: The SLO.
        policy: Burn-rate policy.
        now: End of the windows.
        already: Whether an incident is open, which lowers the thresholds.
    """
    watched = tiers_of(slo, policy)
    # Freshness is counted in whole minutes.
    end = now.replace(second=0, microsecond=0) if slo.kind == "freshness" else now
    counts = _counts(read, slo, {*needed_windows(policy, watched), slo.window}, end)
    first = read.first_seen(slo.select(now - slo.window, now)) if counts[slo.window].total else None
    since = None if first is None else counted_from(slo, first, now)
    seen = timedelta.max if since is None else now - since
    return Measurement(
        slo=slo,
        counts=counts,
        tiers=watched,
        firing=firing_tiers(watched, counts, slo.objective, policy, already=already, seen=seen),
        budget=remaining_budget(counts[slo.window], slo.objective, covered=_covered_share(slo, since, now)),
        work=slo.maintenance.under_way(now),
        stale_since=read.stale_since(now, policy.stale),
    )


def tally_over_time(read: Reader, slo: Slo, start: datetime, end: datetime, step: timedelta) -> pd.DataFrame:
    """Return what `Reader.tally_series` does of `[start, end)`, of those requests only that `measure_slo` counts."""
    stretches = slo.maintenance.without(counted_from(slo, start, end), end)
    found = [read.tally_series(slo.select(low, high), slo.indicator, step) for low, high in stretches]
    seen = [each for each in found if len(each)]
    if not seen:
        return pd.DataFrame(columns=["at", "requests", "total", "bad"])
    series = pd.concat(seen, ignore_index=True)
    series.attrs["step_seconds"] = max(each.attrs["step_seconds"] for each in seen)
    return series


def counted_from(slo: Slo, start: datetime, now: datetime) -> datetime:
    """Return from when requests count in a window that begins at *start*: not before the budget reset."""
    return max(start, slo.reset) if slo.reset is not None and slo.reset <= now else start


def _counts(read: Reader, slo: Slo, lengths: Collection[timedelta], now: datetime) -> dict[timedelta, Counts]:
    """Return the counts of windows of *lengths* up to *now*; each interval between two window starts is read once."""
    pieces: list[tuple[timedelta, Selection]] = []
    end = now
    for length in sorted(lengths):
        start = counted_from(slo, now - length, now)
        within = slo.maintenance.without(start, end) if start < end else ()
        pieces += [(length, slo.select(*stretch)) for stretch in within]
        end = min(start, end)
    # In one transaction: writes and rollups must not make windows disagree.
    tallies = read.tallies([selection for _, selection in pieces], slo.indicator)
    counted = [(length, tally) for (length, _), tally in zip(pieces, tallies, strict=True)]
    return {length: _total([tally for reach, tally in counted if reach <= length]) for length in lengths}


def _total(tallies: Sequence[Tally]) -> Counts:
    return as_requests(
        sum(each.requests for each in tallies), sum(each.total for each in tallies), sum(each.bad for each in tallies)
    )


def _covered_share(slo: Slo, first: datetime | None, now: datetime) -> float:
    """Return the share of the SLO's window covered by data since the *first* request."""
    if first is None:
        return 1.0
    since = max(first, now - slo.window)
    worked = sum((high - low for low, high in slo.maintenance.intervals(since, now)), timedelta(0))
    return min(1.0, max(now - since - worked, _BUCKET) / slo.window)


Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WindowSeries:
    """Counts of the windows of one length, one per edge of a minute.

    Args:
        total: Requests; shape (edges,).
        bad: Shape (edges,).
    """

    total: Floats
    bad: Floats

    def burn(self, objective: float) -> Floats:
        """Return the burn rates; shape (edges,)."""
        share = np.divide(self.bad, self.total, out=np.zeros_like(self.bad), where=self.total > 0)
        return share / (1 - objective)


@dataclass(frozen=True, slots=True)
class History:
    """Cumulative counts before each edge of a minute.

    Args:
        start: The first edge. [Unix seconds]
        requests: Shape (edges,).
        total: In the unit of the indicator; shape (edges,).
        bad: Also.
        first: First edge that counts: the budget reset. [index]
        coarse_until: Before this time only coarser data exist and are spread evenly; None if there are minutes.
        seen_from: Time of the first request; None for long before.
    """

    start: int
    requests: Floats
    total: Floats
    bad: Floats
    first: int = 0
    coarse_until: datetime | None = None
    seen_from: datetime | None = None

    @property
    def edges(self) -> int:
        """Number of edges: one more than minutes."""
        return len(self.total)

    def at(self, edge: int) -> datetime:
        """Return the time of *edge*."""
        return datetime.fromtimestamp(self.start + _MINUTE_SECONDS * edge, UTC)

    def seen(self, edge: int) -> timedelta:
        """Return the time since the first request at *edge*."""
        return timedelta.max if self.seen_from is None else self.at(edge) - self.seen_from

    def edge_of(self, at: datetime) -> int:
        """Return the last edge at or before *at*, within the history."""
        return min(max(0, int(at.timestamp() - self.start) // _MINUTE_SECONDS), self.edges - 1)

    def windows(self, length: timedelta) -> WindowSeries:
        """Return the windows of *length* that end at each edge, counted as in `measure_slo`."""
        ends = np.arange(self.edges)
        starts = np.maximum(ends - length // MINUTE, np.minimum(self.first, ends))
        starts = np.maximum(starts, 0)
        requests, total, bad = (held[ends] - held[starts] for held in (self.requests, self.total, self.bad))
        share = np.divide(bad, total, out=np.zeros_like(bad), where=total > 0)
        return WindowSeries(requests, np.where(requests == total, bad, requests * share))

    def minutes(self, low: int, high: int) -> Iterator[tuple[datetime, float, float]]:
        """Yield start, total and bad of each minute between two edges."""
        for edge in range(low, high):
            total, bad = self.total[edge + 1] - self.total[edge], self.bad[edge + 1] - self.bad[edge]
            yield self.at(edge), float(total), float(bad)


def load_history(read: Reader, slo: Slo, start: datetime, end: datetime) -> History:
    """Count the requests of *slo* in `[start, end)` per minute, without maintenance windows.

    Days are read one by one: a longer range would be returned in hours.
    """
    first = int(start.timestamp()) // _HOUR_SECONDS * _HOUR_SECONDS
    last = int(end.timestamp()) // _MINUTE_SECONDS * _MINUTE_SECONDS
    counted = np.zeros((3, (last - first) // _MINUTE_SECONDS))
    coarse_until: int | None = None
    for low, high in _split_by_day(first, last):
        selection = slo.select(datetime.fromtimestamp(low, UTC), datetime.fromtimestamp(high, UTC))
        found = read.tally_series(selection, slo.indicator, MINUTE)
        if len(found) and found.attrs["step_seconds"] > _MINUTE_SECONDS:
            coarse_until = high
        _spread_over_minutes(counted, found, first)
    for low, high in slo.maintenance.intervals(datetime.fromtimestamp(first, UTC), end):
        counted[:, _minute_index(low, first) : _minute_index(high, first)] = 0.0
    seen = read.first_seen(slo.select(start, end))
    held = np.concatenate((np.zeros((3, 1)), np.cumsum(counted, axis=1)), axis=1)
    return History(
        start=first,
        requests=held[0],
        total=held[1],
        bad=held[2],
        first=_minute_index(slo.reset, first) if slo.reset is not None and slo.reset <= end else 0,
        coarse_until=None if coarse_until is None else datetime.fromtimestamp(coarse_until, UTC),
        seen_from=None if seen is None else counted_from(slo, seen, end),
    )


def _split_by_day(first: int, last: int) -> Iterator[tuple[int, int]]:
    low = first
    while low < last:
        high = min(last, (low // _DAY_SECONDS + 1) * _DAY_SECONDS)
        yield low, high
        low = high


def _minute_index(at: datetime, first: int) -> int:
    """Return the first minute that begins at or after *at*."""
    return max(0, int(-((first - at.timestamp()) // _MINUTE_SECONDS)))


def _spread_over_minutes(counted: NDArray[Any], found: pd.DataFrame, first: int) -> None:
    """Add *found* to the minutes of *counted*, spreading steps of many minutes evenly."""
    if not len(found):
        return
    width = max(1, int(found.attrs["step_seconds"]) // _MINUTE_SECONDS)
    starts = found["at"].dt.as_unit("s").astype("int64").to_numpy()
    begin = (starts - first) // _MINUTE_SECONDS
    place = (begin[:, None] + np.arange(width)).ravel()
    inside = (place >= 0) & (place < counted.shape[1])
    for row, name in enumerate(("requests", "total", "bad")):
        each = np.repeat(found[name].to_numpy(np.float64) / width, width)
        np.add.at(counted[row], place[inside], each[inside])
