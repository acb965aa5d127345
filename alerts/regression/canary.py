"""Two versions that serve together, compared minute by minute: what slows both down cancels out.

There is no history of the pair to learn from, so chance is known from theory: in units of its own scatter each block is
standard normal, and what a window makes of so many normal blocks is drawn once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from .minutes import Floats, Ints, Spent
from .policy import TailPolicy, Window
from .reference import robust_spread
from .scoring import Cell, Judgement
from .stage_attribution import Habits, Suspect, ranked, slowest
from .statistic import HALF, Sums, trimmed
from .tally import WHOLE, Row, Tally

DRAWS, SEED = 40_000, 1
# The band of all requests, see `habits.slowest`.
EVERYONE = 0.0


def compare(policy: TailPolicy, rows: tuple[Row, ...], old: Tally, new: Tally) -> Judgement:
    """Judge how much slower *new* is in the minutes in which both served.

    Args:
        policy: What matters.
        rows: The questions, of the reference of the series.
        old: The version that stays, minute by minute.
        new: The canary, in the same minutes.

    Raises:
        ValueError: They are not of the same minutes.
    """
    if (old.start, len(old)) != (new.start, len(new)):
        msg = f"both versions must be counted in the same minutes, got {len(old)} from {old.start}, {len(new)} from {new.start}"
        raise ValueError(msg)
    whole = [number for number, row in enumerate(rows) if row.stage == WHOLE]
    stages = [number for number, row in enumerate(rows) if row.stage != WHOLE]
    sides = Sums(old), Sums(new)
    cells = [_cells(policy, window, rows, whole, sides) for window in policy.canary.windows]
    moved: dict[str, float] = {}
    for window in policy.canary.windows:
        for cell in _cells(policy, window, rows, stages, sides):
            moved[rows[cell.row].stage] = max(moved.get(rows[cell.row].stage, 0.0), cell.score)
    return Judgement(tuple(max(found, key=lambda cell: cell.score, default=None) for found in cells), moved)


def blame(
    policy: TailPolicy, habits: Habits, old: Spent, new: Spent, moved: Mapping[str, float]
) -> tuple[Suspect, ...]:
    """Return what stages add to a request of *new* against one of *old*, the one to blame first.

    All requests count, not the slowest alone as elsewhere: a canary begins cold and has few, so its slowest are the cold ones.

    Args:
        policy: What matters.
        habits: How far stages move by themselves.
        old: The version that stays.
        new: The canary, in the same minutes.
        moved: How far the stages' own times differ, of `compare`.
    """
    stages = tuple(sorted({*old.stages, *new.stages}))
    before, after = (slowest(EVERYONE, side, stages) for side in (old, new))
    if before is None or after is None:
        return ()
    grown = dict(zip(stages, (after - before).tolist(), strict=True))
    # What was too rare to be judged by its own times, as a cold start is, has not moved.
    judged = dict.fromkeys(set(stages) - set(policy.stage_key.left_out), 0.0) | dict(moved)
    return ranked(policy, habits, grown, judged)


def _cells(
    policy: TailPolicy, window: Window, rows: tuple[Row, ...], chosen: list[int], sides: tuple[Sums, Sums]
) -> list[Cell]:
    if window.length > sides[0].minutes or not chosen:
        return []
    units, logs, enough = _pairs(policy, window, rows, np.array(chosen, int), sides)
    median, spread = chance(window.blocks, window.drop)
    z = (trimmed(window, units) - median) / spread
    grown = trimmed(window, logs)
    return [
        Cell(
            row, float(z[r]), float(min(z[r] / window.required[0], grown[r] / np.log1p(window.floor))), float(grown[r])
        )
        for r, row in enumerate(chosen)
        if enough[r] >= policy.calibration.expected
    ]


def _pairs(
    policy: TailPolicy, window: Window, rows: tuple[Row, ...], chosen: Ints, sides: tuple[Sums, Sums]
) -> tuple[Floats, Floats, Floats]:
    """Return the differences of blocks, in units of their scatter and as logs, and how many requests speak.

    Those are what the canary has beyond, or was to have where that is more.
    """
    ends = sides[0].minutes - window.block * np.arange(window.blocks)
    (_, n_old, old), (_, n_new, new) = (side.of(ends, np.full(len(ends), window.block), chosen) for side in sides)
    share = np.array([rows[number].expected for number in chosen])[:, None]
    difference = np.log((new + HALF) / (n_new * share + HALF)) - np.log((old + HALF) / (n_old * share + HALF))
    common = (old + new + HALF) / np.maximum(n_old + n_new, 1)
    deviation = np.sqrt(policy.canary.scatter**2 + 1 / (n_old * common + HALF) + 1 / (n_new * common + HALF))
    return difference / deviation, difference, np.maximum(new.sum(axis=1), (n_new * share).sum(axis=1))


@cache
def chance(blocks: int, drop: int) -> tuple[float, float]:
    """Return median and robust spread of a window of standard normal blocks, drawn with a fixed seed."""
    values = trimmed(Window(1, blocks, drop, ()), np.random.default_rng(SEED).standard_normal((DRAWS, blocks)))
    return float(np.median(values)), float(robust_spread(values[None])[0])
