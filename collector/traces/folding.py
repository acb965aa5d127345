"""From what waits in the inbox to points and kept traces: the requests that are whole, each once.

A request is whole when its root has come, and for a while nothing of it can be on its way any more. Its rows leave the inbox;
its root stays there for some time as a request that was counted, so that what comes late or again is recognised, and calls to
it from elsewhere are understood. What never becomes a request leaves when it is too old.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core.errors import StoreError
from ..store.inbox import Delivery, Folded, Parcel
from .columns import ROW, Rows, Spans, decode, decode_rows
from .counting import points_of
from .gathering import Bools, Gathered, Ints, gather, subset
from .joining import Fate, join, trace_keys
from .keeping import Keep, traces_of
from .leftovers import Patience, left, remembered
from .requests import Requests, requests_of

_log = logging.getLogger(__name__)

# A clock that was set back leaves times in the future; what they say they wait for has passed. [seconds]
_MAX_SKEW_SECONDS = 60
# Times a span may have: what is past them is no time, and sums of what is within fit. [nanoseconds]
_LATEST, _LONGEST = 2**62, 2**52
# Of the table of traces that are looked at: several for each row that is folded at once.
_CELLS = 1 << 22


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a delivery, in rows unless it says otherwise.

    Args:
        requests: Requests that were counted.
        known: Requests that an agent has counted.
        folded: Rows of both.
        late: Came after their request was counted.
        repeated: Had come before.
        orphaned: Never got a root.
        outside: Are of no request.
        waiting: Stay.
        more: Whether more could be folded now.
    """

    requests: int = 0
    known: int = 0
    folded: int = 0
    late: int = 0
    repeated: int = 0
    orphaned: int = 0
    outside: int = 0
    waiting: int = 0
    more: bool = False


def fold(delivery: Delivery, patience: Patience, keep: Keep) -> tuple[Folded, Outcome]:
    """Fold what is whole of *delivery*; what cannot be read of it leaves when it is old."""
    readable, unreadable = _readable([*delivery.parcels, *delivery.counted])
    due, is_all = _due([parcel for parcel, _ in readable], delivery, patience)
    # Of what is not due only what belongs to what is: the rest is neither read any further nor written again.
    touched = _touched([rows for _, rows in readable], due)
    parcels, spans, rows, is_due, damaged = _read(readable, touched, due)
    unreadable += damaged
    gathered = gather([subset(each, chosen) for each, chosen in zip(spans, rows, strict=True)])
    counted = np.array([parcel.counted for parcel in parcels], np.bool_)[gathered.parcel]

    believable = np.flatnonzero(_believable(gathered))
    joined = join(gathered.chosen(believable), is_due[gathered.parcel[believable]], counted[believable])
    requests = requests_of(joined)
    fate = np.full(len(gathered.rows), Fate.ORPHANED)
    fate[believable] = joined.fate
    _give_up(fate, gathered, parcels, is_due, delivery.now, patience)

    taken, rest = left(fate, parcels, is_due, spans, rows)
    forgotten, known = remembered(joined, delivery, patience)
    old = [parcel.id for parcel in unreadable if parcel.received < delivery.now - patience.orphan_seconds]
    folded = Folded(
        points=points_of(requests),
        traces=traces_of(requests, keep),
        taken=[*taken, *forgotten, *old],
        left=[*rest, *known],
    )
    waiting = sum(len(rows) for parcel, rows in readable if not parcel.counted and parcel not in damaged)
    return folded, _outcome(fate, requests, waiting, more=not is_all)


def _readable(parcels: Sequence[Parcel]) -> tuple[list[tuple[Parcel, Rows]], list[Parcel]]:
    """Return the parcels whose rows can be read, with them, and the others."""
    readable, unreadable = list[tuple[Parcel, Rows]](), list[Parcel]()
    for parcel in parcels:
        try:
            readable.append((parcel, decode_rows(parcel.spans)))
        except StoreError as error:
            _complain(parcel, error)
            unreadable.append(parcel)
    return readable, unreadable


def _read(
    readable: Sequence[tuple[Parcel, Rows]], touched: Sequence[Ints], is_due: Bools
) -> tuple[list[Parcel], list[Spans], list[Ints], Bools, list[Parcel]]:
    """Return the parcels that are due or touched, what is in them, which rows are touched, which are due, and the damaged."""
    parcels, spans, rows, due, damaged = list[Parcel](), list[Spans](), list[Ints](), list[bool](), list[Parcel]()
    for (parcel, _), chosen, own in zip(readable, touched, is_due.tolist(), strict=True):
        if not own and not len(chosen):
            continue
        try:
            found = decode(parcel.spans)
            _check(found)
        except StoreError as error:
            _complain(parcel, error)
            damaged.append(parcel)
        else:
            parcels.append(parcel)
            spans.append(found)
            rows.append(chosen)
            due.append(own)
    return parcels, spans, rows, np.array(due, np.bool_), damaged


def _complain(parcel: Parcel, error: StoreError) -> None:
    _log.error("parcel %d of the inbox cannot be read: %s", parcel.id, error)


def _check(spans: Spans) -> None:
    """Refuse rows that count into nothing.

    Raises:
        StoreError: There are some.
    """
    rows = spans.rows
    fits = (
        int(rows["source"].max(initial=0)) < max(len(spans.sources), not len(rows))
        and int(rows["label"].max(initial=0)) < max(len(spans.labels), not len(rows))
        and all(0 <= row < len(rows) for row in spans.streams)
    )
    if not fits:
        msg = "stored spans are damaged (a row names a source or label that is not there); check the disk"
        raise StoreError(msg)


def _due(parcels: Sequence[Parcel], delivery: Delivery, patience: Patience) -> tuple[Bools, bool]:
    """Return of which parcels everything is here that belongs to them, and whether that is all such.

    Where more waits than is looked at at once, the oldest are taken for such: rather less patience than more memory.
    """
    until = delivery.now - patience.hold_seconds
    due, is_all, size = np.zeros(len(parcels), np.bool_), delivery.complete, 0
    for place, parcel in enumerate(parcels):
        passed = parcel.received <= until or parcel.received > delivery.now + _MAX_SKEW_SECONDS
        if parcel.counted or (delivery.complete and not passed):
            continue
        if size > patience.due_bytes:
            return due, False
        due[place] = True
        size += len(parcel.spans)
    return due, is_all


def _believable(gathered: Gathered) -> Bools:
    start, end = gathered.rows["start"], gathered.rows["end"]
    return (start > 0) & (start < _LATEST) & ((end == 0) | ((end >= start) & (end - start < _LONGEST)))


def _touched(parcels: Sequence[Rows], is_due: Bools) -> list[Ints]:
    """Return the rows of each parcel that are of a trace of which something is due."""
    if not is_due.any():
        return [np.zeros(0, np.int64) for _ in parcels]
    keys = [trace_keys(rows) for rows in parcels]
    due = np.unique(np.concatenate([key for key, own in zip(keys, is_due, strict=True) if own]))
    # Most rows are of no such trace: a look at a table is cheaper than a search.
    mask, table = np.uint64(_CELLS - 1), np.zeros(_CELLS, np.bool_)
    table[(due & mask).astype(np.int32)] = True
    found: list[Ints] = []
    for key, own in zip(keys, is_due, strict=True):
        rows = np.arange(len(key)) if own else np.flatnonzero(table[(key & mask).astype(np.int32)])
        if not own and len(rows):
            rows = rows[due[np.minimum(np.searchsorted(due, key[rows]), len(due) - 1)] == key[rows]]
        found.append(rows)
    return found


def _give_up(  # noqa: PLR0917 - what is given up, and what of it there is
    fate: Ints, gathered: Gathered, parcels: Sequence[Parcel], carried: Bools, now: int, patience: Patience
) -> None:
    """Orphan what has waited for too long, and the oldest of what waits for a root if it is too much."""
    waits = fate == Fate.WAITING
    rows = np.bincount(gathered.parcel[waits], minlength=len(parcels)) * carried
    received = np.array([parcel.received for parcel in parcels], np.int64)
    newest_first = np.argsort(-received, kind="stable")
    held = np.zeros(len(parcels), np.int64)
    held[newest_first] = np.cumsum(rows[newest_first])
    past = carried & ((received < now - patience.orphan_seconds) | (held * ROW.itemsize > patience.carry_bytes))
    fate[waits & past[gathered.parcel]] = Fate.ORPHANED


def _outcome(fate: Ints, requests: Requests, rows_before: int, *, more: bool) -> Outcome:
    rows = np.bincount(fate, minlength=len(Fate)).tolist()
    gone = sum(rows) - rows[Fate.WAITING] - rows[Fate.COUNTED]
    known = int(requests.known.sum())
    return Outcome(
        requests=len(requests.known) - known,
        known=known,
        folded=rows[Fate.JOINED],
        late=rows[Fate.LATE],
        repeated=rows[Fate.REPEATED],
        orphaned=rows[Fate.ORPHANED],
        outside=rows[Fate.OUTSIDE],
        waiting=rows_before - gone,
        more=more,
    )
