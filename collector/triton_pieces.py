"""What earlier exports of Triton said of requests that had not ended then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .dimensions import text
from .wire import Span

ROOT = "InferRequest"
MODEL_NAME, MODEL_VERSION = "triton.model_name", "triton.model_version"
QUEUE_START = "QUEUE_START"
COMPUTE_STEPS = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")


class Piece(NamedTuple):
    """What counts of a span below a request's own: few and short things, since it is held for a while.

    Args:
        span_id: Its id.
        parent_id: The span around it.
        model: The name of the model it is about, None for a part of one.
        version: That model's version.
        times: When what happened in it, by name.
    """

    span_id: str
    parent_id: str
    model: str | None
    version: str
    times: dict[str, int]

    @classmethod
    def of(cls, span: Span) -> Piece:
        """Return what counts of *span*."""
        name = span.attributes.get(MODEL_NAME)
        return cls(
            span.span_id,
            span.parent_id,
            None if name is None else text(name),
            text(span.attributes.get(MODEL_VERSION, "")),
            {event.name: event.time_ns for event in span.events if event.name in (QUEUE_START, *COMPUTE_STEPS)},
        )


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
        # By trace, in the order of what came last to each; with the time of that, and the pieces by their id.
        self._traces: dict[str, tuple[float, dict[str, Piece]]] = {}
        self._size = 0

    def add(self, spans: Sequence[Span]) -> dict[str, list[Piece]]:
        """Keep *spans*, but not those of requests themselves, and return all that is kept of their traces, by trace."""
        now = self._clock()
        with self._lock:
            self._forget(lambda at: at < now - self.MAX_AGE_SECONDS)
            for span in spans:
                _, held = self._traces.pop(span.trace_id, (now, {}))
                self._traces[span.trace_id] = now, held
                if span.name != ROOT:
                    self._size += span.span_id not in held
                    held[span.span_id] = Piece.of(span)
            found = {span.trace_id: list(self._traces[span.trace_id][1].values()) for span in spans}
            self._forget(lambda _: self._size > self.MAX_SPANS)
        return found

    def _forget(self, is_due: Callable[[float], bool]) -> None:
        while self._traces and is_due(next(iter(self._traces.values()))[0]):
            _, held = self._traces.pop(next(iter(self._traces)))
            self._size -= len(held)
