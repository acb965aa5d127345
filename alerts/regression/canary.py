"""Canary comparison: compares two versions of a service that serve at the same time, minute by minute.

Effects on both versions cancel out. A pair has no history to learn from, so the null distribution is theoretical: each block in
units of its scatter is standard normal, and the statistic of a window of such blocks is simulated once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from ...analysis.regression.policy import TailPolicy, WatchPolicy, Window
from ...analysis.regression.scoring import AlarmRules, AlarmState, TailScore, WindowScore, advance_alarm, robust_spread
from ...analysis.regression.stage_attribution import StageBaseline, Suspect, mean_stage_seconds, rank_growth
from ...analysis.regression.statistic import (
    END_TO_END,
    HALF_REQUEST,
    Floats,
    Ints,
    PrefixSums,
    Row,
    StageSeconds,
    TailCounts,
    trimmed_mean,
)
from ...store import Group, MinuteCounts
from .series import append_minutes, count_minutes, longest_window, make_cause, minutes_before

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
    judged = dict.fromkeys(set(stages) - set(policy.stage_key.left_out), 0.0) | dict(moved)
    return rank_growth(policy, habits, grown, judged)


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


def canary_cause(whole: Group, *versions: str) -> str:
    """Return the cause of canary incidents of *whole* or, with *versions*, the storage key of a version pair."""
    return make_cause("canary", whole.service, *versions, environment=whole.environment)


def version_group(whole: Group, version: str) -> Group:
    """Return the group of requests to *version* of the service *whole*."""
    return replace(whole, dimension="version", value=version)


@dataclass(slots=True)
class VersionPair:
    """Pair of versions that serve at the same time.

    Args:
        whole: The service.
        old: The older version.
        new: The canary.
        progress: Alarm state of the comparison.
        since: First minute in which both served.
        judged: Last score.
    """

    whole: Group
    old: str
    new: str
    progress: AlarmState
    since: int
    judged: TailScore | None = None

    @property
    def key(self) -> str:
        """Storage key of the pair's alarm state."""
        return canary_cause(self.whole, self.old, self.new)


@dataclass(slots=True)
class ServiceVersions:
    """Versions of one service, and the pair of versions that is compared.

    Args:
        whole: The service.
        rows: Rows of the series' reference: stages and thresholds.
        policy: Policy of the statistics.
        watching: Policy of the watcher.
        pair: The compared versions; None unless two versions serve at the same time.
    """

    whole: Group
    rows: tuple[Row, ...]
    policy: TailPolicy
    watching: WatchPolicy
    pair: VersionPair | None = None
    _recent: dict[str, TailCounts] = field(default_factory=dict[str, TailCounts])

    @property
    def cause(self) -> str:
        """Cause of canary incidents of the service."""
        return canary_cause(self.whole)

    def advance(
        self,
        found: Mapping[Group, MinuteCounts],
        seen: Mapping[str, int],
        span: tuple[int, int],
        kept: Mapping[str, AlarmState],
    ) -> None:
        """Count and evaluate the minutes of *span*.

        Args:
            found: Counts from the store by group.
            seen: Versions of the service with the minute of their first request.
            span: First minute, and the minute after the last one.
            kept: Alarm states loaded when this process started.
        """
        self._count(found, seen, span)
        serving = sorted(self.serving() & set(seen), key=lambda version: (seen[version], version))
        if len(serving) < 2:  # noqa: PLR2004 - a pair
            self.pair = None
            return
        old, new = serving[-2:]
        if self.pair is None or (self.pair.old, self.pair.new) != (old, new):
            begun = VersionPair(self.whole, old, new, AlarmState(at=span[0]), max(seen[old], seen[new]))
            self.pair = replace(begun, progress=kept.get(begun.key, begun.progress))
        self._score_pair(self.pair, span)

    def serving(self) -> set[str]:
        """Return the versions that served requests in enough of the last minutes."""
        minutes = round(self.watching.together.total_seconds() / 60)
        least = max(self.watching.share * minutes, 1)
        return {version for version, each in self._recent.items() if (each.requests[-minutes:] > 0).sum() >= least}

    def _count(self, found: Mapping[Group, MinuteCounts], seen: Mapping[str, int], span: tuple[int, int]) -> None:
        for version in seen:
            counts = found.get(version_group(self.whole, version))
            before = self._recent.get(version)
            if counts is None and before is None:
                continue
            counted = count_minutes(self.rows, counts, *span)
            self._recent[version] = append_minutes(before, counted, longest_window(self.policy))
        self._recent = {version: each for version, each in self._recent.items() if each.requests.any()}

    def _score_pair(self, pair: VersionPair, span: tuple[int, int]) -> None:
        policy = self.policy
        rules = AlarmRules(policy.canary.windows, policy.fire, policy.stage_key.ease)
        old, new = self._recent[pair.old], self._recent[pair.new]
        begun = max(old.start, new.start, pair.since)
        for at in range(max(span[0], pair.progress.at) + 1, span[1] + 1):
            sides = [minutes_before(each, at, min(longest_window(policy), at - begun)) for each in (old, new)]
            if at <= begun or not all(len(side) and side.requests[-1] for side in sides):
                pair.progress = replace(pair.progress, at=at)
                continue
            pair.judged = compare_versions(policy, self.rows, sides[0], sides[1])
            pair.progress, _ = advance_alarm(rules, pair.progress, at, pair.judged)
