"""Assembly of spans into requests: which request each row belongs to, and whether that request is complete.

A request is the work of one process for one call. Its root is the topmost row that is a request by its label, or whose parent is in
another process and which is not a call itself; all rows below it of the same source belong to it. A nested request belongs to the
outer one, except below a client or producer span: there the process calls itself. Rows are matched by ids, not by times, with one
exception: a row whose parent never arrived belongs to the only root of its trace and source that encloses it in time.

A row without a duration is no root if a rule says that such rows are log records, or if it has no children and neither its kind nor a
rule makes it a request: programs record events as such spans.

`concatenate_spans` joins many exports into one `SpanBatch` with common lists of sources and labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...core.columns import SHARED, Bools, Ints
from .columns import ROW, STREAM, Flag, Label, Rows, SpanColumns, Spans, SpanSource, Streams

Ids: TypeAlias = NDArray[np.uint64]

# Far below the number of sources that a row can address.
_ROWS_A_PIECE = 30_000
# Limit of a combined key, which is a signed 64-bit integer.
_MOST = 2**62
_FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
# Kinds of the spans that call another process, and of those that are called.
CALLS, SERVED = ("client", "producer"), ("server", "consumer")


@dataclass(frozen=True, slots=True)
class SpanBatch(SpanColumns):
    rows: Rows  # the stored rows; their `source` and `label` are indexes of their own parcel
    parcel: Ints  # index of the parcel of each row
    source: Ints  # index of *sources*
    label: Ints  # index of *labels*
    sources: Sequence[SpanSource] = field(metadata=SHARED)  # distinct sources
    labels: Sequence[Label] = field(metadata=SHARED)  # distinct labels
    streams: Streams = field(metadata=SHARED)  # array of `STREAM`, in the order of the rows

    def flag(self, flag: Flag) -> Bools:
        return (self.rows["flags"] & flag.value) != 0

    def of_labels(self, is_such: Callable[[Label], bool]) -> Bools:
        return np.array([is_such(label) for label in self.labels], np.bool_)[self.label]

    def spans(self) -> Iterator[Spans]:
        for start in range(0, len(self.rows), _ROWS_A_PIECE):
            piece = self.take(np.arange(start, min(start + _ROWS_A_PIECE, len(self.rows))))
            sources, source = np.unique(piece.source, return_inverse=True)
            labels, label = np.unique(piece.label, return_inverse=True)
            rows = piece.rows.copy()
            rows["source"], rows["label"] = source, label
            used = (
                [self.sources[number] for number in sources.tolist()],
                [self.labels[number] for number in labels.tolist()],
            )
            yield Spans(rows, *used, piece.streams)


def concatenate_spans(parcels: Sequence[Spans]) -> SpanBatch:
    sources: dict[SpanSource, int] = {}
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
        numbers = [sources.setdefault(span_source, len(sources)) for span_source in spans.sources]
        source[first:stop] = np.array(numbers, np.int64)[spans.rows["source"]]
        numbers = [labels.setdefault(span_label, len(labels)) for span_label in spans.labels]
        label[first:stop] = np.array(numbers, np.int64)[spans.rows["label"]]
    parcel = np.repeat(np.arange(len(parcels)), lengths)
    return SpanBatch(rows, parcel, source, label, list(sources), list(labels), streams)


def hash_pairs(one: Ids, other: Ids) -> Ids:
    hashes = one * _FIRST ^ (other + _SECOND)
    hashes ^= hashes >> np.uint64(29)
    hashes *= _SECOND
    hashes ^= hashes >> np.uint64(32)
    return hashes


def group_rows(*parts: Ints) -> tuple[Ints, Ints]:
    """Return the first row of each group of equal *parts* (each of shape (n,)), in their order, and the group of each row."""
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


class Outcome(IntEnum):
    WAITING = 0  # the root has not arrived, or is not due yet
    JOINED = 1  # the row belongs to a complete request
    COUNTED = 2  # the row is the root of a request that was counted before
    REPEATED = 3  # the row is a duplicate
    LATE = 4  # the row arrived after its request was counted
    ORPHANED = 5  # the root never arrived
    OUTSIDE = 6  # the row belongs to no request, because its topmost span is not a request by its label


@dataclass(frozen=True, slots=True)
class AssembledSpans:
    batch: SpanBatch  # the rows
    outcome: Ints  # one of `Outcome` for each row
    roots: Ints  # root rows of complete requests, ascending; shape (r,)
    request: Ints  # index of *roots* for each row, -1 for none
    up: Ints  # parent row within the request, -1 for none
    depth: Ints  # number of ancestors within the request
    callers: Ints  # rows that called another process; shape (m,)
    called: Ints  # root row in the called process, for each of *callers*; shape (m,)


def trace_keys(rows: Rows) -> Ids:
    return hash_pairs(rows["trace_high"], rows["trace_low"])


def assemble_requests(batch: SpanBatch, due: Bools, counted: Bools) -> AssembledSpans:
    """Assign rows to requests, and determine the outcome of each row.

    The rows *due* have waited long enough for the rest of their request; those *counted* are roots of requests counted before.
    """
    rows, here = batch.rows, np.arange(len(batch.rows))
    trace = trace_keys(rows)
    twin, parent = _parents(batch, trace, counted)
    is_first = twin == here
    is_marked = batch.of_labels(lambda label: label.request)
    calls = batch.of_labels(lambda label: label.kind in CALLS)
    is_local = (parent >= 0) & (batch.source == batch.source[parent])
    cut = counted | ~is_local | (is_marked & calls[parent])
    up = np.where(cut, -1, parent)
    may_begin = (is_marked | ((parent >= 0) & ~is_local & ~calls)) & ~_records(batch, parent)
    tree = _find_roots(up, is_first & (counted | may_begin))
    root, top = tree.root, tree.top
    root[tree.circular] = -1
    ended_roots = (root == here) & (rows["end"] > 0)

    lost = is_first & (root < 0) & ~tree.circular
    is_detached = lost & (up < 0) & (rows["parent"] != 0) & (parent < 0)
    detached = np.flatnonzero(is_detached)
    if len(detached):
        up[detached] = root[detached] = _find_enclosing_roots(batch, trace, np.flatnonzero(ended_roots), detached)
        root[lost] = root[top[lost]]

    # The parent of a root belongs to another request, or to none.
    up[root == here] = -1
    roots = np.flatnonzero(ended_roots & due & ~counted)
    number = np.full(len(here), -1)
    number[roots] = np.arange(len(roots))
    request = np.where(root >= 0, number[root], -1)
    outcome = np.where(request >= 0, Outcome.JOINED, Outcome.WAITING)
    outcome[(root >= 0) & counted[root]] = Outcome.LATE
    outcome[counted] = Outcome.COUNTED
    outcome[due & tree.circular] = Outcome.ORPHANED
    outcome[lost & due & ~is_detached[top]] = Outcome.OUTSIDE
    outcome[~is_first] = Outcome.REPEATED
    request[outcome != Outcome.JOINED] = -1

    called = np.flatnonzero(ended_roots & (parent >= 0) & (~is_local | calls[parent]))
    depth = np.where(top == here, 0, tree.depth) - tree.depth[root]
    depth[lost] = tree.depth[lost] + 1
    return AssembledSpans(batch, outcome, roots, request, up, depth, parent[called], called)


def _records(batch: SpanBatch, parent: Ints) -> Bools:
    has_child = np.zeros(len(parent), np.bool_)
    has_child[parent[parent >= 0]] = True
    is_instant = batch.rows["start"] == batch.rows["end"]
    # A stage takes time, if less than a clock of milliseconds shows: such as the call of a model whose answer was cached.
    is_implicit = batch.of_labels(lambda label: label.kind not in SERVED and not label.stage)
    is_event = is_implicit & ~has_child & ~batch.flag(Flag.EXPLICIT)
    return is_instant & (is_event | batch.flag(Flag.RECORD))


@dataclass(frozen=True, slots=True)
class _Keys:
    keys: Ids
    places: Ints

    def find(self, wanted: Ids) -> Ints:
        if not len(self.keys):
            return np.full(len(wanted), -1)
        at = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.where(self.keys[at] == wanted, self.places[at], -1)


def _parents(batch: SpanBatch, trace: Ids, counted: Bools) -> tuple[Ints, Ints]:
    """Return the representative and the parent of each row; the parent is -1 for no parent and for duplicates."""
    parent_key = hash_pairs(trace, batch.rows["parent"])
    keys, twin = _unique(batch, _keys(batch, trace, parent_key), counted)
    is_child = (twin == np.arange(len(twin))) & (batch.rows["parent"] != 0)
    return twin, np.where(is_child, keys.find(parent_key), -1)


def _keys(batch: SpanBatch, trace: Ids, parent_key: Ids) -> Ids:
    rows = batch.rows
    keys = hash_pairs(trace, rows["span"])
    derived = np.flatnonzero(batch.flag(Flag.DERIVED))
    if len(derived):
        times = hash_pairs(rows["start"][derived].astype(np.uint64), rows["end"][derived].astype(np.uint64))
        keys[derived] = hash_pairs(parent_key[derived], hash_pairs(times, batch.label[derived].astype(np.uint64)))
    return keys


def _unique(batch: SpanBatch, keys: Ids, counted: Bools) -> tuple[_Keys, Ints]:
    """Return an index of the distinct keys, and the representative of each row: the row, or for a duplicate the retained row."""
    order = np.argsort(keys)
    ordered = keys[order]
    twin = np.arange(len(keys))
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    if not len(same):
        return _Keys(ordered, order), twin
    places = np.union1d(same, same + 1)
    positions, rows = order[places], batch.rows
    # Prefer a counted row, then a row that has ended, then the longest row, whatever the order of arrival.
    ends = rows["end"][positions]
    positions = positions[
        np.lexsort((rows["start"][positions], -ends, ends == 0, ~counted[positions], keys[positions]))
    ]
    first = np.flatnonzero(np.diff(keys[positions], prepend=~keys[positions[:1]]) != 0)
    twin[positions] = np.repeat(positions[first], np.diff(first, append=len(positions)))
    order[places] = positions
    stays = twin[order] == order
    return _Keys(ordered[stays], order[stays]), twin


@dataclass(frozen=True, slots=True)
class _Tree:
    root: Ints  # the topmost ancestor that may be a root, -1 for none
    top: Ints  # the topmost ancestor
    depth: Ints  # number of ancestors
    circular: Bools  # whether the ancestors form a cycle


def _find_roots(up: Ints, candidate: Bools) -> _Tree:
    here = np.arange(len(up))
    top, root, depth = np.where(up >= 0, up, here), np.where(candidate, here, -1), (up >= 0).astype(np.int64)
    for _ in range(len(up).bit_length() + 1):
        further = root[top]
        root = np.where(further >= 0, further, root)
        depth += depth[top]
        beyond = top[top]
        if np.array_equal(beyond, top):
            break
        top = beyond
    return _Tree(root, top, depth, up[top] >= 0)


def _find_enclosing_roots(batch: SpanBatch, trace: Ids, roots: Ints, detached: Ints) -> Ints:
    """Return for each *detached* row the only root of its trace and source that encloses it in time, else -1."""
    if not len(roots):
        return np.full(len(detached), -1)
    rows = batch.rows
    group = hash_pairs(trace, batch.source.astype(np.uint64))
    roots = roots[np.lexsort((rows["start"][roots], group[roots]))]
    groups, of_root = np.unique(group[roots], return_inverse=True)
    at = np.minimum(np.searchsorted(groups, group[detached]), len(groups) - 1)
    # The last root of the group that starts no later; group and start are combined into one number.
    starts = np.unique(rows["start"][roots])
    width = len(starts) + 1
    wanted = at * width + np.searchsorted(starts, rows["start"][detached], "right")
    last = (
        np.searchsorted(of_root * width + np.searchsorted(starts, rows["start"][roots], "right"), wanted, "right") - 1
    )
    index = np.maximum(last, 0)
    exists = (last >= 0) & (of_root[index] == at) & (groups[at] == group[detached])
    # Among the roots of the group up to that one: the two that end last.
    order = np.argsort(rows["end"][roots], kind="stable")
    by_end, rank = roots[order], np.empty(len(roots), np.int64)
    rank[order] = np.arange(len(roots))
    before_group = of_root * len(roots)
    furthest = np.maximum.accumulate(before_group + rank)
    second = np.maximum.accumulate(np.minimum(before_group + rank, np.append(-1, furthest[:-1]))) - before_group
    host = by_end[(furthest - before_group)[index]]
    rival = by_end[np.maximum(second[index], 0)]
    until = np.maximum(rows["end"][detached], rows["start"][detached])
    is_alone = (second[index] < 0) | (rows["end"][rival] < until)
    return np.where(exists & (rows["end"][host] >= until) & is_alone, host, -1)
