"""One call to a Triton server: `serialize`, `network`, what became of it, and the server's part, which comes later.

While the client works, the request is out of the context: a module of ours for the client's HTTP or gRPC library would
count the same wait once more. `calling` stands in for it where the client builds its request.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Any

from ...instrumentor import report
from ...records import MAX_MARKS, Marks, clock, current
from ...trace_context import traceparent
from .endpoint import Server
from .statistics import Averaged

# What the status of an answer means, as HTTP and as gRPC say it: a full queue or no server there, too late, given up.
OUTCOMES = {
    "503": "rejected",
    "StatusCode.UNAVAILABLE": "rejected",
    "StatusCode.DEADLINE_EXCEEDED": "timeout",
    "StatusCode.CANCELLED": "cancelled",
}
# By name, for they come from asyncio, gevent and concurrent.futures.
CANCELLATIONS = ("CancelledError", "GreenletExit")
TIMEOUTS = ("Timeout",)

# Where a client keeps what it was told of its server.
SERVER = "_stagelens_server"

calling: ContextVar[Call | None] = ContextVar("stagelens_triton_call", default=None)


class Call:
    """A call that a request waits for.

    Args:
        marks: The request's.
        client: The client that makes it.
        model: The model called.
        version: The version asked for, "" when none was.
    """

    __slots__ = ("_ended", "begun", "deferred", "marks", "model", "sent", "server", "version")

    def __init__(self, marks: Marks, client: Any, model: str, version: str) -> None:
        self.marks = marks
        self.server: Server | None = getattr(client, SERVER, None)
        self.model = model
        self.version = version
        self.begun = self.sent = clock()
        # Whether the answer comes later, in a greenlet.
        self.deferred = False
        self._ended = False

    def serialized(self, begun: int) -> None:
        """Mark the building of the request, which began at *begun*; from here on it is on the wire."""
        self.sent = clock()
        if len(self.marks) < MAX_MARKS:
            self.marks.extend(("serialize", begun, self.sent))

    def end(self, error: BaseException | None, status: str = "") -> None:
        """Mark the wait, once: with *error*, or an answer's *status* that means one, it has failed."""
        arrived = clock()
        if self._ended or len(self.marks) >= MAX_MARKS:
            return
        self._ended = True
        try:
            self.marks.extend(("network", self.begun, arrived))
            self.settle(arrived, error, status)
        except Exception:
            report("timing a call of tritonclient")

    def settle(self, arrived: int, error: BaseException | None, status: str = "") -> None:
        """Say which model was called, and what became of it."""
        self.marks.extend(("@model", self.model, 0))
        if self.version:
            self.marks.extend(("@model_version", self.version, 0))
        if error is not None or status:
            self.marks.extend(("@failed", f"triton:{outcome(error, status)}", arrived - self.begun))
        elif self.server is not None:
            late = Averaged(self.server, self.model, self.version, self.sent, arrived)
            self.marks.extend(("@late", late, 0))


def enter(call: Call) -> tuple[Token[Marks | None], Token[Call | None]]:
    """Take the request out of the context while *call* is made."""
    return current.set(None), calling.set(call)


def leave(tokens: tuple[Token[Marks | None], Token[Call | None]]) -> None:
    """Put the request back; tokens of another context do nothing."""
    try:
        current.reset(tokens[0])
        calling.reset(tokens[1])
    except ValueError:
        # A coroutine that was closed elsewhere.
        pass


class Headers(dict[str, str]):
    """A copy of the user's headers with ours, that knows its call: it goes where no context variable does."""

    call: Call


def headers_for(call: Call, given: Any) -> Any:
    """Return the user's headers with our `traceparent`, unless there is one; theirs are not changed."""
    try:
        headers = Headers(given or {})
    except Exception:
        # What the client says of it is better.
        return given
    headers.call = call
    try:
        if not any(name.lower() == "traceparent" for name in headers) and (ours := traceparent(call.marks)):
            headers["traceparent"] = ours
    except Exception:
        report("adding traceparent to a call of tritonclient")
    return headers


def outcome(error: BaseException | None, status: str = "") -> str:
    """Return what became of a call that failed: "rejected", "timeout", "cancelled" or, for everything else, "error".

    >>> outcome(TimeoutError()), outcome(None, "503"), outcome(ValueError())
    ('timeout', 'rejected', 'error')
    """
    if not status and callable(ask := getattr(error, "status", None)):
        status = str(ask())
    if status in OUTCOMES:
        return OUTCOMES[status]
    kind = type(error).__name__
    if isinstance(error, TimeoutError) or kind in TIMEOUTS:
        return "timeout"
    return "cancelled" if kind in CANCELLATIONS else "error"
