"""Many exports as one: the columns of their rows one after the other, with sources and labels that mean the same told once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from .columns import ROW, STREAM, Flag, Label, Rows, Source, Spans, Streams

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
        streams: Of `STREAM`, in the order of the rows.
    """

    rows: Rows
    parcel: Ints
    source: Ints
    label: Ints
    sources: Sequence[Source]
    labels: Sequence[Label]
    streams: Streams

    def flag(self, flag: Flag) -> Bools:
        """Return which rows have *flag*."""
        return (self.rows["flags"] & flag.value) != 0

    def of_labels(self, what: Callable[[Label], T], kind: type[np.generic]) -> NDArray[np.generic]:
        """Return for each row what its label says, as *kind*."""
        return np.array([what(label) for label in self.labels], kind)[self.label]

    def chosen(self, which: Ints) -> Gathered:
        """Return the rows *which*, ascending."""
        if len(which) == len(self.rows):
            return self
        return Gathered(
            self.rows[which],
            self.parcel[which],
            self.source[which],
            self.label[which],
            self.sources,
            self.labels,
            _chosen(self.streams, which),
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
            _chosen(self.streams, np.arange(start, start + len(rows))),
        )


def subset(spans: Spans, rows: Ints) -> Spans:
    """Return the *rows* of *spans*, ascending; sources and labels stay as they are."""
    if len(rows) == len(spans.rows):
        return spans
    return Spans(spans.rows[rows], spans.sources, spans.labels, _chosen(spans.streams, rows))


def _chosen(streams: Streams, rows: Ints) -> Streams:
    """Return those of the *rows*, ascending, counted among these."""
    place = np.searchsorted(rows, streams["row"])
    place[place == len(rows)] = 0
    is_there = rows[place] == streams["row"] if len(rows) else np.zeros(len(streams), np.bool_)
    found = streams[is_there].copy()
    found["row"] = place[is_there]
    return found


def gather(parcels: Sequence[Spans]) -> Gathered:
    """Return *parcels* as one."""
    sources: dict[Source, int] = {}
    labels: dict[Label, int] = {}
    lengths = np.array([len(spans.rows) for spans in parcels], np.int64)
    ends = np.cumsum(lengths)
    rows = np.empty(int(lengths.sum()), ROW)
    streams = np.concatenate((np.zeros(0, STREAM), *(spans.streams for spans in parcels)))
    streams["row"] += np.repeat(ends - lengths, [len(spans.streams) for spans in parcels]).astype(np.uint32)
    source, label = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    for spans, length, stop in zip(parcels, lengths.tolist(), ends.tolist(), strict=True):
        if not length:
            continue
        first = stop - length
        rows[first:stop] = spans.rows
        places = [sources.setdefault(each, len(sources)) for each in spans.sources]
        source[first:stop] = np.array(places, np.int64)[spans.rows["source"]]
        places = [labels.setdefault(each, len(labels)) for each in spans.labels]
        label[first:stop] = np.array(places, np.int64)[spans.rows["label"]]
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
