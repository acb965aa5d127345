"""The numbers of one service that tiles, tables and the side bar share, asked once and by one way."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd

from ...collector.store import Selection
from ...core.stages import BY_KEY
from ..figures.percentile import COLUMNS
from ..format import enough
from ..source import Source


@dataclass(frozen=True, slots=True)
class Measures:
    """What a selection of requests says in a few numbers.

    Args:
        requests: How many. [count]
        errors: How many failed. [count]
        p50: The median latency; None without requests. [seconds]
        p99: None when too few requests stand above it. [seconds]
        median_stages: Where the median's time goes: stage to seconds.
        tail_stages: Where the time of p99 goes; empty when `p99` is None.
    """

    requests: int
    errors: int
    p50: float | None
    p99: float | None
    median_stages: dict[str, float]
    tail_stages: dict[str, float]

    @property
    def error_ratio(self) -> float | None:
        """The share of failed requests."""
        return self.errors / self.requests if self.requests else None

    @property
    def waiting_share(self) -> float | None:
        """The share of p99 spent in stages that only wait."""
        total = sum(self.tail_stages.values())
        waited = sum(
            seconds for stage, seconds in self.tail_stages.items() if stage in BY_KEY and BY_KEY[stage].waiting
        )
        return waited / total if total else None


def measure(source: Source, selection: Selection) -> Measures:
    """Return the measures of *selection*."""
    frame = source.ask(source.read.breakdown, selection, (0.5, 0.99))
    requests = int(frame.attrs.get("requests", 0)) if len(frame) else 0
    if not requests:
        return Measures(0, 0, None, None, {}, {})
    failed = source.ask(source.read.latency, replace(selection, status="error")).count
    median, tail = stages_at(frame, 0), stages_at(frame, 1)
    tells = enough(requests, 0.99)
    return Measures(
        requests,
        failed,
        float(frame["value_seconds"].iloc[0]),
        float(frame["value_seconds"].iloc[1]) if tells else None,
        median,
        tail if tells else {},
    )


def stages_at(frame: pd.DataFrame, row: int) -> dict[str, float]:
    """Return the stages of one row of a breakdown: stage to seconds, those with nothing left out."""
    values = {str(name): float(frame[name].iloc[row]) for name in frame.columns if name not in COLUMNS}
    return {stage: seconds for stage, seconds in values.items() if seconds > 0}
