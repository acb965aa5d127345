"""Points added up step by step: what `columns.Counts` is for one step, for many at once, so that a long chart is few calls.

Steps are taken together as long as their points are equally fine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...core.histogram import Histogram, bucket_middle, rank_of
from ..columns import Columns, Floats, Steps, table
from ..encoding import Ints

# Each takes a row of some hundred buckets for every stage.
_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class StepCounts:
    """The counts of steps of one scale, as one table.

    Args:
        starts: Of the steps; shape (n,). [Unix seconds]
        scale: Of the buckets.
        index: The buckets that have anything in any of them, ascending; shape (k,).
        amount: Requests, or microseconds; shape (n, stages, k).
        zero: Values below a nanosecond; shape (n, stages).
        sum: Shape (n, stages). [seconds]
    """

    starts: Ints
    scale: int
    index: Ints
    amount: Ints
    zero: Ints
    sum: Floats

    @property
    def total(self) -> Ints:
        """Everything that was counted in each step; shape (n,)."""
        return self.amount.sum(axis=(1, 2)) + self.zero.sum(axis=1)

    @property
    def by_stage(self) -> Ints:
        """The same by stage; shape (n, stages)."""
        return self.amount.sum(axis=2) + self.zero

    def places_of(self, quantile: float) -> Ints:
        """Return the place in `index` of the bucket the request at *quantile* is in; -1 where it is below them all; shape (n,)."""
        ranks = np.array([rank_of(quantile, total) for total in self.total.tolist()]) - self.zero.sum(axis=1)
        held = np.cumsum(self.amount.sum(axis=1), axis=1)
        return np.where(ranks > 0, (held < ranks[:, None]).sum(axis=1), -1)

    def values_at(self, quantile: float) -> Floats:
        """Return what `Counts.value_at` says of each step, in the unit of the values; shape (n,)."""
        # The last one is where -1 points to.
        middles = [*(bucket_middle(index, self.scale) for index in self.index.tolist()), 0.0]
        return np.array(middles)[self.places_of(quantile)]

    def above(self, threshold: float) -> Floats:
        """Return what `Histogram.count_above` says of each step; shape (n,)."""
        return self.above_by_stage(threshold).sum(axis=1)

    def above_by_stage(self, threshold: float) -> Floats:
        """Return the same by stage; shape (n, stages)."""
        # A threshold splits one bucket, in all steps alike: how much of one request in each bucket is above it says it all.
        alone = [Histogram(self.scale, {index: 1}) for index in self.index.tolist()]
        shares = np.array([each.count_above(threshold).value for each in alone], np.float64)
        split = (shares > 0) & (shares < 1)
        return self.amount[..., shares == 1].sum(axis=2) + (self.amount[..., split] * shares[split]).sum(axis=2)


@dataclass(frozen=True, slots=True)
class Cut:
    """Where points, sorted by time, are cut into steps; only steps that have any.

    Args:
        starts: Of the steps; shape (n,). [Unix seconds]
        edges: The first point of each, and the end of the last; shape (n + 1,).
        scale: The coarsest of each; shape (n,).
    """

    starts: Ints
    edges: Ints
    scale: Ints


def cut(columns: Columns, steps: Steps) -> Cut:
    """Return where *steps* cut *columns*."""
    starts = steps.of(columns.times)
    if not len(columns):
        return Cut(starts, np.zeros(1, np.int64), starts)
    edges = np.flatnonzero(np.diff(starts, prepend=-1, append=-1))
    return Cut(starts[edges[:-1]], edges, np.minimum.reduceat(columns.scale, edges[:-1]))


def alike(*scales: Ints) -> Iterator[slice]:
    """Yield stretches of steps whose *scales* are the same, as many steps as are taken at once."""
    changed = np.any([np.diff(scale, prepend=scale[:1] - 1) for scale in scales], axis=0)
    for first, last in pairwise([*np.flatnonzero(changed).tolist(), len(changed)]):
        yield from (slice(low, min(low + _AT_ONCE, last)) for low in range(first, last, _AT_ONCE))


def add_up_steps(columns: Columns, steps: Steps, scale: int | None = None) -> Iterator[StepCounts]:
    """Yield the counts of *columns*, of one metric and sorted by time; each step at its coarsest scale, or at *scale*."""
    found = cut(columns, steps)
    scales = found.scale if scale is None else np.minimum(found.scale, scale)
    for chosen in alike(scales):
        yield count_steps(columns, found, chosen, int(scales[chosen.start]))


def count_steps(columns: Columns, found: Cut, chosen: slice, scale: int) -> StepCounts:
    """Add up the *chosen* steps of *columns* at *scale*, which none of their points is coarser than."""
    edges = found.edges[chosen.start : chosen.stop + 1]
    part = columns.between(int(edges[0]), int(edges[-1]))
    return count_at(part, np.repeat(np.arange(len(edges) - 1), np.diff(edges)), found.starts[chosen], scale)


def count_at(columns: Columns, step: Ints, at: Ints, scale: int) -> StepCounts:
    """Add up *columns* at *scale*; *step* says for each point to which of the steps that start *at* it belongs."""
    shape = (len(at), max(1, len(columns.stages)))
    place = step * shape[1] + columns.stage
    index, amount = table(columns, place, shape[0] * shape[1], scale)
    zero, total = np.zeros(shape[0] * shape[1], np.int64), np.zeros(shape[0] * shape[1])
    np.add.at(zero, place, columns.zero)
    np.add.at(total, place, columns.sum)
    return StepCounts(at, scale, index, amount.reshape(*shape, len(index)), zero.reshape(shape), total.reshape(shape))
