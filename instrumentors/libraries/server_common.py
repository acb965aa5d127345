"""Shared by the web servers: the headers of a request that are read, and the timing of a streamed response.

Of a request the method and three headers are read:

- `traceparent`: the trace of the request.
- `X-Request-Start`: its arrival at a proxy. It moves the start of the request back; the wait is `queue`.
- `X-Force-Trace`: forces the retention of its trace, if configured.

Of a streamed response the first chunk and the longest gap between two chunks are recorded, because its duration depends
on its length. A body with a declared length is no stream, however many chunks it is sent in.
"""

from __future__ import annotations

import re
import time

from ...core.names import BY_FIRST_CHUNK
from ..records import Marks
from ..trace_context import is_forced

# Chunks that go straight to the socket's buffer take less; to mark each would fill the list for nothing.
MIN_CHUNK_NS = 50_000


class ResponseStream:
    """The chunks of one body; a chunk without bytes is none.

    Args:
        at: When the first was handed to the server, by `clock`. [nanoseconds]
    """

    __slots__ = ("_first", "_last", "_longest")

    def __init__(self, at: int) -> None:
        self._first = self._last = at
        # Negative until there is a second chunk: one alone is no stream, such as an answer that a middleware passed on.
        self._longest = -1

    def add(self, at: int) -> None:
        """Note a further chunk, handed to the server *at* that time of `clock`."""
        self._longest = max(self._longest, at - self._last)
        self._last = at

    def facts(self) -> Marks:
        """Return the facts of the request about its stream."""
        if self._longest < 0:
            return []
        return ["@first_token", self._first, BY_FIRST_CHUNK, "@gap", self._longest, BY_FIRST_CHUNK]


# The route of a request that matched none: never its path.
UNMATCHED = "__unmatched__"
# From this status on it was the service that failed.
FAILED = 500
# The methods of RFC 9110 and RFC 5789; a client may send any other word.
METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})
OTHER_METHOD = "_OTHER"

# Longer than any proxy waits: the header is wrong, or its clock is.
MAX_PROXY_WAIT_NS = 600 * 10**9
# From which number on a time since 1970 is in that unit, and the unit. 10**11 s is the year 5138, 10**11 ms is 1973.
_UNITS_NS = ((1e17, 1), (1e14, 10**3), (1e11, 10**6), (0, 10**9))
_SENT_AT = re.compile(r"(?:t=)?([0-9]{9,19}(?:\.[0-9]{1,9})?)")


def record_request_head(marks: Marks, method: str, traceparent: str, forced: str, waited_ns: int) -> int:
    """Record the method and headers of a request, and return its start.

    Args:
        marks: The request's record; it says when the request reached us.
        method: As the client wrote it.
        traceparent: The header's value, "" without one.
        forced: The value of `X-Force-Trace`, "" without one.
        waited_ns: How long the request had been waiting when it reached us. [nanoseconds]

    Returns:
        When it started, by `clock`. [nanoseconds]
    """
    arrived: int = marks[1]
    marks.extend(("@method", method if method in METHODS else OTHER_METHOD, 0))
    if traceparent:
        marks.extend(("@traceparent", traceparent, 0))
    if forced and is_forced(forced):
        marks.extend(("@force", 1, 0))
    if waited_ns:
        marks.extend(("queue", arrived - waited_ns, arrived))
    return arrived - waited_ns


def proxy_wait_ns(header: str, now_ns: int = 0) -> int:
    """Return how long a request had been under way when it arrived, by its `X-Request-Start`.

    Proxies write seconds (nginx: `t=1700000000.123`), milliseconds (Heroku), microseconds (Apache: `t=%t`) or
    nanoseconds since 1970; the size of the number tells which. Of several values, each of one proxy, the first counts.

    Args:
        header: The header's value.
        now_ns: The time of arrival, 0 for now. [nanoseconds since 1970]

    Returns:
        0 for a header that makes no sense: unreadable, from the future, or longer ago than `MAX_PROXY_WAIT_NS`. [ns]

    >>> proxy_wait_ns("t=1700000000.250", 1_700_000_000_750_000_000)
    500000000
    """
    match = _SENT_AT.fullmatch(header.partition(",")[0].strip())
    if match is None:
        return 0
    number = float(match[1])
    unit_ns = next(unit for floor, unit in _UNITS_NS if number >= floor)
    # A float holds seconds since 1970 to a quarter of a microsecond.
    waited = (now_ns or time.time_ns()) - round(number * unit_ns / 1000) * 1000
    return waited if 0 <= waited <= MAX_PROXY_WAIT_NS else 0
