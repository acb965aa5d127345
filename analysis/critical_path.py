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
    """Request of one service in a trace, by the clock of the service in Unix nanoseconds, with spans as in `store.KeptTrace`.

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
        return sorted((each for call in self.calls for each in call.called), key=lambda each: each.start)

    def everything(self) -> Iterator[PlacedRequest]:
        yield self
        for each in self.called:
            yield from each.everything()

    def stage_before(self, now: int) -> Interval:
        """Return the stage, or "#" and the position of the span of a call, that the request is in just before *now*."""
        if not self._segments:
            self._segments = self._own_segments()
        at = bisect_left(self._segments, now, key=lambda each: each[2])
        return self._segments[min(at, len(self._segments) - 1)]

    def call_of(self, key: str) -> tuple[PlacedCall, int, int] | None:
        """Return the call with the span at position *key* ("#3"), and start and end of that span; None for a stage."""
        if not key.startswith("#"):
            return None
        place = int(key[1:])
        span = self.request.spans[place]
        start = self.start + int(span["start_ns"])
        call = next(each for each in self.calls if place in each.spans)
        return call, start, start + int(span["duration_ns"])

    def _own_segments(self) -> list[Interval]:
        of_calls = {place for call in self.calls if call.called for place in call.spans}
        intervals: list[Interval] = []
        for place, span in enumerate(self.request.spans):
            start = self.start + int(span["start_ns"])
            stage = f"#{place}" if place in of_calls else str(span["stage"])
            if stage and not served_by(span):
                intervals.append((stage, start, start + int(span["duration_ns"])))
        found = segments(intervals, self.start, self.end)
        # The stage of a root span has no interval: it is the rest of the request.
        rest = _stage_of_rest(self.request, found)
        return [(rest if stage == OVERHEAD else stage, start, end) for stage, start, end in found]


def _stage_of_rest(request: TracedRequest, found: Sequence[Interval]) -> str:
    covered: Counter[str] = Counter()
    for stage, start, end in found:
        covered[stage] += end - start
    if request.stages.get(OVERHEAD):
        return OVERHEAD
    missing = {stage: spent - covered[stage] for stage, spent in request.stages.items()}
    # Stages of calls were replaced by the requests that they called.
    own = {stage: spent for stage, spent in missing.items() if stage not in (NETWORK, DEPENDENCY)}
    return max(own, key=lambda stage: own[stage]) if own and max(own.values()) > 0 else OVERHEAD


def served_by(span: Mapping[str, Any]) -> str:
    """Return the service of *span* if the collector copied the work of another program into the request; else ""."""
    return str((span.get("attributes") or {}).get(SERVICE_NAME, ""))


def place_requests(requests: Iterable[TracedRequest]) -> list[PlacedRequest]:
    """Return the outermost requests of one trace, by start; the others are in their calls.

    A request whose caller is not retained is in the only call that encloses it in time and has no other request.
    """
    known = sorted(requests, key=lambda each: (each.start, -each.duration, each.span_id))[:MAX_REQUESTS_A_TRACE]
    placed = [PlacedRequest(each, _calls(each)) for each in [*known, *_unretained(known)]]
    # Longer requests first: a call that fits both of two is that of the longer one.
    order = sorted(placed, key=lambda each: -each.request.duration)
    by_id = {each.request.span_id: each for each in placed if each.request.span_id}
    by_call = {call.span_id: (each, call) for each in placed for call in each.calls if call.span_id}
    for each in order:
        caller = by_id.get(each.request.parent_id)
        exact = by_call.get(each.request.parent_id)
        owner, chosen = exact or (caller, None)
        if owner is None or _is_below(owner, each):
            continue
        chosen = chosen or _call_for(owner, each.request)
        if chosen is not None:
            _put(each, owner, chosen)
    for each in order:
        if each.caller is None and each.request.parent_id and each.request.parent_id not in by_id | by_call:
            enclosing = [
                (other, call)
                for other in placed
                if other is not each and not _is_below(other, each)
                for call in other.calls
                if not call.called and call.start <= each.request.start and each.request.end <= call.read
            ]
            if len(enclosing) == 1:
                _put(each, *enclosing[0])
                each.is_direct = False
    roots = [each for each in placed if each.caller is None]
    for root in roots:
        _set_offsets(root)
    return sorted(roots, key=lambda each: each.start)


def _unretained(known: Sequence[TracedRequest]) -> list[TracedRequest]:
    retained = {(each.service, each.duration) for each in known}
    found: list[TracedRequest] = []
    for each in known:
        for span in each.spans:
            service, duration = served_by(span), int(span["duration_ns"])
            if service and (service, duration) not in retained:
                start = each.start + int(span["start_ns"])
                found.append(TracedRequest(service, "", each.span_id, start, duration, {UNTIMED: duration}))
    return found[:MAX_REQUESTS_A_TRACE]


@dataclass(frozen=True, slots=True)
class DependencySplit:
    """Share of the time of some requests in the stage `dependency`, by what they called, most first; "" for unknown."""

    requests: int
    shares: tuple[tuple[str, float], ...]


def split_dependency(requests: Iterable[PlacedRequest]) -> DependencySplit:
    found = [spent for each in requests if (spent := _dependency_times(each)).total()]
    whole: Counter[str] = sum(found, Counter())
    return DependencySplit(len(found), tuple((name, spent / whole.total()) for name, spent in whole.most_common()))


def _dependency_times(placed: PlacedRequest) -> Counter[str]:
    """Return the exclusive time of *placed* in `dependency` by what it called [nanoseconds]."""
    called = {place: _called_name(placed, call) for call in placed.calls for place in call.spans}
    intervals = [
        (
            f"#{called.get(place, '')}" if span["stage"] == DEPENDENCY else str(span["stage"]),
            start,
            start + int(span["duration_ns"]),
        )
        for place, span in enumerate(placed.request.spans)
        if span["stage"] and not served_by(span)
        for start in (int(span["start_ns"]),)
    ]
    found: Counter[str] = Counter()
    for stage, start, end in segments(intervals, 0, placed.request.duration):
        if stage.startswith("#"):
            found[stage[1:]] += end - start
    return found


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
    for place, span in sorted(enumerate(request.spans), key=lambda each: int(each[1]["start_ns"])):
        span_id = str(span.get("id", ""))
        if not (span_id or span["stage"] == DEPENDENCY) or served_by(span):
            continue
        start = request.start + int(span["start_ns"])
        end = start + int(span["duration_ns"])
        call = PlacedCall(start, end, end, span_id, [place])
        if (span.get("attributes") or {}).get(PART) == _BODY:
            bodies.append((place, call))
        else:
            calls.append(call)
    for place, body in bodies:
        # A body belongs to the call that reads it, else to the call whose headers came last before it.
        around = [each for each in calls if each.start <= body.start and body.end <= each.end]
        before = [each for each in calls if each.end <= body.start]
        if around or before:
            call = min(around, key=lambda each: each.end) if around else max(before, key=lambda each: each.end)
            call.read = max(call.read, body.end)
            call.spans.append(place)
        else:
            calls.append(body)
    return calls


def _is_below(one: PlacedRequest | None, other: PlacedRequest) -> bool:
    while one is not None and one is not other:
        one = one.caller
    return one is other


def _call_for(caller: PlacedRequest, request: TracedRequest) -> PlacedCall | None:
    """Return the call of *caller* that *request* served; None if no call or several calls are possible."""
    around = [each for each in caller.calls if each.start <= request.start and request.end <= each.read]
    if around:
        # The tightest call, and one of its own rather than that of another request.
        return min(around, key=lambda each: (len(each.called), each.read - each.start))
    long_enough = [each for each in caller.calls if each.read - each.start >= request.duration]
    touched = [each for each in long_enough if each.start < request.end and request.start < each.read]
    for some in (touched, long_enough):
        if len(some) == 1:
            return some[0]
    # The caller did not wait for the end of the request.
    begun = [each for each in caller.calls if each.start <= request.start < each.read]
    return begun[0] if len(begun) == 1 and not long_enough else None


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
    for each in placed.called:
        each.offset = placed.offset + each.moved
        _set_offsets(each)


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
    found: list[PathPiece] = []
    _walk(root, (root.service,), root.start, root.end, found)
    return found[::-1]


def _walk(placed: PlacedRequest, services: tuple[str, ...], low: int, high: int, found: list[PathPiece]) -> None:
    now = high
    while now > low:
        stage, start, _ = placed.stage_before(now)
        called = placed.call_of(stage)
        if called is None:
            start = max(start, low)
            found.append(PathPiece(services, placed.request, stage, start, now))
        elif called[2] > now and now != high:
            # Another call or stage ended later, and this call was still open when that one started.
            start = max(start, low)
            found.append(PathPiece(services, placed.request, DEPENDENCY, start, now, called[0]))
        else:
            start = max(called[1], low)
            _walk_call(placed, called[0], services, start, now, found)
        now = start


def _walk_call(  # noqa: PLR0917 - the request, its call, and a stretch of it
    placed: PlacedRequest, call: PlacedCall, services: tuple[str, ...], low: int, high: int, found: list[PathPiece]
) -> None:
    now = high
    for each in sorted(call.called, key=lambda each: each.end, reverse=True):
        start, end = max(each.start, low), min(each.end, now)
        if start < end:
            _walk_wait(placed, call, services, end, now, found)
            _walk(each, (*services, each.service), start, end, found)
            now = start
    _walk_wait(placed, call, services, low, now, found)


def _walk_wait(  # noqa: PLR0917 - as above
    placed: PlacedRequest, call: PlacedCall, services: tuple[str, ...], low: int, high: int, found: list[PathPiece]
) -> None:
    """Append the own stages of *placed* during the part of *call* in which no called request ran."""
    # With a service between the two that is not retained, more than the network.
    waiting = NETWORK if all(each.is_direct for each in call.called) else DEPENDENCY
    now = high
    while now > low:
        stage, start, _ = placed.stage_before(now)
        start = max(start, low)
        if stage.startswith("#"):
            found.append(PathPiece(services, placed.request, waiting, start, now, call))
        else:
            found.append(PathPiece(services, placed.request, stage, start, now))
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
        for (service, stage), amount in sorted(spent.items(), key=lambda each: (-each[1], each[0]))
    ]


def missing_services(root: PlacedRequest, known: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the services whose part of the trace is not retained: known only from the caller, or from other traces."""
    found: set[str] = set()
    for each in root.everything():
        called = {other.service for other in each.called}
        if not each.request.span_id:
            found.add(each.service)
        elif any(not call.called for call in each.calls):
            found.update(set(known.get(each.service, ())) - called)
    return sorted(found)
