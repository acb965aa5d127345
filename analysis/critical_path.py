"""Critical path of a trace that passes several services: the work that its end had to wait for, by service and stage.

Clocks of machines differ: a request that lies outside of the call that it serves is moved to the middle of the call. A request that
is longer than its call stays where it is, and its part outside the call is cut off.

The path is walked back from the end of the outermost request. The stage that a request is in is the one of `core.partition`; at
the end of a call to a known request the path enters that request, and continues before the call. So work in parallel with a
call that ended later is not on the path, and the pieces of the path add up to the wall time exactly.

Source: Zhang et al., "CRISP: Critical Path Analysis of Large-Scale Microservice Architectures" (USENIX ATC 2022).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..core.names import PART, PEER_SERVICE, SERVER, SERVICE_NAME
from ..core.partition import Interval, segments
from ..core.stages import OVERHEAD, UNTIMED

NETWORK, DEPENDENCY = "network", "dependency"
# Name of the service of a part of a trace that the reader may not see.
ANOTHER_ENVIRONMENT = "another environment"
# Part of a call of an agent: the response after its headers.
_BODY = "body"
_PARTS_OF_A_CALL = {_BODY, "rest", "reported"}
# Limits the depth of the recursion; the earliest are placed.
MAX_REQUESTS_A_TRACE = 200


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """Request of one service in a trace, by the clock of the service in Unix nanoseconds, with spans as in `store.RetainedTrace`.

    The ids are "" for a request that is known only from its caller, and for one that nothing called.
    """

    service: str
    span_id: str
    parent_id: str
    start: int
    duration: int
    stages: Mapping[str, int]
    spans: Sequence[Mapping[str, Any]] = ()

    @property
    def end(self) -> int:
        return self.start + self.duration


@dataclass(slots=True, eq=False)
class PlacedCall:
    """Call of a request to another service, until the end of the wait for the response, and until the response was read.

    *span_id* is "" for a call of an agent; *spans* are positions in the spans of the request.
    """

    start: int
    end: int
    read: int
    span_id: str
    spans: list[int]
    called: list[PlacedRequest] = field(default_factory=list["PlacedRequest"])


@dataclass(slots=True, eq=False)
class PlacedRequest:
    """Request at its place in the trace, by the clock of the outermost request in Unix nanoseconds.

    If its caller is not known *is_direct*, by id, only one call was open at that time. *moved* is the time by which it was moved into
    its call, *offset* the difference from the clock of its service.
    """

    request: TracedRequest
    calls: list[PlacedCall]
    caller: PlacedRequest | None = None
    is_direct: bool = True
    moved: int = 0
    offset: int = 0
    _segments: list[Interval] = field(default_factory=list[Interval], repr=False)

    @property
    def service(self) -> str:
        return self.request.service

    @property
    def start(self) -> int:
        return self.request.start + self.offset

    @property
    def end(self) -> int:
        return self.start + self.request.duration

    @property
    def called(self) -> list[PlacedRequest]:
        return sorted((request for call in self.calls for request in call.called), key=lambda request: request.start)

    def everything(self) -> Iterator[PlacedRequest]:
        yield self
        for request in self.called:
            yield from request.everything()

    def stage_before(self, now: int) -> Interval:
        """Return the stage, or "#" and the position of the span of a call, that the request is in just before *now*."""
        if not self._segments:
            self._segments = self._own_segments()
        at = bisect_left(self._segments, now, key=lambda segment: segment[2])
        return self._segments[min(at, len(self._segments) - 1)]

    def call_of(self, key: str) -> tuple[PlacedCall, int, int] | None:
        """Return the call with the span at position *key* ("#3"), and start and end of that span; None for a stage."""
        if not key.startswith("#"):
            return None
        index = int(key[1:])
        span = self.request.spans[index]
        start = self.start + int(span["start_ns"])
        call = next(call for call in self.calls if index in call.spans)
        return call, start, start + int(span["duration_ns"])

    def _own_segments(self) -> list[Interval]:
        of_calls = {index for call in self.calls if call.called for index in call.spans}
        intervals: list[Interval] = []
        for index, span in enumerate(self.request.spans):
            start = self.start + int(span["start_ns"])
            stage = f"#{index}" if index in of_calls else str(span["stage"])
            if stage and not served_by(span):
                intervals.append((stage, start, start + int(span["duration_ns"])))
        own_segments = segments(intervals, self.start, self.end)
        # The stage of a root span has no interval: it is the rest of the request.
        rest = _stage_of_rest(self.request, own_segments)
        return [(rest if stage == OVERHEAD else stage, start, end) for stage, start, end in own_segments]


def _stage_of_rest(request: TracedRequest, intervals: Sequence[Interval]) -> str:
    covered: Counter[str] = Counter()
    for stage, start, end in intervals:
        covered[stage] += end - start
    if request.stages.get(OVERHEAD):
        return OVERHEAD
    missing = {stage: spent - covered[stage] for stage, spent in request.stages.items()}
    # Stages of calls were replaced by the requests that they called.
    stage_times = {stage: spent for stage, spent in missing.items() if stage not in (NETWORK, DEPENDENCY)}
    return (
        max(stage_times, key=lambda stage: stage_times[stage])
        if stage_times and max(stage_times.values()) > 0
        else OVERHEAD
    )


def served_by(span: Mapping[str, Any]) -> str:
    """Return the service of *span* if the collector copied the work of another program into the request; else ""."""
    return str((span.get("attributes") or {}).get(SERVICE_NAME, ""))


def place_requests(requests: Iterable[TracedRequest]) -> list[PlacedRequest]:
    """Return the outermost requests of one trace, by start; the others are in their calls.

    A request whose caller is not retained is in the only call that encloses it in time and has no other request.
    """
    retained = sorted(requests, key=lambda request: (request.start, -request.duration, request.span_id))[
        :MAX_REQUESTS_A_TRACE
    ]
    placed = [PlacedRequest(request, _calls(request)) for request in [*retained, *_unretained(retained)]]
    # Longer requests first: a call that fits both of two is that of the longer one.
    order = sorted(placed, key=lambda node: -node.request.duration)
    by_id = {node.request.span_id: node for node in placed if node.request.span_id}
    by_call = {call.span_id: (node, call) for node in placed for call in node.calls if call.span_id}
    for node in order:
        caller = by_id.get(node.request.parent_id)
        exact = by_call.get(node.request.parent_id)
        owner, chosen = exact or (caller, None)
        if owner is None or _is_below(owner, node):
            continue
        chosen = chosen or _call_for(owner, node.request)
        if chosen is not None:
            _put(node, owner, chosen)
    for node in order:
        if node.caller is None and node.request.parent_id and node.request.parent_id not in by_id | by_call:
            enclosing = [
                (other, call)
                for other in placed
                if other is not node and not _is_below(other, node)
                for call in other.calls
                if not call.called and call.start <= node.request.start and node.request.end <= call.read
            ]
            if len(enclosing) == 1:
                _put(node, *enclosing[0])
                node.is_direct = False
    roots = [node for node in placed if node.caller is None]
    for root in roots:
        _set_offsets(root)
    return sorted(roots, key=lambda root: root.start)


def _unretained(retained_requests: Sequence[TracedRequest]) -> list[TracedRequest]:
    retained = {(request.service, request.duration) for request in retained_requests}
    unretained: list[TracedRequest] = []
    for request in retained_requests:
        for span in request.spans:
            service, duration = served_by(span), int(span["duration_ns"])
            if service and (service, duration) not in retained:
                start = request.start + int(span["start_ns"])
                unretained.append(TracedRequest(service, "", request.span_id, start, duration, {UNTIMED: duration}))
    return unretained[:MAX_REQUESTS_A_TRACE]


@dataclass(frozen=True, slots=True)
class DependencySplit:
    """Share of the time of some requests in the stage `dependency`, by what they called, most first; "" for unknown."""

    requests: int
    shares: tuple[tuple[str, float], ...]


def split_dependency(requests: Iterable[PlacedRequest]) -> DependencySplit:
    times = [spent for request in requests if (spent := _dependency_times(request)).total()]
    whole: Counter[str] = sum(times, Counter())
    return DependencySplit(len(times), tuple((name, spent / whole.total()) for name, spent in whole.most_common()))


def _dependency_times(placed: PlacedRequest) -> Counter[str]:
    """Return the exclusive time of *placed* in `dependency` by what it called [nanoseconds]."""
    called = {index: _called_name(placed, call) for call in placed.calls for index in call.spans}
    intervals = [
        (
            f"#{called.get(index, '')}" if span["stage"] == DEPENDENCY else str(span["stage"]),
            start,
            start + int(span["duration_ns"]),
        )
        for index, span in enumerate(placed.request.spans)
        if span["stage"] and not served_by(span)
        for start in (int(span["start_ns"]),)
    ]
    times: Counter[str] = Counter()
    for stage, start, end in segments(intervals, 0, placed.request.duration):
        if stage.startswith("#"):
            times[stage[1:]] += end - start
    return times


def _called_name(placed: PlacedRequest, call: PlacedCall) -> str:
    """Return the service that served *call*, else its host, else the client that made it; "" if unknown."""
    attributes = placed.request.spans[call.spans[0]].get("attributes") or {}
    service = call.called[0].service if call.called else ""
    if service not in ("", ANOTHER_ENVIRONMENT):
        return service
    part = "" if attributes.get(PART) in _PARTS_OF_A_CALL else attributes.get(PART)
    return str(attributes.get(PEER_SERVICE) or attributes.get(SERVER) or part or service)


def _calls(request: TracedRequest) -> list[PlacedCall]:
    calls: list[PlacedCall] = []
    bodies: list[tuple[int, PlacedCall]] = []
    for index, span in sorted(enumerate(request.spans), key=lambda indexed_span: int(indexed_span[1]["start_ns"])):
        span_id = str(span.get("id", ""))
        if not (span_id or span["stage"] == DEPENDENCY) or served_by(span):
            continue
        start = request.start + int(span["start_ns"])
        end = start + int(span["duration_ns"])
        call = PlacedCall(start, end, end, span_id, [index])
        if (span.get("attributes") or {}).get(PART) == _BODY:
            bodies.append((index, call))
        else:
            calls.append(call)
    for index, body in bodies:
        # A body belongs to the call that reads it, else to the call whose headers came last before it.
        around = [call for call in calls if call.start <= body.start and body.end <= call.end]
        before = [call for call in calls if call.end <= body.start]
        if around or before:
            call = min(around, key=lambda call: call.end) if around else max(before, key=lambda call: call.end)
            call.read = max(call.read, body.end)
            call.spans.append(index)
        else:
            calls.append(body)
    return calls


def _is_below(one: PlacedRequest | None, other: PlacedRequest) -> bool:
    while one is not None and one is not other:
        one = one.caller
    return one is other


def _call_for(caller: PlacedRequest, request: TracedRequest) -> PlacedCall | None:
    """Return the call of *caller* that *request* served; None if no call or several calls are possible."""
    around = [call for call in caller.calls if call.start <= request.start and request.end <= call.read]
    if around:
        # The tightest call, and one of its own rather than that of another request.
        return min(around, key=lambda call: (len(call.called), call.read - call.start))
    long_enough = [call for call in caller.calls if call.read - call.start >= request.duration]
    touched = [call for call in long_enough if call.start < request.end and request.start < call.read]
    for some in (touched, long_enough):
        if len(some) == 1:
            return some[0]
    # The caller did not wait for the end of the request.
    started = [call for call in caller.calls if call.start <= request.start < call.read]
    return started[0] if len(started) == 1 and not long_enough else None


def _put(placed: PlacedRequest, caller: PlacedRequest, call: PlacedCall) -> None:
    """Put *placed* into *call* of *caller*, moved into it if it lies outside; leave it if the caller cannot have waited for it."""
    start, end = placed.request.start, placed.request.end
    if not (call.start <= start and end <= call.read):
        end_of_call = call.end if end - start <= call.end - call.start else call.read
        slack = end_of_call - call.start - (end - start)
        if slack >= 0:
            placed.moved = call.start + slack // 2 - start
        elif not call.start <= start < call.read:
            return
    call.called.append(placed)
    placed.caller = caller


def _set_offsets(placed: PlacedRequest) -> None:
    for request in placed.called:
        request.offset = placed.offset + request.moved
        _set_offsets(request)


class PathPiece(NamedTuple):
    """Piece of a critical path, with the services from the outermost request on, and the call that the request waited for if it is known."""

    services: tuple[str, ...]
    request: TracedRequest
    stage: str
    start: int
    end: int
    call: PlacedCall | None = None


def critical_path(root: PlacedRequest) -> list[PathPiece]:
    """Return the consecutive pieces of the critical path of *root*, which add up to its wall time exactly."""
    pieces: list[PathPiece] = []
    _walk(root, (root.service,), root.start, root.end, pieces)
    return pieces[::-1]


def _walk(placed: PlacedRequest, services: tuple[str, ...], low: int, high: int, pieces: list[PathPiece]) -> None:
    now = high
    while now > low:
        stage, start, _ = placed.stage_before(now)
        called = placed.call_of(stage)
        if called is None:
            start = max(start, low)
            pieces.append(PathPiece(services, placed.request, stage, start, now))
        elif called[2] > now and now != high:
            # Another call or stage ended later, and this call was still open when that one started.
            start = max(start, low)
            pieces.append(PathPiece(services, placed.request, DEPENDENCY, start, now, called[0]))
        else:
            start = max(called[1], low)
            _walk_call(placed, called[0], services, start, now, pieces)
        now = start


def _walk_call(  # noqa: PLR0917 - the request, its call, and a stretch of it
    placed: PlacedRequest, call: PlacedCall, services: tuple[str, ...], low: int, high: int, pieces: list[PathPiece]
) -> None:
    now = high
    for request in sorted(call.called, key=lambda request: request.end, reverse=True):
        start, end = max(request.start, low), min(request.end, now)
        if start < end:
            _walk_wait(placed, call, services, end, now, pieces)
            _walk(request, (*services, request.service), start, end, pieces)
            now = start
    _walk_wait(placed, call, services, low, now, pieces)


def _walk_wait(  # noqa: PLR0917 - as above
    placed: PlacedRequest, call: PlacedCall, services: tuple[str, ...], low: int, high: int, pieces: list[PathPiece]
) -> None:
    """Append the own stages of *placed* during the part of *call* in which no called request ran."""
    # With a service between the two that is not retained, more than the network.
    waiting = NETWORK if all(request.is_direct for request in call.called) else DEPENDENCY
    now = high
    while now > low:
        stage, start, _ = placed.stage_before(now)
        start = max(start, low)
        if stage.startswith("#"):
            pieces.append(PathPiece(services, placed.request, waiting, start, now, call))
        else:
            pieces.append(PathPiece(services, placed.request, stage, start, now))
        now = start


@dataclass(frozen=True, slots=True)
class PathShare:
    """Mean seconds of one stage of one service on the critical paths of several requests, and their share of the wall time."""

    service: str
    stage: str
    seconds: float
    share: float


def path_shares(paths: Sequence[Sequence[PathPiece]]) -> list[PathShare]:
    """Return the time of each service and stage on *paths*, in descending order; the shares add up to 1."""
    spent: Counter[tuple[str, str]] = Counter()
    for path in paths:
        for piece in path:
            spent[piece.services[-1], piece.stage] += piece.end - piece.start
    whole = spent.total() or 1
    return [
        PathShare(service, stage, amount / 1e9 / len(paths), amount / whole)
        for (service, stage), amount in sorted(spent.items(), key=lambda entry: (-entry[1], entry[0]))
    ]


def missing_services(root: PlacedRequest, called_services: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the services whose part of the trace is not retained: known only from the caller, or from other traces."""
    missing: set[str] = set()
    for node in root.everything():
        called = {other.service for other in node.called}
        if not node.request.span_id:
            missing.add(node.service)
        elif any(not call.called for call in node.calls):
            missing.update(set(called_services.get(node.service, ())) - called)
    return sorted(missing)
