"""Canary comparison: compares two versions of a service that serve at the same time, minute by minute.

Effects on both versions cancel out. In each minute, the requests of both versions beyond a threshold are distributed over the
versions by chance, so the count of the canary has a known mean and variance (noncentral hypergeometric distribution). The null
hypothesis is that the latency grew by at most `SMALL_GROWTH`, because replicas of equal versions differ a little.

The evidence is the likelihood ratio of a mixture of growths to no growth, a test martingale: two equal versions reach 1 / `error`
with at most the probability `error`, however often they are compared from a fixed start on. For versions that run together for
longer than the counts are retained, the start moves, and the probability is approximate.

Sources: J. Cornfield, Proc. 3rd Berkeley Symposium (1956), 135-148 (mean and variance); H. Robbins, Ann. Math. Stat. 41 (1970),
1397-1409 (mixture); M. Lindon et al., arXiv 2205.14762 (sequential testing of deployments).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .policy import CanaryPolicy, TailPolicy, WatchPolicy
from .scoring import TailScore, WindowScore
from .stage_attribution import StageBaseline, Suspect, mean_growth, rank_growth
from .statistic import END_TO_END, MEAN, Floats, Row, StageSeconds, TailCounts

# Quantile at which `mean_stage_seconds` includes all requests.
ALL_REQUESTS = 0.0
# Assumed dispersion of the counts between minutes before any data, and its weight. [requests]
PRIOR_DISPERSION, PRIOR_WEIGHT = 1.2, 4.0
LEAST_VARIANCE = 1e-9


def compare_versions(
    policy: TailPolicy, rows: tuple[Row, ...], old: TailCounts, new: TailCounts, *, cold: int = 0
) -> TailScore:
    """Return scores for the latency increase from *old* to *new* in the minutes in which both served.

    The first score requires that one stage grew; the second also counts several stages that grew alike, as on a slow machine. Both
    also require that the end-to-end latency grew. Without stages, the end-to-end latency is the evidence.
    """
    if (old.start, len(old)) != (new.start, len(new)):
        msg = f"both versions must be counted in the same minutes, got {len(old)} from {old.start}, {len(new)} from {new.start}"
        raise ValueError(msg)
    # Waiting of a canary depends on its share of the traffic.
    waits = policy.stage_key.waits.stages
    tested = [number for number, row in enumerate(rows) if row.at != MEAN and row.stage not in waits]
    difference = _Difference(policy.canary, rows, tested, old, new)
    starts = sorted({cold, max(len(old) - policy.canary.recent, cold)}) if len(old) > cold else []
    required = math.log(2 * max(len(tested), 1) / policy.canary.error)
    scores = [score for start in starts for score in difference.scores(start, required)]
    one = max((score for score in scores if not score.shared), key=lambda score: score.cell.score, default=None)
    some = max(scores, key=lambda score: score.cell.score, default=None)
    stages = sorted({stage for score in scores for stage in score.moved})
    moved = {stage: max(score.moved.get(stage, 0.0) for score in scores) for stage in stages}
    return TailScore((one and one.cell, some and some.cell), moved)


@dataclass(frozen=True, slots=True)
class _CanaryScore:
    cell: WindowScore
    moved: Mapping[str, float]
    shared: bool


class _Difference:
    """Excess of the canary's requests beyond each threshold, and its variance, by minute; each of shape (rows, minutes)."""

    def __init__(
        self, policy: CanaryPolicy, rows: tuple[Row, ...], tested: list[int], old: TailCounts, new: TailCounts
    ) -> None:
        self._policy, self._numbers = policy, tested
        self._rows = [rows[number] for number in tested]
        share = np.array([row.expected for row in self._rows]).reshape(-1, 1)
        ratio = np.exp([row.sensitivity for row in self._rows]).reshape(-1, 1)
        # Odds ratio of a small growth: the null hypothesis.
        odds = ratio * (1 - share) / np.maximum(1 - share * ratio, 1e-3)
        self._small = np.log(odds[:, 0])
        counts = new.beyond[tested], new.n[tested], old.beyond[tested], old.n[tested]
        mean, self._variance = conditional_moments(*counts, odds)
        self._excess = counts[0] - mean
        mean, self._plain_variance = conditional_moments(*counts, np.ones_like(odds))
        self._plain_excess = counts[0] - mean

    def scores(self, start: int, required: float) -> list[_CanaryScore]:
        """Return the score of the minutes from *start* on, which is 0 unless the end-to-end latency grew; none without rows."""
        excess, variance, plain, plain_variance = (
            values[:, start:].sum(axis=1)
            for values in (self._excess, self._variance, self._plain_excess, self._plain_variance)
        )
        growth = plain / np.maximum(plain_variance, LEAST_VARIANCE)
        dispersion = self._dispersion(start, growth, plain_variance)
        evidence = log_evidence(excess / dispersion, variance / dispersion, self._policy.mixture) / required
        sure = plain / np.sqrt(np.maximum(plain_variance * dispersion, LEAST_VARIANCE))
        whole = [number for number, row in enumerate(self._rows) if row.stage == END_TO_END]
        slower = [index for index in whole if growth[index] >= self._small[index] and sure[index] >= self._policy.sure]
        if not slower:
            return [
                _CanaryScore(WindowScore(self._numbers[index], 0.0, 0.0, 0.0), {}, shared=False) for index in whole[:1]
            ]
        grown: dict[str, float] = {}
        moved: dict[str, float] = {}
        for number, row in enumerate(self._rows):
            if row.stage != END_TO_END:
                alike = growth[number] / self._small[number] if sure[number] >= self._policy.other_sure else 0.0
                grown[row.stage] = max(grown.get(row.stage, 0.0), float(alike))
                moved[row.stage] = max(moved.get(row.stage, 0.0), float(evidence[number]))
        strongest = max(slower, key=lambda number: evidence[number])
        # The queue of a canary depends on its share of the traffic, so the whole is evidence only if no stage is known.
        score = max(moved.values(), default=float(evidence[strongest]))
        first, second = sorted([0.0, 0.0, *grown.values()])[:-3:-1]
        shared = first > 0 and second >= self._policy.alike * first
        cell = WindowScore(self._numbers[strongest], float(sure[strongest]), score, float(growth[strongest]))
        return [_CanaryScore(cell, moved, shared)]

    def _dispersion(self, start: int, growth: Floats, variance: Floats) -> Floats:
        """Return the variance of each row between minutes, relative to its expected variance, at least 1."""
        around = self._plain_excess[:, start:] - growth[:, None] * self._plain_variance[:, start:]
        seen = (around**2).sum(axis=1) + PRIOR_WEIGHT * PRIOR_DISPERSION
        return np.maximum(seen / (variance + PRIOR_WEIGHT), 1)


def conditional_moments(
    beyond: Floats, n: Floats, other_beyond: Floats, other_n: Floats, odds: Floats
) -> tuple[Floats, Floats]:
    """Return mean and variance of *beyond*, given the sums of both versions and the odds ratio *odds*."""
    both = beyond + other_beyond
    usable = (both > 0) & (n > 0) & (other_n > 0) & (n + other_n > 1)
    # Mean with the given odds ratio: the smaller root of a quadratic equation, which is linear for a ratio of 1.
    a, b, c = odds - 1, -(odds * (n + both) + other_n - both), odds * n * both
    linear = np.abs(a) < LEAST_VARIANCE
    root = (-b - np.sqrt(np.maximum(b * b - 4 * a * c, 0))) / np.where(linear, 1, 2 * a)
    mean = np.maximum(np.where(linear, n * both / np.maximum(n + other_n, 1), root), LEAST_VARIANCE)
    cells = (mean, both - mean, n - mean, other_n - both + mean)
    variance = 1 / sum(1 / np.maximum(cell, LEAST_VARIANCE) for cell in cells)
    return np.where(usable, mean, beyond), np.where(usable, variance, 0)


def log_evidence(excess: Floats, variance: Floats, mixture: float) -> Floats:
    """Return the log likelihood ratio of a growth, distributed as the positive half of a normal distribution, to no growth.

    *excess* is that of the count over its mean under the null hypothesis, *mixture* the standard deviation of the growth in log odds.
    """
    wide = 1 + mixture**2 * variance
    upper = [math.erfc(-exponent) / 2 for exponent in (excess * mixture / np.sqrt(2 * wide)).tolist()]
    chance = np.log(np.maximum(upper, 1e-300))
    return np.log(2) - np.log(wide) / 2 + (excess * mixture) ** 2 / (2 * wide) + chance


def rank_canary_suspects(
    policy: TailPolicy, habits: StageBaseline, old: StageSeconds, new: StageSeconds, moved: Mapping[str, float]
) -> tuple[Suspect, ...]:
    """Return the growth of stages from *old* to *new*, most suspect first.

    All requests count, unlike in `rank_suspects`: a canary has few requests at first, so its slowest ones are cold starts.
    """
    grown = mean_growth(ALL_REQUESTS, old, new)
    # A stage without a score, because it is too rare, such as a cold start, gets the score 0.
    changes = dict.fromkeys(set(grown) - policy.stage_key.followers, 0.0) | dict(moved)
    return rank_growth(policy, habits, grown, changes)


def is_serving(policy: WatchPolicy, requests: Floats) -> bool:
    """Return whether a version with these *requests* by minute served in enough of the last minutes."""
    minutes = round(policy.together.total_seconds() / 60)
    return bool((requests[-minutes:] > 0).sum() >= max(policy.share * minutes, 1))


def versions_to_compare(serving: set[str], first_seen: Mapping[str, int]) -> tuple[str, str] | None:
    """Return the newest two of the *serving* versions, the older one first; None if fewer than two serve.

    >>> versions_to_compare({"1", "2", "3"}, {"1": 0, "2": 90, "3": 60}), versions_to_compare({"1"}, {"1": 0})
    (('3', '2'), None)
    """
    newest = sorted(serving & set(first_seen), key=lambda version: (first_seen[version], version))[-2:]
    return (newest[0], newest[1]) if len(newest) > 1 else None
