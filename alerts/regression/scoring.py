"""How strange the last hours of a series are, beside what its reference knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .minutes import Floats
from .policy import TailPolicy, Window
from .reference import Limits, Reference
from .statistic import Expectation, Sums, excess
from .tally import Tally

# Larger than any statistic: fills up windows that have fewer blocks than others.
NEVER = 1e9


@dataclass(frozen=True, slots=True)
class Cell:
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
class Judgement:
    """How strange the last hours are.

    Args:
        cells: The strongest cell of each window of the policy, None where there is too little to judge.
        moved: How far each stage's own time is out of its habit: one where that is sure. Empty where nobody asked.
    """

    cells: tuple[Cell | None, ...]
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


class Judge:
    """Judges the minutes of one series; made once for each reference.

    Args:
        policy: What matters.
        reference: What is normal.
    """

    def __init__(self, policy: TailPolicy, reference: Reference) -> None:
        key = policy.stage_key
        self._rows = reference.rows
        self._whole = _Prepared(policy, policy.windows, reference, reference.windows)
        self._stages = _Prepared(policy, key.windows, reference, reference.key)
        # Below this no window can fire, whatever the stages say.
        self._asks_stages = policy.fire.released * key.ease.least

    def judge(self, recent: Tally) -> Judgement:
        """Judge the minutes that end with *recent*: as many as the longest window has; fewer leave the longer ones out."""
        sums = Sums(recent)
        cells = tuple(
            max(found, key=lambda cell: cell.score, default=None) for found in self._whole.cells(sums, best=True)
        )
        asked = max((cell.score for cell in cells if cell), default=0.0) >= self._asks_stages
        return Judgement(cells, self._moved(sums) if asked else {})

    def _moved(self, sums: Sums) -> dict[str, float]:
        moved: dict[str, float] = {}
        for cells in self._stages.cells(sums, best=False):
            for cell in cells:
                stage = self._rows[cell.row].stage
                moved[stage] = max(moved.get(stage, 0.0), cell.score)
        return moved


class _Prepared:
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

    def cells(self, sums: Sums, *, best: bool) -> list[list[Cell]]:
        """Return the cells of each window that can be judged; only the *best* of each, if that is enough."""
        if not self._rows:
            return []
        blocks = excess(sums, self._asked, np.maximum(sums.minutes - self._back, 0), self._lengths)
        units, logs = (
            np.sort(np.where(self._present, values[:, self._place], NEVER), axis=-1) for values in blocks[:2]
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
                Cell(
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
