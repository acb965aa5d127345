"""One kept request as a file of OTLP JSON, which other tools read: `GET /api/v1/traces/<id>`."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from flask import Flask, Response

from .. import __version__
from ..core import names
from ..store import KeptTrace
from .replies import PREFIX, explained, refusal
from .source import Source

_SERVER, _INTERNAL = 2, 1
_FAILED = 2
_NO_SUCH = 404


def serve(server: Flask, source: Source) -> None:
    """Answer with kept requests on *server*."""

    def trace(name: str) -> Response:
        found = source.ask(source.read.trace, name)
        if found is None:
            return refusal(f"the trace {name[:40]} was not kept", "id", "kept traces are listed at /traces", _NO_SUCH)
        said = {"Content-Disposition": f'attachment; filename="trace-{found.trace_id[:8]}.otlp.json"'}
        return Response(json.dumps(as_otlp(found), indent=1), mimetype="application/json", headers=said)

    server.add_url_rule(f"{PREFIX}v1/traces/<name>", "api trace", explained(trace), methods=["GET"])


def as_otlp(found: KeptTrace) -> dict[str, Any]:
    """Return *found* as one `ExportTraceServiceRequest` in the JSON mapping of OTLP 1.x.

    The ids of the spans below the root are not kept; they are made anew from their places, the same each time.
    """
    series = found.series
    resource = {
        names.SERVICE_NAME: series.service,
        names.SERVICE_VERSION: series.version,
        names.ENVIRONMENT: series.environment,
    }
    scope = {"scope": {"name": names.SCOPE, "version": __version__}, "spans": [_root(found), *_children(found)]}
    return {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scope]}]}


def _root(found: KeptTrace) -> dict[str, Any]:
    shares = {f"{names.STAGE_SELF_PREFIX}{stage}": spent for stage, spent in found.stages_ns.items()}
    facts = {
        **found.attributes,
        names.ROUTE: found.series.route,
        names.MODEL: found.series.model,
        names.KEPT_BECAUSE: found.because,
        names.DOMINANT: found.dominant,
        **shares,
    }
    root = _span(found, found.span_id, found.series.route or "request", (0, found.duration_ns), facts)
    failed = found.series.status != names.STATUS_OK
    return {**root, "kind": _SERVER, "status": {"code": _FAILED} if failed else {}}


def _children(found: KeptTrace) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for place, span in enumerate(found.spans):
        own = f"{zlib.crc32(found.span_id.encode()):08x}{place:08x}"
        facts = {**dict(span.get("attributes") or {}), names.STAGE: span["stage"]}
        within = int(span["start_ns"]), int(span["duration_ns"])
        whole = _span(found, own, str(span["name"]), within, facts)
        made.append({**whole, "parentSpanId": found.span_id, "kind": _INTERNAL})
    return made


def _span(
    found: KeptTrace, span_id: str, name: str, within: tuple[int, int], facts: Mapping[str, Any]
) -> dict[str, Any]:
    begin, length = found.started_ns + within[0], within[1]
    return {
        "traceId": found.trace_id,
        "spanId": span_id,
        "name": name,
        "startTimeUnixNano": str(begin),
        "endTimeUnixNano": str(begin + length),
        "attributes": _attributes(facts),
    }


def _attributes(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in facts.items() if value not in ("", None)]


def _value(value: Any) -> dict[str, Any]:
    # A bool is an int to Python, and 64-bit integers are strings in OTLP's JSON.
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": str(value)}
