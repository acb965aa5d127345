"""Many histograms as arrays, and adding them up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..core.histogram import SCALE, Histogram
from .columns import Floats
from .encoding import Buckets, Ints
from .merging import MAX_COUNT, merge


@dataclass(frozen=True, slots=True)
class Histograms:
    """Histograms, one after the other; the fields are those of `Histogram`.

    Args:
        scale: Shape (n,).
        zero: Shape (n,).
        sum: Shape (n,).
        buckets: Of each; until they are added up a bucket may stand there several times.
    """

    scale: Ints
    zero: Ints
    sum: Floats
    buckets: Buckets

    @classmethod
    def of(cls, histograms: Sequence[Histogram]) -> Histograms:
        """Return *histograms* as arrays."""
        pairs = [pair for histogram in histograms for pair in sorted(histogram.buckets.items())]
        sizes = [len(histogram.buckets) for histogram in histograms]
        index, amount = np.array(pairs, np.int64).reshape(-1, 2).T
        return cls(
            np.array([histogram.scale for histogram in histograms], np.int64),
            np.array([histogram.zero for histogram in histograms], np.int64),
            np.array([histogram.sum for histogram in histograms], np.float64),
            Buckets(np.cumsum([0, *sizes], dtype=np.int64), index, amount),
        )

    @classmethod
    def join(cls, pieces: Sequence[Histograms]) -> Histograms:
        """Return those of all *pieces*, of which there must be one, in their order."""
        lengths = np.concatenate([piece.buckets.lengths for piece in pieces])
        return cls(
            np.concatenate([piece.scale for piece in pieces]),
            np.concatenate([piece.zero for piece in pieces]),
            np.concatenate([piece.sum for piece in pieces]),
            Buckets(
                np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths))),
                np.concatenate([piece.buckets.index for piece in pieces]),
                np.concatenate([piece.buckets.amount for piece in pieces]),
            ),
        )

    def between(self, low: int, high: int) -> Histograms:
        """Return those from number *low* up to *high*."""
        chosen = slice(low, high)
        return Histograms(self.scale[chosen], self.zero[chosen], self.sum[chosen], self.buckets.between(low, high))

    def __len__(self) -> int:
        return len(self.scale)

    def __iter__(self) -> Iterator[Histogram]:
        index, amount = self.buckets.index.tolist(), self.buckets.amount.tolist()
        numbers = zip(self.scale.tolist(), self.zero.tolist(), self.sum.tolist(), strict=True)
        for (scale, zero, total), (low, high) in zip(numbers, pairwise(self.buckets.offsets.tolist()), strict=True):
            histogram = Histogram(scale, zero=zero, sum=total)
            for place, count in zip(index[low:high], amount[low:high], strict=True):
                histogram.buckets[place] = histogram.buckets.get(place, 0) + count
            yield histogram

    @property
    def count(self) -> Ints:
        """All values, or microseconds, of each; shape (n,)."""
        running = np.concatenate((np.zeros(1, np.int64), np.cumsum(self.buckets.amount)))
        return self.zero + np.diff(running[self.buckets.offsets])

    def added_up(self, group: Ints, n_groups: int) -> Histograms:
        """Return one histogram for each group: at the coarsest of its scales, and none finer than ours.

        Args:
            group: The group each belongs to; shape (n,). [0..n_groups)
            n_groups: How many groups there are; none is empty.
        """
        within = self._within_bounds(group, n_groups)
        scale = np.full(n_groups, SCALE, np.int64)
        np.minimum.at(scale, group, self.scale)
        zero = np.zeros(n_groups, np.int64)
        np.add.at(zero, group, within.zero)
        total = np.zeros(n_groups, np.float64)
        np.add.at(total, group, within.sum)
        return Histograms(scale, zero, total, merge(within.buckets, group, self.scale - scale[group], n_groups))

    def _within_bounds(self, group: Ints, n_groups: int) -> Histograms:
        """Return the same, except for groups that would add up to more than a row may count: an equal part of each of theirs."""
        held = np.bincount(group, self.count, n_groups)
        if held.max(initial=0) <= MAX_COUNT:
            return self
        parts = np.ceil(np.maximum(held / MAX_COUNT, 1)).astype(np.int64)[group]
        offsets, index, amount = self.buckets.offsets, self.buckets.index, self.buckets.amount
        less = Buckets(offsets, index, amount // np.repeat(parts, self.buckets.lengths))
        return Histograms(self.scale, self.zero // parts, self.sum / parts, less)
