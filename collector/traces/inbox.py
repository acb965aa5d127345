"""Processing of the span inbox: complete requests become points and retained traces, each once.

A request is complete when its root has arrived and none of its spans can still be on the way. Its rows then leave the inbox; its root
stays for some time as a counted request, so that late and duplicate spans are recognised and calls from other processes are matched.
Spans that never get a root leave when they are too old.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...core.errors import StoreError
from ...store.inbox import Delivery, Folded, Parcel
from .aggregation import points_of
from .assembly import (
    AssembledSpans,
    Bools,
    Fate,
    Ids,
    Ints,
    SpanBatch,
    assemble_requests,
    concatenate_spans,
    subset,
    trace_keys,
)
from .columns import ROW, Rows, Spans, decode, decode_rows, encode, streams_of
from .requests import Requests, requests_of
from .sampling import SamplingPolicy, traces_of

# Parcels of the same minute up to this size are merged. [bytes]
_SMALL_BYTES = 256 * 1024
_MINUTE = 60


@dataclass(frozen=True, slots=True)
class InboxLimits:
    """Time and size limits of the inbox.

    Args:
        hold_seconds: Wait for the rest of a request after its root.
        orphan_seconds: Wait for a root.
        remember_seconds: Time for which counted requests are remembered.
        remember_bytes: Size limit of remembered requests; the oldest are dropped first.
        carry_bytes: Size limit of spans without a root; the oldest are orphaned first.
        due_bytes: Size that is processed at once, more than *carry_bytes*; it needs about eight times as much memory.
    """

    hold_seconds: int = 10
    orphan_seconds: int = 900
    remember_seconds: int = 900
    remember_bytes: int = 8 * 1024**2
    carry_bytes: int = 4 * 1024**2
    due_bytes: int = 6 * 1024**2


def remaining_parcels(
    fate: Ints,
    parcels: Sequence[Parcel],
    is_due: Bools,
    spans: Sequence[Spans],
    rows: Sequence[Ints],
) -> tuple[list[int], list[Parcel]]:
    """Return the parcels that leave the inbox, and the parcels with the waiting rest of them."""
    first = np.cumsum([0, *map(len, rows)])
    stays: list[Ints] = []
    for place, (each, chosen) in enumerate(zip(spans, rows, strict=True)):
        here = np.ones(len(each.rows), np.bool_)
        here[chosen] = fate[first[place] : first[place + 1]] == Fate.WAITING
        stays.append(np.flatnonzero(here))
    # Waiting spans of one minute are merged; otherwise each run would leave a parcel.
    alike: defaultdict[tuple[bool, int], list[int]] = defaultdict(list)
    for place, parcel in enumerate(parcels):
        is_whole, due = len(stays[place]) == len(spans[place].rows) > 0, bool(is_due[place])
        if not parcel.counted and (not is_whole or (due and len(parcel.spans) < _SMALL_BYTES)):
            alike[due, parcel.received // _MINUTE if due else parcel.received].append(place)
    taken, left = list[int](), list[Parcel]()
    for places in alike.values():
        if len(places) == 1 and len(stays[places[0]]) == len(spans[places[0]].rows) > 0:
            continue
        taken += [parcels[place].id for place in places]
        received = max(parcels[place].received for place in places)
        rest = concatenate_spans([subset(spans[place], stays[place]) for place in places])
        left += [Parcel(received, counted=False, spans=encode(each)) for each in rest.spans()]
    return taken, left


def counted_parcels(
    joined: AssembledSpans, delivery: Delivery, patience: InboxLimits
) -> tuple[list[int], list[Parcel]]:
    """Return the parcels of counted requests to drop or replace, and the new ones."""
    room = patience.remember_bytes
    taken: list[int] = []
    recent: list[Parcel] = []
    for parcel in reversed(delivery.counted):
        room -= parcel.size_bytes
        if room < 0 or parcel.received < delivery.now - patience.remember_seconds:
            taken.append(parcel.id)
        elif (
            len(joined.roots)
            and parcel.received // _MINUTE == delivery.now // _MINUTE
            and parcel.size_bytes < _SMALL_BYTES
        ):
            taken.append(parcel.id)
            recent.append(parcel)
    if not len(joined.roots):
        return taken, []
    merged = [decode(parcel.spans) for parcel in delivery.load(recent)]
    merged += (replace(each, streams=streams_of({})) for each in joined.gathered.chosen(joined.roots).spans())
    return taken, [Parcel(delivery.now, counted=True, spans=encode(each)) for each in concatenate_spans(merged).spans()]


_log = logging.getLogger(__name__)

# Parcels from further in the future, after the clock was set back, are due. [seconds]
_MAX_SKEW_SECONDS = 60
# Limits of span times and durations; sums of durations below the limit fit into 64 bits. [nanoseconds]
_LATEST, _LONGEST = 2**62, 2**52
# Cells of the table of due traces: several for each row that is processed at once.
_CELLS = 1 << 22


@dataclass(frozen=True, slots=True)
class InboxOutcome:
    """Result of one run, in rows unless noted.

    Args:
        requests: Requests counted now. [requests]
        known: Requests that a Stagelens agent has counted. [requests]
        folded: Rows of both.
        late: Rows that arrived after their request was counted.
        repeated: Duplicate rows.
        orphaned: Rows that never got a root.
        outside: Rows of no request.
        more: Whether more could be processed now.
    """

    requests: int = 0
    known: int = 0
    folded: int = 0
    late: int = 0
    repeated: int = 0
    orphaned: int = 0
    outside: int = 0
    more: bool = False


def process_inbox(delivery: Delivery, patience: InboxLimits, keep: SamplingPolicy) -> tuple[Folded, InboxOutcome]:
    """Process the complete requests of *delivery*; unreadable parcels leave when they are old."""
    parcels, spans, rows, is_due, unreadable, is_all = _load_relevant(delivery, patience)
    gathered = concatenate_spans([subset(each, chosen) for each, chosen in zip(spans, rows, strict=True)])
    counted = np.array([parcel.counted for parcel in parcels], np.bool_)[gathered.parcel]

    believable = np.flatnonzero(_valid_mask(gathered))
    joined = assemble_requests(gathered.chosen(believable), is_due[gathered.parcel[believable]], counted[believable])
    requests = requests_of(joined)
    fate = np.full(len(gathered.rows), Fate.ORPHANED)
    fate[believable] = joined.fate
    _orphan_expired(fate, gathered, parcels, is_due, delivery.now, patience)

    taken, rest = remaining_parcels(fate, parcels, is_due, spans, rows)
    forgotten, known = counted_parcels(joined, delivery, patience)
    old = [parcel.id for parcel in unreadable if parcel.received < delivery.now - patience.orphan_seconds]
    folded = Folded(
        points=points_of(requests),
        traces=traces_of(requests, keep),
        taken=list(dict.fromkeys((*taken, *forgotten, *old))),
        left=[*rest, *known],
    )
    return folded, _outcome(fate, requests, more=not is_all)


def _load_relevant(
    delivery: Delivery, patience: InboxLimits
) -> tuple[list[Parcel], list[Spans], list[Ints], Bools, list[Parcel], bool]:
    """Load the due parcels, and from all others the rows of the same traces.

    If more waits than is loaded at once, the oldest parcels count as due: waiting less is better than using more memory.

    Returns:
        The relevant parcels, their spans, their relevant rows, which parcels are due, the unreadable parcels, and whether all
        due parcels were loaded.
    """
    found: dict[int, tuple[Parcel, Spans, Ints]] = {}
    unreadable: list[Parcel] = []
    is_all, size = delivery.complete, 0
    for parcel in delivery.load([parcel for parcel in delivery.parcels if _may_be_due(parcel, delivery, patience)]):
        if size > patience.due_bytes:
            is_all = False
            break
        try:
            spans = _checked(parcel)
        except StoreError as error:
            unreadable.append(_log_unreadable(parcel, error))
        else:
            found[parcel.id] = parcel, spans, np.arange(len(spans.rows))
            size += parcel.size_bytes
    due = set(found)
    traces = _DueTraces([trace_keys(spans.rows) for _, spans, _ in found.values()])
    seen = due.union(parcel.id for parcel in unreadable)
    everything = [*delivery.parcels, *delivery.counted]
    for parcel in delivery.load([parcel for parcel in everything if due and parcel.id not in seen]):
        try:
            rows = traces.rows_of(decode_rows(parcel.spans))
            if len(rows):
                found[parcel.id] = parcel, _checked(parcel), rows
        except StoreError as error:
            unreadable.append(_log_unreadable(parcel, error))
    ordered = [found[parcel.id] for parcel in everything if parcel.id in found]
    return (
        [parcel for parcel, _, _ in ordered],
        [spans for _, spans, _ in ordered],
        [rows for _, _, rows in ordered],
        np.array([parcel.id in due for parcel, _, _ in ordered], np.bool_),
        unreadable,
        is_all,
    )


def _may_be_due(parcel: Parcel, delivery: Delivery, patience: InboxLimits) -> bool:
    """Return whether *parcel* has waited long enough, or must be processed because the inbox is too large."""
    passed = parcel.received <= delivery.now - patience.hold_seconds
    return passed or parcel.received > delivery.now + _MAX_SKEW_SECONDS or not delivery.complete


def _log_unreadable(parcel: Parcel, error: StoreError) -> Parcel:
    _log.error("parcel %d of the inbox cannot be read: %s", parcel.id, error)
    return parcel


def _checked(parcel: Parcel) -> Spans:
    """Return the spans of *parcel*.

    Raises:
        StoreError: The parcel is damaged.
    """
    spans = decode(parcel.spans)
    rows = spans.rows
    fits = (
        int(rows["source"].max(initial=0)) < max(len(spans.sources), not len(rows))
        and int(rows["label"].max(initial=0)) < max(len(spans.labels), not len(rows))
        and int(spans.streams["row"].max(initial=0)) < max(len(rows), not len(spans.streams))
        and bool((np.diff(spans.streams["row"].astype(np.int64)) > 0).all())
    )
    if not fits:
        msg = "stored spans are damaged (a row names a source or label that is not there); check the disk"
        raise StoreError(msg)
    return spans


def _valid_mask(gathered: SpanBatch) -> Bools:
    start, end = gathered.rows["start"], gathered.rows["end"]
    return (start > 0) & (start < _LATEST) & ((end == 0) | ((end >= start) & (end - start < _LONGEST)))


class _DueTraces:
    """Traces with due rows.

    Args:
        keys: Trace hashes of the due rows.
    """

    def __init__(self, keys: Sequence[Ids]) -> None:
        self._due = np.unique(np.concatenate((np.zeros(0, np.uint64), *keys)))
        self._table = np.zeros(_CELLS, np.bool_)
        self._table[_cells(self._due)] = True

    def rows_of(self, rows: Rows) -> Ints:
        """Return the indexes of *rows* that belong to these traces."""
        keys = trace_keys(rows)
        # Most rows belong to other traces: a table lookup is cheaper than a search.
        found = np.flatnonzero(self._table[_cells(keys)])
        return found[self._due[np.minimum(np.searchsorted(self._due, keys[found]), len(self._due) - 1)] == keys[found]]


def _cells(keys: Ids) -> Ints:
    return (keys & np.uint64(_CELLS - 1)).astype(np.int64)


def _orphan_expired(  # noqa: PLR0917 - state of one run
    fate: Ints, gathered: SpanBatch, parcels: Sequence[Parcel], carried: Bools, now: int, patience: InboxLimits
) -> None:
    """Mark rows as orphaned that have waited too long, and the oldest waiting rows beyond the size limit."""
    waits = fate == Fate.WAITING
    rows = np.bincount(gathered.parcel[waits], minlength=len(parcels)) * carried
    received = np.array([parcel.received for parcel in parcels], np.int64)
    newest_first = np.argsort(-received, kind="stable")
    held = np.zeros(len(parcels), np.int64)
    held[newest_first] = np.cumsum(rows[newest_first])
    past = carried & ((received < now - patience.orphan_seconds) | (held * ROW.itemsize > patience.carry_bytes))
    fate[waits & past[gathered.parcel]] = Fate.ORPHANED


def _outcome(fate: Ints, requests: Requests, *, more: bool) -> InboxOutcome:
    rows = np.bincount(fate, minlength=len(Fate)).tolist()
    known = int(requests.known.sum())
    return InboxOutcome(
        requests=len(requests.known) - known,
        known=known,
        folded=rows[Fate.JOINED],
        late=rows[Fate.LATE],
        repeated=rows[Fate.REPEATED],
        orphaned=rows[Fate.ORPHANED],
        outside=rows[Fate.OUTSIDE],
        more=more,
    )
