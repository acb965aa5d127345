"""Adding up points group by group, many rows at a time: for roll-ups, and for answers that do not ask when.

Everything is added up as integers and at the coarsest scale of its group, so it is lossless and in any order the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import schema
from .columns import Columns
from .encoding import Buckets, Ints

# Bucket indices of any scale lie within ±2**17; see `Histogram.from_otlp`.
_INDEX_BITS = 18
_INDEX_OFFSET = 1 << 17
# Scales lie within -10..20.
_SCALES, _SCALE_OFFSET = 64, 32


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
    key = (np.repeat(group, lengths) << _INDEX_BITS) + index + _INDEX_OFFSET
    order = np.argsort(key, kind="stable")
    unique, first = np.unique(key[order], return_index=True)
    amount = np.add.reduceat(buckets.amount[order], first) if len(first) else np.zeros(0, np.int64)
    sizes = np.bincount(unique >> _INDEX_BITS, minlength=n_groups)
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
    return Buckets(offsets, (unique & ((1 << _INDEX_BITS) - 1)) - _INDEX_OFFSET, amount)


def over_time(columns: Columns) -> Columns:
    """Return *columns* with one point for each series, metric, stage and scale, at the last of its times."""
    if not len(columns):
        return columns
    metrics = max(schema.METRIC_CODES.values()) + 1
    owner = (columns.series * metrics + columns.metric) * len(columns.stages) + columns.stage
    _, first, group = np.unique(owner * _SCALES + columns.scale + _SCALE_OFFSET, return_index=True, return_inverse=True)
    times = np.zeros(len(first), np.int64)
    np.maximum.at(times, group, columns.times)
    zero = np.zeros(len(first), np.int64)
    np.add.at(zero, group, columns.zero)
    total = np.zeros(len(first), np.float64)
    np.add.at(total, group, columns.sum)
    return Columns(
        times=times,
        series=columns.series[first],
        metric=columns.metric[first],
        stage=columns.stage[first],
        stages=columns.stages,
        scale=columns.scale[first],
        zero=zero,
        sum=total,
        buckets=merge(columns.buckets, group, np.zeros_like(group), len(first)),
    )


def join(pieces: Sequence[Columns]) -> Columns:
    """Return the points of all *pieces*, of which there must be one at least."""
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
