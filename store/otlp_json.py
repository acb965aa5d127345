"""Retained traces as OTLP/JSON, with the names and attributes of `docs/design/wire.md`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, TypeAlias

from ..core import names
from .records import RetainedTrace
from .series import COLD, Series

Json: TypeAlias = dict[str, Any]

# Enum values of OTLP: SpanKind, StatusCode.
_INTERNAL, SERVER, _FAILED = 1, 2, 2


def resource_attributes(series: Series) -> dict[str, str]:
    values = {
        names.SERVICE_NAME: series.service,
        names.SERVICE_VERSION: series.version,
        names.ENVIRONMENT: series.environment,
    }
    return {key: value for key, value in values.items() if value}


def series_attributes(series: Series) -> dict[str, str]:
    values = {
        names.MODEL: series.model,
        names.MODEL_VERSION: series.model_version,
        names.ROUTE: series.route,
        names.DEVICE: series.device,
        names.STATUS: series.status,
        names.COLD: "true" if series.cold == COLD else "",
    }
    return {key: value for key, value in values.items() if value}


def otlp_spans(trace: RetainedTrace) -> Iterator[Json]:
    """Yield the span of the request, and then those inside it."""
    method, route = trace.attributes.get(names.METHOD), trace.series.route
    attributes = {
        **series_attributes(trace.series),
        **trace.attributes,
        names.RETAINED_BECAUSE: trace.because,
        **{names.STAGE_SELF_PREFIX + stage: spent for stage, spent in trace.stages_ns.items()},
    }
    name = " ".join(str(part) for part in (method, route) if part) or "request"
    root = _span(trace, trace.span_id, trace.parent_id, name, (0, trace.duration_ns), attributes)
    failed = {"status": {"code": _FAILED}} if trace.series.status == names.STATUS_ERROR else {}
    yield root | failed | {"kind": SERVER if method else _INTERNAL}
    for number, span in enumerate(trace.spans):
        # The server of a call names the span of the call as its parent.
        own_id = span.get("id") or blake2b(f"{trace.span_id}/{number}".encode(), digest_size=8).hexdigest()
        stage = {names.STAGE: span["stage"]} if span["stage"] else {}
        within = int(span["start_ns"]), int(span["duration_ns"])
        inside = {**stage, **(span.get("attributes") or {})}
        yield _span(trace, own_id, trace.span_id, span["name"], within, inside) | {"kind": _INTERNAL}


def _span(  # noqa: PLR0917 - fields of a span
    trace: RetainedTrace, own_id: str, parent: str, name: str, within: tuple[int, int], attributes: Mapping[str, Any]
) -> Json:
    start = trace.started_ns + within[0]
    return {
        "traceId": trace.trace_id,
        "spanId": own_id,
        **({"parentSpanId": parent} if parent else {}),
        "name": name,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + within[1]),
        "attributes": otlp_attributes(attributes),
    }


def otlp_attributes(values: Mapping[str, Any]) -> list[Json]:
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value not in ("", None)]


def _value(value: Any) -> Json:
    # bool is a subclass of int, and OTLP JSON writes 64-bit integers as strings.
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": str(value)}
