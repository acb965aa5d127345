"""Read API `/api/v1/…`: pages, services, names, queries and traces as JSON, CSV or OTLP JSON (see docs/api.md).

A response has an ETag of the address, the window and the revision of the data. A request with a current ETag gets 304
before anything is computed.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from flask import Flask, Response, current_app, request

from ...analysis.profile import profile_of_request
from ...core import names
from ...core.code_stack import split_stack_key
from ...core.version import __version__
from ...store import KeptTrace
from ...store.schema import storable
from ..pages.page import Context, Page
from ..source import Source
from ..ui.page_export import PageData, page_data
from ..view import API_PREFIX, ORDER, SCOPE, View, parse, service_path
from .api_formats import (
    NOT_FOUND,
    BadRequestError,
    as_csv,
    check_keys,
    columns,
    error_response,
    file_name,
    json_response,
    refuse,
    required,
    rows,
    table_json,
    with_json_errors,
)
from .api_queries import QUERIES, Arguments
from .routing import context_of, page_of, page_state, parameter_errors

_SERVER, _INTERNAL = 2, 1
_FAILED = 2
_NO_SUCH = 404
_V1 = f"{API_PREFIX}v1"
_EXPORT = ("path", "chart", "table", "format")
_NOWHERE = "api nowhere"


def add_api_routes(server: Flask, source: Source) -> None:
    def view() -> Response:
        given = _query_parameters(*ORDER, *_EXPORT)
        context = _context(source, required(given, "path"), given)
        return _conditional_response(context, lambda: _exported(context, given))

    def services() -> Response:
        context = _context(source, "/", _query_parameters("from", "to"))
        return _conditional_response(
            context,
            lambda: json_response(
                {**_window(context), **table_json(context.source.services(context.view.start, context.view.end))}
            ),
        )

    def names() -> Response:
        _query_parameters()
        context = _context(source, "/", {})
        return _conditional_response(context, lambda: json_response(_names(source)))

    def query(question: str) -> Response:
        found = QUERIES.get(question)
        if found is None:
            refuse(f"there is no query {question}", "question", f"one of {', '.join(QUERIES)}", NOT_FOUND)
        given = _query_parameters(*found.keys)
        service = required(given, "service") if found.about_one else given.get("service")
        part = {key: given[name] for key, name in SCOPE.items() if name in given}
        context = _context(source, found.path, given | part, service)
        window = _window(context)
        about = window if found.about_window else {"revision": window["revision"]}
        return _conditional_response(context, lambda: json_response({**about, **found.answer(context, given)}))

    for path, respond in (("view", view), ("services", services), ("names", names), ("query/<question>", query)):
        server.add_url_rule(f"{_V1}/{path}", f"api {path}", with_json_errors(respond), methods=["GET"])
    methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    server.add_url_rule(f"{API_PREFIX}<path:rest>", _NOWHERE, with_json_errors(_unknown_path), methods=methods)


def _query_parameters(*allowed: str) -> Arguments:
    given = {key: storable(value) for key, value in request.args.items() if value}
    check_keys(given, allowed)
    return given


def _context(source: Source, path: str, given: Arguments, service: str | None = None) -> Context:
    view = source.whole(parse(path, urlencode(given), source.now()))
    return Context(view, source, service) if service else context_of(view, source)


def _conditional_response(context: Context, respond: Callable[[], Response]) -> Response:
    tag = _tag(context)
    if request.if_none_match.contains_weak(tag):
        response = Response(status=304)
    else:
        for error in parameter_errors(context, request.args):
            raise error
        response = respond()
    response.set_etag(tag, weak=True)
    # Browsers may store the response but must revalidate; shared caches must not store it, because access depends on the reader.
    response.headers["Cache-Control"] = "private, no-cache"
    return response


def _tag(context: Context) -> str:
    view, state = context.view, page_state(context)
    made_from = (
        *(__version__, context.source.access.key, request.full_path, view.start.isoformat(), view.end.isoformat()),
        *(state["own"] or state["revision"], state["stale"]),
    )
    return hashlib.sha256(repr(made_from).encode()).hexdigest()[:24]


def _exported(context: Context, given: Arguments) -> Response:
    form = given.get("format", "json")
    if form not in ("json", "csv"):
        refuse(f"format is {form!r}", "format", "json or csv")
    page = page_of(context)
    if page is None:
        refuse(f"{context.view.path} is not a page", "path", "the path of a page, such as /s/vision-api", NOT_FOUND)
    found = page_data(page.body)
    if given.get("chart"):
        return _chart(context, found, given["chart"], form)
    if given.get("table"):
        return _table(context, found, given["table"], form)
    if form == "csv":
        refuse(
            "CSV needs one table, and this view has several",
            "chart",
            f"add chart= or table=: {_available_exports(found)}",
        )
    return json_response(_view_json(context, page, found))


def _view_json(context: Context, page: Page, found: PageData) -> dict[str, Any]:
    return {
        "title": page.title.removesuffix(" · Stagelens"),
        **_window(context),
        "charts": {name: _chart_json(found, name) for name in found.charts},
        "tables": found.tables,
    }


def _chart_json(found: PageData, name: str) -> dict[str, Any]:
    drawn = found.charts[name]
    table = {"columns": [], "rows": []} if drawn.frame is None else table_json(drawn.frame)
    return {"title": drawn.title, "summary": drawn.spoken, **table}


def _chart(context: Context, found: PageData, name: str, form: str) -> Response:
    if name not in found.charts:
        refuse(f"this view has no chart {name}", "chart", f"charts: {', '.join(found.charts) or 'none'}", NOT_FOUND)
    if form == "json":
        return json_response({**_window(context), **_chart_json(found, name)})
    frame = found.charts[name].frame
    if frame is None:
        refuse(f"the chart {name} has no table", "chart", _available_exports(found), NOT_FOUND)
    head = [f"{each['name']} ({each['unit']})" if "unit" in each else each["name"] for each in columns(frame)]
    return _csv(context, name, as_csv(head, rows(frame)))


def _table(context: Context, found: PageData, name: str, form: str) -> Response:
    table = next((each for each in found.tables if each.name == name), None)
    if table is None:
        names = ", ".join(each.name for each in found.tables) or "none"
        refuse(f"this view has no table {name}", "table", f"tables: {names}", NOT_FOUND)
    if form == "json":
        return json_response({**_window(context), "name": table.name, "head": table.head, "rows": table.rows})
    return _csv(context, name, as_csv(table.head, table.rows))


def _available_exports(found: PageData) -> str:
    names = [name for name, drawn in found.charts.items() if drawn.frame is not None]
    return f"charts: {', '.join(names) or 'none'}; tables: {', '.join(each.name for each in found.tables) or 'none'}"


def _window(context: Context) -> dict[str, Any]:
    view: View = context.view
    times = {"from": view.start, "to": view.end, "complete_until": view.complete_until}
    return {**times, "revision": context.source.revision(context.service)}


def _names(source: Source) -> dict[str, Any]:
    known = source.all_services()
    pairs = zip(known["service"], known["versions"], strict=True)
    return {"services": [{"name": name, "path": service_path(name), "versions": each} for name, each in pairs]}


def _csv(context: Context, name: str, text: str) -> Response:
    response = Response(text, mimetype="text/csv")
    response.headers["Content-Disposition"] = f'attachment; filename="{file_name([*context.view.parts, name], "csv")}"'
    return response


def _unknown_path(rest: str) -> Response:
    takes = [each for each in ("GET", "POST") if _endpoint(each) != _NOWHERE]
    if takes:
        refused = error_response(f"{request.path} does not take {request.method}", "method", f"send a {takes[0]}", 405)
        refused.headers["Allow"] = ", ".join(takes)
        return refused
    msg = f"there is no {API_PREFIX}{rest}"
    fix = (
        f"{_V1}/view, {_V1}/services, {_V1}/names, {_V1}/traces/<id>, {_V1}/events, {_V1}/query/<question>, {_V1}/query"
    )
    raise BadRequestError(msg, key="path", fix=fix, status=NOT_FOUND)


def _endpoint(method: str) -> str:
    return str(current_app.url_map.bind("").match(request.path, method)[0])


def add_trace_route(server: Flask, source: Source) -> None:
    def trace(name: str) -> Response:
        found = source.cached(source.read.trace, name)
        if found is None:
            return error_response(
                f"the trace {name[:40]} was not retained", "id", "retained traces are listed at /traces", _NO_SUCH
            )
        headers = {"Content-Disposition": f'attachment; filename="trace-{found.trace_id[:8]}.otlp.json"'}
        profile = _request_profile(found)
        # Receivers of OTLP ignore unknown fields.
        document = as_otlp(found) | ({"profile": profile} if profile else {})
        return Response(json.dumps(document, indent=1), mimetype="application/json", headers=headers)

    server.add_url_rule(f"{API_PREFIX}v1/traces/<name>", "api trace", with_json_errors(trace), methods=["GET"])


def _request_profile(found: KeptTrace) -> list[dict[str, Any]]:
    sampled = profile_of_request(str(found.attributes.get(names.PROFILE, "")))
    made: list[dict[str, Any]] = []
    for key, spent in sorted(sampled.items(), key=lambda item: -item[1]):
        stage, frames = split_stack_key(key)
        made.append({"stage": stage, "seconds": spent / 1e6, "frames": [frame._asdict() for frame in frames]})
    return made


def as_otlp(found: KeptTrace) -> dict[str, Any]:
    series = found.series
    resource = {
        names.SERVICE_NAME: series.service,
        names.SERVICE_VERSION: series.version,
        names.ENVIRONMENT: series.environment,
    }
    scope = {"scope": {"name": names.SCOPE, "version": __version__}, "spans": [_root_span(found), *_child_spans(found)]}
    return {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scope]}]}


def _root_span(found: KeptTrace) -> dict[str, Any]:
    shares = {f"{names.STAGE_SELF_PREFIX}{stage}": spent for stage, spent in found.stages_ns.items()}
    facts = {
        **found.attributes,
        names.ROUTE: found.series.route,
        names.MODEL: found.series.model,
        names.RETAINED_BECAUSE: found.because,
        names.DOMINANT: found.dominant,
        **shares,
    }
    root = _span(found, found.span_id, found.series.route or "request", (0, found.duration_ns), facts)
    failed = found.series.status == names.STATUS_ERROR
    parent = {"parentSpanId": found.parent_id} if found.parent_id else {}
    return {**root, **parent, "kind": _SERVER, "status": {"code": _FAILED} if failed else {}}


def _child_spans(found: KeptTrace) -> list[dict[str, Any]]:
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
    # bool is a subclass of int, and OTLP JSON writes 64-bit integers as strings.
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": str(value)}
