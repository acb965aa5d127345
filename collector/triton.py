"""Triton Inference Server's own traces (`--trace-config mode=opentelemetry`): requests of a service, with their stages.

Triton times each request itself: an `InferRequest` span, below it one span a model (an ensemble has the models of its steps
below it), below that `compute`. What happened when stands in their events. From them come

- `queue`: from QUEUE_START to COMPUTE_START,
- `h2d`, `forward`, `d2h`: the compute's input, inference and output,
- `network`: reading the request and sending the answers, over HTTP; over gRPC sending only, since it reads ahead.

With `rate=1` every request is traced and so counted; with less, that share of them. A request that Triton refuses before a
model has it is in no trace. Triton does not mark failed requests: who called counts them. Nor does it say how many items
a model ran at once, so that `inference.batch.duration` has none of them.

Source: https://github.com/triton-inference-server/server/blob/main/docs/user_guide/trace.md
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ..core import names
from ..core.counts import Counts, dominant
from ..core.partition import Interval, partition
from .dimensions import SeriesReader
from .points import Window
from .store import KeptTrace, Point, Series
from .tally import Reason, RejectedError, Tally
from .triton_pieces import COMPUTE_STEPS, QUEUE_START, ROOT, Piece, Pieces
from .wire import TRITON_SCOPE, Event, ResourceSpans, Span

FIRST_RESPONSE = "triton_first_response"
# An export of Triton comes every few seconds; as many of a model and export become traces, the slowest, and show as many
# of their intervals, the longest.
KEPT_A_MODEL = 10
MAX_INTERVALS_SHOWN = 256
KEPT_BECAUSE = "slow"
# More than any server has loaded, or an ensemble has steps.
MAX_MODELS_AN_EXPORT = 500
MAX_SPANS_A_REQUEST = 5000
_TRACE_ID_DIGITS, _SPAN_ID_DIGITS = 32, 16
_NANOSECONDS = 1_000_000_000


class _Request(NamedTuple):
    """One request as Triton saw it; times in Unix nanoseconds."""

    root: Span
    model: Piece
    start: int
    intervals: list[tuple[Interval, str]]  # inside the request, with the model each is about
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
        sound = [span for span in spans if _has_ids(span)]
        self.tally.reject(Reason.IDS, "spanId must be 8 bytes, and traceId 16, not all zero", len(spans) - len(sound))
        below: defaultdict[tuple[str, str], list[Piece]] = defaultdict(list)
        for trace_id, pieces in self.pieces.add(sound).items():
            for piece in pieces:
                below[trace_id, piece.parent_id].append(piece)
        requests: dict[Series, list[_Request]] = {}
        roots = {(span.trace_id, span.span_id): span for span in sound if span.name == ROOT}
        for root in roots.values():
            try:
                request = self._request(root, below)
                series = reader.series(_series_attributes(request.model), error=root.error)
                _room_for(series, requests).append(request)
            except RejectedError as error:
                self.tally.reject(error.reason, f"trace {root.trace_id[:40]}, span {root.span_id[:16]}: {error}")
        for series, found in requests.items():
            self.points += _points(series, found)
            slowest = heapq.nlargest(KEPT_A_MODEL, found, key=lambda request: request.root.end_ns - request.start)
            self.traces += [_kept(series, request) for request in slowest]

    def _request(self, root: Span, below: Mapping[tuple[str, str], list[Piece]]) -> _Request:
        model = next((piece for piece in below.get((root.trace_id, root.span_id), ()) if piece.model is not None), None)
        if model is None:
            msg = "no span of a model came before it; send all of a server's spans to one collector"
            raise RejectedError(Reason.PARENT, msg)
        start = min([root.start_ns, *(event.time_ns for event in root.events if event.name == "HTTP_RECV_START")])
        self.window.check(start)
        self.window.check(root.end_ns)
        if root.end_ns < start:
            msg = f"it ends {start - root.end_ns} ns before it begins"
            raise RejectedError(Reason.DURATION, msg)
        found = [(interval, model.model or "") for interval in _transfers(root.events)]
        found += _model_intervals(root.trace_id, model, below)
        intervals = [
            ((stage, max(begin, start), min(end, root.end_ns)), name)
            for (stage, begin, end), name in found
            if begin <= end and begin <= root.end_ns and end >= start
        ]
        own = partition([interval for interval, _ in intervals], start, root.end_ns)
        return _Request(root, model, start, intervals, own)


def _room_for(series: Series, requests: dict[Series, list[_Request]]) -> list[_Request]:
    if series not in requests and len(requests) >= MAX_MODELS_AN_EXPORT:
        raise RejectedError(Reason.SIZE, f"the export has more than {MAX_MODELS_AN_EXPORT} models")
    return requests.setdefault(series, [])


def _has_ids(span: Span) -> bool:
    wanted = ((span.trace_id, _TRACE_ID_DIGITS), (span.span_id, _SPAN_ID_DIGITS))
    return all(len(found) == digits and found.strip("0") for found, digits in wanted)


def _transfers(events: Sequence[Event]) -> Iterator[Interval]:
    """Yield the times in which bytes of the request or the answer were on their way."""
    for begin, end in pairwise(events):
        for what in ("HTTP_RECV", "HTTP_SEND", "GRPC_SEND"):
            if (begin.name, end.name) == (f"{what}_START", f"{what}_END"):
                yield ("network", begin.time_ns, end.time_ns)


def _model_intervals(
    trace_id: str, model: Piece, below: Mapping[tuple[str, str], list[Piece]]
) -> list[tuple[Interval, str]]:
    """Return the stages of *model*, and of the models below it if it is an ensemble, each with the model it is about.

    Raises:
        RejectedError: There are too many.
    """
    found: list[tuple[Interval, str]] = []
    # Each has one parent, so only a circle through the request's own id comes back: it ends at the limit.
    models, seen = [model], 0
    while models:
        model = models.pop()
        pieces = below.get((trace_id, model.span_id), ())
        seen += len(pieces)
        if seen > MAX_SPANS_A_REQUEST:
            raise RejectedError(Reason.SIZE, f"it has more than {MAX_SPANS_A_REQUEST} spans below it")
        models += (piece for piece in pieces if piece.model is not None)
        for part in (piece for piece in pieces if piece.model is None):
            times = [model.times.get(QUEUE_START), *(part.times.get(step) for step in COMPUTE_STEPS)]
            for stage, (begin, end) in zip(("queue", "h2d", "forward", "d2h"), pairwise(times), strict=True):
                if begin is not None and end is not None:
                    found.append(((stage, begin, end), model.model or ""))
    return found


def _series_attributes(model: Piece) -> dict[str, str | int | float | bool]:
    return {names.MODEL: model.model or "", names.MODEL_VERSION: model.version}


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
        event.time_ns
        for event in request.root.events
        if event.name in ("GRPC_SEND_START", "HTTP_SEND_START") and request.start < event.time_ns <= request.root.end_ns
    )
    if len(sent) < 2:  # noqa: PLR2004 - one answer is no stream
        return
    own = partition([interval for interval, _ in request.intervals], request.start, sent[0])
    counts.add_first_token(own, sent[0] - request.start, FIRST_RESPONSE)
    counts.add_stream(
        names.STREAM_GAP, FIRST_RESPONSE, max(later - earlier for earlier, later in pairwise(sent)) / _NANOSECONDS
    )


def _kept(series: Series, request: _Request) -> KeptTrace:
    root = request.root
    shown = heapq.nlargest(MAX_INTERVALS_SHOWN, request.intervals, key=lambda item: item[0][2] - item[0][1])
    ordered = sorted(shown, key=lambda item: item[0][1:])
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
                "start_ns": begin - request.start,
                "duration_ns": end - begin,
                "attributes": {names.MODEL: model},
            }
            for (stage, begin, end), model in ordered
        ],
        attributes={},
    )
