"""What the HTTP and gRPC clients share: how the time of a call is written down, and the trace it hands on.

A call is one `dependency` from the call until the headers of the answer; reading the body is a `dependency` of its own,
also where the call itself reads it. What the caller does between two reads is not the dependency's.
"""

from __future__ import annotations

from typing import Any, Final

from .. import records, trace_context
from ..instrumentor import report
from ..records import MAX_MARKS, Marks, clock

DEPENDENCY: Final = "dependency"
# What came after the headers.
BODY: Final = f"{DEPENDENCY}@{records.BODY}"

# https://www.w3.org/TR/trace-context/#traceparent-header
TRACEPARENT: Final = "traceparent"

# Reads that follow each other sooner are one: a download of many small parts must not fill the list.
MAX_GAP_NS: Final = 50_000


def waited(marks: Marks, begun: int) -> None:
    """Write down that the headers were waited for since *begun* by `clock`, whether or not they came."""
    if len(marks) < MAX_MARKS:
        marks.extend((DEPENDENCY, begun, clock()))


def read(marks: Marks, begun: int) -> None:
    """Write down that a part of a body was waited for since *begun* by `clock`, whether or not it came."""
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
        report("naming the trace of a call")
        return ""


def carrying(headers: Any, marks: Marks) -> Any:
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
        report("handing a trace on")
        return headers
    return carrier
