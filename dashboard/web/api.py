"""Read API `/api/v1/…`: pages, services, names, queries and traces as JSON, CSV or OTLP JSON (see docs/api.md).

A response has an ETag of the address, the window and the revision of the data. A request with a current ETag gets 304
before anything is computed.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any
from urllib.parse import urlencode

import pandas as pd
from flask import Flask, Response, current_app, request

from ... import __version__
from ...alerts.evaluation.replica_evidence import outlier_sentence
from ...alerts.formatting import moment_of
from ...analysis.attributes import SlowRequests, find_causes
from ...analysis.profile import CodeNode, flame_graph, functions, profile_of_request
from ...analysis.replicas import ReplicaOutlier, latencies
from ...core import names
from ...core.code_stack import split_stack_key
from ...core.histogram import Histogram, has_enough_samples
from ...store import KeptTrace
from ...store.audit import AuditEntry
from ...store.schema import storable
from ...store.selection import moment
from ..pages import audit
from ..pages.comparison import chosen_pair, compared, grown_at, newest_pair
from ..pages.measures import urgent_first
from ..pages.overview import has_labels
from ..pages.page import Context, Page
from ..pages.replicas import replica_table, slow_replica_of
from ..pages.service_code import profile_of_selection
from ..pages.service_map import shown_edges
from ..pages.shared_attributes import selected_requests
from ..pages.slo_spent import stage_budget_use
from ..pages.traces import find_traces
from ..pages.waste import waste_of
from ..source import Source
from ..ui.page_export import PageData, page_data
from ..view import API_PREFIX, ONLY_COLD, ORDER, SCOPE, WITHOUT_COLD, View, parse
from .api_formats import (
    NOT_FOUND,
    BadRequestError,
    as_csv,
    check_keys,
    columns,
    error_response,
    file_name,
    json_response,
    percentiles,
    required,
    rows,
    with_json_errors,
)
from .routing import context_of, page_of, page_state

_SERVER, _INTERNAL = 2, 1
_FAILED = 2
_NO_SUCH = 404
Arguments = dict[str, str]
_WINDOW = ("from", "to", "env")
_PART = ("model", "route", "cold")
_OF_TRACES = ("dom", "err", "min", "max", "at", "t", "n")
_DEFAULT_PERCENTILES = "50,90,95,99"
_DEFAULT_TAIL = "99"
_FUNCTIONS = [
    *("stage", "module", "function", "file", "line", "tail_self_seconds", "tail_total_seconds", "median_self_seconds"),
    *("median_total_seconds", "share", "stage_option"),
]
_CAUSES = [
    *(
        "attribute",
        "values",
        "value",
        "requests",
        "slow_requests",
        "share_all",
        "share_slow",
        "lift",
        "explained_share",
    ),
    *("p_value", "with_seconds", "without_seconds"),
]
_LATENCY = ["percentile", "value_seconds", "low_seconds", "high_seconds", "enough"]
_REPLICAS = ["replica", "place", "requests", "p50_seconds", "p99_seconds", "ratio"]
_BUDGETS = ["stage", "budget_seconds", "seconds", "mean_seconds", "over_seconds"]
_SHARES = ["service", "stage", "mean_seconds", "share"]
_EDGES = [
    *("caller", "called", "requests_per_second", "counted", "p50_seconds", "p99_seconds", "error_ratio"),
    *("share_of_slow_requests", "retained"),
]
_WASTE = [
    *("service", "idle_cost", "idle_share", "queue_seconds"),
    *("failed_calls", "failed_seconds", "load_seconds", "load_cost"),
]
_V1 = f"{API_PREFIX}v1"
_EXPORT = ("path", "chart", "table", "format")
_NOWHERE = "api nowhere"


def add_api_routes(server: Flask, source: Source) -> None:
    """Add the routes of the read API to *server*."""

    def view() -> Response:
        given = _query_parameters(*ORDER, *_EXPORT)
        context = _context(source, required(given, "path"), given)
        return _conditional_response(context, lambda: _exported(context, given))

    def services() -> Response:
        context = _context(source, "/", _query_parameters("from", "to"))
        return _conditional_response(
            context, lambda: json_response({**_window(context), **table_json(_services(context))})
        )

    def names() -> Response:
        _query_parameters()
        context = _context(source, "/", {})
        return _conditional_response(context, lambda: json_response(_names(source)))

    def query(question: str) -> Response:
        found = QUERIES.get(question)
        if found is None:
            msg = f"there is no query {question}"
            raise BadRequestError(msg, key="question", fix=f"one of {', '.join(QUERIES)}", status=NOT_FOUND)
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
    if given.get("cold", ONLY_COLD) not in (WITHOUT_COLD, ONLY_COLD):
        msg = f"cold is {given['cold']!r}"
        raise BadRequestError(
            msg, key="cold", fix="0 excludes cold requests, 1 selects only cold requests; omit it for all"
        )
    view = parse(path, urlencode(given), source.now())
    if not view.is_as_asked:
        msg = "the window is longer than 400 days, or its end is before its start"
        raise BadRequestError(msg, key="from", fix="use a `from` before `to`, by at most 400 days")
    view = source.whole(view)
    return Context(view, source, service) if service else context_of(view, source)


def _conditional_response(context: Context, respond: Callable[[], Response]) -> Response:
    """Return the response of *respond*, or 304 if the ETag of the request is current."""
    tag = _tag(context)
    if request.if_none_match.contains_weak(tag):
        response = Response(status=304)
    else:
        _check_names(context)
        response = respond()
    response.set_etag(tag, weak=True)
    # Browsers may store the response but must revalidate; shared caches must not store it, because access depends on the reader.
    response.headers["Cache-Control"] = "private, no-cache"
    return response


def _check_names(context: Context) -> None:
    """Reject an unknown environment or service, because a mistyped name would look like an idle service."""
    environment, source = context.view.text("env"), context.source
    known: list[str] = source.cached(source.read.environments)
    if environment and environment not in known:
        msg = f"there is no request of the environment {environment}"
        raise BadRequestError(
            msg, key="env", fix=", ".join(known) or "omit env: no environment is known", status=NOT_FOUND
        )
    if context.service and context.versions.empty:
        msg = f"no request of {context.service}{f' in {environment}' if environment else ''} is retained"
        key = next((each for each in ("service", "svc") if request.args.get(each)), "path")
        raise BadRequestError(msg, key=key, fix=f"{_V1}/names lists the services", status=NOT_FOUND)


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
        msg = f"format is {form!r}"
        raise BadRequestError(msg, key="format", fix="json or csv")
    page = page_of(context)
    if page is None:
        msg = f"{context.view.path} is not a page"
        raise BadRequestError(msg, key="path", fix="the path of a page, such as /s/vision-api", status=NOT_FOUND)
    found = page_data(page.body)
    if given.get("chart"):
        return _chart(context, found, given["chart"], form)
    if given.get("table"):
        return _table(context, found, given["table"], form)
    if form == "csv":
        msg = "CSV needs one table, and this view has several"
        raise BadRequestError(msg, key="chart", fix=f"add chart= or table=: {_available_exports(found)}")
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
    return {"title": drawn.title, "says": drawn.spoken, **table}


def _chart(context: Context, found: PageData, name: str, form: str) -> Response:
    if name not in found.charts:
        msg = f"this view has no chart {name}"
        raise BadRequestError(msg, key="chart", fix=f"charts: {', '.join(found.charts) or 'none'}", status=NOT_FOUND)
    if form == "json":
        return json_response({**_window(context), **_chart_json(found, name)})
    frame = found.charts[name].frame
    if frame is None:
        msg = f"the chart {name} has no table"
        raise BadRequestError(msg, key="chart", fix=_available_exports(found), status=NOT_FOUND)
    head = [f"{each['name']} ({each['unit']})" if "unit" in each else each["name"] for each in columns(frame)]
    return _csv(context, name, as_csv(head, rows(frame)))


def _table(context: Context, found: PageData, name: str, form: str) -> Response:
    table = next((each for each in found.tables if each.name == name), None)
    if table is None:
        names = ", ".join(each.name for each in found.tables) or "none"
        msg = f"this view has no table {name}"
        raise BadRequestError(msg, key="table", fix=f"tables: {names}", status=NOT_FOUND)
    if form == "json":
        return json_response({**_window(context), "name": table.name, "head": table.head, "rows": table.rows})
    return _csv(context, name, as_csv(table.head, table.rows))


def _available_exports(found: PageData) -> str:
    names = [name for name, drawn in found.charts.items() if drawn.frame is not None]
    return f"charts: {', '.join(names) or 'none'}; tables: {', '.join(each.name for each in found.tables) or 'none'}"


def _window(context: Context) -> dict[str, Any]:
    view: View = context.view
    return {"from": view.start, "to": view.end, "revision": context.source.revision(context.service)}


def _services(context: Context) -> Any:
    return context.source.services(context.view.start, context.view.end)


def _names(source: Source) -> dict[str, Any]:
    known = source.all_services()
    pairs = zip(known["service"], known["versions"], strict=True)
    return {"services": [{"name": name, "versions": versions} for name, versions in pairs]}


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
    fix = f"{_V1}/view, {_V1}/services, {_V1}/names, {_V1}/traces/<id>, {_V1}/events, {_V1}/query/<question>"
    raise BadRequestError(msg, key="path", fix=fix, status=NOT_FOUND)


def _endpoint(method: str) -> str:
    """Return the endpoint that handles *method* at the requested address."""
    return str(current_app.url_map.bind("").match(request.path, method)[0])


def add_trace_route(server: Flask, source: Source) -> None:
    """Add the route that exports retained requests to *server*."""

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
    """Return the samples of a request, most time first, with their frames from the outermost to the innermost."""
    sampled = profile_of_request(str(found.attributes.get(names.PROFILE, "")))
    made: list[dict[str, Any]] = []
    for key, spent in sorted(sampled.items(), key=lambda item: -item[1]):
        stage, frames = split_stack_key(key)
        made.append({"stage": stage, "seconds": spent / 1e6, "frames": [frame._asdict() for frame in frames]})
    return made


def as_otlp(found: KeptTrace) -> dict[str, Any]:
    """Return *found* as one `ExportTraceServiceRequest` in the JSON mapping of OTLP 1.x.

    The store has no ids of the spans below the root, so they are derived from the position of each span and are stable.
    """
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
        names.KEPT_BECAUSE: found.because,
        names.DOMINANT: found.dominant,
        **shares,
    }
    root = _span(found, found.span_id, found.series.route or "request", (0, found.duration_ns), facts)
    failed = found.series.status != names.STATUS_OK
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


@dataclass(frozen=True, slots=True)
class ApiQuery:
    """Query of `GET /api/v1/query/<name>`.

    Args:
        keys: Accepted parameters.
        answer: Function that returns the result as JSON values.
        about_one: Whether the query is about one service, so that `service` is required.
        about_window: Whether the response contains the window of the address; a comparison contains the times of both sides.
        path: Path of the page with the same data, which determines whether a response is current.
    """

    keys: tuple[str, ...]
    answer: Callable[[Context, Arguments], dict[str, Any]]
    about_one: bool = True
    about_window: bool = True
    path: str = "/"


def table_json(frame: pd.DataFrame) -> dict[str, Any]:
    """Return *frame* as columns and rows, the form of API tables."""
    return {"columns": columns(frame), "rows": rows(frame)}


def _breakdown(context: Context, given: Arguments) -> dict[str, Any]:
    wanted = percentiles(given.get("p") or _DEFAULT_PERCENTILES)
    frame = context.source.cached(context.source.read.breakdown, context.selection, wanted)
    return {"requests": int(frame.attrs.get("requests", 0)), **table_json(frame)}


def _stalls(context: Context, given: Arguments) -> dict[str, Any]:
    wanted = percentiles(given.get("p") or _DEFAULT_PERCENTILES)
    return table_json(context.source.cached(context.source.read.stalls, context.selection, wanted))


def _profile(context: Context, given: Arguments) -> dict[str, Any]:
    wanted, selected = _slow_requests(context, given)
    bands = context.source.cached(context.source.read.profile, context.selection, (0.5, wanted))
    median, tail = bands or (None, None)
    if tail and selected:
        tail = profile_of_selection(context, selected)
    found = functions(tail, median) if tail else []
    stages = dict.fromkeys(each.stage for each in found)
    rows = [
        (
            *(each.stage, each.module, each.function, each.file, each.line, each.tail_self_ms / 1e3),
            *(each.tail_total_ms / 1e3, _as_seconds(each.median_self_ms), _as_seconds(each.median_total_ms)),
            *(each.share, each.stage_option),
        )
        for each in found
    ]
    return {
        "percentile": None if selected else wanted,
        "value_seconds": tail.latency if tail else None,
        "sampled_requests": round(tail.sampled) if tail else 0,
        **table_json(pd.DataFrame(rows, columns=_FUNCTIONS)),
        "flame": [_flame_json(flame_graph(stage, tail, median)) for stage in stages if tail],
    }


def _shared(context: Context, given: Arguments) -> dict[str, Any]:
    wanted, selected = _slow_requests(context, given)
    counts = context.source.cached(context.source.read.attributes, context.selection)
    found = find_causes(counts, selected or wanted)
    rows = [
        (
            *(each.key, list(each.values), each.value, each.requests, each.slow, each.share_all, each.share_slow),
            *(each.lift, each.explained, each.p_value, _as_seconds(each.with_ms), _as_seconds(each.without_ms)),
        )
        for each in found.causes
    ]
    return {
        "percentile": found.percentile,
        "threshold_seconds": found.threshold,
        "requests": found.requests,
        "slow_requests": found.slow,
        "summary": found.sentence,
        **table_json(pd.DataFrame(rows, columns=_CAUSES)),
        "no_difference_in": list(found.looked_at),
    }


def _slow_requests(context: Context, given: Arguments) -> tuple[float, SlowRequests | None]:
    """Return the tail percentile of a query, and the requests that it selects instead, if any."""
    selected = selected_requests(context.view)
    if given.get("sel") and selected is None:
        msg = f"sel is {given['sel'][:60]!r}"
        fix = "low:high:start:end in seconds, such as 0.2:1.5:1795170000:1795173600"
        raise BadRequestError(msg, key="sel", fix=fix)
    return percentiles(given.get("p") or _DEFAULT_TAIL)[-1], selected


def _as_seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3


def _flame_json(node: CodeNode) -> dict[str, Any]:
    return {
        "name": node.name,
        "place": node.place,
        "tail_seconds": node.tail_ms / 1e3,
        "median_seconds": _as_seconds(node.median_ms),
        "children": [_flame_json(child) for child in node.children],
    }


def _replicas(context: Context, _: Arguments) -> dict[str, Any]:
    slow = slow_replica_of(context)
    found = [
        (each.name, each.place, each.requests, each.p50, each.p99, each.ratio)
        for each in latencies(replica_table(context))
    ]
    table = table_json(pd.DataFrame(found, columns=_REPLICAS))
    return {"slow": None if slow is None else _slow_json(slow), **table}


def _slow_json(slow: ReplicaOutlier) -> dict[str, Any]:
    return {
        "replica": slow.name,
        "place": slow.place,
        "says": outlier_sentence(slow, moment_of(slow.onset)),
        "percentile": slow.quantile,
        "ratio": slow.ratio,
        "value_seconds": slow.seconds,
        "others_seconds": slow.others_seconds,
        "others": slow.others,
        "requests": slow.requests,
        "since": moment(slow.onset),
        "stages": [{"stage": each.stage, "delta_seconds": each.seconds, "share": each.share} for each in slow.growth],
        "hardware": [
            {"measure": each.measure.key, "value": each.own, "others": each.others, "unit": each.measure.unit}
            for each in slow.hardware
        ],
    }


def _latency(context: Context, given: Arguments) -> dict[str, Any]:
    wanted = percentiles(given.get("p") or _DEFAULT_PERCENTILES)
    counted = context.source.cached(context.source.read.latency, context.selection)
    values = [_quantile(counted, each) for each in wanted]
    return {"requests": counted.count, **table_json(pd.DataFrame(values, columns=_LATENCY))}


def _quantile(counted: Histogram, quantile: float) -> tuple[float, float | None, float | None, float | None, bool]:
    found = counted.quantile(quantile)
    if found is None:
        return quantile, None, None, None, False
    return quantile, found.value, found.low, found.high, has_enough_samples(counted.count, quantile)


def _compare(context: Context, given: Arguments) -> dict[str, Any]:
    if given.get("a") or given.get("b"):
        pair = chosen_pair(context, required(given, "a"), required(given, "b"))
    else:
        pair = newest_pair(context)
    if pair is None:
        msg = "two versions or windows to compare are missing"
        fix = "set a and b to a known version, or a window such as 2026-11-21T12:00/6h"
        raise BadRequestError(msg, key="a", fix=fix, status=NOT_FOUND)
    wanted = percentiles(given["p"])[0] if given.get("p") else None
    found = compared(context, pair, wanted)
    return {
        "a": {"name": pair.a_name, "from": pair.a.start, "to": pair.a.end},
        "b": {"name": pair.b_name, "from": pair.b.start, "to": pair.b.end},
        "same_time": pair.together,
        "percentile": found.quantile,
        "verdict": found.verdict,
        "summary": dict(found.stages.attrs),
        **table_json(found.stages),
        "functions": [
            {
                "stage": each.stage,
                "function": each.title,
                "a_seconds": each.before_ms / 1e3,
                "b_seconds": each.after_ms / 1e3,
                "share": each.share,
            }
            for each in grown_at(context, pair, found.quantile)
        ],
    }


def _critical_path(context: Context, given: Arguments) -> dict[str, Any]:
    wanted = percentiles(given.get("p") or _DEFAULT_TAIL)[-1]
    found = context.source.cached(context.source.read.slow_paths, context.selection, wanted)
    return {
        "percentile": wanted,
        "value_seconds": found.value_seconds if found else None,
        "traces": found.requests if found else 0,
        "complete_traces": found.complete if found else 0,
        "missing": dict(found.missing) if found else {},
        **table_json(pd.DataFrame([astuple(each) for each in found.shares] if found else [], columns=_SHARES)),
    }


def _map(context: Context, _: Arguments) -> dict[str, Any]:
    edges = shown_edges(context)
    rows = [
        (
            *(each.edge.caller, each.edge.called, each.rate, each.is_counted, each.p50, each.p99, each.errors),
            *(each.edge.share, each.edge.retained),
        )
        for each in edges
    ]
    return table_json(pd.DataFrame(rows, columns=_EDGES))


def _traces(context: Context, _given: Arguments) -> dict[str, Any]:
    found = find_traces(context)
    return {
        "matching": found.matching,
        "searched": found.searched,
        "retained": found.retained,
        "values": {**found.dimensions, **{f"attribute.{key}": values for key, values in found.attributes.items()}},
        **table_json(found.page),
    }


def _waste(context: Context, _given: Arguments) -> dict[str, Any]:
    costs, shown = context.source.costs, [row for row in urgent_first(context) if has_labels(context, row.service)]
    rows = [
        (
            *(each.service, each.idle_cost, None if each.busy is None else 1 - each.busy, each.queue_seconds),
            *(each.failed_calls, each.failed_seconds, each.load_seconds, each.load_cost),
        )
        for each in waste_of(context, shown)
    ]
    labels = {row.service: context.source.labels().get(row.service, {}) for row in shown}
    return {
        "currency": costs.currency if costs else None,
        "labels": labels,
        **table_json(pd.DataFrame(rows, columns=_WASTE)),
    }


def _slo(context: Context, given: Arguments) -> dict[str, Any]:
    found = [
        each
        for each in context.source.slos()
        if given.get("service") in (None, each.slo.service) and given.get("name") in (None, each.slo.name)
    ]
    if given.get("name") and not found:
        raise _no_objective(context, given["name"])
    return {"objectives": found}


def _budgets(context: Context, given: Arguments) -> dict[str, Any]:
    name = required(given, "name")
    slo = next((each.slo for each in context.source.slos() if each.slo.name == name), None)
    if slo is None:
        raise _no_objective(context, name)
    if not slo.budgets:
        msg = f"the objective {name} has no budgets"
        fix = "add budgets to the SLO file, such as budgets: {queue: 50ms}"
        raise BadRequestError(msg, key="name", fix=fix, status=NOT_FOUND)
    split = stage_budget_use(Context(context.view, context.source, slo.service), slo)
    objective = {"objective": slo.objective, "threshold_seconds": slo.threshold_seconds}
    if split is None:
        return objective | {"requests": 0, **table_json(pd.DataFrame(columns=_BUDGETS))}
    uses = [
        (each.stage, each.budget_seconds, each.seconds, each.mean_seconds, each.over_seconds) for each in split.uses
    ]
    return {
        **objective,
        "requests": split.requests,
        "enough": has_enough_samples(split.requests, slo.objective),
        "value_seconds": split.seconds,
        "mean_seconds": split.mean_seconds,
        "rest_seconds": split.rest_seconds,
        "rest_mean_seconds": split.rest_mean_seconds,
        **table_json(pd.DataFrame(uses, columns=_BUDGETS)),
    }


def _audit(context: Context, _given: Arguments) -> dict[str, Any]:
    context.source.access.require_admin()
    entries = audit.audit_entries(context)
    names = [each.name for each in fields(AuditEntry)]
    frame = pd.DataFrame([[getattr(each, name) for name in names] for each in entries], columns=names)
    return {"most": audit.MAX_ENTRIES, **table_json(frame)}


def _no_objective(context: Context, name: str) -> BadRequestError:
    names = ", ".join(each.slo.name for each in context.source.slos()) or "none are set"
    return BadRequestError(f"there is no objective {name}", key="name", fix=names, status=NOT_FOUND)


QUERIES: dict[str, ApiQuery] = {
    "breakdown": ApiQuery(("service", "version", *_PART, "p", *_WINDOW), _breakdown),
    "profile": ApiQuery(("service", "version", *_PART, "p", "sel", *_WINDOW), _profile),
    "shared": ApiQuery(("service", "version", *_PART, "p", "sel", *_WINDOW), _shared),
    "stalls": ApiQuery(("service", "version", *_PART, "p", *_WINDOW), _stalls),
    "latency": ApiQuery(("service", "version", *_PART, "p", *_WINDOW), _latency),
    "critical_path": ApiQuery(("service", "version", *_PART, "p", *_WINDOW), _critical_path),
    "map": ApiQuery(_WINDOW, _map, about_one=False),
    "compare": ApiQuery(("service", "a", "b", *_PART, "p", *_WINDOW), _compare, about_window=False),
    "replicas": ApiQuery(("service", "version", *_PART, *_WINDOW), _replicas),
    "traces": ApiQuery(("service", "version", *_PART, *_OF_TRACES, *_WINDOW), _traces, about_one=False),
    "waste": ApiQuery(("at", *_WINDOW), _waste, about_one=False),
    "slo": ApiQuery(("service", "name"), _slo, about_one=False),
    "budgets": ApiQuery(("name", "version", "from", "to"), _budgets, about_one=False),
    "audit": ApiQuery(("from", "to"), _audit, about_one=False, path=audit.PLACE),
}
