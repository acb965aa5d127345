"""Triton Inference Server's own traces (`--trace-config mode=opentelemetry`): requests of a service, with their stages.

Triton times each request itself: an `InferRequest` span, below it one span a model (an ensemble has the models of its steps
below it), below that `compute`. What happened when stands in their events. From them come

- `queue`: from QUEUE_START to COMPUTE_START,
- `h2d`, `forward`, `d2h`: the compute's input, inference and output,
- `network`: reading the request and sending the answers, over HTTP; over gRPC sending only, since it reads ahead.

With `rate=1` every request is traced and so counted; with less, that share of them. A request that Triton refuses before a
model has it is in no trace. Triton does not mark failed requests: who called counts them.

Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/trace.md
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ..core import names
from ..core.counts import Counts, dominant
from ..core.partition import Interval, partition
from .dimensions import SeriesReader, text
from .points import Window
from .store import KeptTrace, Point, Series
from .tally import Reason, RejectedError, Tally
from .wire import TRITON_SCOPE, Event, ResourceSpans, Span

ROOT = "InferRequest"
MODEL_NAME, MODEL_VERSION = "triton.model_name", "triton.model_version"
FIRST_RESPONSE = "triton_first_response"
# An export of Triton comes every few seconds; as many of a model and export become traces, the slowest.
KEPT_A_MODEL = 10
KEPT_BECAUSE = "slow"
_NANOSECONDS = 1_000_000_000


class Pieces:
    """Spans of requests that have not ended: those of a request may come in several exports, its own span last.

    They stay for a while after it has: an export that could not be committed is sent again.

    Args:
        clock: Monotonic. [seconds]
    """

    MAX_SPANS = 50_000
    MAX_AGE_SECONDS = 60.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._spans: dict[tuple[str, str], tuple[float, Span]] = {}

    def add(self, spans: Sequence[Span]) -> list[Span]:
        """Keep *spans*, and return all that is kept of their traces."""
        now = self._clock()
        traces = {span.trace_id for span in spans}
        with self._lock:
            for span in spans:
                self._spans[span.trace_id, span.span_id] = (now, span)
            self._forget(now)
            return [span for _, span in self._spans.values() if span.trace_id in traces]

    def _forget(self, now: float) -> None:
        # In order of arrival, but for those sent again: they are few.
        for key, (at, _) in list(self._spans.items()):
            if at >= now - self.MAX_AGE_SECONDS and len(self._spans) <= self.MAX_SPANS:
                return
            del self._spans[key]


class _Request(NamedTuple):
    """One request as Triton saw it; times in Unix nanoseconds."""

    root: Span
    model: Span
    start: int
    intervals: list[tuple[Interval, str]]  # with the model it is about
    own: dict[str, int]


@dataclass(slots=True)
class TritonReader:
    """Reads Triton's spans of one export into points and traces.

    Args:
        window: Which times are plausible.
        pieces: Spans of earlier exports.
        points: What was counted.
        traces: The slowest requests.
        tally: What became of all spans.
    """

    window: Window
    pieces: Pieces
    points: list[Point] = field(default_factory=list[Point])
    traces: list[KeptTrace] = field(default_factory=list[KeptTrace])
    tally: Tally = field(default_factory=Tally)

    def read(self, export: list[ResourceSpans]) -> None:
        """Take in the spans of *export*; nothing is raised for a bad one, it is tallied."""
        for item in export:
            spans = item.spans.get(TRITON_SCOPE, [])
            if spans:
                self._read_server(spans, SeriesReader(item.resource))

    def _read_server(self, spans: list[Span], reader: SeriesReader) -> None:
        below: defaultdict[tuple[str, str], list[Span]] = defaultdict(list)
        for span in self.pieces.add(spans):
            below[span.trace_id, span.parent_id].append(span)
        requests: defaultdict[Series, list[_Request]] = defaultdict(list)
        for root in (span for span in spans if span.name == ROOT):
            try:
                request = self._request(root, below)
                requests[reader.series(_series_attributes(request.model), error=root.error)].append(request)
            except RejectedError as error:
                self.tally.reject(error.reason, f"trace {root.trace_id[:40]}, span {root.span_id[:16]}: {error}")
        for series, found in requests.items():
            self.points += _points(series, found)
            slowest = heapq.nlargest(KEPT_A_MODEL, found, key=lambda request: request.root.end_ns - request.start)
            self.traces += [_kept(series, request) for request in slowest]

    def _request(self, root: Span, below: Mapping[tuple[str, str], list[Span]]) -> _Request:
        model = next(
            (span for span in below.get((root.trace_id, root.span_id), ()) if MODEL_NAME in span.attributes), None
        )
        if model is None:
            msg = "no span of a model came before it; send all of a server's spans to one collector"
            raise RejectedError(Reason.PARENT, msg)
        start = min([root.start_ns, *(event.time_ns for event in root.events if event.name == "HTTP_RECV_START")])
        self.window.check(start)
        self.window.check(root.end_ns)
        if root.end_ns < start:
            msg = f"it ends {start - root.end_ns} ns before it begins"
            raise RejectedError(Reason.DURATION, msg)
        name = text(model.attributes[MODEL_NAME])
        intervals = [(interval, name) for interval in _transfers(root.events)]
        intervals += _model_intervals(model, below, {root.span_id})
        own = partition([interval for interval, _ in intervals], start, root.end_ns)
        return _Request(root, model, start, intervals, own)


def _transfers(events: Sequence[Event]) -> Iterator[Interval]:
    """Yield the times in which bytes of the request or the answer were on their way."""
    for begin, end in pairwise(events):
        for what in ("HTTP_RECV", "HTTP_SEND", "GRPC_SEND"):
            if (begin.name, end.name) == (f"{what}_START", f"{what}_END"):
                yield ("network", begin.time_ns, end.time_ns)


def _model_intervals(
    model: Span, below: Mapping[tuple[str, str], list[Span]], above: set[str]
) -> Iterator[tuple[Interval, str]]:
    """Yield the stages of *model*, and of the models below it if it is an ensemble, each with the model it is about."""
    name = text(model.attributes[MODEL_NAME])
    queued = _times(model).get("QUEUE_START")
    for span in below.get((model.trace_id, model.span_id), ()):
        # A span that is its own ancestor would never end.
        if span.span_id in above:
            continue
        if MODEL_NAME in span.attributes:
            yield from _model_intervals(span, below, above | {model.span_id})
            continue
        at = _times(span)
        steps = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")
        times = [queued, *(at.get(step) for step in steps)]
        for stage, (begin, end) in zip(("queue", "h2d", "forward", "d2h"), pairwise(times), strict=True):
            if begin is not None and end is not None:
                yield (stage, begin, end), name


def _times(span: Span) -> dict[str, int]:
    return {event.name: event.time_ns for event in span.events}


def _series_attributes(model: Span) -> dict[str, str | int | float | bool]:
    return {
        names.MODEL: model.attributes[MODEL_NAME],
        names.MODEL_VERSION: model.attributes.get(MODEL_VERSION, ""),
    }


def _points(series: Series, requests: Sequence[_Request]) -> Iterator[Point]:
    by_second: defaultdict[int, Counts] = defaultdict(Counts)
    for request in requests:
        counts = by_second[request.root.end_ns // _NANOSECONDS]
        counts.add(request.own, request.root.end_ns - request.start)
        _add_stream(counts, request)
    for at, counts in by_second.items():
        for metric, key, histogram in counts.histograms():
            yield Point(series, metric, key, at, histogram)


def _add_stream(counts: Counts, request: _Request) -> None:
    """Count the way to the first of several answers, and the longest wait between two."""
    sent = sorted(
        event.time_ns for event in request.root.events if event.name in ("GRPC_SEND_START", "HTTP_SEND_START")
    )
    if len(sent) < 2 or sent[0] <= request.start:  # noqa: PLR2004 - one answer is no stream
        return
    own = partition([interval for interval, _ in request.intervals], request.start, sent[0])
    counts.add_first_token(own, sent[0] - request.start, FIRST_RESPONSE)
    counts.add_stream(
        names.STREAM_GAP, FIRST_RESPONSE, max(later - earlier for earlier, later in pairwise(sent)) / _NANOSECONDS
    )


def _kept(series: Series, request: _Request) -> KeptTrace:
    root = request.root
    ordered = sorted(request.intervals, key=lambda item: (item[0][1], item[0][2]))
    return KeptTrace(
        trace_id=root.trace_id,
        span_id=root.span_id,
        series=series,
        started_ns=request.start,
        duration_ns=root.end_ns - request.start,
        because=KEPT_BECAUSE,
        dominant=dominant(request.own),
        stages_ns=request.own,
        spans=[
            {
                "name": stage,
                "stage": stage,
                "start_ns": max(begin, request.start) - request.start,
                "duration_ns": max(0, min(end, root.end_ns) - max(begin, request.start)),
                "attributes": {names.MODEL: model},
            }
            for (stage, begin, end), model in ordered
        ],
        attributes={},
    )
