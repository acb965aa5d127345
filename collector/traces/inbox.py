"""Processing of the span inbox: complete requests become points and retained traces, each once.

A request is complete when its root has arrived and the wait for its other spans is over. Its rows then leave the inbox; its root
stays for some time as a counted request, so that late and duplicate spans are recognised and calls from other processes are matched.
Spans whose root never arrives are removed after a time limit. Complete requests are aggregated by the vectorized form of
`core.request_histograms`.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core import names
from ...core.attributes import ATTRIBUTE_SCALE, REPLICA, attribute_key, replica_stage_key
from ...core.errors import StoreError
from ...core.histogram import SCALE, TOKEN_COUNTS, ZERO_THRESHOLD, bucket_index
from ...core.stages import UNTIMED
from ...store.collectors import lost_points
from ...store.inbox import AggregationInput, AggregationResult, Parcel
from ...store.points import Buckets, HistogramArrays, Identity, PointColumns
from ...store.series import Series
from .assembly import (
    AssembledSpans,
    Bools,
    Fate,
    Ids,
    Ints,
    SpanBatch,
    assemble_requests,
    concatenate_spans,
    group_rows,
    subset,
    trace_keys,
)
from .columns import ROW, Flag, Rows, Spans, decode_rows, decode_spans, encode_spans, streams_of
from .requests import Requests, requests_of, split_by_stage
from .sampling import SamplingPolicy, traces_of

_log = logging.getLogger(__name__)

Floats = NDArray[np.float64]

_NS = 1_000_000_000
_WIDTH_SECONDS = 10
# Distance to a bucket edge below which the logarithms of numpy and Python may round to different buckets.
_CLOSE = 1e-9


class _MetricHistograms(NamedTuple):
    """Histograms of one metric; *key* is the group of requests times the number of *names*, plus the index of the name."""

    metric: str
    names: Sequence[str]
    key: Ints
    histograms: HistogramArrays


@dataclass(frozen=True, slots=True)
class _Groups:
    of_request: Ints  # group of each request; -1 if an agent has counted the request
    series: Ints  # series of each group; index of `Requests.kinds`
    at: Ints  # time of each group [Unix seconds]


class _SeriesIdentities(dict[tuple[str, str], Identity]):
    def __init__(self, series: Series) -> None:
        super().__init__()
        self.series = series


# The store caches what it knows about an identity, so each is created once. A bounded number of series is cached.
_KNOWN_SERIES: dict[Series, _SeriesIdentities] = {}
_MAX_KNOWN_SERIES = 2000


def _identities_of(series: Series) -> _SeriesIdentities:
    if series not in _KNOWN_SERIES and len(_KNOWN_SERIES) >= _MAX_KNOWN_SERIES:
        _KNOWN_SERIES.clear()
    return _KNOWN_SERIES.setdefault(series, _SeriesIdentities(series))


def _identity(known: _SeriesIdentities, metric: str, stage: str) -> Identity:
    found = known.get((metric, stage))
    if found is None:
        found = known[metric, stage] = Identity(known.series, metric, stage)
    return found


def points_of(requests: Requests) -> PointColumns:
    counted, probes = requests.counted, np.flatnonzero(~requests.known & requests.probe)
    columns: list[PointColumns] = []
    if len(counted):
        together = _groups(requests, counted)
        times = _time_histograms(requests, counted, together.of_request[counted])
        columns += _columns(requests, together, [*times, *_token_histograms(requests, together)])
        columns += _replica_points(requests, counted)
    if len(probes):
        together, ns = _groups(requests, probes), requests.duration[probes]
        stage = np.zeros_like(probes)
        group = together.of_request[probes]
        found = _histograms(names.PROBE_DURATION, (UNTIMED,), group, stage, ns / _NS, ns)
        columns += _columns(requests, together, [found])
    return PointColumns.join(columns) if columns else PointColumns.of([])


def _columns(requests: Requests, together: _Groups, found: Sequence[_MetricHistograms]) -> Iterator[PointColumns]:
    of_kind = [_identities_of(series) for series in requests.kinds]
    series = [of_kind[number] for number in together.series.tolist()]
    for metric, by, key, histograms in found:
        group, name = np.divmod(key, len(by))
        pairs = zip(group.tolist(), name.tolist(), strict=True)
        identities = [_identity(series[of], metric, by[int(which)]) for of, which in pairs]
        yield PointColumns(identities, together.at[group], histograms)


def _groups(requests: Requests, counted: Ints) -> _Groups:
    at = (requests.start + requests.duration)[counted] // (_WIDTH_SECONDS * _NS)
    first, group = group_rows(requests.series[counted], at)
    of_request = np.full(len(requests.known), -1)
    of_request[counted] = group
    return _Groups(of_request, requests.series[counted][first], at[first] * _WIDTH_SECONDS)


def _time_histograms(requests: Requests, counted: Ints, group: Ints) -> Iterator[_MetricHistograms]:
    stages, duration = requests.stages, requests.duration[counted]
    own, present = requests.split.own[counted], requests.split.present[counted]
    main = requests.split.main[counted]
    request, stage = np.nonzero(present)
    yield _histograms(names.REQUEST_DURATION, stages, group, main, duration / _NS, duration)
    yield _histograms(
        names.STAGE_DURATION, stages, group[request], stage, own[request, stage] / _NS, own[request, stage]
    )
    yield _stage_time_histograms(names.STAGE_TIME, stages, group, _buckets(duration / _NS), own)


def _replica_points(requests: Requests, counted: Ints) -> Iterator[PointColumns]:
    gathered = requests.joined.gathered
    named = [each.place or each.instance for each in gathered.sources]
    places = sorted({*named})
    replica = np.array([places.index(each) for each in named], np.int64)[gathered.source[requests.joined.roots]]
    counted = counted[np.array([bool(each) for each in places], np.bool_)[replica[counted]]]
    duration = requests.duration[counted]
    minute = (requests.start[counted] + duration) // (_MINUTE * _NS)
    first, group = group_rows(requests.series[counted], replica[counted], minute)
    of_kind = [_identities_of(series) for series in requests.kinds]
    series = [of_kind[number] for number in requests.series[counted][first].tolist()]
    replicas = [places[number] for number in replica[counted][first].tolist()]
    seconds = duration / _NS
    latency = _histograms(names.REQUEST_BY_ATTRIBUTE, ("",), group, np.zeros_like(group), seconds, duration)
    own = requests.split.own[counted]
    spent = _stage_time_histograms(names.REPLICA_STAGE_TIME, requests.stages, group, _buckets(seconds), own)
    for metric, by, key, found in (latency, spent):
        of, name = np.divmod(key, len(by))
        stages = [by[int(which)] for which in name.tolist()]
        keys = [
            replica_stage_key(stage, replicas[number]) if stage else attribute_key(REPLICA.key, replicas[number])
            for number, stage in zip(of.tolist(), stages, strict=True)
        ]
        identities = [_identity(series[number], metric, each) for number, each in zip(of.tolist(), keys, strict=True)]
        buckets = replace(found.buckets, index=found.buckets.index >> SCALE - ATTRIBUTE_SCALE)
        histograms = replace(found, scale=np.full(len(found), ATTRIBUTE_SCALE), buckets=buckets)
        yield PointColumns(identities, minute[first][of] * _MINUTE, histograms)


def _token_histograms(requests: Requests, together: _Groups) -> Iterator[_MetricHistograms]:
    responses = requests.responses
    group = together.of_request[responses.request]
    counted = group >= 0

    def histograms(  # noqa: PLR0917 - as `_histograms`
        metric: str, by: Sequence[str], which: Bools, name: Ints, values: Floats, ns: Ints | None = None
    ) -> _MetricHistograms:
        exact = None if ns is None else ns[which]
        return _histograms(metric, by, group[which], name[which], values[which], exact)

    first, definition = responses.first_token, responses.definition
    timed = counted & (first > 0) & (first <= requests.duration[responses.request])
    if timed.any():
        yield histograms(names.FIRST_TOKEN, responses.definitions, timed, definition, first / _NS, first)
        chosen = responses.request[timed]
        until = requests.intervals.of(chosen, requests.start[chosen] + first[timed])
        own = split_by_stage(until, requests.stages, len(chosen)).own
        yield _stage_time_histograms(
            names.FIRST_TOKEN_TIME, requests.stages, group[timed], _buckets(first[timed] / _NS), own
        )
        yield histograms(
            names.FIRST_TOKEN_BY_INPUT,
            TOKEN_COUNTS.names,
            timed & (responses.tokens_in > 0),
            _token_buckets(responses.tokens_in),
            first / _NS,
            first,
        )
        flowed = timed & (responses.tokens_out > 1) & (responses.last > first)
        mean = (responses.last - first) / np.maximum(responses.tokens_out - 1, 1) / _NS
        yield histograms(names.OUTPUT_TOKEN, responses.definitions, flowed, definition, mean)
        yield histograms(
            names.OUTPUT_TOKEN_BY_OUTPUT, TOKEN_COUNTS.names, flowed, _token_buckets(responses.tokens_out), mean
        )
    gap = responses.gap
    yield histograms(names.STREAM_GAP, responses.definitions, counted & (gap > 0), definition, gap / _NS, gap)
    for place, tokens in enumerate((responses.tokens_in, responses.tokens_out)):
        yield histograms(
            names.TOKENS,
            (names.TOKENS_IN, names.TOKENS_OUT),
            counted & (tokens > 0),
            np.full(len(tokens), place),
            tokens.astype(np.float64),
        )


def _token_buckets(tokens: Ints) -> Ints:
    return (
        np.minimum(np.frexp(np.maximum(tokens, 1).astype(np.float64))[1], len(TOKEN_COUNTS.names)).astype(np.int64) - 1
    )


def _buckets(values: Floats) -> Ints:
    """Return the bucket of each value, as `bucket_index` does; the bucket of values below a nanosecond is arbitrary."""
    values = np.maximum(values, ZERO_THRESHOLD)
    place = np.log2(values) * 2**SCALE
    found = np.ceil(place).astype(np.int64) - 1
    for row in np.flatnonzero(np.abs(place - np.rint(place)) < _CLOSE).tolist():
        found[row] = bucket_index(float(values[row]))
    return found


def _histograms(  # noqa: PLR0917 - metric, groups and values
    metric: str, by: Sequence[str], group: Ints, name: Ints, values: Floats, ns: Ints | None
) -> _MetricHistograms:
    """Aggregate *values* by *group* and *name* (an index of *by*); *ns* has the exact nanoseconds of durations."""
    keys, owner = np.unique(group * len(by) + name, return_inverse=True)
    is_zero = values < ZERO_THRESHOLD
    zero = np.bincount(owner[is_zero], minlength=len(keys))
    exact = values if ns is None else ns
    total = np.zeros(len(keys), exact.dtype)
    np.add.at(total, owner, exact)
    sums = total.astype(np.float64) if ns is None else np.array([each / _NS for each in total.tolist()], np.float64)
    owner, bucket = owner[~is_zero], _buckets(values[~is_zero])
    first, cell = group_rows(owner, bucket)
    sizes = np.bincount(owner[first], minlength=len(keys))
    counts = np.bincount(cell, minlength=len(first))
    buckets = Buckets(np.append(0, np.cumsum(sizes)), bucket[first], counts)
    return _MetricHistograms(metric, by, keys, HistogramArrays(np.full(len(keys), SCALE), zero, sums, buckets))


def _stage_time_histograms(
    metric: str, stages: Sequence[str], group: Ints, bucket: Ints, own: Ints
) -> _MetricHistograms:
    """Sum the microseconds of each group and stage, by the latency bucket of the requests.

    Rounding follows `core.request_histograms.round_to_microseconds`, so that the stages of a bucket add up to its rounded total.
    """
    timed = own.any(axis=1)
    group, bucket = group[timed], bucket[timed]
    first, cell = group_rows(group, bucket)
    total = np.zeros((len(first), own.shape[1]), np.int64)
    np.add.at(total, cell, own[timed])
    until = (np.cumsum(total, axis=1) + 500) // 1000
    microseconds = np.diff(until, axis=1, prepend=0)
    cells, stage = np.nonzero(microseconds)
    key = group[first][cells] * len(stages) + stage
    # The cells are ordered by group and bucket; the stable sort keeps that order within a key.
    order = np.argsort(key, kind="stable")
    keys, sizes = np.unique(key, return_counts=True)
    buckets = Buckets(np.append(0, np.cumsum(sizes)), bucket[first][cells][order], microseconds[cells, stage][order])
    nothing = np.zeros(len(keys), np.int64)
    return _MetricHistograms(
        metric, stages, keys, HistogramArrays(np.full(len(keys), SCALE), nothing, nothing.astype(np.float64), buckets)
    )


# Parcels of the same minute up to this size are merged. [bytes]
_SMALL_BYTES = 256 * 1024
_MINUTE = 60


@dataclass(frozen=True, slots=True)
class InboxLimits:
    hold_seconds: int = 10  # time to wait for the other spans of a request after its root [seconds]
    orphan_seconds: int = 3600  # time to wait for a root [seconds]
    remember_seconds: int = 900  # time for which counted requests are remembered [seconds]
    remember_bytes: int = 8 * 1024**2  # size limit of remembered requests; the oldest are dropped first
    carry_bytes: int = 4 * 1024**2  # size limit of spans without a root; the oldest are orphaned first
    # Size of spans processed at once, larger than *carry_bytes*; processing needs about eight times this memory.
    due_bytes: int = 6 * 1024**2


def remaining_parcels(
    fate: Ints, parcels: Sequence[Parcel], is_due: Bools, spans: Sequence[Spans], rows: Sequence[Ints]
) -> tuple[list[int], list[Parcel]]:
    """Return the numbers of the parcels to remove, and new parcels with their spans that still wait."""
    first = np.cumsum([0, *map(len, rows)])
    stays: list[Ints] = []
    for place, (each, chosen) in enumerate(zip(spans, rows, strict=True)):
        here = np.ones(len(each.rows), np.bool_)
        here[chosen] = fate[first[place] : first[place + 1]] == Fate.WAITING
        stays.append(np.flatnonzero(here))
    # Waiting spans of one minute are merged into one parcel; otherwise each run would add a parcel.
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
        left += [Parcel(received, counted=False, spans=encode_spans(each)) for each in rest.spans()]
    return taken, left


def counted_parcels(
    joined: AssembledSpans, delivery: AggregationInput, limits: InboxLimits
) -> tuple[list[int], list[Parcel]]:
    """Return the numbers of the parcels of counted requests to remove, and the parcels that replace them."""
    free_bytes = limits.remember_bytes
    taken: list[int] = []
    recent: list[Parcel] = []
    for parcel in reversed(delivery.counted):
        free_bytes -= parcel.size_bytes
        if free_bytes < 0 or parcel.received < delivery.now - limits.remember_seconds:
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
    merged = [decode_spans(parcel.spans) for parcel in delivery.load(recent)]
    merged += (replace(each, streams=streams_of({})) for each in joined.gathered.chosen(joined.roots).spans())
    return taken, [
        Parcel(delivery.now, counted=True, spans=encode_spans(each)) for each in concatenate_spans(merged).spans()
    ]


# Parcels received further in the future than this are due: the clock was set back. [seconds]
_MAX_SKEW_SECONDS = 60
# Limits of span times and durations; sums of durations below the limit fit into 64 bits. [nanoseconds]
_LATEST, _LONGEST = 2**62, 2**52
# Cells of the table of due traces: several for each row that is processed at once.
_CELLS = 1 << 22


@dataclass(frozen=True, slots=True)
class InboxOutcome:
    """Counts of one run of `process_inbox`, in rows by `Fate` unless noted."""

    requests: int = 0  # requests counted now [requests]
    known: int = 0  # requests that a Stagelens agent has counted [requests]
    folded: int = 0  # rows of these requests, counted now or by an agent
    late: int = 0
    repeated: int = 0
    orphaned: int = 0
    outside: int = 0
    more: bool = False  # whether further due parcels wait


def process_inbox(
    delivery: AggregationInput, limits: InboxLimits, policy: SamplingPolicy
) -> tuple[AggregationResult, InboxOutcome]:
    """Aggregate the complete requests of *delivery* into points and traces; drop old parcels that cannot be read."""
    parcels, spans, rows, is_due, unreadable, is_all = _load_relevant(delivery, limits)
    gathered = concatenate_spans([subset(each, chosen) for each, chosen in zip(spans, rows, strict=True)])
    counted = np.array([parcel.counted for parcel in parcels], np.bool_)[gathered.parcel]

    believable = np.flatnonzero(_valid_mask(gathered))
    joined = assemble_requests(gathered.chosen(believable), is_due[gathered.parcel[believable]], counted[believable])
    requests = requests_of(joined)
    fate = np.full(len(gathered.rows), Fate.ORPHANED)
    fate[believable] = joined.fate
    _orphan_expired(fate, gathered, parcels, is_due, delivery.now, limits)

    taken, rest = remaining_parcels(fate, parcels, is_due, spans, rows)
    forgotten, known = counted_parcels(joined, delivery, limits)
    old = [parcel.id for parcel in unreadable if parcel.received < delivery.now - limits.orphan_seconds]
    result = AggregationResult(
        points=PointColumns.join([points_of(requests), _lost_points(fate, gathered, delivery.now)]),
        traces=traces_of(requests, policy),
        taken=list(dict.fromkeys((*taken, *forgotten, *old))),
        left=[*rest, *known],
    )
    return result, _outcome(fate, requests, more=not is_all)


def _load_relevant(
    delivery: AggregationInput, limits: InboxLimits
) -> tuple[list[Parcel], list[Spans], list[Ints], Bools, list[Parcel], bool]:
    """Load the due parcels, and from all other parcels the rows of the same traces.

    If more spans wait than are loaded at once, the oldest parcels count as due: a shorter wait is better than more memory.

    Returns:
        The relevant parcels, their spans, their relevant rows, which parcels are due, the unreadable parcels, and whether all
        due parcels were loaded.
    """
    found: dict[int, tuple[Parcel, Spans, Ints]] = {}
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


def _may_be_due(parcel: Parcel, delivery: AggregationInput, limits: InboxLimits) -> bool:
    """Return whether *parcel* has waited long enough, or must be processed because the inbox is too large."""
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


def _valid_mask(gathered: SpanBatch) -> Bools:
    start, end = gathered.rows["start"], gathered.rows["end"]
    return (start > 0) & (start < _LATEST) & ((end == 0) | ((end >= start) & (end - start < _LONGEST)))


class _DueTraces:
    def __init__(self, keys: Sequence[Ids]) -> None:
        self._due = np.unique(np.concatenate((np.zeros(0, np.uint64), *keys)))
        self._table = np.zeros(_CELLS, np.bool_)
        self._table[_cells(self._due)] = True

    def rows_of(self, rows: Rows) -> Ints:
        keys = trace_keys(rows)
        # Most rows belong to other traces: a table lookup is cheaper than a search.
        found = np.flatnonzero(self._table[_cells(keys)])
        return found[self._due[np.minimum(np.searchsorted(self._due, keys[found]), len(self._due) - 1)] == keys[found]]


def _cells(keys: Ids) -> Ints:
    return (keys & np.uint64(_CELLS - 1)).astype(np.int64)


def _orphan_expired(  # noqa: PLR0917 - state of one run
    fate: Ints, gathered: SpanBatch, parcels: Sequence[Parcel], carried: Bools, now: int, limits: InboxLimits
) -> None:
    waits = fate == Fate.WAITING
    rows = np.bincount(gathered.parcel[waits], minlength=len(parcels)) * carried
    received = np.array([parcel.received for parcel in parcels], np.int64)
    newest_first = np.argsort(-received, kind="stable")
    held = np.zeros(len(parcels), np.int64)
    held[newest_first] = np.cumsum(rows[newest_first])
    past = carried & ((received < now - limits.orphan_seconds) | (held * ROW.itemsize > limits.carry_bytes))
    fate[waits & past[gathered.parcel]] = Fate.ORPHANED


_LOSSES = {Fate.LATE: "late_spans", Fate.ORPHANED: "orphaned_spans"}


def _lost_points(fate: Ints, gathered: SpanBatch, now: int) -> PointColumns:
    """Return the numbers of spans, without intervals, that belong to no counted request, by service and reason."""
    is_span = ~gathered.flag(Flag.DERIVED)
    return PointColumns.join([
        PointColumns.of([]),
        *(
            lost_points(Series(source.service, source.version, source.environment), reason, int(number), now)
            for kind, reason in _LOSSES.items()
            for source, number in zip(
                gathered.sources,
                np.bincount(gathered.source[(fate == kind) & is_span], minlength=len(gathered.sources)),
                strict=True,
            )
            if number
        ),
    ])  # fmt: skip


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
