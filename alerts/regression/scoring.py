"""Scores of the last hours of a series against its reference, and the alarm state that follows minute by minute."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from .policy import AlarmPolicy, StageEase, TailPolicy, Window
from .reference import Limits, Reference
from .statistic import Expectation, Floats, PrefixSums, TailCounts, block_excess

# Larger than any statistic: fills up windows that have fewer blocks than others.
PADDING = 1e9


@dataclass(frozen=True, slots=True)
class WindowScore:
    """What one window says of one row.

    Args:
        row: The row's position.
        z: Robust spreads above the reference's median.
        score: One where it is enough to fire, zero where there is nothing.
        excess: Log of how many times as many requests are beyond as were to be expected.
    """

    row: int
    z: float
    score: float
    excess: float


@dataclass(frozen=True, slots=True)
class TailScore:
    """How strange the last hours are.

    Args:
        cells: The strongest cell of each window of the policy, None where there is too little to judge.
        moved: How far each stage's own time is out of its habit: one where that is sure. Empty where nobody asked.
    """

    cells: tuple[WindowScore | None, ...]
    moved: Mapping[str, float]

    @property
    def scores(self) -> tuple[float, ...]:
        """The score of each window."""
        return tuple(cell.score if cell else 0.0 for cell in self.cells)

    @property
    def score(self) -> float:
        """The highest of them."""
        return max(self.scores, default=0.0)

    @property
    def key(self) -> float:
        """The score of the stage that moved most."""
        return max(self.moved.values(), default=0.0)

    @property
    def best(self) -> int | None:
        """The window with the highest score, None where nothing could be judged."""
        return int(np.argmax(self.scores)) if any(self.cells) else None


class TailScorer:
    """Judges the minutes of one series; made once for each reference.

    Args:
        policy: What matters.
        reference: What is normal.
    """

    def __init__(self, policy: TailPolicy, reference: Reference) -> None:
        key = policy.stage_key
        self._rows = reference.rows
        self._whole = _WindowBatch(policy, policy.windows, reference, reference.windows)
        self._stages = _WindowBatch(policy, key.windows, reference, reference.key)
        # Below this no window can fire, whatever the stages say.
        self._asks_stages = policy.fire.released * key.ease.least

    def judge(self, recent: TailCounts) -> TailScore:
        """Judge the minutes that end with *recent*: as many as the longest window has; fewer leave the longer ones out."""
        sums = PrefixSums(recent)
        cells = tuple(
            max(found, key=lambda cell: cell.score, default=None) for found in self._whole.cells(sums, best=True)
        )
        asked = max((cell.score for cell in cells if cell), default=0.0) >= self._asks_stages
        return TailScore(cells, self._moved(sums) if asked else {})

    def _moved(self, sums: PrefixSums) -> dict[str, float]:
        moved: dict[str, float] = {}
        for cells in self._stages.cells(sums, best=False):
            for cell in cells:
                stage = self._rows[cell.row].stage
                moved[stage] = max(moved.get(stage, 0.0), cell.score)
        return moved


class _WindowBatch:
    """Some windows of some rows, laid out so that one pass over all their blocks judges them."""

    def __init__(
        self, policy: TailPolicy, windows: Sequence[Window], reference: Reference, limits: Sequence[Limits]
    ) -> None:
        self._least = policy.calibration.expected
        self._rows = limits[0].rows
        self._asked = Expectation(reference.model, reference.rows, self._rows)
        self._back = np.concatenate([window.block * np.arange(window.blocks) for window in windows])
        self._lengths = np.concatenate([np.full(window.blocks, window.block) for window in windows])
        self._needs = np.array([window.length for window in windows])
        self._place, self._present = _layout(windows)
        kept = np.array([window.blocks - window.drop for window in windows])
        self._part: Floats = (np.arange(self._place.shape[1]) < kept[:, None]) / kept[:, None]
        self._median, self._reach, self._spread, self._floor = (
            np.array([getattr(limit, name) for limit in limits]).T for name in ("median", "reach", "spread", "floor")
        )

    def cells(self, sums: PrefixSums, *, best: bool) -> list[list[WindowScore]]:
        """Return the cells of each window that can be judged; only the *best* of each, if that is enough."""
        if not self._rows:
            return []
        blocks = block_excess(sums, self._asked, np.maximum(sums.minutes - self._back, 0), self._lengths)
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
    """Return where the blocks of each window are among those of all, and which places are blocks; shape (windows, most)."""
    most = max(window.blocks for window in windows)
    firsts = np.cumsum([0, *(window.blocks for window in windows)])[:-1]
    places = np.arange(most)
    present = places < np.array([window.blocks for window in windows])[:, None]
    return np.where(present, firsts[:, None] + places, 0), present


AlarmChange = Literal["", "fired", "resolved"]


@dataclass(frozen=True, slots=True)
class AlarmState:
    """Where one series stands; all that must survive a restart beside its reference.

    Args:
        at: The last minute that was judged. [minutes since the epoch]
        since: The first minute that counts: what was before it is over, as with a version that is gone, or was accepted.
        runs: For how long each window has been over its level. [minutes]
        slow: The same for the level that takes patience. [minutes]
        released: The same for the level after a release. [minutes]
        calm: For how long the score has been low. [minutes]
        quiet: For how long it has been below what may precede a release. [minutes]
        released_at: The last release that counts, None if there is none. [minutes since the epoch]
        fired_at: Since when it fires, None while it does not. [minutes since the epoch]

    While it fires its reference stays as it is, or it would learn to live with it. After a version that is gone, or a level
    that was accepted, a new `AlarmState` begins.
    """

    at: int = 0
    since: int = 0
    runs: tuple[int, ...] = ()
    slow: tuple[int, ...] = ()
    released: tuple[int, ...] = ()
    calm: int = 0
    quiet: int = 0
    released_at: int | None = None
    fired_at: int | None = None

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> AlarmState:
        """Read what `to_json` wrote."""
        raw: dict[str, Any] = json.loads(text)
        raw.update({name: tuple(raw[name]) for name in ("runs", "slow", "released")})
        return cls(**raw)


@dataclass(frozen=True, slots=True)
class AlarmRules:
    """What it takes to fire.

    Args:
        windows: Those that are judged.
        fire: For how long which score.
        ease: What the stages are worth.
    """

    windows: tuple[Window, ...]
    fire: AlarmPolicy
    ease: StageEase


def advance_alarm(
    rules: AlarmRules, progress: AlarmState, at: int, judged: TailScore, *, release: bool = False
) -> tuple[AlarmState, AlarmChange]:
    """Go on by one minute.

    Args:
        rules: What it takes.
        progress: Where the series stood.
        at: The minute. [minutes since the epoch]
        judged: How strange the hours up to it are.
        release: Whether a new version began to serve in this minute.

    Returns:
        Where it stands now, and what happened. Where nothing could be judged, nothing has changed: no data is no good news.
    """
    fire = rules.fire
    if judged.best is None:
        return replace(progress, at=at), ""
    released_at = at if release and progress.quiet >= fire.before else progress.released_at
    age = math.inf if released_at is None else at - released_at
    fresh = fire.begin <= age <= fire.end
    went_on = replace(
        progress,
        at=at,
        runs=_consecutive_minutes(rules, progress.runs, judged, 1.0),
        slow=_consecutive_minutes(rules, progress.slow, judged, fire.slow),
        # A window that began before the release says nothing of it.
        released=_consecutive_minutes(rules, progress.released, judged, fire.released, longest=age if fresh else 0),
        calm=progress.calm + 1 if judged.score < fire.calm else 0,
        quiet=progress.quiet + 1 if judged.score < fire.quiet else 0,
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
        any(run >= window.patience for run, window in zip(progress.runs, rules.windows, strict=True))
        or any(run >= rules.fire.slow_for for run in progress.slow)
        or any(run >= window.after_release for run, window in zip(progress.released, rules.windows, strict=True))
    )


def _consecutive_minutes(
    rules: AlarmRules, before: tuple[int, ...], judged: TailScore, part: float, longest: float = math.inf
) -> tuple[int, ...]:
    """Return for how many minutes each window has had *part* of the score it needs; those longer than *longest* have not."""
    eased = rules.ease.needed(judged.key)
    found: list[int] = []
    for run, window, score in zip(before or (0,) * len(rules.windows), rules.windows, judged.scores, strict=True):
        over = score >= part * (1.0 if window.alone else eased) and window.length <= longest
        found.append(run + 1 if over else 0)
    return tuple(found)
