"""Processing of the span inbox: complete requests become points and retained traces, each once.

A request is complete when its root has arrived and the wait for its other spans is over. Its rows then leave the inbox; its root
stays for some time as a counted request, so that late and duplicate spans are recognised and calls from other processes are matched.
Spans whose root never arrives are removed after a time limit.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...core.columns import Bools, Ints, offsets_of
from ...core.errors import StoreError
from ...store.collectors import lost_points
from ...store.inbox import AggregationInput, AggregationResult, Parcel
from ...store.points import PointColumns
from ...store.series import Series
from .assembly import AssembledSpans, Ids, Outcome, SpanBatch, assemble_requests, concatenate_spans, trace_keys
from .columns import ROW, Flag, Rows, Spans, decode_rows, decode_spans, encode_spans, streams_of
from .points import points_of
from .requests import Requests, requests_of
from .sampling import SamplingPolicy, traces_of

_log = logging.getLogger(__name__)

_MINUTE = 60
# Parcels of the same minute up to this size are merged. [bytes]
_SMALL_BYTES = 256 * 1024
# Parcels received further in the future than this are due: the clock was set back. [seconds]
_MAX_SKEW_SECONDS = 60
# Limits of span times and durations; sums of durations below the limit fit into 64 bits. [nanoseconds]
_LATEST, _LONGEST = 2**62, 2**52
# Cells of the table of due traces: several for each row that is processed at once.
_CELLS = 1 << 22
_LOSSES = {Outcome.LATE: "late_spans", Outcome.ORPHANED: "orphaned_spans"}


@dataclass(frozen=True, slots=True)
class InboxLimits:
    hold_seconds: int = 10  # time to wait for the other spans of a request after its root [seconds]
    orphan_seconds: int = 3600  # time to wait for a root [seconds]
    remember_seconds: int = 900  # time for which counted requests are remembered [seconds]
    remember_bytes: int = 8 * 1024**2  # size limit of remembered requests; the oldest are dropped first
    carry_bytes: int = 4 * 1024**2  # size limit of spans without a root; the oldest are orphaned first
    # Size of spans processed at once, larger than *carry_bytes*; processing needs about eight times this memory.
    due_bytes: int = 6 * 1024**2


def remaining_parcels(outcome: Ints, loaded: _Loaded) -> tuple[list[int], list[Parcel]]:
    """Return the ids of the parcels to remove, and new parcels with their spans that still wait."""
    edges = offsets_of(np.array([*map(len, loaded.rows)], np.int64)).tolist()
    waiting: list[Ints] = []
    for spans, rows, low, high in zip(loaded.spans, loaded.rows, edges, edges[1:], strict=False):
        is_waiting = np.ones(len(spans.rows), np.bool_)
        is_waiting[rows] = outcome[low:high] == Outcome.WAITING
        waiting.append(np.flatnonzero(is_waiting))
    # Waiting spans of one minute are merged into one parcel; otherwise each run would add a parcel.
    by_minute: defaultdict[tuple[bool, int], list[int]] = defaultdict(list)
    for number, parcel in enumerate(loaded.parcels):
        is_whole, is_due = _is_whole(loaded, waiting, number), bool(loaded.is_due[number])
        if not parcel.counted and (not is_whole or (is_due and len(parcel.spans) < _SMALL_BYTES)):
            by_minute[is_due, parcel.received // _MINUTE if is_due else parcel.received].append(number)
    remove_ids, merged = list[int](), list[Parcel]()
    for numbers in by_minute.values():
        if len(numbers) == 1 and _is_whole(loaded, waiting, numbers[0]):
            continue
        remove_ids += [loaded.parcels[number].id for number in numbers]
        received = max(loaded.parcels[number].received for number in numbers)
        batch = concatenate_spans([loaded.spans[number].take(waiting[number]) for number in numbers])
        merged += [Parcel(received, counted=False, spans=encode_spans(spans)) for spans in batch.spans()]
    return remove_ids, merged


def _is_whole(loaded: _Loaded, waiting: Sequence[Ints], number: int) -> bool:
    return len(waiting[number]) == len(loaded.spans[number].rows) > 0


def counted_parcels(
    assembled: AssembledSpans, delivery: AggregationInput, limits: InboxLimits
) -> tuple[list[int], list[Parcel]]:
    """Return the ids of the parcels of counted requests to remove, and the parcels that replace them."""
    free_bytes = limits.remember_bytes
    remove_ids: list[int] = []
    recent: list[Parcel] = []
    for parcel in reversed(delivery.counted):
        free_bytes -= parcel.size_bytes
        if free_bytes < 0 or parcel.received < delivery.now - limits.remember_seconds:
            remove_ids.append(parcel.id)
        elif (
            len(assembled.roots)
            and parcel.received // _MINUTE == delivery.now // _MINUTE
            and parcel.size_bytes < _SMALL_BYTES
        ):
            remove_ids.append(parcel.id)
            recent.append(parcel)
    if not len(assembled.roots):
        return remove_ids, []
    counted = [decode_spans(parcel.spans) for parcel in delivery.load(recent)]
    roots = assembled.batch.take(assembled.roots)
    counted += (replace(spans, streams=streams_of({})) for spans in roots.spans())
    merged = concatenate_spans(counted).spans()
    return remove_ids, [Parcel(delivery.now, counted=True, spans=encode_spans(spans)) for spans in merged]


@dataclass(frozen=True, slots=True)
class InboxOutcome:
    """Counts of one run of `process_inbox`, in rows by `Outcome` unless noted."""

    requests: int = 0  # requests counted now [requests]
    known: int = 0  # requests that a Stagelens agent has counted [requests]
    aggregated: int = 0  # rows of these requests, counted now or by an agent
    late: int = 0
    repeated: int = 0
    orphaned: int = 0
    outside: int = 0
    more: bool = False  # whether further due parcels wait


def process_inbox(
    delivery: AggregationInput, limits: InboxLimits, policy: SamplingPolicy
) -> tuple[AggregationResult, InboxOutcome]:
    """Aggregate the complete requests of *delivery* into points and traces; drop old parcels that cannot be read."""
    loaded = _load_relevant(delivery, limits)
    parcels, is_due = loaded.parcels, loaded.is_due
    batch = concatenate_spans([spans.take(rows) for spans, rows in zip(loaded.spans, loaded.rows, strict=True)])
    is_counted = np.array([parcel.counted for parcel in parcels], np.bool_)[batch.parcel]

    valid_rows = np.flatnonzero(_valid_mask(batch))
    assembled = assemble_requests(batch.take(valid_rows), is_due[batch.parcel[valid_rows]], is_counted[valid_rows])
    requests = requests_of(assembled)
    outcome = np.full(len(batch.rows), Outcome.ORPHANED)
    outcome[valid_rows] = assembled.outcome
    _orphan_expired(outcome, batch, loaded, delivery.now, limits)

    waiting_ids, waiting = remaining_parcels(outcome, loaded)
    counted_ids, counted = counted_parcels(assembled, delivery, limits)
    old_ids = [parcel.id for parcel in loaded.unreadable if parcel.received < delivery.now - limits.orphan_seconds]
    result = AggregationResult(
        points=PointColumns.join([points_of(requests), _lost_points(outcome, batch, delivery.now)]),
        traces=traces_of(requests, policy),
        remove_ids=list(dict.fromkeys((*waiting_ids, *counted_ids, *old_ids))),
        remaining=[*waiting, *counted],
    )
    return result, _summary(outcome, requests, more=not loaded.is_all)


@dataclass(slots=True)
class _Loaded:
    parcels: list[Parcel]
    spans: list[Spans]
    rows: list[Ints]  # rows to process: all of a due parcel, else those of due traces
    is_due: Bools
    unreadable: list[Parcel]
    is_all: bool  # whether all due parcels were loaded


def _load_relevant(delivery: AggregationInput, limits: InboxLimits) -> _Loaded:
    """Load the due parcels, and from all other parcels the rows of the same traces.

    If more spans wait than are loaded at once, the oldest parcels count as due: a shorter wait is better than more memory.
    """
    loaded: dict[int, tuple[Parcel, Spans, Ints]] = {}
    unreadable: list[Parcel] = []
    is_all, size = delivery.complete, 0
    for parcel in delivery.load([parcel for parcel in delivery.parcels if _may_be_due(parcel, delivery, limits)]):
        if size > limits.due_bytes:
            is_all = False
            break
        try:
            spans = _checked(parcel)
        except StoreError as error:
            unreadable.append(_log_unreadable(parcel, error))
        else:
            loaded[parcel.id] = parcel, spans, np.arange(len(spans.rows))
            size += parcel.size_bytes
    due = set(loaded)
    traces = _DueTraces([trace_keys(spans.rows) for _, spans, _ in loaded.values()])
    seen = due.union(parcel.id for parcel in unreadable)
    everything = [*delivery.parcels, *delivery.counted]
    for parcel in delivery.load([parcel for parcel in everything if due and parcel.id not in seen]):
        try:
            rows = traces.rows_of(decode_rows(parcel.spans))
            if len(rows):
                loaded[parcel.id] = parcel, _checked(parcel), rows
        except StoreError as error:
            unreadable.append(_log_unreadable(parcel, error))
    ordered = [loaded[parcel.id] for parcel in everything if parcel.id in loaded]
    return _Loaded(
        [parcel for parcel, _, _ in ordered],
        [spans for _, spans, _ in ordered],
        [rows for _, _, rows in ordered],
        np.array([parcel.id in due for parcel, _, _ in ordered], np.bool_),
        unreadable,
        is_all,
    )


def _may_be_due(parcel: Parcel, delivery: AggregationInput, limits: InboxLimits) -> bool:
    passed = parcel.received <= delivery.now - limits.hold_seconds
    return passed or parcel.received > delivery.now + _MAX_SKEW_SECONDS or not delivery.complete


def _log_unreadable(parcel: Parcel, error: StoreError) -> Parcel:
    _log.error("batch %d of the waiting spans cannot be read: %s", parcel.id, error)
    return parcel


def _checked(parcel: Parcel) -> Spans:
    spans = decode_spans(parcel.spans)
    rows = spans.rows
    fits = (
        int(rows["source"].max(initial=0)) < max(len(spans.sources), not len(rows))
        and int(rows["label"].max(initial=0)) < max(len(spans.labels), not len(rows))
        and int(spans.streams["row"].max(initial=0)) < max(len(rows), not len(spans.streams))
        and bool((np.diff(spans.streams["row"].astype(np.int64)) > 0).all())
    )
    if not fits:
        msg = "stored spans are damaged (a row refers to a missing source or label); check the disk"
        raise StoreError(msg)
    return spans


def _valid_mask(batch: SpanBatch) -> Bools:
    start, end = batch.rows["start"], batch.rows["end"]
    return (start > 0) & (start < _LATEST) & ((end == 0) | ((end >= start) & (end - start < _LONGEST)))


class _DueTraces:
    def __init__(self, keys: Sequence[Ids]) -> None:
        self._due = np.unique(np.concatenate((np.zeros(0, np.uint64), *keys)))
        self._table = np.zeros(_CELLS, np.bool_)
        self._table[_cells(self._due)] = True

    def rows_of(self, rows: Rows) -> Ints:
        keys = trace_keys(rows)
        # Most rows belong to other traces: a table lookup is cheaper than a search.
        candidates = np.flatnonzero(self._table[_cells(keys)])
        return candidates[
            self._due[np.minimum(np.searchsorted(self._due, keys[candidates]), len(self._due) - 1)] == keys[candidates]
        ]


def _cells(keys: Ids) -> Ints:
    return (keys & np.uint64(_CELLS - 1)).astype(np.int64)


def _orphan_expired(outcome: Ints, batch: SpanBatch, loaded: _Loaded, now: int, limits: InboxLimits) -> None:
    waits = outcome == Outcome.WAITING
    rows = np.bincount(batch.parcel[waits], minlength=len(loaded.parcels)) * loaded.is_due
    received = np.array([parcel.received for parcel in loaded.parcels], np.int64)
    newest_first = np.argsort(-received, kind="stable")
    held = np.zeros(len(received), np.int64)
    held[newest_first] = np.cumsum(rows[newest_first])
    is_old = (received < now - limits.orphan_seconds) | (held * ROW.itemsize > limits.carry_bytes)
    outcome[waits & (loaded.is_due & is_old)[batch.parcel]] = Outcome.ORPHANED


def _lost_points(outcome: Ints, batch: SpanBatch, now: int) -> PointColumns:
    """Return the numbers of spans, without intervals, that belong to no counted request, by service and reason."""
    is_span = ~batch.flag(Flag.DERIVED)
    lost: list[PointColumns] = []
    for kind, reason in _LOSSES.items():
        counts = np.bincount(batch.source[(outcome == kind) & is_span], minlength=len(batch.sources)).tolist()
        lost += [
            lost_points(Series(source.service, source.version, source.environment), reason, count, now)
            for source, count in zip(batch.sources, counts, strict=True)
            if count
        ]
    return PointColumns.join([PointColumns.of([]), *lost])


def _summary(outcome: Ints, requests: Requests, *, more: bool) -> InboxOutcome:
    rows = np.bincount(outcome, minlength=len(Outcome)).tolist()
    by_agent = int(requests.by_agent.sum())
    return InboxOutcome(
        requests=len(requests.by_agent) - by_agent,
        known=by_agent,
        aggregated=rows[Outcome.JOINED],
        late=rows[Outcome.LATE],
        repeated=rows[Outcome.REPEATED],
        orphaned=rows[Outcome.ORPHANED],
        outside=rows[Outcome.OUTSIDE],
        more=more,
    )
