"""Shared by the HTTP and gRPC clients: recording of calls, propagation of the trace, and reports of the server in its response.

A call is one `dependency` from its start to the headers of the response. Reading the body is a `dependency` of its own,
also if the call itself reads it. The time of the caller between two reads does not belong to the dependency.

Servers report their own times in headers or at the end of a body (`server_reports.py`). A body is parsed only if its
end contains the known fields; only these numbers are read, and the parsed object is dropped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from .. import records, trace_context
from ..instrumentor import log_failure
from ..records import MAX_MARKS, OPEN, Marks, clock
from .server_reports import BODIES, HEADERS, SERVER_TIMING, Dialect, Wait, record_report

# Where an answer, or what its body comes from, keeps the call it answers.
CALL: Final = "_stagelens_call"

_KNOWN: Final = frozenset(dialect.known_by for dialect in HEADERS)
_FIELDS: Final = _KNOWN | {
    field.name for dialect in HEADERS if dialect is not SERVER_TIMING for field in dialect.fields
}
_KEYS: Final = frozenset(place[0] if place else dialect.known_by for dialect in BODIES for place in dialect.places)
# Every dialect says it at the end of a body, after the text; a longer one is left alone, for to parse it takes milliseconds.
_TAIL: Final = 2048
_MAX_BODY: Final = 1 << 18
_NUMBERS: Final = tuple({f'"{dialect.known_by}"' for dialect in BODIES})
# https://www.w3.org/TR/server-timing/: commas part metrics, semicolons their parameters, and a description in quotes may
# hold either.
_METRIC: Final = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*")+')
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')


class AnsweredCall:
    """A call with its response headers.

    Args:
        marks: Those of the request that waits for it.
        begun: When it was made, by `clock`.
        headers: A mapping of names, in any case, whose `items` yields every value.
    """

    __slots__ = ("_begun", "_headers", "_is_told", "ended", "marks")

    def __init__(self, marks: Marks, begun: int, headers: Any) -> None:
        self.marks = marks
        self._begun = begun
        # Until when it was waited for: the headers, later the body.
        self.ended = self._headers = clock()
        self._is_told = record_headers(headers, marks, Wait(begun, self.ended))

    def is_said_in(self, part: Any) -> bool:
        """Return whether a *part* of a stream, a pydantic model, may hold a report that the headers did not have."""
        if self._is_told:
            return False
        usage = getattr(part, "usage", None)
        return any(not _KEYS.isdisjoint(getattr(holder, "model_extra", None) or ()) for holder in (part, usage))

    def streamed(self, part: Any, first: int, ended: int) -> None:
        """Record the report in the last *part* of a stream, whose tokens came from *first* to *ended*."""
        if not self._is_told:
            self._is_told = record_report(
                reports_in_body(part), self.marks, Wait(self._begun, ended or self.ended, first)
            )

    def read(self, body: Any) -> None:
        """Record the report in the complete *body*, once; never raises."""
        try:
            if self._is_told or not body or self.marks[0] != OPEN or not has_report(body):
                return
            # However often it is read.
            self._is_told = True
            record_report(
                reports_in_body(parse_object(body)), self.marks, Wait(self._begun, self.ended, headers=self._headers)
            )
        except Exception:
            log_failure("reading what a server says of a call")


def has_report(body: str | bytes) -> bool:
    """Return whether *body* ends with numbers of a dialect."""
    if len(body) > _MAX_BODY:
        return False
    end = body[-_TAIL:]
    tail = end if isinstance(end, str) else end.decode("latin-1")
    return any(name in tail for name in _NUMBERS)


def parse_object(body: str | bytes) -> dict[str, Any] | None:
    """Return the object that *body* is, None where it is none."""
    try:
        parsed: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def attach_call(holder: Any, response: Any, marks: Marks, begun: int) -> None:
    """Store the call of *response* on *holder*, and record the report in its headers; never raises."""
    try:
        setattr(holder, CALL, AnsweredCall(marks, begun, response.headers))
    except Exception:
        log_failure("reading what a server says of a call")


def call_of(holder: Any) -> AnsweredCall | None:
    """Return the call that is stored on *holder*."""
    return getattr(holder, CALL, None)


def record_headers(headers: Any, marks: Marks, wait: Wait) -> bool:
    """Record the server's report in *headers* and return whether there is one; never raises."""
    try:
        # Nearly all answers end here.
        return not _KNOWN.isdisjoint(map(str.lower, headers)) and record_report(
            _reports_in_headers(headers), marks, wait
        )
    except Exception:
        log_failure("reading what a server says of a call")
        return False


def _reports_in_headers(headers: Any) -> Iterator[tuple[Dialect, Mapping[str, Any]]]:
    found: dict[str, str] = {}
    for name, value in headers.items():
        if (name := name.lower()) in _FIELDS:
            found[name] = f"{found[name]}, {value}" if name in found else value
    for dialect in HEADERS:
        if dialect.known_by in found:
            values = parse_server_timing(found[dialect.known_by]) if dialect is SERVER_TIMING else found
            if values:
                yield dialect, values


def parse_server_timing(header: str) -> dict[str, str]:
    """Return the known metrics of a `Server-Timing` header with their durations, unparsed.

    >>> parse_server_timing('cache;desc="hit, or not", Queue;dur=12.5, total;desc=all;dur=80')
    {'queue': '12.5', 'total': '80'}
    """
    known = {field.name for field in SERVER_TIMING.fields}
    found: dict[str, str] = {}
    for metric in _METRIC.findall(header):
        name, *parameters = (part.strip() for part in _QUOTED.sub("", metric).split(";"))
        name = name.lower()
        pairs = [(key.strip().lower(), value.strip()) for key, _, value in (each.partition("=") for each in parameters)]
        duration = next((value for key, value in pairs if key == "dur"), None)
        if name in known and duration is not None:
            # Two servers, one behind the other, that both tell of theirs: nobody knows whose the stages are.
            found[name] = duration if name not in found else "twice"
    return found


def reports_in_body(body: Any) -> Iterator[tuple[Dialect, Mapping[str, Any]]]:
    """Yield the reports in *body*, a dictionary or a pydantic model, by dialect."""
    for dialect in BODIES:
        for place in dialect.places:
            at = body
            for key in place:
                at = get_item(at, key)
            if get_item(at, dialect.known_by) is not None:
                yield dialect, {field.name: get_item(at, field.name) for field in dialect.fields}


def get_item(holder: Any, key: str) -> Any:
    """Return the value of *key* in *holder*, a dictionary or a pydantic model; None for none."""
    return holder.get(key) if isinstance(holder, dict) else getattr(holder, key, None)


DEPENDENCY: Final = "dependency"
# What came after the headers.
BODY: Final = f"{DEPENDENCY}@{records.BODY}"

# https://www.w3.org/TR/trace-context/#traceparent-header
TRACEPARENT: Final = "traceparent"

# Reads that follow each other sooner are one: a download of many small parts must not fill the list.
MAX_GAP_NS: Final = 50_000


def record_wait(marks: Marks, begun: int) -> None:
    """Record the wait for the headers since *begun* by `clock`, whether or not they arrived."""
    if len(marks) < MAX_MARKS:
        marks.extend((DEPENDENCY, begun, clock()))


def record_read(marks: Marks, begun: int) -> None:
    """Record the wait for a part of a body since *begun* by `clock`, whether or not it arrived."""
    ended = clock()
    # A fixed place: whatever another thread appends meanwhile, it is not overwritten.
    size = len(marks)
    try:
        if marks[size - 3] == BODY and marks[size - 2] <= begun < marks[size - 1] + MAX_GAP_NS:
            marks[size - 1] = ended
            return
    except IndexError:
        # Another thread has made room in a full list meanwhile.
        pass
    if size < MAX_MARKS:
        marks.extend((BODY, begun, ended))


def traceparent(marks: Marks) -> str:
    """Return the header for a call out of this request, "" for none; never raises."""
    try:
        return trace_context.traceparent(marks)
    except Exception:
        log_failure("naming the trace of a call")
        return ""


def with_traceparent(headers: Any, marks: Marks) -> Any:
    """Return a copy of *headers* with the request's `traceparent`, or the very same where they have one already.

    Args:
        headers: A mapping from names to values that has `copy`; it is not changed.
        marks: The request's.
    """
    try:
        if any(name.lower() in {TRACEPARENT, b"traceparent"} for name in headers):
            return headers
        value = traceparent(marks)
        if not value:
            return headers
        carrier = headers.copy()
        carrier[TRACEPARENT] = value
    except Exception:
        log_failure("handing a trace on")
        return headers
    return carrier
