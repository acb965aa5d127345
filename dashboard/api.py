"""The read API, `/api/v1/…`: what a page shows, for programs. docs/api.md is its manual.

An answer carries an ETag made of the address, the window and the revision of the data: whoever brings it back is told
"not modified" before anything is computed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from flask import Flask, Response, current_app, request

from .. import __version__
from .page_data import Outline, outline
from .pages.page import Context, Page
from .query_params import NOT_FOUND, AskError, check_keys, needed
from .questions import QUESTIONS, Arguments, framed
from .rendering import told
from .replies import PREFIX, answer_json, explained, refusal
from .router import context_of, page_of
from .serialization import as_csv, columns, file_name, rows
from .source import Source
from .view import ONLY_COLD, ORDER, PART, WITHOUT_COLD, View, parse, storable

_V1 = f"{PREFIX}v1"
_EXPORT = ("path", "chart", "table", "format")
_NOWHERE = "api nowhere"


def serve(server: Flask, source: Source) -> None:
    """Answer the read API on *server*."""

    def view() -> Response:
        given = _given(*ORDER, *_EXPORT)
        context = _context(source, needed(given, "path"), given)
        return _fresh(context, lambda: _exported(context, given))

    def services() -> Response:
        context = _context(source, "/", _given("from", "to"))
        return _fresh(context, lambda: answer_json({**_window(context), **framed(_services(context))}))

    def names() -> Response:
        _given()
        context = _context(source, "/", {})
        return _fresh(context, lambda: answer_json(_names(source)))

    def query(question: str) -> Response:
        found = QUESTIONS.get(question)
        if found is None:
            msg = f"there is no question {question}"
            raise AskError(msg, key="question", cure=f"one of {', '.join(QUESTIONS)}", status=NOT_FOUND)
        given = _given(*found.keys)
        service = needed(given, "service") if found.about_one else given.get("service")
        part = {key: given[name] for key, name in PART.items() if name in given}
        context = _context(source, "/", given | part, service)
        window = _window(context)
        about = window if found.about_window else {"revision": window["revision"]}
        return _fresh(context, lambda: answer_json({**about, **found.answer(context, given)}))

    for path, answer in (("view", view), ("services", services), ("names", names), ("query/<question>", query)):
        server.add_url_rule(f"{_V1}/{path}", f"api {path}", explained(answer), methods=["GET"])
    methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    server.add_url_rule(f"{PREFIX}<path:rest>", _NOWHERE, explained(_nowhere), methods=methods)


def _given(*allowed: str) -> Arguments:
    given = {key: storable(value) for key, value in request.args.items() if value}
    check_keys(given, allowed)
    return given


def _context(source: Source, path: str, given: Arguments, service: str | None = None) -> Context:
    if given.get("cold", ONLY_COLD) not in (WITHOUT_COLD, ONLY_COLD):
        msg = f"cold is {given['cold']!r}"
        raise AskError(msg, key="cold", cure="0 leaves out cold requests, 1 takes only those; leave it out for all")
    view = parse(path, urlencode(given), source.now())
    if not view.is_as_asked:
        msg = "the window ends before it begins, or is longer than 400 days"
        raise AskError(msg, key="from", cure="a from before to, by 400 days at most")
    view = source.whole(view)
    return Context(view, source, service) if service else context_of(view, source)


def _fresh(context: Context, answer: Callable[[], Response]) -> Response:
    """Return what *answer* makes, or that the asker has it already."""
    tag = _tag(context)
    if request.if_none_match.contains_weak(tag):
        response = Response(status=304)
    else:
        _check_names(context)
        response = answer()
    response.set_etag(tag, weak=True)
    # May be kept, but asked for each time; by nobody in between, because it is for who may read it.
    response.headers["Cache-Control"] = "private, no-cache"
    return response


def _check_names(context: Context) -> None:
    """Refuse an environment or a service that no request came from: a mistyped name would look like a service at rest."""
    environment, source = context.view.text("env"), context.source
    known: list[str] = source.ask(source.read.environments)
    if environment and environment not in known:
        msg = f"no request came from the environment {environment}"
        raise AskError(msg, key="env", cure=", ".join(known) or "leave it out: none is known", status=NOT_FOUND)
    if context.service and context.versions.empty:
        msg = f"no request of {context.service}{f' in {environment}' if environment else ''} is kept"
        key = next((each for each in ("service", "svc") if request.args.get(each)), "path")
        raise AskError(msg, key=key, cure=f"{_V1}/names lists the services", status=NOT_FOUND)


def _tag(context: Context) -> str:
    view, state = context.view, told(context)
    made_from = (
        *(__version__, request.full_path, view.start.isoformat(), view.end.isoformat()),
        *(state["own"] or state["revision"], state["stale"]),
    )
    return hashlib.sha256(repr(made_from).encode()).hexdigest()[:24]


def _exported(context: Context, given: Arguments) -> Response:
    form = given.get("format", "json")
    if form not in ("json", "csv"):
        msg = f"format is {form!r}"
        raise AskError(msg, key="format", cure="json or csv")
    page = page_of(context)
    if page is None:
        msg = f"{context.view.path} leads nowhere"
        raise AskError(msg, key="path", cure="the path of a page, such as /s/vision-api", status=NOT_FOUND)
    found = outline(page.body)
    if given.get("chart"):
        return _chart(context, found, given["chart"], form)
    if given.get("table"):
        return _table(context, found, given["table"], form)
    if form == "csv":
        msg = "a whole view is more than one table"
        raise AskError(msg, key="chart", cure=f"add chart= or table=: {_there(found)}")
    return answer_json(_whole(context, page, found))


def _whole(context: Context, page: Page, found: Outline) -> dict[str, Any]:
    return {
        "title": page.title.removesuffix(" · Stagelens"),
        **_window(context),
        "charts": {name: _numbers(found, name) for name in found.charts},
        "tables": found.tables,
    }


def _numbers(found: Outline, name: str) -> dict[str, Any]:
    drawn = found.charts[name]
    table = {"columns": [], "rows": []} if drawn.frame is None else framed(drawn.frame)
    return {"title": drawn.title, "says": drawn.spoken, **table}


def _chart(context: Context, found: Outline, name: str, form: str) -> Response:
    if name not in found.charts:
        msg = f"this view has no chart {name}"
        raise AskError(msg, key="chart", cure=f"charts: {', '.join(found.charts) or 'none'}", status=NOT_FOUND)
    if form == "json":
        return answer_json({**_window(context), **_numbers(found, name)})
    frame = found.charts[name].frame
    if frame is None:
        msg = f"the chart {name} has no table"
        raise AskError(msg, key="chart", cure=_there(found), status=NOT_FOUND)
    head = [f"{each['name']} ({each['unit']})" if "unit" in each else each["name"] for each in columns(frame)]
    return _csv(context, name, as_csv(head, rows(frame)))


def _table(context: Context, found: Outline, name: str, form: str) -> Response:
    table = next((each for each in found.tables if each.name == name), None)
    if table is None:
        names = ", ".join(each.name for each in found.tables) or "none"
        msg = f"this view has no table {name}"
        raise AskError(msg, key="table", cure=f"tables: {names}", status=NOT_FOUND)
    if form == "json":
        return answer_json({**_window(context), "name": table.name, "head": table.head, "rows": table.rows})
    return _csv(context, name, as_csv(table.head, table.rows))


def _there(found: Outline) -> str:
    told = [name for name, drawn in found.charts.items() if drawn.frame is not None]
    return f"charts: {', '.join(told) or 'none'}; tables: {', '.join(each.name for each in found.tables) or 'none'}"


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


def _nowhere(rest: str) -> Response:
    takes = [each for each in ("GET", "POST") if _endpoint(each) != _NOWHERE]
    if takes:
        refused = refusal(f"{request.path} does not take {request.method}", "method", f"send a {takes[0]}", 405)
        refused.headers["Allow"] = ", ".join(takes)
        return refused
    msg = f"there is nothing at {PREFIX}{rest}"
    cure = f"{_V1}/view, {_V1}/services, {_V1}/names, {_V1}/traces/<id>, {_V1}/events, {_V1}/query/<question>"
    raise AskError(msg, key="path", cure=cure, status=NOT_FOUND)


def _endpoint(method: str) -> str:
    """Return who answers *method* at the address that is asked for now."""
    return str(current_app.url_map.bind("").match(request.path, method)[0])
