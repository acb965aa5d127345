"""Scores of the last hours of a series against its learned reference, and the alarm state, advanced minute by minute.

The reference is small and stored as JSON, so that another process can continue with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from ...core.histogram import Histogram
from . import statistic
from .policy import AlarmPolicy, StageEase, TailPolicy, Window
from .strata import Strata

T = TypeVar("T")
# Format of stored references; raised when rows or windows change.
FORMAT = 3
# Value larger than any statistic; pads windows with fewer blocks.
PADDING = 1e9
# Period over which the load is compared with that of the reference. [minutes]
LOAD_MINUTES = 5


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """Limits of one window for each of the rows it scores; all of shape (r,), *floor* as a log ratio.

    *reach* is the required distance of the statistic above its median, *floor* the minimum excess over the expectation.
    """

    rows: tuple[int, ...]
    median: tuple[float, ...]
    reach: tuple[float, ...]
    spread: tuple[float, ...]
    floor: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """Learned reference of one series, from data *until* a minute since the epoch.

    With *strata*, requests are pooled over routes or models; *version_rows* are rows for requests without pooling, by which versions are
    compared.
    """

    until: int
    rows: tuple[statistic.Row, ...]
    model: statistic.ExpectationModel
    windows: tuple[WindowLimits, ...]
    key: tuple[WindowLimits, ...]
    strata: Strata | None = None
    version_rows: tuple[statistic.Row, ...] = ()

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Reference:
        """Parse the JSON of `to_json`; ValueError if another version of Stagelens learned it for other statistics."""
        raw = json.loads(text)
        if raw.get("format") != FORMAT:
            msg = f"the reference has format {raw.get('format')}, not {FORMAT}; it must be learned again"
            raise ValueError(msg)
        return json_adapter(cls).validate_python(raw)


@cache
def json_adapter(kind: type[T]) -> TypeAdapter[T]:
    return TypeAdapter(kind)


def learn_reference(
    policy: TailPolicy, rows: tuple[statistic.Row, ...], tally: statistic.TailCounts, total: Histogram
) -> Reference | None:
    """Learn a reference from the counts of the last days; None if there is too little data."""
    if len(tally) < policy.reference.least or not rows:
        return None
    key = policy.stage_key
    blocks = sorted({window.block for window in (*policy.windows, *key.windows)})
    span = policy.reference
    model = statistic.fit_model(
        rows, tally, tuple(blocks), rhythm=len(tally) >= span.rhythm, week=len(tally) >= span.week, load=span.load
    )
    past = _ReferenceDays(policy, rows, model, tally, total)
    whole = [number for number, row in enumerate(rows) if row.stage == statistic.END_TO_END]
    stages = [number for number, row in enumerate(rows) if row.stage != statistic.END_TO_END]
    return Reference(
        until=tally.end,
        rows=rows,
        model=model,
        windows=tuple(past.limits(window, whole) for window in policy.windows),
        key=tuple(past.limits(window, stages) for window in key.windows),
    )


@dataclass(frozen=True, slots=True)
class _ReferenceDays:
    policy: TailPolicy
    rows: tuple[statistic.Row, ...]
    model: statistic.ExpectationModel
    counts: statistic.TailCounts
    total: Histogram

    def limits(self, window: Window, chosen: list[int]) -> WindowLimits:
        if not chosen:
            return WindowLimits((), (), (), (), ())
        values = statistic.sliding_statistic(window, self.model, self.rows, self.counts, chosen)
        median, spread = np.median(values, axis=1), robust_spread(values)
        rare = np.quantile(values, self.policy.calibration.rare, axis=1)
        required = np.array([self._required(window, self.rows[number]) for number in chosen])
        reach = np.maximum(required * spread, self.policy.calibration.margin * (rare - median))
        floor = [statistic.growth_to_count(self.rows[number], self.total, window.floor) for number in chosen]
        return WindowLimits(tuple(chosen), _plain(median), _plain(reach), _plain(spread), _plain(np.array(floor)))

    def _required(self, window: Window, row: statistic.Row) -> float:
        at = self.policy.stage_key.quantiles(row.stage) if row.stage else self.policy.at
        return window.required[at.index(row.at)]


def robust_spread(values: statistic.Floats) -> statistic.Floats:
    """Return the larger of two outlier-resistant estimates of the standard deviation of each row."""
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9), axis=-1)
    deviation = np.median(np.abs(values - middle[..., None]), axis=-1)
    return np.maximum(np.maximum(1.4826 * deviation, (high - low) / 2.563), 1e-6)


def _plain(values: statistic.Floats) -> tuple[float, ...]:
    return tuple(float(f"{value:.6g}") for value in values)


def learn_reference_by_day(
    policy: TailPolicy,
    days: Callable[[], Iterable[statistic.MinuteHistograms]],
    sums: statistic.MinuteHistograms | None = None,
) -> Reference | None:
    """Learn a reference from the minutes of the last days; None if there is too little data.

    *days* returns the days, oldest first, one at a time to limit memory use: for the counts, and without *sums* for the thresholds.
    """
    total, by_stage = total_histograms(days() if sums is None else [sums])
    rows = statistic.rows_of(policy, total, by_stage)
    joined: statistic.TailCounts | None = None
    for day in days():
        counted = statistic.count_beyond(rows, day)
        joined = counted if joined is None else statistic.join_tallies(joined, counted)
    return None if joined is None else learn_reference(policy, rows, joined, total)


def total_histograms(days: Iterable[statistic.MinuteHistograms]) -> tuple[Histogram, dict[str, Histogram]]:
    """Return the histogram of the end-to-end latency and the histograms of all stages, summed over *days*."""
    total: Histogram = Histogram()
    by_stage: dict[str, Histogram] = {}
    for day in days:
        total.merge(_histogram(day, day.total))
        for stage, counts in zip(day.stages, day.own, strict=True):
            by_stage.setdefault(stage, Histogram()).merge(_histogram(day, counts))
    return total, {stage: histogram for stage, histogram in by_stage.items() if histogram.count}


def _histogram(day: statistic.MinuteHistograms, counts: np.ndarray) -> Histogram:
    amounts = counts.sum(axis=0, dtype=np.int64)
    return Histogram(
        buckets={index: count for index, count in zip(day.index.tolist(), amounts.tolist(), strict=True) if count}
    )


@dataclass(frozen=True, slots=True)
class WindowScore:
    """Score of one window for one row; *z* is the distance of the statistic from the reference's median in robust spreads."""

    row: int
    z: float
    score: float
    excess: float


@dataclass(frozen=True, slots=True)
class TailScore:
    """Scores of the last hours: the highest of each window, None with too few requests, and the score of each stage (1: it moved)."""

    cells: tuple[WindowScore | None, ...]
    moved: Mapping[str, float]
    shared: bool = False
    crowded: bool = False

    @property
    def scores(self) -> tuple[float, ...]:
        return tuple(cell.score if cell else 0.0 for cell in self.cells)

    @property
    def score(self) -> float:
        return max(self.scores, default=0.0)

    @property
    def key(self) -> float:
        return max(self.moved.values(), default=0.0)

    @property
    def best(self) -> int | None:
        """Position of the window with the highest score; None without scores."""
        return int(np.argmax(self.scores)) if any(self.cells) else None


class TailScorer:
    """Scores the minutes of one series; created once per reference."""

    def __init__(self, policy: TailPolicy, reference: Reference) -> None:
        key = policy.stage_key
        self._rows = reference.rows
        self._alike, self._waits = key.alike, key.waits
        self._peak = math.exp(reference.model.load[2])
        self._longest = max(window.length for window in key.windows)
        self._whole = _WindowBatch(policy, policy.windows, reference, reference.windows)
        self._stages = _WindowBatch(policy, key.windows, reference, reference.key)
        # Below this score of the latency no window can fire, whatever the scores of the stages.
        self._asks_stages = policy.fire.released * key.ease.least

    def score(self, recent: statistic.TailCounts) -> TailScore:
        sums = statistic.PrefixSums(recent)
        cells = tuple(
            max(windows, key=lambda cell: cell.score, default=None) for windows in self._whole.cells(sums, best=True)
        )
        asked = max((cell.score for cell in cells if cell), default=0.0) >= self._asks_stages
        crowded = self._crowded(recent.requests)
        moved, shared = self._moved(sums, was_crowded=bool(crowded.any())) if asked else ({}, False)
        return TailScore(cells, moved, shared, bool(crowded[-1:].any()))

    def _crowded(self, requests: statistic.Floats) -> NDArray[np.bool_]:
        """Return whether the load was above that of the reference, by minute of the longest window of the stages."""
        if len(requests) < LOAD_MINUTES:
            return np.zeros(0, bool)
        return np.convolve(requests[-self._longest :], np.ones(LOAD_MINUTES), "valid") / LOAD_MINUTES > self._peak

    def _moved(self, sums: statistic.PrefixSums, *, was_crowded: bool) -> tuple[dict[str, float], bool]:
        largest: dict[str, WindowScore] = {}
        for cells in self._stages.cells(sums, best=False):
            for cell in cells:
                stage = self._rows[cell.row].stage
                largest[stage] = max(largest.get(stage, cell), cell, key=lambda window: window.score)
        waits = {stage: largest.pop(stage) for stage in self._waits.stages if stage in largest}
        moved = {stage: max(cell.score, 0.0) for stage, cell in largest.items()}
        # Requests of a crowd wait for each other.
        if not was_crowded and max(moved.values(), default=0.0) < self._alike.least:
            moved |= {stage: max(self._waits.part * cell.score, 0.0) for stage, cell in waits.items()}
        return moved, self._is_shared(list(largest.values()))

    def _is_shared(self, cells: Sequence[WindowScore]) -> bool:
        first = max(cells, key=lambda cell: cell.score, default=None)
        if first is None or first.score < self._alike.least:
            return False
        return any(self._is_alike(first, cell) for cell in cells if cell is not first)

    def _is_alike(self, first: WindowScore, other: WindowScore) -> bool:
        growth = [compared.excess / self._rows[compared.row].sensitivity for compared in (first, other)]
        return other.score >= self._alike.score * min(first.score, 1) and growth[1] >= self._alike.growth * growth[0]


class _WindowBatch:
    def __init__(
        self, policy: TailPolicy, windows: Sequence[Window], reference: Reference, limits: Sequence[WindowLimits]
    ) -> None:
        self._least = policy.calibration.expected
        self._rows = limits[0].rows
        self._asked = statistic.Expectation(reference.model, reference.rows, self._rows)
        self._back = np.concatenate([window.block * np.arange(window.blocks) for window in windows])
        self._lengths = np.concatenate([np.full(window.blocks, window.block) for window in windows])
        self._needs = np.array([window.length for window in windows])
        self._place, self._present = _layout(windows)
        averaged = np.array([window.blocks - window.drop for window in windows])
        self._part: statistic.Floats = (np.arange(self._place.shape[1]) < averaged[:, None]) / averaged[:, None]
        self._median, self._reach, self._spread, self._floor = (
            np.array([getattr(limit, name) for limit in limits]).T for name in ("median", "reach", "spread", "floor")
        )

    def cells(self, sums: statistic.PrefixSums, *, best: bool) -> list[list[WindowScore]]:
        """Return the scores of each window that has enough data; only the highest if *best* is true."""
        if not self._rows:
            return []
        blocks = statistic.block_excess(sums, self._asked, np.maximum(sums.minutes - self._back, 0), self._lengths)
        units, logs = (
            np.sort(np.where(self._present, values[:, self._place], PADDING), axis=-1) for values in blocks[:2]
        )
        expected = np.where(self._present, blocks[2][:, self._place], 0).sum(axis=-1)
        above = (units * self._part).sum(axis=-1) - self._median
        grown = (logs * self._part).sum(axis=-1)
        score = np.minimum(
            above / self._reach, np.where(self._floor > 0, grown / np.maximum(self._floor, 1e-9), np.inf)
        )
        score = np.where((expected >= self._least) & (self._needs <= sums.minutes), score, -np.inf)
        rows = [[int(row)] for row in score.argmax(axis=0)] if best else [range(len(self._rows))] * score.shape[1]
        return [
            [
                WindowScore(
                    self._rows[row],
                    float(above[row, window] / self._spread[row, window]),
                    float(score[row, window]),
                    float(grown[row, window]),
                )
                for row in chosen
                if score[row, window] > -np.inf
            ]
            for window, chosen in enumerate(rows)
        ]


def _layout(windows: Sequence[Window]) -> tuple[np.ndarray, np.ndarray]:
    """Return block positions by window, and the mask of blocks that are not padding; shape (windows, most)."""
    most = max(window.blocks for window in windows)
    firsts = np.cumsum([0, *(window.blocks for window in windows)])[:-1]
    places = np.arange(most)
    present = places < np.array([window.blocks for window in windows])[:, None]
    return np.where(present, firsts[:, None] + places, 0), present


AlarmChange = Literal["", "fired", "resolved"]


@dataclass(frozen=True, slots=True)
class AlarmState:
    """Alarm state of one series, stored with its reference so that it survives restarts; times in minutes, moments since the epoch.

    `since` is the first minute that is evaluated; earlier ones belong to a removed version or an accepted level. `runs`, `slow` and
    `released` are the consecutive times of each window above its required score, above the lower one for slow detection, and above
    the lower one after a release. `calm` and `quiet` are the times below the score that ends the alarm, and below the maximum before
    a release. `shared` is the time of any window above its required score even if several stages moved alike. `held` is the remaining
    time for which a load above that of the reference, or a slow host, has effects.

    While an alarm is active the reference is not updated; otherwise the regression would become the baseline.
    """

    at: int = 0
    since: int = 0
    runs: tuple[int, ...] = ()
    slow: tuple[int, ...] = ()
    released: tuple[int, ...] = ()
    calm: int = 0
    quiet: int = 0
    shared: int = 0
    held: int = 0
    released_at: int | None = None
    fired_at: int | None = None

    def hold(self, minutes: int) -> AlarmState:
        """Return the state without an alarm: for so many *minutes* only a growth that lasts counts, because a host is slow."""
        return replace(self, runs=(), slow=(), released=(), held=minutes, fired_at=None)

    def to_json(self) -> str:
        return json.dumps({name: getattr(self, name) for name in self.__slots__}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> AlarmState:
        """Parse an alarm state from the JSON of `to_json`, also of another version of Stagelens."""
        return json_adapter(cls).validate_json(text)


@dataclass(frozen=True, slots=True)
class AlarmRules:
    windows: tuple[Window, ...]
    fire: AlarmPolicy
    ease: StageEase
    strictness: float = 1.0

    @classmethod
    def of_series(cls, policy: TailPolicy, strictness: float = 1.0) -> AlarmRules:
        return cls(policy.windows, policy.fire, policy.stage_key.ease, strictness)

    @classmethod
    def of_canary(cls, policy: TailPolicy, strictness: float = 1.0) -> AlarmRules:
        """Return the rules of the comparison of two versions, whose score includes the stages."""
        return cls(policy.canary.windows, policy.fire, StageEase(start=1, by=0, least=1, one_stage=1), strictness)


def advance_alarm(
    rules: AlarmRules, progress: AlarmState, at: int, tail_score: TailScore, *, release: bool = False
) -> tuple[AlarmState, AlarmChange]:
    """Advance the alarm state by one minute, and return the change of the alarm.

    Without scores the alarm does not change: missing data is not a recovery.
    """
    fire = rules.fire
    if tail_score.best is None:
        return replace(progress, at=at), ""
    released_at = at if release and progress.quiet >= fire.before else progress.released_at
    age = math.inf if released_at is None else at - released_at
    fresh = age if fire.begin <= age <= fire.end else 0
    held = fire.held_for if tail_score.crowded else max(progress.held - 1, 0)
    is_shared = tail_score.shared or held > 0
    over, slowly, soon = (
        _windows_above(rules, tail_score, part, fresh, is_shared=is_shared) for part in (1.0, fire.slow, fire.released)
    )
    # A window that started before the release includes the old version.
    since = [window.length <= fresh for window in rules.windows]
    went_on = replace(
        progress,
        at=at,
        runs=_count_minutes(progress.runs, [is_over and not is_shared for is_over in over]),
        slow=_count_minutes(progress.slow, [is_over and not is_shared for is_over in slowly]),
        released=_count_minutes(
            progress.released, [is_over and new and not is_shared for is_over, new in zip(soon, since, strict=True)]
        ),
        calm=progress.calm + 1 if tail_score.score < fire.calm else 0,
        quiet=progress.quiet + 1 if tail_score.score < fire.quiet else 0,
        shared=progress.shared + 1 if any(over) else 0,
        held=held,
        released_at=released_at,
    )
    return _next_state(rules, went_on)


def _next_state(rules: AlarmRules, progress: AlarmState) -> tuple[AlarmState, AlarmChange]:
    if progress.fired_at is None and _should_fire(rules, progress):
        return replace(progress, fired_at=progress.at), "fired"
    if progress.fired_at is not None and progress.calm >= rules.fire.calm_for:
        return replace(progress, fired_at=None), "resolved"
    return progress, ""


def _should_fire(rules: AlarmRules, progress: AlarmState) -> bool:
    return (
        any(run >= window.min_duration for run, window in zip(progress.runs, rules.windows, strict=True))
        or any(run >= rules.fire.slow_for for run in progress.slow)
        or any(run >= window.after_release for run, window in zip(progress.released, rules.windows, strict=True))
        or progress.shared >= rules.fire.shared_for
    )


def _windows_above(
    rules: AlarmRules, tail_score: TailScore, part: float, fresh: float, *, is_shared: bool
) -> list[bool]:
    """Return whether each window reached the share *part* of its required score, *fresh* minutes after a release."""
    is_one_stage = tail_score.key >= 1 and not is_shared
    eased = rules.ease.needed(0.0 if is_shared else tail_score.key)
    single = rules.ease.one_stage if is_one_stage else 1.0
    is_above: list[bool] = []
    for window, score in zip(rules.windows, tail_score.scores, strict=True):
        needed = part * rules.strictness * (single if window.alone or window.only_released else eased)
        allowed = not window.only_released or (is_one_stage and window.length <= fresh <= rules.fire.soon)
        is_above.append(allowed and score >= needed)
    return is_above


def _count_minutes(before: tuple[int, ...], over: Sequence[bool]) -> tuple[int, ...]:
    """Return the number of consecutive minutes; counts from another number of windows start anew."""
    runs = before if len(before) == len(over) else (0,) * len(over)
    return tuple(run + 1 if is_over else 0 for run, is_over in zip(runs, over, strict=True))
