"""Canary comparison: compares two versions of a service that serve at the same time, minute by minute.

Effects on both versions cancel out. A pair has no history to learn from, so the null distribution is theoretical: each block in
units of its scatter is standard normal, and the statistic of a window of such blocks is simulated once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from .policy import TailPolicy, WatchPolicy, Window
from .scoring import TailScore, WindowScore, robust_spread
from .stage_attribution import StageBaseline, Suspect, mean_stage_seconds, rank_growth
from .statistic import END_TO_END, HALF_REQUEST, Floats, Ints, PrefixSums, Row, StageSeconds, TailCounts, trimmed_mean

DRAWS, SEED = 40_000, 1
# Quantile at which `mean_stage_seconds` includes all requests.
ALL_REQUESTS = 0.0


def compare_versions(policy: TailPolicy, rows: tuple[Row, ...], old: TailCounts, new: TailCounts) -> TailScore:
    """Return scores for the latency increase from *old* to *new* in the minutes in which both served.

    Args:
        policy: Policy of the statistics.
        rows: Rows of the series' reference: stages and thresholds.
        old: Counts of the older version.
        new: Counts of the canary in the same minutes.

    Raises:
        ValueError: The counts of the two versions cover different minutes.
    """
    if (old.start, len(old)) != (new.start, len(new)):
        msg = f"both versions must be counted in the same minutes, got {len(old)} from {old.start}, {len(new)} from {new.start}"
        raise ValueError(msg)
    whole = [number for number, row in enumerate(rows) if row.stage == END_TO_END]
    stages = [number for number, row in enumerate(rows) if row.stage != END_TO_END]
    sides = PrefixSums(old), PrefixSums(new)
    cells = [_window_scores(policy, window, rows, whole, sides) for window in policy.canary.windows]
    moved: dict[str, float] = {}
    for window in policy.canary.windows:
        for cell in _window_scores(policy, window, rows, stages, sides):
            moved[rows[cell.row].stage] = max(moved.get(rows[cell.row].stage, 0.0), cell.score)
    return TailScore(tuple(max(found, key=lambda cell: cell.score, default=None) for found in cells), moved)


def rank_canary_suspects(
    policy: TailPolicy, habits: StageBaseline, old: StageSeconds, new: StageSeconds, moved: Mapping[str, float]
) -> tuple[Suspect, ...]:
    """Return the growth of stages from *old* to *new*, most suspect first.

    All requests count, unlike in `rank_suspects`: a canary has few requests at first, so its slowest ones are cold starts.

    Args:
        policy: Policy of the statistics.
        habits: Stage baseline of the service.
        old: The older version.
        new: The canary in the same minutes.
        moved: Stage scores of `compare_versions`.
    """
    stages = tuple(sorted({*old.stages, *new.stages}))
    before, after = (mean_stage_seconds(ALL_REQUESTS, side, stages) for side in (old, new))
    if before is None or after is None:
        return ()
    grown = dict(zip(stages, (after - before).tolist(), strict=True))
    # A stage without a score, because it is too rare, such as a cold start, gets the score 0.
    changes = dict.fromkeys(set(stages) - set(policy.stage_key.left_out), 0.0) | dict(moved)
    return rank_growth(policy, habits, grown, changes)


def _window_scores(
    policy: TailPolicy,
    window: Window,
    rows: tuple[Row, ...],
    chosen: list[int],
    sides: tuple[PrefixSums, PrefixSums],
) -> list[WindowScore]:
    if window.length > sides[0].minutes or not chosen:
        return []
    units, logs, enough = _block_differences(policy, window, rows, np.array(chosen, int), sides)
    median, spread = null_distribution(window.blocks, window.drop)
    z = (trimmed_mean(window, units) - median) / spread
    grown = trimmed_mean(window, logs)
    return [
        WindowScore(
            row, float(z[r]), float(min(z[r] / window.required[0], grown[r] / np.log1p(window.floor))), float(grown[r])
        )
        for r, row in enumerate(chosen)
        if enough[r] >= policy.calibration.expected
    ]


def _block_differences(
    policy: TailPolicy,
    window: Window,
    rows: tuple[Row, ...],
    chosen: Ints,
    sides: tuple[PrefixSums, PrefixSums],
) -> tuple[Floats, Floats, Floats]:
    """Return block differences in units of their scatter and as log ratios, and the number of requests beyond thresholds.

    That number is the count or the expected count of the canary, whichever is larger.
    """
    ends = sides[0].minutes - window.block * np.arange(window.blocks)
    (_, n_old, old), (_, n_new, new) = (side.of(ends, np.full(len(ends), window.block), chosen) for side in sides)
    share = np.array([rows[number].expected for number in chosen])[:, None]
    difference = np.log((new + HALF_REQUEST) / (n_new * share + HALF_REQUEST)) - np.log(
        (old + HALF_REQUEST) / (n_old * share + HALF_REQUEST)
    )
    common = (old + new + HALF_REQUEST) / np.maximum(n_old + n_new, 1)
    deviation = np.sqrt(
        policy.canary.scatter**2 + 1 / (n_old * common + HALF_REQUEST) + 1 / (n_new * common + HALF_REQUEST)
    )
    return difference / deviation, difference, np.maximum(new.sum(axis=1), (n_new * share).sum(axis=1))


@cache
def null_distribution(blocks: int, drop: int) -> tuple[float, float]:
    """Return median and robust spread of the statistic over standard normal blocks, simulated with a fixed seed."""
    values = trimmed_mean(Window(1, blocks, drop, ()), np.random.default_rng(SEED).standard_normal((DRAWS, blocks)))
    return float(np.median(values)), float(robust_spread(values[None])[0])


def is_serving(policy: WatchPolicy, requests: Floats) -> bool:
    """Return whether a version with these *requests* by minute served in enough of the last minutes."""
    minutes = round(policy.together.total_seconds() / 60)
    return bool((requests[-minutes:] > 0).sum() >= max(policy.share * minutes, 1))


def versions_to_compare(serving: set[str], first_seen: Mapping[str, int]) -> tuple[str, str] | None:
    """Return the newest two of the *serving* versions, the older one first; None if fewer than two serve.

    Args:
        serving: Versions that serve at the same time.
        first_seen: Minute of the first request by version.

    >>> versions_to_compare({"1", "2", "3"}, {"1": 0, "2": 90, "3": 60}), versions_to_compare({"1"}, {"1": 0})
    (('3', '2'), None)
    """
    found = sorted(serving & set(first_seen), key=lambda version: (first_seen[version], version))[-2:]
    return (found[0], found[1]) if len(found) > 1 else None
