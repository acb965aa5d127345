"""Many exports as one: the columns of their rows one after the other, with sources and labels that mean the same told once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from .columns import ROW, Flag, Label, Source, Spans, Stream

Ids: TypeAlias = NDArray[np.uint64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
T = TypeVar("T")

# Far below what a number of a source can be in a row.
_ROWS_A_PIECE = 30_000
# Of a key, in 64 bits with a sign.
_MOST = 2**62
_FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


@dataclass(frozen=True, slots=True)
class Gathered:
    """Rows of several parcels; every column has shape (n,).

    Args:
        rows: As they are stored; their `source` and `label` count into their own parcel's.
        parcel: Which one each row is of.
        source: Counts into *sources*.
        label: Counts into *labels*.
        sources: Each once.
        labels: Each once.
        streams: By the number of the row.
    """

    rows: NDArray[np.void]
    parcel: Ints
    source: Ints
    label: Ints
    sources: Sequence[Source]
    labels: Sequence[Label]
    streams: dict[int, Stream]

    def flag(self, flag: Flag) -> Bools:
        """Return which rows have *flag*."""
        return (self.rows["flags"] & flag.value) != 0

    def of_labels(self, what: Callable[[Label], T], kind: type[np.generic]) -> NDArray[np.generic]:
        """Return for each row what its label says, as *kind*."""
        return np.array([what(label) for label in self.labels], kind)[self.label]

    def chosen(self, which: Ints) -> Gathered:
        """Return the rows *which*."""
        place = {old: new for new, old in enumerate(which.tolist())} if self.streams else {}
        streams = {place[row]: stream for row, stream in self.streams.items() if row in place}
        return Gathered(
            self.rows[which],
            self.parcel[which],
            self.source[which],
            self.label[which],
            self.sources,
            self.labels,
            streams,
        )

    def spans(self) -> Iterator[Spans]:
        """Yield all as spans of their own, in pieces."""
        for start in range(0, len(self.rows), _ROWS_A_PIECE):
            yield self._piece(start, start + _ROWS_A_PIECE)

    def _piece(self, start: int, stop: int) -> Spans:
        sources, source = np.unique(self.source[start:stop], return_inverse=True)
        labels, label = np.unique(self.label[start:stop], return_inverse=True)
        rows = self.rows[start:stop].copy()
        rows["source"], rows["label"] = source, label
        return Spans(
            rows,
            [self.sources[place] for place in sources.tolist()],
            [self.labels[place] for place in labels.tolist()],
            {row - start: stream for row, stream in self.streams.items() if start <= row < stop},
        )


def subset(spans: Spans, rows: Ints) -> Spans:
    """Return the *rows* of *spans*, ascending; sources and labels stay as they are."""
    if len(rows) == len(spans.rows):
        return spans
    place = {old: new for new, old in enumerate(rows.tolist())} if spans.streams else {}
    streams = {place[row]: stream for row, stream in spans.streams.items() if row in place}
    return Spans(spans.rows[rows], spans.sources, spans.labels, streams)


def gather(parcels: Sequence[Spans]) -> Gathered:
    """Return *parcels* as one."""
    sources: dict[Source, int] = {}
    labels: dict[Label, int] = {}
    streams: dict[int, Stream] = {}
    lengths = [len(spans.rows) for spans in parcels]
    rows = np.empty(sum(lengths), ROW)
    source, label = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    first = 0
    for spans, length in zip(parcels, lengths, strict=True):
        if not length:
            continue
        stop = first + length
        rows[first:stop] = spans.rows
        places = [sources.setdefault(each, len(sources)) for each in spans.sources]
        source[first:stop] = np.array(places, np.int64)[spans.rows["source"]]
        places = [labels.setdefault(each, len(labels)) for each in spans.labels]
        label[first:stop] = np.array(places, np.int64)[spans.rows["label"]]
        streams |= {first + row: stream for row, stream in spans.streams.items()}
        first = stop
    parcel = np.repeat(np.arange(len(parcels)), lengths)
    return Gathered(rows, parcel, source, label, list(sources), list(labels), streams)


def mixed(one: Ids, other: Ids) -> Ids:
    """Return a number for each pair, different for different pairs but for one in 2**64."""
    found = one * _FIRST ^ (other + _SECOND)
    found ^= found >> np.uint64(29)
    found *= _SECOND
    found ^= found >> np.uint64(32)
    return found


def groups(*parts: Ints) -> tuple[Ints, Ints]:
    """Number rows by their *parts*, which all have shape (n,).

    Returns:
        For each group, in the order of the parts, a row of it; and for each row its group.
    """
    key, width = np.zeros(len(parts[0]), np.int64), 1
    for part in parts:
        low = int(part.min(initial=0))
        size = int(part.max(initial=0)) - low + 1
        if width * size >= _MOST:
            values, key = np.unique(key, return_inverse=True)
            width = len(values)
        key, width = key * size + (part - low), width * size
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    return first, group
