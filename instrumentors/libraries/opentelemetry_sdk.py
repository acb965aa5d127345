"""OpenTelemetry SDK: adds retained requests to your own traces. The OpenTelemetry module of Stagelens times nothing.

- If one of your spans surrounds the request, this span becomes the parent of the request.
- If no span surrounds the request, Stagelens uses the first span inside the request. A server span becomes the parent. From
  any other span, such as the span of a database query, Stagelens uses only the trace id.
- Stagelens adds the attribute `stagelens.counted` to spans that a collector could count as separate requests. The Stagelens
  collector does not count these spans again. Stagelens changes nothing else in your spans.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ...core.names import COUNTED
from ..instrumentor import Hook, Instrumentor, log_failure
from ..recorder_state import state
from ..records import OPEN, STATE, current, has_capacity, untimed
from ..trace_context import Parent


class OpenTelemetrySdkInstrumentor(Instrumentor):
    library = "opentelemetry.sdk"
    title = "OpenTelemetry SDK"
    tested = {"opentelemetry-sdk": "1.45.1"}

    def hooks(self) -> Mapping[str, Hook]:
        return {"opentelemetry.sdk.trace": self._trace}

    def uninstrument(self, **options: Any) -> None:
        state.user_span = None
        super().uninstrument(**options)

    def _trace(self, module: ModuleType) -> None:
        self.replace(module.Span, "start", _start)
        state.user_span = _current


def _start(original: Any) -> Any:
    def start(self: Any, start_time: Any = None, parent_context: Any = None) -> None:
        original(self, start_time, parent_context)
        marks = current.get() or untimed.get()
        if marks is not None and marks[STATE] == OPEN:
            try:
                if self.parent is None or self.parent.is_remote:
                    self.set_attribute(COUNTED, True)
                if has_capacity(marks) and "@parent" not in marks[::3]:
                    marks.extend(("@parent", _around(self), 0))
            except Exception:
                log_failure("finding the span of a request")

    return start


def _around(span: Any) -> Parent:
    """Return the parent of the request in which *span* started; without a span id if *span* is inside the request."""
    parent = _parent(span.get_span_context())
    return parent if span.kind.name in {"SERVER", "CONSUMER"} else parent._replace(span_id="")


def _current() -> Parent | None:
    from opentelemetry.trace import get_current_span  # noqa: PLC0415 - already loaded by the SDK

    span = get_current_span()
    context = span.get_span_context()
    marks = current.get() or untimed.get()
    if (marks is None or marks[STATE] != OPEN) and span.is_recording():
        # A request starts inside this span. Later calls of this function are for outgoing calls of the request.
        span.set_attribute(COUNTED, True)
    return _parent(context) if context.is_valid else None


def _parent(context: Any) -> Parent:
    return Parent(f"{context.trace_id:032x}", f"{context.span_id:016x}", int(context.trace_flags))
