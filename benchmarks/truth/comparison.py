"""Planted beside reported, and whether that is near enough."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from stagelens.core.histogram import Histogram, rank_of

from .clients import Asked
from .reported import Reported

# The goals.
MAX_RELATIVE, MAX_SECONDS = 0.03, 0.0003
MIN_COVERED = 0.95
QUANTILES = (0.5, 0.99)


@dataclass(frozen=True, slots=True)
class Pair:
    """One number twice. [seconds]."""

    planted: float
    reported: float

    @property
    def error(self) -> float:
        """Reported less planted. [seconds]."""
        return self.reported - self.planted

    @property
    def relative(self) -> float:
        """The same as a share of what was planted."""
        return self.error / self.planted if self.planted else 0.0

    @property
    def near(self) -> bool:
        """Whether it is near enough: 3 % or 0.3 ms."""
        return abs(self.error) <= max(MAX_SECONDS, MAX_RELATIVE * self.planted)


@dataclass(frozen=True, slots=True)
class Compared:
    """One stage.

    Args:
        stage: Its key, or what of a stream it is.
        requests: How many requests had it planted.
        counted: How many were reported to have it.
        mean: Over all of them.
        quantiles: At each of `QUANTILES`, as the store's histograms tell: within 1.1 % of what they were given.
        exact: The same from kept traces, which hold the nanosecond; None where too few were kept.
        single: By how much single requests were off, by the trace: median and 99th of a hundred. [seconds]
        averaged: Whether what is reported is an average of the moment, so that only the mean can be right.
    """

    stage: str
    requests: int
    counted: int
    mean: Pair
    quantiles: tuple[Pair, ...]
    exact: tuple[Pair, ...] | None
    single: tuple[float, ...] | None
    averaged: bool

    @property
    def near(self) -> bool:
        """Whether all that is promised holds."""
        return self.mean.near if self.averaged else all(pair.near for pair in self.quantiles)


def compare(stage: str, asked: Sequence[Asked], reported: Reported, *, averaged: bool = False) -> Compared:
    """Return how near what is *reported* of *stage* is to what was planted in the requests *asked*."""
    planted = {each.trace_id: each.truth[stage] / 1e9 for each in asked if stage in each.truth}
    histogram = reported.histograms.get(stage, Histogram())
    # A request without the stage is told of by its absence.
    retained = {trace: stages.get(stage, 0.0) for trace, stages in reported.traces.items() if trace in planted}
    in_traces = any(retained.values())
    return Compared(
        stage=stage,
        requests=len(planted),
        counted=histogram.count,
        mean=Pair(statistics.fmean(planted.values()), histogram.sum / max(1, histogram.count)),
        quantiles=tuple(Pair(_quantile(planted.values(), at), _quantile_of(histogram, at)) for at in QUANTILES),
        exact=_exact(planted, retained) if in_traces else None,
        single=_single(planted, retained) if in_traces else None,
        averaged=averaged,
    )


def _exact(planted: Mapping[str, float], retained: Mapping[str, float]) -> tuple[Pair, ...]:
    of_retained = [planted[trace] for trace in retained]
    return tuple(Pair(_quantile(of_retained, at), _quantile(retained.values(), at)) for at in QUANTILES)


def _single(planted: Mapping[str, float], retained: Mapping[str, float]) -> tuple[float, ...]:
    errors = [abs(spent - planted[trace]) for trace, spent in retained.items()]
    return tuple(_quantile(errors, at) for at in QUANTILES)


def _quantile_of(histogram: Histogram, at: float) -> float:
    estimate = histogram.quantile(at)
    return 0.0 if estimate is None else estimate.value


def _quantile(values: Collection[float], at: float) -> float:
    """Return the value at *at* by nearest rank, as the histograms do."""
    return sorted(values)[rank_of(at, len(values)) - 1]
