"""Spans put together to requests: whose row is it, and has its request come as a whole?

A request is what one process did for one call: its root is the topmost row that is a request by its label, or has its parent in
another process and is no call itself; everything below it of the same source is its own. A request inside a request is part of that one, except
below a client or producer: there the process has called itself. Rows are found by their ids alone, never by the clock, but
for one case: a row whose parent never came hangs on the root of its trace and source that it lies within, if there is one such.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from .batching import Bools, Gathered, Ids, Ints, mixed
from .columns import Flag, Rows

_CALLS = ("client", "producer")


class Fate(IntEnum):
    """What becomes of a row.

    Attributes:
        WAITING: Its root has not come, or not for long enough.
        JOINED: It is of a request that is whole.
        COUNTED: It is the root of a request that was counted before.
        REPEATED: It has come before.
        LATE: Its request was counted before it came.
        ORPHANED: It leads to no root, and never will.
        OUTSIDE: It is of no request: what is above it all is none, by its label.
    """

    WAITING = 0
    JOINED = 1
    COUNTED = 2
    REPEATED = 3
    LATE = 4
    ORPHANED = 5
    OUTSIDE = 6


@dataclass(frozen=True, slots=True)
class Joined:
    """Rows and the requests they belong to; the columns have shape (n,).

    Args:
        gathered: The rows.
        fate: Of each, one of `Fate`.
        roots: The rows that are roots of whole requests, in order; shape (r,).
        request: Which of *roots* each row belongs to, -1 for none.
        up: The row above it within its request, -1 for none.
        depth: How many rows are above it within its request.
        callers: Rows that called another process; shape (m,).
        called: The root of what each of them called there; shape (m,).
    """

    gathered: Gathered
    fate: Ints
    roots: Ints
    request: Ints
    up: Ints
    depth: Ints
    callers: Ints
    called: Ints


def trace_keys(rows: Rows) -> Ids:
    """Return a number for the trace of each row."""
    return mixed(rows["trace_high"], rows["trace_low"])


def join(gathered: Gathered, due: Bools, counted: Bools) -> Joined:
    """Put rows together.

    Args:
        gathered: The rows.
        due: Which rows have been there for so long that nothing of their request is still on its way; shape (n,).
        counted: Which rows are roots of requests that were counted before; shape (n,).
    """
    rows, here = gathered.rows, np.arange(len(gathered.rows))
    trace = trace_keys(rows)
    twin, parent = _parents(gathered, trace, counted)
    kept = twin == here
    says_request = gathered.of_labels(lambda label: label.request, np.bool_).astype(bool)
    calls = gathered.of_labels(lambda label: label.kind in _CALLS, np.bool_).astype(bool)
    is_local = (parent >= 0) & (gathered.source == gathered.source[parent])
    cut = counted | ~is_local | (says_request & calls[parent])
    up = np.where(cut, -1, parent)
    tree = _tops(up, kept & (counted | says_request | ((parent >= 0) & ~is_local & ~calls)))
    root, top = tree.root, tree.top
    root[tree.circular] = -1
    ended_roots = (root == here) & (rows["end"] > 0)

    lost = kept & (root < 0) & ~tree.circular
    is_detached = lost & (up < 0) & (rows["parent"] != 0) & (parent < 0)
    detached = np.flatnonzero(is_detached)
    if len(detached):
        up[detached] = root[detached] = _hosts(gathered, trace, np.flatnonzero(ended_roots), detached)
        root[lost] = root[top[lost]]

    # What is above a root is of another request, or of none.
    up[root == here] = -1
    roots = np.flatnonzero(ended_roots & due & ~counted)
    number = np.full(len(here), -1)
    number[roots] = np.arange(len(roots))
    request = np.where(root >= 0, number[root], -1)
    fate = np.where(request >= 0, Fate.JOINED, Fate.WAITING)
    fate[(root >= 0) & counted[root]] = Fate.LATE
    fate[counted] = Fate.COUNTED
    fate[due & tree.circular] = Fate.ORPHANED
    fate[lost & due & ~is_detached[top]] = Fate.OUTSIDE
    fate[~kept] = np.where(counted[twin[~kept]], Fate.LATE, Fate.REPEATED)
    request[fate != Fate.JOINED] = -1

    called = np.flatnonzero(ended_roots & (parent >= 0) & (~is_local | calls[parent]))
    depth = np.where(top == here, 0, tree.depth) - tree.depth[root]
    depth[lost] = tree.depth[lost] + 1
    return Joined(gathered, fate, roots, request, up, depth, parent[called], called)


@dataclass(frozen=True, slots=True)
class _Keys:
    """Where each key is."""

    keys: Ids
    places: Ints

    def find(self, wanted: Ids) -> Ints:
        """Return the row of each *wanted* key, -1 for none."""
        if not len(self.keys):
            return np.full(len(wanted), -1)
        at = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.where(self.keys[at] == wanted, self.places[at], -1)


def _parents(gathered: Gathered, trace: Ids, counted: Bools) -> tuple[Ints, Ints]:
    """Return for each row the one that stands for it, and its parent; -1 for none, and for one that came again."""
    parent_key = mixed(trace, gathered.rows["parent"])
    keys, twin = _unique(gathered, _keys(gathered, trace, parent_key), counted)
    is_child = (twin == np.arange(len(twin))) & (gathered.rows["parent"] != 0)
    return twin, np.where(is_child, keys.find(parent_key), -1)


def _keys(gathered: Gathered, trace: Ids, parent_key: Ids) -> Ids:
    """Return a number for each row that is the same when the row comes again."""
    rows = gathered.rows
    keys = mixed(trace, rows["span"])
    derived = np.flatnonzero(gathered.flag(Flag.DERIVED))
    if len(derived):
        times = mixed(rows["start"][derived].astype(np.uint64), rows["end"][derived].astype(np.uint64))
        keys[derived] = mixed(parent_key[derived], mixed(times, gathered.label[derived].astype(np.uint64)))
    return keys


def _unique(gathered: Gathered, keys: Ids, counted: Bools) -> tuple[_Keys, Ints]:
    """Return where to find each key, and for each row the one that stands for it: itself unless it came several times."""
    order = np.argsort(keys)
    ordered = keys[order]
    twin = np.arange(len(keys))
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    if not len(same):
        return _Keys(ordered, order), twin
    places = np.union1d(same, same + 1)
    found, rows = order[places], gathered.rows
    # What was counted, else what has ended, else what was left out of nothing: never what came first.
    ends = rows["end"][found]
    found = found[np.lexsort((rows["start"][found], -ends, ends == 0, ~counted[found], keys[found]))]
    first = np.flatnonzero(np.diff(keys[found], prepend=~keys[found[:1]]) != 0)
    twin[found] = np.repeat(found[first], np.diff(first, append=len(found)))
    order[places] = found
    stays = twin[order] == order
    return _Keys(ordered[stays], order[stays]), twin


@dataclass(frozen=True, slots=True)
class _Tree:
    """Where the way up from each row leads.

    Args:
        root: The topmost candidate on it, -1 for none.
        top: Its end.
        depth: Its length.
        circular: Whether it has no end.
    """

    root: Ints
    top: Ints
    depth: Ints
    circular: Bools


def _tops(up: Ints, candidate: Bools) -> _Tree:
    """Go up from all rows at once, each time twice as far as before."""
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


def _hosts(gathered: Gathered, trace: Ids, roots: Ints, detached: Ints) -> Ints:
    """Return for each of *detached* the one of *roots* of its trace and source that it lies within; -1 for none, or several."""
    if not len(roots):
        return np.full(len(detached), -1)
    rows = gathered.rows
    group = mixed(trace, gathered.source.astype(np.uint64))
    roots = roots[np.lexsort((rows["start"][roots], group[roots]))]
    groups, of_root = np.unique(group[roots], return_inverse=True)
    at = np.minimum(np.searchsorted(groups, group[detached]), len(groups) - 1)
    # The last root of the group that starts no later: groups and starts as one number.
    starts = np.unique(rows["start"][roots])
    width = len(starts) + 1
    wanted = at * width + np.searchsorted(starts, rows["start"][detached], "right")
    last = (
        np.searchsorted(of_root * width + np.searchsorted(starts, rows["start"][roots], "right"), wanted, "right") - 1
    )
    place = np.maximum(last, 0)
    exists = (last >= 0) & (of_root[place] == at) & (groups[at] == group[detached])
    # Of the roots of the group up to there, the one that ends last, and the one that does before it.
    order = np.argsort(rows["end"][roots], kind="stable")
    by_end, rank = roots[order], np.empty(len(roots), np.int64)
    rank[order] = np.arange(len(roots))
    before_group = of_root * len(roots)
    furthest = np.maximum.accumulate(before_group + rank)
    second = np.maximum.accumulate(np.minimum(before_group + rank, np.append(-1, furthest[:-1]))) - before_group
    host = by_end[(furthest - before_group)[place]]
    rival = by_end[np.maximum(second[place], 0)]
    until = np.maximum(rows["end"][detached], rows["start"][detached])
    is_alone = (second[place] < 0) | (rows["end"][rival] < until)
    return np.where(exists & (rows["end"][host] >= until) & is_alone, host, -1)
