"""Where the time goes in the requests at a percentile: the rule of `docs/architecture.md`, on counts.

The requests at percentile p are those in the bucket the p-th request (nearest rank) falls into, widened bucket by bucket
on both sides until it holds `MIN_REQUESTS`. Their mean stage shares, scaled to the bucket's middle, are the breakdown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core.histogram import Estimate
from ...core.names import REQUEST_DURATION, STAGE_TIME
from ...core.stages import OVERHEAD
from .columns import Columns, Counts, add_up
from .encoding import Ints
from .fetch import fetch
from .frames import frame, staged
from .points import Question, Snapshot
from .selection import Selection

MIN_REQUESTS = 8
METRICS = (REQUEST_DURATION, STAGE_TIME)
COLUMNS = ("percentile", "n", "value_seconds", "low_seconds", "high_seconds")


@dataclass(frozen=True, slots=True)
class Band:
    """The requests at a percentile.

    Args:
        value: The latency there. [seconds]
        n: How many requests the shares are the mean of.
        shares: Share of their time by stage; adds up to 1.
        dominants: Share of these requests by the stage that took most of each; adds up to 1.
    """

    value: Estimate
    n: int
    shares: dict[str, float]
    dominants: dict[str, float]

    def seconds(self) -> dict[str, float]:
        """Return the time by stage; adds up to the value."""
        return {stage: share * self.value.value for stage, share in self.shares.items()}


class Mixture:
    """The requests of one step, with the time they spent in each stage.

    Args:
        columns: Points of *metrics*, at least one of them of the first.
        metrics: What counts requests by a time, and what holds the time by stage in the same buckets.
    """

    def __init__(self, columns: Columns, metrics: tuple[str, str] = METRICS) -> None:
        requests, times = (columns.of(metric) for metric in metrics)
        self._stages = columns.stages
        # The latency at its own scale, so that it is the same number everywhere; shares at one both metrics have.
        self.latency = add_up(requests)
        self._times = add_up(times, self.latency.scale)
        self._requests = add_up(requests, self._times.scale) if self._times.scale < self.latency.scale else self.latency

    @property
    def n(self) -> int:
        """How many requests there are."""
        return self.latency.total

    @property
    def mean(self) -> float:
        """The mean latency, in seconds."""
        return float(self.latency.sum.sum()) / self.n

    def mean_shares(self) -> dict[str, float]:
        """Return the share of all time by stage."""
        return self._shares(np.ones(len(self._times.index), bool))

    def at(self, quantile: float) -> Band:
        """Return the requests at *quantile*."""
        value = self.latency.value_at(quantile)
        bucket = self.latency.bucket_of(quantile)
        if bucket is None:
            zero = self.latency.zero
            return Band(value, int(zero.sum()), {OVERHEAD: 1.0}, self._named(zero / zero.sum()))
        centre = bucket >> (self.latency.scale - self._requests.scale)
        reach = _reach(self._requests, centre)
        inside = self._requests.amount[:, np.abs(self._requests.index - centre) <= reach].sum(axis=1)
        shares = self._shares(np.abs(self._times.index - centre) <= reach)
        return Band(value, int(inside.sum()), shares, self._named(inside / inside.sum()))

    def share_of(self, stage: str) -> NDArray[np.float64]:
        """Return the share of their time that the requests in each bucket of `latency` spend in *stage*; shape (k,)."""
        in_stage = self._times.amount[[name == stage for name in self._stages]].sum(axis=0)
        shares = dict(zip(self._times.index.tolist(), in_stage / self._times.amount.sum(axis=0), strict=True))
        coarse = self.latency.index >> (self.latency.scale - self._times.scale)
        return np.array([shares.get(bucket, 0.0) for bucket in coarse.tolist()], np.float64)

    def dominated_by(self, stage: str) -> Ints:
        """Return how many requests in each bucket of `latency` *stage* takes most of; shape (k,)."""
        return self.latency.amount[[name == stage for name in self._stages]].sum(axis=0)

    def _shares(self, chosen: NDArray[np.bool_]) -> dict[str, float]:
        spent = self._times.amount[:, chosen].sum(axis=1)
        total = spent.sum()
        # Time nobody claimed, as from a client that knows no stages, is overhead.
        return self._named(spent / total) if total else {OVERHEAD: 1.0}

    def _named(self, shares: NDArray[np.float64]) -> dict[str, float]:
        named = zip(self._stages, shares.tolist(), strict=True)
        return {stage: share for stage, share in named if share}


def _reach(requests: Counts, centre: int) -> int:
    """Return how many buckets on both sides of *centre* it takes to hold `MIN_REQUESTS`, or all there are."""
    distance = np.abs(requests.index - centre)
    order = np.argsort(distance, kind="stable")
    held = np.cumsum(requests.amount.sum(axis=0)[order])
    return int(distance[order][np.searchsorted(held, min(MIN_REQUESTS, int(held[-1])))])


def mixture(snapshot: Snapshot, selection: Selection) -> Mixture | None:
    """Return the requests of *selection*, or None if there are none."""
    columns = fetch(snapshot, Question(selection, METRICS))
    return Mixture(columns) if len(columns.of(REQUEST_DURATION)) else None


def breakdown(snapshot: Snapshot, selection: Selection, percentiles: Sequence[float]) -> pd.DataFrame:
    """See `Reader.breakdown`."""
    return at_percentiles(mixture(snapshot, selection), percentiles)


def at_percentiles(mixed: Mixture | None, percentiles: Sequence[float]) -> pd.DataFrame:
    """Return the frame of `Reader.breakdown`; None stands for no requests."""
    rows = [_row(quantile, mixed.at(quantile)) for quantile in percentiles] if mixed else []
    made = staged(COLUMNS, rows)
    made.attrs["requests"] = mixed.n if mixed else 0
    return made


def dominants(snapshot: Snapshot, selection: Selection, percentiles: Sequence[float]) -> pd.DataFrame:
    """See `Reader.dominants`."""
    mixed = mixture(snapshot, selection)
    rows = [
        {"percentile": quantile, "stage": stage, "share": share}
        for quantile in (percentiles if mixed else ())
        for stage, share in _falling(mixed.at(quantile).dominants if mixed else {})
    ]
    return frame(("percentile", "stage", "share"), rows)


def _falling(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda item: -item[1])


def _row(quantile: float, band: Band) -> dict[str, Any]:
    value = band.value
    head = zip(COLUMNS, (quantile, band.n, value.value, value.low, value.high), strict=True)
    return {**dict(head), **band.seconds()}
