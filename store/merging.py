"""Adding up points group by group, many rows at a time: for roll-ups, and for answers that do not ask when.

Everything is added up as integers and at the coarsest scale of its group, so it is lossless and in any order the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.errors import StoreError
from .columns import Columns, Steps
from .encoding import Buckets, Ints

# Cells of the table they are added up in, for each bucket that is added up: past it the cells in use are found first. Most
# of a table that is much larger would be empty, and clearing it take longer.
_CELLS_A_BUCKET, _CELLS = 16, 1 << 20
# Above every index.
_BEYOND = 1 << 62
# Of a row, and of an answer: what is added up of them stays within a signed 64-bit integer.
MAX_COUNT = 2**62
# Scales lie within -10..20.
_SCALE_OFFSET = 10


EMPTY = Columns(
    times=np.zeros(0, np.int64),
    series=np.zeros(0, np.int64),
    metric=np.zeros(0, np.int64),
    stage=np.zeros(0, np.int64),
    stages=(),
    scale=np.zeros(0, np.int64),
    zero=np.zeros(0, np.int64),
    sum=np.zeros(0, np.float64),
    buckets=Buckets(np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)),
)


def merge(buckets: Buckets, group: Ints, shift: Ints, n_groups: int) -> Buckets:
    """Add up the histograms of each group.

    Args:
        buckets: Of n histograms.
        group: The group each belongs to; shape (n,). [0..n_groups)
        shift: How much coarser each is made; shape (n,). [steps of scale]
        n_groups: How many groups there are.
    """
    lengths = buckets.lengths
    index = buckets.index >> np.repeat(shift, lengths)
    filled = lengths > 0
    low, high = np.full(n_groups, _BEYOND), np.full(n_groups, -_BEYOND)
    np.minimum.at(low, group[filled], index[buckets.offsets[:-1][filled]])
    np.maximum.at(high, group[filled], index[buckets.offsets[1:][filled] - 1])
    # Each group has cells of its own for all between its lowest and its highest bucket.
    width = np.maximum(high - low + 1, 0)
    ends = np.cumsum(width)
    base = ends - width - low
    found, amount = _added(np.repeat(base[group], lengths) + index, buckets.amount, int(width.sum()))
    offsets = np.searchsorted(found, np.concatenate((np.zeros(1, np.int64), ends)))
    return Buckets(offsets, found - np.repeat(base, np.diff(offsets)), amount)


def _added(cell: Ints, amount: Ints, n_cells: int) -> tuple[Ints, Ints]:
    """Return the cells that have anything, ascending, and what was added up in each."""
    used: Ints | None = None
    if n_cells > max(_CELLS, _CELLS_A_BUCKET * len(cell)):
        used, cell = np.unique(cell, return_inverse=True)
        n_cells = len(used)
    total = np.zeros(n_cells, np.int64)
    np.add.at(total, cell, amount)
    found = np.flatnonzero(total)
    return found if used is None else used[found], total[found]


def over_time(columns: Columns, steps: Steps | None = None, *, apart: bool = True) -> Columns:
    """Return *columns* with one point for each metric, stage and scale, at the last of its times; sorted by step.

    Args:
        columns: What to add up.
        steps: Each has points of its own; None for one that takes all.
        apart: Whether each series has points of its own.

    Raises:
        StoreError: They hold more than can be added up.
    """
    if not len(columns):
        return columns
    if columns.zero.sum(dtype=np.float64) + columns.buckets.amount.sum(dtype=np.float64) > MAX_COUNT:
        msg = (
            "what was counted adds up to more than 2**62, which nothing real does; somebody sends made-up numbers. "
            "Look at a shorter time, or at one service or version"
        )
        raise StoreError(msg)
    step = np.zeros(len(columns), np.int64) if steps is None else steps.number(columns.times)
    series = columns.series if apart else np.zeros(len(columns), np.int64)
    key = (step, series, columns.metric, columns.stage, columns.scale + _SCALE_OFFSET)
    owner = np.ravel_multi_index(key, tuple(int(part.max()) + 1 for part in key))
    _, first, group = np.unique(owner, return_index=True, return_inverse=True)
    times = np.zeros(len(first), np.int64)
    np.maximum.at(times, group, columns.times)
    zero = np.zeros(len(first), np.int64)
    np.add.at(zero, group, columns.zero)
    total = np.zeros(len(first), np.float64)
    np.add.at(total, group, columns.sum)
    return Columns(
        times=times,
        series=series[first],
        metric=columns.metric[first],
        stage=columns.stage[first],
        stages=columns.stages,
        scale=columns.scale[first],
        zero=zero,
        sum=total,
        buckets=merge(columns.buckets, group, np.zeros_like(group), len(first)),
    )


def join(pieces: Sequence[Columns]) -> Columns:
    """Return the points of all *pieces*, in their order."""
    if not pieces:
        return EMPTY
    stages = tuple(sorted({stage for piece in pieces for stage in piece.stages}))
    places = [np.array([stages.index(stage) for stage in piece.stages], np.int64) for piece in pieces]
    lengths = np.concatenate([piece.buckets.lengths for piece in pieces])
    return Columns(
        times=np.concatenate([piece.times for piece in pieces]),
        series=np.concatenate([piece.series for piece in pieces]),
        metric=np.concatenate([piece.metric for piece in pieces]),
        stage=np.concatenate([place[piece.stage] for place, piece in zip(places, pieces, strict=True)]),
        stages=stages,
        scale=np.concatenate([piece.scale for piece in pieces]),
        zero=np.concatenate([piece.zero for piece in pieces]),
        sum=np.concatenate([piece.sum for piece in pieces]),
        buckets=Buckets(
            np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths))),
            np.concatenate([piece.buckets.index for piece in pieces]),
            np.concatenate([piece.buckets.amount for piece in pieces]),
        ),
    )
