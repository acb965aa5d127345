"""Stage attribution: stages in which the slowest requests take longer than usual at the same hours of the day.

The largest difference alone is misleading: a variable stage has large differences by chance, and a queue grows whenever a later
stage does. A difference therefore counts in full only if it is far outside the stage's own variation, and a stage that follows
others is named first only if no other stage moved.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist

import numpy as np

from ...core.histogram import rank_of
from .policy import TailPolicy
from .scoring import json_adapter, robust_spread
from .statistic import Floats, StageSeconds

HOURS = 24
# Minimum spread of a stage. [seconds]
LEAST_SPREAD = 1e-6


@dataclass(frozen=True, slots=True)
class StageBaseline:
    """Baseline of the stages in the slowest requests of one series, in seconds: by hour (UTC), and the robust spread of blocks around it."""

    stages: tuple[str, ...]
    usual: tuple[tuple[float, ...], ...]
    spread: tuple[float, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> StageBaseline:
        return json_adapter(cls).validate_json(text)


@dataclass(frozen=True, slots=True)
class Suspect:
    """Growth of one stage in the slowest requests: seconds per request, share of the total growth, and distance in robust spreads."""

    stage: str
    seconds: float
    share: float
    z: float


def learn_stage_baseline(policy: TailPolicy, days: Sequence[StageSeconds]) -> StageBaseline:
    blame = policy.blame
    stages = tuple(sorted({stage for day in days for stage in day.stages}))
    daily_means: list[Floats] = []
    hours: list[int] = []
    for day in days:
        per_block = max(blame.block // day.step, 1)
        for first in range(0, len(day.total) - per_block + 1, per_block):
            start = day.start + first * day.step
            means = mean_stage_seconds(blame.band, day.between(start, start + per_block * day.step), stages)
            if means is not None:
                daily_means.append(means)
                hours.append(start // 60 % HOURS)
    values = np.array(daily_means).reshape(len(daily_means), len(stages))
    usual = _by_hour(values, np.array(hours, int))
    around = values - usual[np.array(hours, int)]
    spread = _spread(around) if len(values) else np.zeros(len(stages))
    return StageBaseline(stages, tuple(tuple(row) for row in usual.tolist()), tuple(spread.tolist()))


def mean_stage_seconds(band: float, spent: StageSeconds, stages: Sequence[str]) -> Floats | None:
    """Return the mean time of each of *stages* in the requests at or beyond quantile *band*; None without requests."""
    by_bucket = spent.total.sum(axis=0, dtype=np.int64)
    n = int(by_bucket.sum())
    if n == 0:
        return None
    beyond = n - rank_of(band, n) + 1
    above = np.cumsum(by_bucket[::-1])[::-1]
    part = np.clip((beyond - (above - by_bucket)) / np.maximum(by_bucket, 1), 0, 1)
    seconds = {stage: spent.seconds[number].sum(axis=0) @ part for number, stage in enumerate(spent.stages)}
    return np.array([seconds.get(stage, 0.0) for stage in stages]) / beyond


def mean_growth(band: float, before: StageSeconds, after: StageSeconds) -> dict[str, float]:
    """Return the growth of each stage in the requests at or beyond quantile *band*, in seconds; empty without requests."""
    stages = tuple(sorted({*before.stages, *after.stages}))
    a, b = (mean_stage_seconds(band, side, stages) for side in (before, after))
    return {} if a is None or b is None else dict(zip(stages, (b - a).tolist(), strict=True))


def rank_suspects(
    policy: TailPolicy, habits: StageBaseline, spent: StageSeconds, moved: Mapping[str, float]
) -> tuple[Suspect, ...]:
    """Return the growth of each stage in the slowest requests of a window, most suspect first."""
    stages = tuple(sorted({*habits.stages, *spent.stages}))
    means = mean_stage_seconds(policy.blame.band, spent, stages)
    if means is None:
        return ()
    before = _expected(habits, spent)
    grown = {stage: mean - before.get(stage, 0.0) for stage, mean in zip(stages, means.tolist(), strict=True)}
    return rank_growth(policy, habits, grown, moved)


def rank_growth(
    policy: TailPolicy, habits: StageBaseline, grown: Mapping[str, float], moved: Mapping[str, float]
) -> tuple[Suspect, ...]:
    """Return the stages by their growth *grown* [seconds], most suspect first."""
    whole = sum(grown.values())
    spread = dict(zip(habits.stages, habits.spread, strict=True))
    suspects = [
        Suspect(stage, delta, delta / whole if whole else 0.0, delta / max(spread.get(stage, 0.0), LEAST_SPREAD))
        for stage, delta in grown.items()
    ]
    guilt = _blame_seconds(policy, suspects, moved)
    return tuple(sorted(suspects, key=lambda one: (-guilt[one.stage], -one.seconds)))


def _blame_seconds(policy: TailPolicy, suspects: Sequence[Suspect], moved: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds attributed to each stage: its growth weighted by the confidence that the stage moved.

    Growth of stages that follow others is attributed to the most suspect other stage, as far as that certainly moved.
    """
    guilt = {one.stage: one.seconds * _confidence(policy, one, moved) for one in suspects}
    followers = policy.stage_key.followers & set(guilt)
    leader = max(sorted(set(guilt) - followers), key=lambda stage: guilt[stage], default="")
    credit = min(max(moved.get(leader, 0.0), 0.0), 1.0) ** 4
    for stage in sorted(followers) if leader else ():
        follows = credit * max(guilt[stage], 0.0)
        guilt[leader] += follows
        guilt[stage] -= follows
    return guilt


def _confidence(policy: TailPolicy, one: Suspect, moved: Mapping[str, float]) -> float:
    """Return the confidence in [0, 1] that a stage moved, from its score, or from its baseline if there is no score."""
    moved_score = moved.get(one.stage)
    sure = one.z / policy.blame.sure if moved_score is None else moved_score
    return min(max(sure, 0.0), 1.0) ** 2


def _expected(habits: StageBaseline, spent: StageSeconds) -> dict[str, float]:
    """Return the mean baseline time of each stage for the hours of *spent*, weighted by requests."""
    minutes = spent.start + spent.step * np.arange(len(spent.total))
    usual = np.array(habits.usual)[minutes // 60 % HOURS]
    weights = spent.total.sum(axis=1, dtype=np.int64)
    return dict(zip(habits.stages, np.average(usual, axis=0, weights=weights).tolist(), strict=True))


def _by_hour(values: Floats, hours: Floats) -> Floats:
    """Return the median for each hour of the day, or the median of all hours if an hour has no data."""
    everything = np.median(values, axis=0) if len(values) else np.zeros(values.shape[1])
    return np.stack([np.median(values[hours == h], axis=0) if (hours == h).any() else everything for h in range(HOURS)])


def _spread(around: Floats) -> Floats:
    """Return the spread of each column; for a mostly absent stage, the spread of the times with the stage."""
    above = (np.quantile(around, 0.98, axis=0) - np.median(around, axis=0)) / NormalDist().inv_cdf(0.98)
    return np.maximum(robust_spread(around.T), above)
