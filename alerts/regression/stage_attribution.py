"""Stage attribution: where the slowest requests spend more time than the slowest requests of the same hours before.

The largest difference alone misleads: a variable stage has large ones by chance, and a queue grows whenever any later stage
does. A difference therefore counts in full only when it is far outside the stage's own variation, and a stage that follows
others is named first only when no other stage moved.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist

import numpy as np

from ...core.histogram import rank_of
from .policy import TailPolicy
from .reference import robust_spread
from .statistic import Floats, StageSeconds

HOURS = 24
# Below a microsecond nothing is out of its habit. [seconds]
LEAST_SPREAD = 1e-6


@dataclass(frozen=True, slots=True)
class StageBaseline:
    """How the slowest requests of one series usually spend their time.

    Args:
        stages: The stages' keys.
        usual: Mean seconds in each stage, by the hour of the day (UTC); shape (24, stages).
        spread: Robust spread of blocks around that; shape (stages,). [seconds]
    """

    stages: tuple[str, ...]
    usual: tuple[tuple[float, ...], ...]
    spread: tuple[float, ...]

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> StageBaseline:
        """Read what `to_json` wrote."""
        raw = json.loads(text)
        return cls(tuple(raw["stages"]), tuple(tuple(row) for row in raw["usual"]), tuple(raw["spread"]))


@dataclass(frozen=True, slots=True)
class Suspect:
    """What one stage adds to the slowest requests.

    Args:
        stage: The stage's key.
        seconds: What it adds to one of them. [seconds]
        share: Of all that was added; above 1 when another stage got faster. [ratio]
        z: How far that is out of its habit. [robust spreads]
    """

    stage: str
    seconds: float
    share: float
    z: float


def learn_stage_baseline(policy: TailPolicy, days: Sequence[StageSeconds]) -> StageBaseline:
    """Learn how the slowest requests usually spend their time from the last *days*, all of one step."""
    blame = policy.blame
    stages = tuple(sorted({stage for day in days for stage in day.stages}))
    found: list[Floats] = []
    hours: list[int] = []
    for day in days:
        per_block = max(blame.block // day.step, 1)
        for first in range(0, len(day.total) - per_block + 1, per_block):
            start = day.start + first * day.step
            means = mean_stage_seconds(blame.band, day.between(start, start + per_block * day.step), stages)
            if means is not None:
                found.append(means)
                hours.append(start // 60 % HOURS)
    values = np.array(found).reshape(len(found), len(stages))
    usual = _by_hour(values, np.array(hours, int))
    around = values - usual[np.array(hours, int)]
    spread = _spread(around) if len(values) else np.zeros(len(stages))
    return StageBaseline(stages, tuple(tuple(row) for row in usual.tolist()), tuple(spread.tolist()))


def mean_stage_seconds(band: float, spent: StageSeconds, stages: Sequence[str]) -> Floats | None:
    """Return the mean seconds that requests at and beyond quantile *band* spend in each of *stages*; None without any.

    The bucket the quantile falls into counts with the part of it that is beyond.
    """
    by_bucket = spent.total.sum(axis=0, dtype=np.int64)
    n = int(by_bucket.sum())
    if n == 0:
        return None
    beyond = n - rank_of(band, n) + 1
    above = np.cumsum(by_bucket[::-1])[::-1]
    part = np.clip((beyond - (above - by_bucket)) / np.maximum(by_bucket, 1), 0, 1)
    seconds = {stage: spent.seconds[number].sum(axis=0) @ part for number, stage in enumerate(spent.stages)}
    return np.array([seconds.get(stage, 0.0) for stage in stages]) / beyond


def rank_suspects(
    policy: TailPolicy, habits: StageBaseline, spent: StageSeconds, moved: Mapping[str, float]
) -> tuple[Suspect, ...]:
    """Return what stages add to the slowest requests of a window, the one to blame first.

    Args:
        policy: What matters.
        habits: How it usually is.
        spent: The window.
        moved: How far the stages' own times moved, see `judge.Judgement`.
    """
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
    """Return the stages that have *grown* by so many seconds each, the one to blame first; the rest as `rank_suspects`."""
    whole = sum(grown.values())
    spread = dict(zip(habits.stages, habits.spread, strict=True))
    found = [
        Suspect(stage, delta, delta / whole if whole else 0.0, delta / max(spread.get(stage, 0.0), LEAST_SPREAD))
        for stage, delta in grown.items()
    ]
    guilt = _blame_seconds(policy, found, moved)
    return tuple(sorted(found, key=lambda one: (-guilt[one.stage], -one.seconds)))


def _blame_seconds(policy: TailPolicy, found: Sequence[Suspect], moved: Mapping[str, float]) -> dict[str, float]:
    """Return how many seconds each stage is to blame for: its growth, as far as it is out of its habit.

    What stages that follow have grown is counted to the one most to blame of the others, if it is quite sure that it moved.
    """
    guilt = {one.stage: one.seconds * _confidence(policy, one, moved) for one in found}
    followers = set(policy.stage_key.left_out) & set(guilt)
    leader = max(sorted(set(guilt) - followers), key=lambda stage: guilt[stage], default="")
    credit = min(max(moved.get(leader, 0.0), 0.0), 1.0) ** 4
    for stage in sorted(followers) if leader else ():
        follows = credit * max(guilt[stage], 0.0)
        guilt[leader] += follows
        guilt[stage] -= follows
    return guilt


def _confidence(policy: TailPolicy, one: Suspect, moved: Mapping[str, float]) -> float:
    """Return how sure it is, from 0 to 1, that a stage moved: by its own time where that was judged, else by its habit."""
    own = moved.get(one.stage)
    sure = one.z / policy.blame.sure if own is None else own
    return min(max(sure, 0.0), 1.0) ** 2


def _expected(habits: StageBaseline, spent: StageSeconds) -> dict[str, float]:
    """Return what is usual in the hours of *spent*."""
    minutes = spent.start + spent.step * np.arange(len(spent.total))
    usual = np.array(habits.usual)[minutes // 60 % HOURS]
    weights = spent.total.sum(axis=1, dtype=np.int64)
    return dict(zip(habits.stages, np.average(usual, axis=0, weights=weights).tolist(), strict=True))


def _by_hour(values: Floats, hours: Floats) -> Floats:
    """Return the median of each hour of the day, that of all where an hour has none."""
    everything = np.median(values, axis=0) if len(values) else np.zeros(values.shape[1])
    return np.stack([np.median(values[hours == h], axis=0) if (hours == h).any() else everything for h in range(HOURS)])


def _spread(around: Floats) -> Floats:
    """Return the spread of each column; that of a stage which is mostly absent comes from when it was there."""
    above = (np.quantile(around, 0.98, axis=0) - np.median(around, axis=0)) / NormalDist().inv_cdf(0.98)
    return np.maximum(robust_spread(around.T), above)
