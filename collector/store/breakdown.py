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
from sqlalchemy import Connection

from ...core.histogram import Estimate
from ...core.names import REQUEST_DURATION, STAGE_TIME
from ...core.stages import OVERHEAD
from .columns import Columns, Counts, add_up
from .fetch import Question, fetch
from .frames import frame, staged
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
        columns: Points of `METRICS`, at least one of them of `inference.request.duration`.
    """

    def __init__(self, columns: Columns) -> None:
        requests, times = columns.of(REQUEST_DURATION), columns.of(STAGE_TIME)
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


def mixture(connection: Connection, selection: Selection) -> Mixture | None:
    """Return the requests of *selection*, or None if there are none."""
    columns = fetch(connection, Question(selection, METRICS))
    return Mixture(columns) if len(columns.of(REQUEST_DURATION)) else None


def breakdown(connection: Connection, selection: Selection, percentiles: Sequence[float]) -> pd.DataFrame:
    """See `Reader.breakdown`."""
    mixed = mixture(connection, selection)
    rows = [_row(quantile, mixed.at(quantile)) for quantile in percentiles] if mixed else []
    made = staged(COLUMNS, rows)
    made.attrs["requests"] = mixed.n if mixed else 0
    return made


def dominants(connection: Connection, selection: Selection, percentiles: Sequence[float]) -> pd.DataFrame:
    """See `Reader.dominants`."""
    mixed = mixture(connection, selection)
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


def compare(connection: Connection, a: Selection, b: Selection, quantile: float) -> pd.DataFrame:
    """See `Reader.compare`."""
    mixed = {"a": mixture(connection, a), "b": mixture(connection, b)}
    bands = {side: one.at(quantile) if one else None for side, one in mixed.items()}
    seconds = {side: band.seconds() if band else {} for side, band in bands.items()}
    made = frame(
        ("stage", "a_seconds", "b_seconds"),
        [
            {"stage": stage, "a_seconds": seconds["a"].get(stage, 0.0), "b_seconds": seconds["b"].get(stage, 0.0)}
            for stage in seconds["a"] | seconds["b"]
        ],
    )
    made["delta_seconds"] = made["b_seconds"] - made["a_seconds"]
    values = {side: band.value.value if band else None for side, band in bands.items()}
    change = (values["b"] or 0.0) - (values["a"] or 0.0)
    made["share"] = made["delta_seconds"] / change if change else 0.0
    for side in ("a", "b"):
        one = mixed[side]
        made.attrs[f"{side}_value"], made.attrs[f"{side}_n"] = values[side], one.n if one else 0
    return made.sort_values("delta_seconds", ascending=False, ignore_index=True)
