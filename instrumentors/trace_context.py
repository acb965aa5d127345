"""W3C trace context: the incoming context of a request, and the context that is propagated to the called services.

The ids of a request are created for the first outgoing call and stored in its marks, so that a trace retained later has the
propagated ids. Inside a span of the user's own OpenTelemetry SDK, that span is propagated instead: a Stagelens span exists
only if its request is retained, whereas the user's backend has the user's spans.

Source: https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from .records import OPEN, SHARED

SAMPLED = 1
# Secret value of the header X-Force-Trace that retains the trace of the request; without this setting the header is ignored.
FORCE_VARIABLE = "STAGELENS_FORCE_TRACE"

# Version, trace id, parent id, flags; versions after 00 may add fields.
_TRACEPARENT = re.compile(r"(?!ff|00.{54})[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


class Parent(NamedTuple):
    """The parent span of a request."""

    trace_id: str
    span_id: str
    flags: int


def parse(traceparent: str) -> Parent | None:
    """Parse a `traceparent` header; return None if it is missing or invalid.

    >>> parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    Parent(trace_id='0af7651916cd43dd8448eb211c80319c', span_id='b7ad6b7169203331', flags=1)
    """
    match = _TRACEPARENT.fullmatch(traceparent.strip())
    if match is None or not match[1].strip("0") or not match[2].strip("0"):
        return None
    return Parent(match[1], match[2], int(match[3], 16))


def traceparent(marks: list[Any]) -> str:
    """Return the `traceparent` header for an outgoing call of the request of *marks*; "" if propagation is disabled."""
    if not _propagates or marks[0] != OPEN:
        # A worker that a finished request has started runs outside of any request.
        return ""
    theirs = span_of_theirs() if span_of_theirs is not None else None
    if theirs is not None:
        return f"00-{theirs.trace_id}-{theirs.span_id}-{theirs.flags:02x}"
    keys = marks[::3]
    if SHARED in keys:
        # A batch is shared by several requests with different traces.
        return ""
    parent = parent_of({key: marks[3 * keys.index(key) + 1] for key in ("@parent", "@traceparent") if key in keys})
    if "@trace" not in keys:
        fresh = os.urandom(24).hex()
        marks.extend(("@trace", (parent.trace_id if parent else fresh[:32], fresh[32:]), 0))
    # Two concurrent calls may both have created ids: all use the first ones.
    ids = marks[3 * marks[::3].index("@trace") + 1]
    return f"00-{ids[0]}-{ids[1]}-{parent.flags if parent else SAMPLED:02x}"


def parent_of(facts: dict[str, Any]) -> Parent | None:
    """Return the parent span of a request with these *facts*: the user's own span around the request, or the span of the caller."""
    given = facts.get("@traceparent")
    return facts.get("@parent") or (parse(given) if isinstance(given, str) else None)


def trace_draw(facts: dict[str, Any]) -> int | None:
    """Return the second half of the trace id of a request with these *facts*; None for a request without calls and caller.

    >>> hex(trace_draw({"@traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}) or 0)
    '0x8448eb211c80319c'
    """
    ids, parent = facts.get("@trace"), facts.get("@parent")
    if not ids and not parent and "@traceparent" not in facts:
        return None
    try:
        trace_id = ids[0] if ids else parent.trace_id if parent else facts["@traceparent"].strip()[3:35]
        return int(trace_id[16:], 16)
    except (KeyError, ValueError, AttributeError):
        return None


def is_forced(header: str) -> bool:
    """Return whether *header*, the value of `X-Force-Trace`, is the configured secret."""
    wanted = os.environ.get(FORCE_VARIABLE, "")
    return bool(wanted) and header == wanted


_propagates = "false" not in os.environ.get("STAGELENS_PROPAGATE", "").lower() and (
    "true" not in os.environ.get("OTEL_SDK_DISABLED", "").lower()
)

# Returns the current valid span of the user's own OpenTelemetry SDK; None if that SDK is not loaded.
span_of_theirs: Callable[[], Parent | None] | None = None
