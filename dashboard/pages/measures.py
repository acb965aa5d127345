"""The numbers of one service that tiles, tables and the side bar share, asked once and by one way."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ...collector.store import Selection
from ...core.stages import BY_KEY
from ..figures.percentile import COLUMNS, PERCENTILES
from ..format import enough
from ..source import Source

# Neighbours fewer steps away than this tell of a percentile too: an eighth of a nine on both sides.
_NEIGHBOURS = 6
# So many requests at a percentile speak for themselves; with more of them the neighbours count less and less.
_PLENTY = 50


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


def breakdown(source: Source, selection: Selection) -> pd.DataFrame:
    """Return where the time goes at `PERCENTILES`, the one answer that tiles, bars, charts and tables read."""
    return smoothed(source.ask(source.read.breakdown, selection, PERCENTILES))


def smoothed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return *frame*, each percentile's stage shares the mean over its neighbours, near ones counting more.

    Where a few requests decide, single ones would make the stages jump from one percentile to the next. The latency of a
    percentile stays as it is, and the stages still add up to it. Where there are many, the neighbours hardly count.

    Args:
        frame: A breakdown at percentiles evenly spaced in nines: `COLUMNS` and one column a stage [seconds].
    """
    if frame.empty:
        return frame
    stages = [str(each) for each in frame.columns if each not in COLUMNS]
    total = frame["value_seconds"].to_numpy(dtype=float)[:, None]
    shares = frame[stages].to_numpy(dtype=float) / np.maximum(total, 1e-12)
    steps = np.arange(len(frame))
    near = np.maximum(1 - np.abs(np.subtract.outer(steps, steps)) / _NEIGHBOURS, 0)
    requests = np.maximum(frame["n"].to_numpy(dtype=float), 1)
    borrowed = np.minimum(1, _PLENTY / requests)[:, None]
    weight = near * requests * np.where(np.eye(len(frame)), 1, borrowed)
    made = frame.copy()
    made[stages] = weight @ shares / weight.sum(axis=1, keepdims=True) * total
    return made


def measure(source: Source, selection: Selection) -> Measures:
    """Return the measures of *selection*."""
    frame = breakdown(source, selection)
    requests = int(frame.attrs.get("requests", 0)) if len(frame) else 0
    if not requests:
        return Measures(0, 0, None, None, {}, {})
    failed = source.ask(source.read.latency, replace(selection, status="error")).count
    at_p50, at_p99 = PERCENTILES.index(0.5), PERCENTILES.index(0.99)
    median, tail = stages_at(frame, at_p50), stages_at(frame, at_p99)
    tells = enough(requests, 0.99)
    return Measures(
        requests,
        failed,
        float(frame["value_seconds"].iloc[at_p50]),
        float(frame["value_seconds"].iloc[at_p99]) if tells else None,
        median,
        tail if tells else {},
    )


def stages_at(frame: pd.DataFrame, row: int) -> dict[str, float]:
    """Return the stages of one row of a breakdown: stage to seconds, those with nothing left out."""
    values = {str(name): float(frame[name].iloc[row]) for name in frame.columns if name not in COLUMNS}
    return {stage: seconds for stage, seconds in values.items() if seconds > 0}
