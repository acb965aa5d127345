"""Read API `/api/v1/…`: pages, services, names, queries and traces as JSON, CSV or OTLP JSON (see docs/api.md).

A response has an ETag of the address, the window and the revision of the data. A request with a current ETag gets 304
before anything is computed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from flask import Flask, Response, current_app, request

from ...analysis.profile import profile_of_request
from ...core import names
from ...core.code_stack import split_stack_key
from ...core.version import __version__
from ...store import RetainedTrace
from ...store.otlp_json import SERVER, otlp_attributes, otlp_spans, resource_attributes
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
        api_query = QUERIES.get(question)
        if api_query is None:
            refuse(f"there is no query {question}", "question", f"one of {', '.join(QUERIES)}", NOT_FOUND)
        given = _query_parameters(*api_query.keys)
        service = required(given, "service") if api_query.about_one else given.get("service")
        part = {key: given[name] for key, name in SCOPE.items() if name in given}
        context = _context(source, api_query.path, given | part, service)
        window = _window(context)
        about = window if api_query.about_window else {"revision": window["revision"]}
        return _conditional_response(context, lambda: json_response({**about, **api_query.answer(context, given)}))

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
    export = page_data(page.body)
    if given.get("chart"):
        return _chart(context, export, given["chart"], form)
    if given.get("table"):
        return _table(context, export, given["table"], form)
    if form == "csv":
        refuse(
            "CSV needs one table, and this view has several",
            "chart",
            f"add chart= or table=: {_available_exports(export)}",
        )
    return json_response(_view_json(context, page, export))


def _view_json(context: Context, page: Page, export: PageData) -> dict[str, Any]:
    return {
        "title": page.title.removesuffix(" · Stagelens"),
        **_window(context),
        "charts": {name: _chart_json(export, name) for name in export.charts},
        "tables": export.tables,
    }


def _chart_json(export: PageData, name: str) -> dict[str, Any]:
    drawn = export.charts[name]
    table = {"columns": [], "rows": []} if drawn.frame is None else table_json(drawn.frame)
    return {"title": drawn.title, "summary": drawn.spoken, **table}


def _chart(context: Context, export: PageData, name: str, form: str) -> Response:
    if name not in export.charts:
        refuse(f"this view has no chart {name}", "chart", f"charts: {', '.join(export.charts) or 'none'}", NOT_FOUND)
    if form == "json":
        return json_response({**_window(context), **_chart_json(export, name)})
    frame = export.charts[name].frame
    if frame is None:
        refuse(f"the chart {name} has no table", "chart", _available_exports(export), NOT_FOUND)
    head = [f"{column['name']} ({column['unit']})" if "unit" in column else column["name"] for column in columns(frame)]
    return _csv(context, name, as_csv(head, rows(frame)))


def _table(context: Context, export: PageData, name: str, form: str) -> Response:
    table = next((table_data for table_data in export.tables if table_data.name == name), None)
    if table is None:
        names = ", ".join(table_data.name for table_data in export.tables) or "none"
        refuse(f"this view has no table {name}", "table", f"tables: {names}", NOT_FOUND)
    if form == "json":
        return json_response({**_window(context), "name": table.name, "head": table.head, "rows": table.rows})
    return _csv(context, name, as_csv(table.head, table.rows))


def _available_exports(export: PageData) -> str:
    names = [name for name, drawn in export.charts.items() if drawn.frame is not None]
    return f"charts: {', '.join(names) or 'none'}; tables: {', '.join(table_data.name for table_data in export.tables) or 'none'}"


def _window(context: Context) -> dict[str, Any]:
    view: View = context.view
    times = {"from": view.start, "to": view.end, "complete_until": view.complete_until}
    return {**times, "revision": context.source.revision(context.service)}


def _names(source: Source) -> dict[str, Any]:
    services = source.all_services()
    pairs = zip(services["service"], services["versions"], strict=True)
    return {"services": [{"name": name, "path": service_path(name), "versions": versions} for name, versions in pairs]}


def _csv(context: Context, name: str, text: str) -> Response:
    response = Response(text, mimetype="text/csv")
    response.headers["Content-Disposition"] = f'attachment; filename="{file_name([*context.view.parts, name], "csv")}"'
    return response


def _unknown_path(rest: str) -> Response:
    takes = [method for method in ("GET", "POST") if _endpoint(method) != _NOWHERE]
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
        retained_trace = source.cached(source.read.trace, name)
        if retained_trace is None:
            return error_response(
                f"the trace {name[:40]} was not retained", "id", "retained traces are listed at /traces", _NO_SUCH
            )
        headers = {"Content-Disposition": f'attachment; filename="trace-{retained_trace.trace_id[:8]}.otlp.json"'}
        profile = _request_profile(retained_trace)
        # Receivers of OTLP ignore unknown fields.
        document = as_otlp(retained_trace) | ({"profile": profile} if profile else {})
        return Response(json.dumps(document, indent=1), mimetype="application/json", headers=headers)

    server.add_url_rule(f"{API_PREFIX}v1/traces/<name>", "api trace", with_json_errors(trace), methods=["GET"])


def _request_profile(trace: RetainedTrace) -> list[dict[str, Any]]:
    sampled = profile_of_request(str(trace.attributes.get(names.PROFILE, "")))
    nodes: list[dict[str, Any]] = []
    for key, spent in sorted(sampled.items(), key=lambda item: -item[1]):
        stage, frames = split_stack_key(key)
        nodes.append({"stage": stage, "seconds": spent / 1e6, "frames": [frame._asdict() for frame in frames]})
    return nodes


def as_otlp(trace: RetainedTrace) -> dict[str, Any]:
    root, *inside = otlp_spans(trace)
    root["kind"] = SERVER
    root["attributes"] += otlp_attributes({names.DOMINANT: trace.dominant})
    scope = {"scope": {"name": names.SCOPE, "version": __version__}, "spans": [root, *inside]}
    resource = {"attributes": otlp_attributes(resource_attributes(trace.series))}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}
