"""Reference of a series, learnt from its last days: thresholds, expectation, scatter, and how far chance alone goes.

It is small and stored as JSON, so that another process can continue with it. Days are read one by one, so that only one is in
memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...core.histogram import Histogram
from .policy import At, TailPolicy, Window
from .statistic import (
    END_TO_END,
    Floats,
    MinuteHistograms,
    Model,
    Row,
    TailCounts,
    count_beyond,
    fit_model,
    growth_to_count,
    join_tallies,
    rows_of,
    sliding_statistic,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one window for each of its rows.

    Args:
        rows: Positions of its rows; shape (r,).
        median: Median of the statistic in the reference; shape (r,).
        reach: Required distance above the median; shape (r,). [standard units]
        spread: Robust spread of the statistic; shape (r,).
        floor: Minimum excess; shape (r,). [log ratio]
    """

    rows: tuple[int, ...]
    median: tuple[float, ...]
    reach: tuple[float, ...]
    spread: tuple[float, ...]
    floor: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """Reference of one series.

    Args:
        until: End of the learnt time. [minutes since the epoch]
        rows: The rows.
        model: Their expectation model.
        windows: Limits of the policy's windows.
        key: Limits of the windows for stages.
    """

    until: int
    rows: tuple[Row, ...]
    model: Model
    windows: tuple[Limits, ...]
    key: tuple[Limits, ...]

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Reference:
        """Read the result of `to_json`."""
        raw = json.loads(text)
        return cls(
            until=raw["until"],
            rows=tuple(Row(**row) for row in raw["rows"]),
            model=Model(**{name: _tuples(value) for name, value in raw["model"].items()}),
            windows=tuple(_limits(limits) for limits in raw["windows"]),
            key=tuple(_limits(limits) for limits in raw["key"]),
        )


def learn_reference(policy: TailPolicy, rows: tuple[Row, ...], kept: TailCounts, total: Histogram) -> Reference | None:
    """Learn a reference from the counts of the last days.

    Args:
        policy: The policy.
        rows: The counted rows.
        kept: Their counts.
        total: Histogram of the same days.

    Returns:
        None if there are too few data.
    """
    if len(kept) < policy.reference.least or not rows:
        return None
    key = policy.stage_key
    blocks = sorted({window.block for window in (*policy.windows, *key.windows)})
    model = fit_model(
        rows, kept, tuple(blocks), rhythm=len(kept) >= policy.reference.rhythm, load=policy.reference.load
    )
    past = _ReferenceDays(policy, rows, model, kept, total)
    whole = [number for number, row in enumerate(rows) if row.stage == END_TO_END]
    stages = [number for number, row in enumerate(rows) if row.stage != END_TO_END]
    return Reference(
        until=kept.end,
        rows=rows,
        model=model,
        windows=tuple(past.limits(window, policy.at, whole) for window in policy.windows),
        key=tuple(past.limits(window, key.at, stages) for window in key.windows),
    )


@dataclass(frozen=True, slots=True)
class _ReferenceDays:
    """Reference days, from which the limits of windows are determined."""

    policy: TailPolicy
    rows: tuple[Row, ...]
    model: Model
    kept: TailCounts
    total: Histogram

    def limits(self, window: Window, at: tuple[At, ...], chosen: list[int]) -> Limits:
        """Return the limits of *window* from its statistic over all reference days."""
        if not chosen:
            return Limits((), (), (), (), ())
        values = sliding_statistic(window, self.model, self.rows, self.kept, chosen)
        median, spread = np.median(values, axis=1), robust_spread(values)
        rare = np.quantile(values, self.policy.calibration.rare, axis=1)
        required = np.array([window.required[at.index(self.rows[number].at)] for number in chosen])
        reach = np.maximum(required * spread, self.policy.calibration.margin * (rare - median))
        floor = [growth_to_count(self.rows[number], self.total, window.floor) for number in chosen]
        return Limits(tuple(chosen), _plain(median), _plain(reach), _plain(spread), _plain(np.array(floor)))


def robust_spread(values: Floats) -> Floats:
    """Return the robust spread of each row: the larger of two outlier-resistant estimates of the standard deviation.

    Args:
        values: Shape (rows, n).
    """
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9), axis=-1)
    deviation = np.median(np.abs(values - middle[..., None]), axis=-1)
    return np.maximum(np.maximum(1.4826 * deviation, (high - low) / 2.563), 1e-6)


def _limits(raw: Mapping[str, Any]) -> Limits:
    return Limits(**{name: _tuples(value) for name, value in raw.items()})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _plain(values: Floats) -> tuple[float, ...]:
    return tuple(float(f"{value:.6g}") for value in values)


def learn_reference_by_day(policy: TailPolicy, days: Callable[[], Iterable[MinuteHistograms]]) -> Reference | None:
    """Learn a reference from the minutes of the last days.

    Args:
        policy: The policy.
        days: Returns the days, oldest first; called twice: for thresholds and for counts.

    Returns:
        None if there are too few data.
    """
    total, own = total_histograms(days())
    rows = rows_of(policy, total, own)
    kept: TailCounts | None = None
    for day in days():
        counted = count_beyond(rows, day)
        kept = counted if kept is None else join_tallies(kept, counted)
    return None if kept is None else learn_reference(policy, rows, kept, total)


def total_histograms(days: Iterable[MinuteHistograms]) -> tuple[Histogram, dict[str, Histogram]]:
    """Return the histogram of all requests and one per stage."""
    total: Histogram = Histogram()
    own: dict[str, Histogram] = {}
    for day in days:
        total.merge(_histogram(day, day.total))
        for stage, counts in zip(day.stages, day.own, strict=True):
            own.setdefault(stage, Histogram()).merge(_histogram(day, counts))
    return total, {stage: histogram for stage, histogram in own.items() if histogram.count}


def _histogram(day: MinuteHistograms, counts: np.ndarray) -> Histogram:
    amounts = counts.sum(axis=0, dtype=np.int64)
    return Histogram(
        buckets={index: count for index, count in zip(day.index.tolist(), amounts.tolist(), strict=True) if count}
    )
