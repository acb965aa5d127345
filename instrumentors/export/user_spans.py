"""Retained requests as spans of the user's own OpenTelemetry SDK, with the ids that we propagated.

Tracers of the SDK accept no ids, so finished spans go to the span processors. Their number per export is limited: a processor with a
full queue drops the user's own spans too, and one without a queue exports synchronously.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from typing import Any

from ...core.names import RETAINED_SCOPE
from ..agent.spans import Span, Trace
from ..instrumentor import log_failure

# Limit per export. A BatchSpanProcessor holds 2048 spans by default.
MAX_SPANS = 1024
# Time limit for passing spans to the SDK, because no requests are aggregated meanwhile.
MAX_SECONDS = 0.5


_logger = logging.getLogger("stagelens")
_is_reported = False


def export_spans(traces: Sequence[Trace], anchor_ns: int, max_spans: int = MAX_SPANS) -> int:
    """Pass whole *traces* to the user's OpenTelemetry SDK, if the program has configured one; never raises."""
    if "opentelemetry.sdk.trace" not in sys.modules or not max_spans:
        return max_spans
    try:
        return _emit(traces, anchor_ns, max_spans)
    except Exception:
        log_failure("passing retained requests to the OpenTelemetry SDK")
        return 0


def _emit(traces: Sequence[Trace], anchor_ns: int, max_spans: int) -> int:
    from opentelemetry import trace as api  # noqa: PLC0415 - only if the program has loaded it
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - as above

    provider = api.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        return max_spans
    # The SDK has no public API that accepts a finished span.
    processor: Any = vars(provider)["_active_span_processor"]
    until = time.monotonic() + MAX_SECONDS
    for number, trace in enumerate(traces):
        spans = [_readable(provider, trace.trace_id, span, anchor_ns) for span in trace.spans]
        if not trace.sampled or not _is_wanted(provider, spans[0]):
            continue
        # Not within a trace: a request without some of its stages would be wrong.
        if len(spans) > max_spans or time.monotonic() > until:
            _report_dropped(len(traces) - number)
            return 0
        max_spans -= len(spans)
        for span in spans:
            processor.on_end(span)
    return max_spans


def _report_dropped(count: int) -> None:
    global _is_reported  # noqa: PLW0603 - once per process, as it likely happens at each export
    log = _logger.debug if _is_reported else _logger.warning
    _is_reported = True
    log(
        "stagelens: %d retained requests are not passed to the OpenTelemetry SDK, which takes at most %d spans and %.1f s per "
        "export; all requests are counted, and the collector of Stagelens has these traces",
        count,
        MAX_SPANS,
        MAX_SECONDS,
    )


def _is_wanted(provider: Any, root: Any) -> bool:
    from opentelemetry import trace as api  # noqa: PLC0415 - as above
    from opentelemetry.context import Context  # noqa: PLC0415 - as above

    around = Context()
    if root.parent is not None:
        around = api.set_span_in_context(api.NonRecordingSpan(root.parent), around)
    result = provider.sampler.should_sample(
        around, root.context.trace_id, root.name, kind=root.kind, attributes=root.attributes
    )
    return result.decision.is_sampled()


def _readable(provider: Any, trace_id: str, span: Span, anchor_ns: int) -> Any:
    from opentelemetry import trace as api  # noqa: PLC0415 - as above
    from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415 - as above
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415 - as above

    def context(span_id: str, *, remote: bool) -> Any:
        return api.SpanContext(int(trace_id, 16), int(span_id, 16), remote, api.TraceFlags(api.TraceFlags.SAMPLED))

    return ReadableSpan(
        name=span.name,
        context=context(span.span_id, remote=False),
        parent=context(span.parent_id, remote=True) if span.parent_id else None,
        resource=provider.resource,
        attributes=span.attributes,
        kind=api.SpanKind.SERVER if span.kind == "server" else api.SpanKind.INTERNAL,
        # Not the scope of our own exports: a Stagelens collector behind the SDK must not ingest a trace twice.
        instrumentation_scope=InstrumentationScope(RETAINED_SCOPE),
        status=api.Status(api.StatusCode.ERROR if span.failed else api.StatusCode.UNSET),
        start_time=anchor_ns + span.start,
        end_time=anchor_ns + span.end,
    )
