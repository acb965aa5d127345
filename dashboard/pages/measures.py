"""The numbers of one service that its tiles, charts and tables share, asked once and by one way; of all: see `fleet`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...core.stages import BY_KEY
from ...store import Reader, Selection
from ..figures.percentile import COLUMNS, PERCENTILES
from ..format import enough
from ..source import Source

Floats: TypeAlias = NDArray[np.float64]
Places: TypeAlias = NDArray[np.int64]

# Neighbours fewer steps away than this tell of a percentile too: an eighth of a nine on both sides.
_NEIGHBOURS = 6
# So many requests at a percentile speak for themselves; with more of them the neighbours count less and less.
_PLENTY = 50
AT_P50, AT_P99 = PERCENTILES.index(0.5), PERCENTILES.index(0.99)
# Where the percentiles stand that tell of p50 and p99: all it takes where nothing else of a service is shown.
TELLING = tuple(
    place for place in range(len(PERCENTILES)) if min(abs(place - AT_P50), abs(place - AT_P99)) < _NEIGHBOURS
)


@dataclass(frozen=True, slots=True)
class Measures:
    """What a selection of requests says in a few numbers.

    Args:
        requests: How many. [count]
        errors: How many failed. [count]
        p50: The median latency; None when too few requests stand above it. [seconds]
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


NO_REQUESTS = Measures(0, 0, None, None, {}, {})


def breakdown(source: Source, selection: Selection) -> pd.DataFrame:
    """Return where the time goes at `PERCENTILES`, the one answer that tiles, bars, charts and tables read."""
    return source.ask(_smoothed_breakdown, source.read, selection)


def _smoothed_breakdown(read: Reader, selection: Selection) -> pd.DataFrame:
    return smoothed(read.breakdown(selection, PERCENTILES))


def stalls(source: Source, selection: Selection) -> pd.DataFrame:
    """Return what held requests up at `PERCENTILES`, as parts of `breakdown`; no rows where nothing did."""
    return source.ask(_smoothed_stalls, source.read, selection)


def _smoothed_stalls(read: Reader, selection: Selection) -> pd.DataFrame:
    return smoothed(read.stalls(selection, PERCENTILES))


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
    total = frame["value_seconds"].to_numpy(dtype=float)
    steps = np.arange(len(frame))
    made = frame.copy()
    made[stages] = smooth(frame[stages].to_numpy(dtype=float), total, frame["n"].to_numpy(dtype=float), steps, steps)
    return made


def smooth(seconds: Floats, total: Floats, requests: Floats, steps: Places, wanted: Places) -> Floats:
    """Do what `smoothed` says, for any number of breakdowns at once.

    Args:
        seconds: Of the stages; shape (..., rows, stages).
        total: The latency; shape (..., rows). [seconds]
        requests: That the shares are the mean of; shape (..., rows).
        steps: The place of each row among percentiles evenly spaced in nines; shape (rows,).
        wanted: The places to tell, which are among *steps*; shape (k,).

    Returns:
        Shape (..., k, stages). [seconds]
    """
    rows = np.searchsorted(steps, wanted)
    shares = seconds / np.maximum(total, 1e-12)[..., None]
    near = np.maximum(1 - np.abs(np.subtract.outer(wanted, steps)) / _NEIGHBOURS, 0)
    requests = np.maximum(requests, 1)
    borrowed = np.minimum(1, _PLENTY / requests)[..., rows, None]
    weight = near * requests[..., None, :] * np.where(np.equal.outer(wanted, steps), 1, borrowed)
    return weight @ shares / weight.sum(axis=-1, keepdims=True) * total[..., rows, None]


def measure(source: Source, selection: Selection | None) -> Measures:
    """Return the measures of *selection*; of None, those of no request."""
    if selection is None:
        return NO_REQUESTS
    frame = breakdown(source, selection)
    requests = int(frame.attrs.get("requests", 0)) if len(frame) else 0
    if not requests:
        return NO_REQUESTS
    failed = source.ask(source.read.latency, replace(selection, status="error")).count
    p50, p99 = (float(frame["value_seconds"].iloc[place]) for place in (AT_P50, AT_P99))
    return told(requests, failed, (p50, p99), (stages_at(frame, AT_P50), stages_at(frame, AT_P99)))


def told(
    requests: int, errors: int, latency: tuple[float, float], stages: tuple[dict[str, float], dict[str, float]]
) -> Measures:
    """Return what so many requests can tell: p50 and p99 and their stages only where enough stand above."""
    median_tells, tail_tells = enough(requests, 0.5), enough(requests, 0.99)
    return Measures(
        requests,
        errors,
        latency[0] if median_tells else None,
        latency[1] if tail_tells else None,
        stages[0],
        stages[1] if tail_tells else {},
    )


def stages_at(frame: pd.DataFrame, row: int) -> dict[str, float]:
    """Return the stages of one row of a breakdown: stage to seconds, those with nothing left out."""
    values = {str(name): float(frame[name].iloc[row]) for name in frame.columns if name not in COLUMNS}
    return {stage: seconds for stage, seconds in values.items() if seconds > 0}
