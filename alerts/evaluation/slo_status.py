"""Measured state of an SLO: counts of its windows and minutes, error budget, firing tiers, and the status shown to users.

`measure_slo` reads the counts of all windows that the tiers need. `read_slo_status` derives the status from them.
`load_history` reads cumulative counts per minute of the past, so that the counts of any window are one subtraction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...analysis import burn_rate
from ...analysis.policies import BurnRatePolicy, MinimumBadRequests
from ...analysis.slo_status import URGENCY, RuleStatus, SloState, covered_share, known_burn_rate, rule_status, slo_state
from ...store import Reader, Selection, Tally
from ..objectives.maintenance import ActiveMaintenance
from ..objectives.slo import Slo

MINUTE = timedelta(minutes=1)
# Share of an SLO's window that has data, from which on the window counts as complete; gaps of maintenance windows are short.
_COMPLETE = 0.95
_MINUTE_SECONDS, _DAY_SECONDS, _HOUR_SECONDS = 60, 86_400, 3600


@dataclass(frozen=True, slots=True)
class Measurement:
    slo: Slo
    counts: Mapping[timedelta, burn_rate.Counts]
    tiers: tuple[burn_rate.AlertTier, ...]
    firing: tuple[burn_rate.AlertTier, ...]
    budget: burn_rate.ErrorBudget
    work: ActiveMaintenance | None = None
    stale_since: datetime | None = None

    def burn(self, window: timedelta) -> float:
        counts = self.counts[window]
        return burn_rate.burn_rate(counts.bad, counts.total, self.slo.objective)

    @property
    def exhausted_in(self) -> timedelta | None:
        """Time until the budget is spent at the last hour's burn rate; None for never."""
        return burn_rate.exhausted_in(self.budget.left, self.burn(burn_rate.RECENT), self.slo.window)

    @property
    def has_data(self) -> bool:
        """Whether there were recent requests; if not, the state is unknown."""
        return self.counts[burn_rate.FAST].total > 0


def tiers_of(slo: Slo, policy: BurnRatePolicy) -> tuple[burn_rate.AlertTier, ...]:
    return tuple(
        tier for tier in burn_rate.policy_tiers(policy, slo.window) if burn_rate.is_reachable(tier, slo.objective)
    )


def measure_slo(read: Reader, slo: Slo, policy: BurnRatePolicy, now: datetime, *, already: bool = False) -> Measurement:
    """Count the requests of all windows up to *now* and evaluate the tiers."""
    watched = tiers_of(slo, policy)
    counts = _counts(read, slo, {*burn_rate.needed_windows(policy, watched), slo.window}, _end_of_windows(slo, now))
    first = read.first_seen(slo.select(now - slo.window, now)) if counts[slo.window].total else None
    since = None if first is None else counted_from(slo, first, now)
    seen = timedelta.max if since is None else now - since
    return Measurement(
        slo=slo,
        counts=counts,
        tiers=watched,
        firing=burn_rate.firing_tiers(watched, counts, slo.objective, policy, already=already, seen=seen),
        budget=burn_rate.remaining_budget(counts[slo.window], slo.objective, covered=_covered_share(slo, since, now)),
        work=slo.maintenance.under_way(now),
        stale_since=read.stale_since(now, policy.stale),
    )


def can_fire(read: Reader, slo: Slo, policy: BurnRatePolicy, now: datetime) -> bool:
    """Return whether the short windows up to *now* allow any tier to fire; only then the long windows need to be read."""
    tiers = tiers_of(slo, policy)
    counts = _counts(read, slo, {tier.short for tier in tiers}, _end_of_windows(slo, now))
    return any(burn_rate.may_fire(tier, counts[tier.short], slo.objective) for tier in tiers)


def tally_over_time(read: Reader, slo: Slo, start: datetime, end: datetime, step: timedelta) -> pd.DataFrame:
    stretches = slo.maintenance.without(counted_from(slo, start, end), end)
    series_by_step = [read.tally_series(slo.select(low, high), slo.indicator, step) for low, high in stretches]
    seen = [part for part in series_by_step if len(part)]
    if not seen:
        return pd.DataFrame(columns=["at", "requests", "total", "bad"])
    series = pd.concat(seen, ignore_index=True)
    series.attrs["step_seconds"] = max(part.attrs["step_seconds"] for part in seen)
    return series


def counted_from(slo: Slo, start: datetime, now: datetime) -> datetime:
    """Return the time from which requests count in a window that starts at *start*: not before the budget reset."""
    return max(start, slo.reset) if slo.reset is not None and slo.reset <= now else start


def _end_of_windows(slo: Slo, now: datetime) -> datetime:
    # Freshness is counted in whole minutes.
    return now.replace(second=0, microsecond=0) if slo.kind == "freshness" else now


def _counts(read: Reader, slo: Slo, lengths: Collection[timedelta], now: datetime) -> dict[timedelta, burn_rate.Counts]:
    pieces: list[tuple[timedelta, Selection]] = []
    end = now
    for length in sorted(lengths):
        start = counted_from(slo, now - length, now)
        within = slo.maintenance.without(start, end) if start < end else ()
        pieces += [(length, slo.select(*stretch)) for stretch in within]
        end = min(start, end)
    # In one transaction, so that windows are consistent despite concurrent writes and rollups.
    tallies = read.tallies([selection for _, selection in pieces], slo.indicator)
    counted = [(length, tally) for (length, _), tally in zip(pieces, tallies, strict=True)]
    late = _late_requests(read, slo, now)
    return {length: _total([tally for reach, tally in counted if reach <= length], late) for length in lengths}


def _late_requests(read: Reader, slo: Slo, now: datetime) -> float:
    if slo.kind != "latency" or slo.threshold_seconds is None or slo.maintenance.under_way(now) is not None:
        return 0.0
    return read.open_longer_than(slo.select(now - MINUTE, now), slo.threshold_seconds)


def _total(tallies: Sequence[Tally], late: float) -> burn_rate.Counts:
    return burn_rate.as_requests(
        sum(tally.requests for tally in tallies) + late,
        sum(tally.total for tally in tallies) + late,
        sum(tally.bad for tally in tallies) + late,
    )


def _covered_share(slo: Slo, first: datetime | None, now: datetime) -> float:
    if first is None:
        return 1.0
    intervals = slo.maintenance.intervals(max(first, now - slo.window), now)
    return covered_share(now - first, slo.window, sum((high - low for low, high in intervals), timedelta(0)))


Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WindowSeries:
    """Counts of windows of one length, one window ending at each edge between two minutes."""

    total: Floats
    bad: Floats

    def burn(self, objective: float) -> Floats:
        """Return the burn rates; shape (edges,)."""
        share = np.divide(self.bad, self.total, out=np.zeros_like(self.bad), where=self.total > 0)
        return share / (1 - objective)


@dataclass(frozen=True, slots=True)
class History:
    """Counts before each edge between two minutes, cumulative; arrays of shape (edges,), the first of which counts at *first*."""

    start: int
    requests: Floats
    total: Floats
    bad: Floats
    first: int = 0
    coarse_until: datetime | None = None
    seen_from: datetime | None = None

    @property
    def edges(self) -> int:
        return len(self.total)

    def at(self, edge: int) -> datetime:
        return datetime.fromtimestamp(self.start + _MINUTE_SECONDS * edge, UTC)

    def seen(self, edge: int) -> timedelta:
        return timedelta.max if self.seen_from is None else self.at(edge) - self.seen_from

    def edge_of(self, at: datetime) -> int:
        return min(max(0, int(at.timestamp() - self.start) // _MINUTE_SECONDS), self.edges - 1)

    def windows(self, length: timedelta) -> WindowSeries:
        ends = np.arange(self.edges)
        starts = np.maximum(ends - length // MINUTE, np.minimum(self.first, ends))
        starts = np.maximum(starts, 0)
        requests, total, bad = (held[ends] - held[starts] for held in (self.requests, self.total, self.bad))
        share = np.divide(bad, total, out=np.zeros_like(bad), where=total > 0)
        return WindowSeries(requests, np.where(requests == total, bad, requests * share))

    def minutes(self, low: int, high: int) -> Iterator[tuple[datetime, float, float]]:
        for edge in range(low, high):
            total, bad = self.total[edge + 1] - self.total[edge], self.bad[edge + 1] - self.bad[edge]
            yield self.at(edge), float(total), float(bad)


def load_history(read: Reader, slo: Slo, start: datetime, end: datetime) -> History:
    """Count the requests of *slo* in `[start, end)` per minute, except those within maintenance windows.

    Each day is read separately, because the store returns longer ranges in hours.
    """
    first = int(start.timestamp()) // _HOUR_SECONDS * _HOUR_SECONDS
    last = int(end.timestamp()) // _MINUTE_SECONDS * _MINUTE_SECONDS
    counted = np.zeros((3, (last - first) // _MINUTE_SECONDS))
    coarse_until: int | None = None
    for low, high in _split_by_day(first, last):
        selection = slo.select(datetime.fromtimestamp(low, UTC), datetime.fromtimestamp(high, UTC))
        tallies = read.tally_series(selection, slo.indicator, MINUTE)
        if len(tallies) and tallies.attrs["step_seconds"] > _MINUTE_SECONDS:
            coarse_until = high
        _spread_over_minutes(counted, tallies, first)
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
    return max(0, int(-((first - at.timestamp()) // _MINUTE_SECONDS)))


def _spread_over_minutes(counted: NDArray[Any], tallies: pd.DataFrame, first: int) -> None:
    if not len(tallies):
        return
    width = max(1, int(tallies.attrs["step_seconds"]) // _MINUTE_SECONDS)
    starts = tallies["at"].dt.as_unit("s").astype("int64").to_numpy()
    begin = (starts - first) // _MINUTE_SECONDS
    minutes = (begin[:, None] + np.arange(width)).ravel()
    inside = (minutes >= 0) & (minutes < counted.shape[1])
    for row, name in enumerate(("requests", "total", "bad")):
        per_minute = np.repeat(tallies[name].to_numpy(np.float64) / width, width)
        np.add.at(counted[row], minutes[inside], per_minute[inside])


@dataclass(frozen=True, slots=True)
class SloStatus:
    """Status of one SLO; if the data are stale, the status at the time of the last data.

    Args:
        bad: Requests that violated the objective; fractional if the threshold splits a histogram bucket. [count]
        attained: Share of good requests, or None without requests. [ratio]
        budget_left: Unspent share of the error budget; below zero when overspent, None without requests. [ratio]
        bad_left: Bad requests that still fit into the budget. [count]
    """

    slo: Slo
    total: float
    bad: float
    attained: float | None
    budget_left: float | None
    bad_left: float
    burn_1h: float | None
    burn_5m: float | None
    state: SloState
    exhausted_in: timedelta | None
    rules: tuple[RuleStatus, ...] = ()
    stale_since: datetime | None = None
    work: ActiveMaintenance | None = None
    covered: timedelta = timedelta.max

    @property
    def is_young(self) -> bool:
        return self.covered < _COMPLETE * self.slo.window

    @property
    def urgency(self) -> tuple[int, bool, float]:
        """Sort key: most urgent first, then latency objectives, then faster burning ones."""
        return URGENCY[self.state], self.slo.threshold_seconds is None, -(self.burn_1h or 0.0)


def read_slo_status(read: Reader, slo: Slo, policy: BurnRatePolicy, now: datetime) -> SloStatus:
    measured = measure_slo(read, slo, policy, now)
    if measured.stale_since is not None:
        # Measured at the time of the last data, because later windows contain fewer and fewer requests.
        then = measure_slo(read, slo, policy, measured.stale_since)
        measured = replace(then, stale_since=measured.stale_since, work=measured.work)
    return status_of(measured, policy.guard)


def status_of(measured: Measurement, guard: MinimumBadRequests) -> SloStatus:
    counts = measured.counts[measured.slo.window]
    allowed = counts.bad + measured.budget.bad_left
    covered = counts.total * (1 - measured.slo.objective) / allowed if allowed > 0 else 1.0
    has_requests, objective = counts.total > 0, measured.slo.objective
    rules = tuple(rule_status(tier, measured.firing, measured.counts, objective, guard) for tier in measured.tiers)
    return SloStatus(
        slo=measured.slo,
        total=counts.total,
        bad=counts.bad,
        attained=1 - counts.bad / counts.total if has_requests else None,
        budget_left=measured.budget.left if has_requests else None,
        bad_left=measured.budget.bad_left,
        burn_1h=known_burn_rate(measured.counts[burn_rate.RECENT], objective),
        burn_5m=known_burn_rate(measured.counts[burn_rate.FAST], objective),
        state=slo_state(
            measured.counts,
            measured.firing,
            measured.budget,
            rules=rules,
            objective=objective,
            window=measured.slo.window,
            guard=guard,
            is_stale=measured.stale_since is not None,
            in_maintenance=measured.work is not None,
        ),
        exhausted_in=measured.exhausted_in,
        rules=rules,
        stale_since=measured.stale_since,
        work=measured.work,
        covered=timedelta(seconds=round(min(covered, 1.0) * measured.slo.window.total_seconds())),
    )
