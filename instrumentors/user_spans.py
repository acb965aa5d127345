"""Kept requests as spans of the user's own OpenTelemetry SDK, so that their backend shows them in the user's own traces.

The ids are those we have handed on, which the SDK's tracers cannot be given: the finished spans go straight to the
processors of the tracer provider. A trace that its sampler left out stays left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from ..core.names import SCOPE
from .instrumentor import report
from .spans import Span, Trace


def emit(traces: Iterable[Trace], anchor_ns: int) -> None:
    """Hand *traces* to the SDK, if the program has set one up; never raises.

    Args:
        traces: What was kept.
        anchor_ns: What to add to the recorder's clock for Unix time. [nanoseconds]
    """
    if "opentelemetry.sdk.trace" not in sys.modules:
        return
    try:
        _emit(traces, anchor_ns)
    except Exception:
        report("handing kept requests to the OpenTelemetry SDK")


def _emit(traces: Iterable[Trace], anchor_ns: int) -> None:
    from opentelemetry import trace as api  # noqa: PLC0415 - nothing is loaded that the program has not loaded
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

    provider = api.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        return
    # There is no public way to hand over a span that is finished.
    processor: Any = vars(provider)["_active_span_processor"]
    for trace in traces:
        for span in trace.spans if trace.sampled else ():
            processor.on_end(_readable(provider, trace.trace_id, span, anchor_ns))


def _readable(provider: Any, trace_id: str, span: Span, anchor_ns: int) -> Any:
    from opentelemetry import trace as api  # noqa: PLC0415 - as above
    from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

    def context(span_id: str, *, remote: bool) -> Any:
        return api.SpanContext(int(trace_id, 16), int(span_id, 16), remote, api.TraceFlags(api.TraceFlags.SAMPLED))

    return ReadableSpan(
        name=span.name,
        context=context(span.span_id, remote=False),
        parent=context(span.parent_id, remote=True) if span.parent_id else None,
        resource=provider.resource,
        attributes=span.attributes,
        kind=api.SpanKind.SERVER if span.kind == "server" else api.SpanKind.INTERNAL,
        # Not the scope of what we post ourselves: a collector of ours behind the SDK must not take a trace twice.
        instrumentation_scope=InstrumentationScope(f"{SCOPE}.kept"),
        status=api.Status(api.StatusCode.ERROR if span.failed else api.StatusCode.UNSET),
        start_time=anchor_ns + span.start,
        end_time=anchor_ns + span.end,
    )
