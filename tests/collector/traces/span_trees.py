"""Spans, their exports, and a simple reference implementation that counts requests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from stagelens.collector.traces.columns import (
    ROW,
    Flag,
    Label,
    Spans,
    SpanSource,
    StreamMeasurements,
    decode_rows,
    encode_spans,
    streams_of,
)
from stagelens.collector.traces.inbox import InboxLimits, InboxOutcome, process_inbox
from stagelens.collector.traces.sampling import SamplingPolicy
from stagelens.core import names
from stagelens.core.histogram import TOKEN_COUNTS
from stagelens.core.partition import Interval, partition
from stagelens.core.request_histograms import RequestHistograms
from stagelens.core.stages import OTHER
from stagelens.store import Point, RetainedTrace, Series, records, schema
from stagelens.store.inbox import AggregationInput, Parcel

# 2026-11-20 12:00:00 UTC.
NOON = 1_795_176_000
NS = 1_000_000_000
CALLS = ("client", "producer")
SHOP, STOCK = SpanSource("shop", "1", "prod", "pod-1"), SpanSource("stock")


@dataclass(frozen=True)
class Span:
    id: int
    parent: int = 0
    start: int = 0
    end: int | None = None
    label: Label = field(default_factory=lambda: Label("work"))
    source: SpanSource = SHOP
    trace: int = 1
    flags: int = 0
    stream: StreamMeasurements | None = None


def columns(spans: Sequence[Span]) -> Spans:
    sources, labels = list({span.source: 0 for span in spans}), list({span.label: 0 for span in spans})
    rows = np.zeros(len(spans), ROW)
    for row, span in zip(rows, spans, strict=True):
        row["trace_high"], row["trace_low"], row["span"], row["parent"] = 7, span.trace, span.id, span.parent
        row["start"], row["end"] = NOON * NS + span.start, 0 if span.end is None else NOON * NS + span.end
        row["label"], row["source"] = labels.index(span.label), sources.index(span.source)
        row["flags"] = span.flags
    streams = {place: span.stream for place, span in enumerate(spans) if span.stream is not None}
    return Spans(rows, sources, labels, streams_of(streams))


def opened(trace: RetainedTrace) -> RetainedTrace:
    assert trace.document is not None
    document = records.unpack_trace(trace.document)
    read = {"spans": document["spans"], "attributes": document["attributes"], "parent_id": document["parent"]}
    return replace(trace, **read, document=None)


class Shown(NamedTuple):
    name: str
    stage: str
    start: int
    took: int
    failed: bool = False


class Inbox:
    """In-memory inbox with the operations of the store."""

    def __init__(self, limits: InboxLimits | None = None, keep: SamplingPolicy | None = None) -> None:
        self.limits, self.keep = limits or InboxLimits(), keep or SamplingPolicy(everything=True)
        self.parcels: dict[int, Parcel] = {}
        self.points: list[Point] = []
        self.traces: list[RetainedTrace] = []
        self._numbers = 0

    def put(self, spans: Sequence[Span], at: int) -> None:
        self.put_parcel(Parcel(NOON + at, counted=False, spans=encode_spans(columns(spans))))

    def take(self, spans: Sequence[Span], at: int, processed_at: int) -> InboxOutcome:
        self.put(spans, at)
        return self.process(processed_at)

    def put_parcel(self, parcel: Parcel) -> None:
        self._numbers += 1
        self.parcels[self._numbers] = replace(parcel, id=self._numbers)

    def process(self, at: int, max_bytes: int | None = None) -> InboxOutcome:
        ordered = sorted(self.parcels.values(), key=lambda parcel: (parcel.received, parcel.id))
        waiting = [parcel for parcel in ordered if not parcel.counted]
        chosen, size = list[Parcel](), 0
        for parcel in waiting:
            size += len(parcel.spans)
            if chosen and max_bytes is not None and size > max_bytes:
                break
            chosen.append(parcel)
        counted = [parcel for parcel in ordered if parcel.counted]
        delivery = AggregationInput(NOON + at, chosen, counted, complete=len(chosen) == len(waiting))
        folded, outcome = process_inbox(delivery, self.limits, self.keep)

        assert len(set(folded.remove_ids)) == len(folded.remove_ids)
        for number in folded.remove_ids:
            del self.parcels[number]
        for parcel in folded.remaining:
            self.put_parcel(parcel)
        self.points += folded.points
        self.traces += map(opened, folded.traces)
        return outcome

    def rows(self) -> int:
        return sum(len(decode_rows(parcel.spans)) for parcel in self.parcels.values() if not parcel.counted)

    def waiting(self) -> int:
        return sum(not parcel.counted for parcel in self.parcels.values())


Counted = dict[tuple[Series, str, str, int], tuple[dict[int, int], int, int]]


def counted(points: Iterable[Point]) -> Counted:
    histograms: dict[Any, Any] = {}
    for point in points:
        if point.metric in schema.WITHOUT_TOTALS or point.metric == names.COLLECTOR_LOST:
            continue
        key = (point.series, point.metric, point.stage, point.at - point.at % 10)
        if key in histograms:
            histograms[key].merge(point.histogram)
        else:
            histograms[key] = point.histogram
    return {key: (dict(found.buckets), found.zero, round(found.sum * NS)) for key, found in histograms.items()}


class Plain:
    """Reference implementation that counts complete *spans* one by one."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self.spans = {(span.trace, span.id): span for span in spans}
        self.below: defaultdict[tuple[int, int], list[Span]] = defaultdict(list)
        for span in self.spans.values():
            self.below[span.trace, span.parent].append(span)
        self.roots = [span for span in self.spans.values() if self._root_above(span) is span and span.end is not None]

    def _parent(self, span: Span) -> Span | None:
        return self.spans.get((span.trace, span.parent)) if span.parent else None

    def _up(self, span: Span) -> Span | None:
        parent = self._parent(span)
        if parent is None or parent.source != span.source:
            return None
        return None if span.label.request and parent.label.kind in CALLS else parent

    def _way(self, span: Span) -> list[Span]:
        way = [span]
        while (above := self._up(way[-1])) is not None:
            way.append(above)
        return way

    def _root_above(self, span: Span) -> Span | None:
        found = None
        for each in self._way(span):
            parent = self._parent(each)
            is_called = parent is not None and parent.source != each.source and each.label.kind not in CALLS
            if each.label.request or is_called:
                found = each
        return found

    def root_of(self, span: Span) -> Span | None:
        root = self._root_above(span)
        top = self._way(span)[-1]
        if root is not None or not top.parent or self._parent(top) is not None:
            return root
        hosts = [
            host
            for host in self.roots
            if (host.trace, host.source) == (span.trace, span.source)
            and host.start <= top.start
            and max(top.end or 0, top.start) <= (host.end or 0)
        ]
        return hosts[0] if len(hosts) == 1 else None

    def _above(self, span: Span) -> Span | None:
        root = self.root_of(span)
        return None if root is span else self._up(span) or root

    def own_times(self, root: Span) -> dict[str, int]:
        return partition(self._intervals(root), root.start, root.end or 0)

    def _rows(self, root: Span) -> list[Span]:
        return [span for span in self.spans.values() if self.root_of(span) is root]

    def _children(self, span: Span) -> list[Span]:
        return [each for each in self.spans.values() if self._above(each) is span]

    def _servers(self, span: Span) -> list[Span]:
        below = self.below[span.trace, span.id]
        return [each for each in below if self._root_above(each) is each and each.end is not None]

    def _intervals(self, root: Span) -> list[Interval]:
        found: list[Interval] = []
        for span in self._rows(root):
            below, servers, end, stage = (
                self._children(span),
                self._servers(span),
                span.end or root.end or 0,
                span.label.stage,
            )
            if span is not root and stage and span.label.kind == "client" and servers:
                busy = sum(min((server.end or 0) - server.start, end - span.start) for server in servers)
                busy = min(busy, end - span.start)
                before = (end - span.start - busy) // 2
                found.append((stage, span.start + before, min(span.start + before + busy, end)))
                stage = "network"
            if stage:
                found.append((stage, span.start, end))
            if span.label.head and below:
                first = min(each.start for each in below)
                found.append((span.label.head, span.start, min(max(first, span.start), max(end, span.start))))
        return found

    def shown(self, root: Span) -> list[Shown]:
        """Return the spans in the retained trace of the request of *root*, unordered."""
        found: list[Shown] = []
        for span in self._rows(root):
            below, end = self._children(span), span.end or root.end or 0
            at, took = span.start - root.start, max(end - span.start, 0)
            servers = [
                server for server in self._servers(span) if server.source != span.source or span.label.kind in CALLS
            ]
            is_call = span.label.kind == "client" and bool(servers) and bool(span.label.stage)
            if span is not root:
                stage = "network" if is_call else span.label.stage
                found.append(Shown(span.label.name, stage, at, took, failed=bool(span.flags & Flag.ERROR)))
            if span.label.head and below:
                length = min(each.start for each in below) - span.start
                found.append(Shown(span.label.head, span.label.head, at, min(max(length, 0), took)))
            for server in servers:
                start, length, until = server.start, (server.end or 0) - server.start, span.end or server.end or 0
                if start < span.start or start + length > until:
                    start = span.start + (until - span.start - length) // 2
                stage = span.label.stage if span.label.kind == "client" else ""
                found.append(Shown(server.label.name, stage, start - root.start, length))
        return found

    def points(self) -> list[Point]:
        by_group: defaultdict[tuple[Series, int], RequestHistograms] = defaultdict(RequestHistograms)
        for root in self.roots:
            end = NOON + (root.end or 0) // NS
            rows = self._rows(root)
            counts = by_group[self._series(root, rows), end - end % 10]
            counts.add(self.own_times(root), (root.end or 0) - root.start)
            self._count_response(counts, root, rows)
        return [
            Point(series, metric, key, at, histogram)
            for (series, at), counts in by_group.items()
            for metric, key, histogram in counts.histograms()
        ]

    def _count_response(self, counts: RequestHistograms, root: Span, rows: list[Span]) -> None:
        streams = [(self._depth(span, root), span, span.stream) for span in rows if span.stream is not None]
        top = [(span, stream) for depth, span, stream in streams if depth == min(streams, key=itemgetter(0))[0]]
        tokens_in, tokens_out = sum(each.tokens_in for _, each in top), sum(each.tokens_out for _, each in top)
        for span, stream in top if len(top) == 1 else ():
            first = stream.first_token_ns and span.start - root.start + stream.first_token_ns
            if 0 < first <= (root.end or 0) - root.start:
                own = partition(self._intervals(root), root.start, root.start + first)
                counts.add_first_token(own, first, OTHER)
                if tokens_in:
                    counts.add_stream(names.FIRST_TOKEN_BY_INPUT, TOKEN_COUNTS.bucket_of(tokens_in), first / NS)
                rest = (span.end or 0) - root.start - first
                if tokens_out > 1 and rest > 0:
                    counts.add_stream(names.OUTPUT_TOKEN, OTHER, rest / (tokens_out - 1) / NS)
                    counts.add_stream(
                        names.OUTPUT_TOKEN_BY_OUTPUT, TOKEN_COUNTS.bucket_of(tokens_out), rest / (tokens_out - 1) / NS
                    )
            if stream.gap_ns:
                counts.add_stream(names.STREAM_GAP, OTHER, stream.gap_ns / NS)
        for kind, tokens in ((names.TOKENS_IN, tokens_in), (names.TOKENS_OUT, tokens_out)):
            if tokens:
                counts.add_stream(names.TOKENS, kind, tokens)

    def _depth(self, span: Span, root: Span) -> int:
        way = self._way(span)
        return way.index(root) if root in way else len(way)

    def _series(self, root: Span, rows: list[Span]) -> Series:
        models: defaultdict[int, set[str]] = defaultdict(set)
        for span in rows:
            if span.label.model:
                models[self._depth(span, root)].add(span.label.model)
        top = models[min(models)] if models else set[str]()
        source = root.source
        return Series(
            source.service,
            source.version,
            source.environment,
            model=next(iter(top)) if len(top) == 1 else "",
            status="error" if root.flags & Flag.ERROR else "ok",
        )
