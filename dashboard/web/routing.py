"""Routing: selects and renders the page of an address, for the callback, the API, the report and the first paint, and its charts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, get_args
from urllib.parse import unquote

from dash import html
from dash.development.base_component import Component
from flask import Flask, Response, request
from plotly.io.json import to_json_plotly

from ...analysis.advice import RANKS
from ...analysis.costs import WasteKind
from ...core.text import is_whole_number
from ...store import Selection
from ...store.schema import storable_name
from ..access import ForbiddenError
from ..pages import (
    advice,
    audit,
    capacity,
    collectors,
    compare,
    engines,
    events,
    incident,
    incidents,
    overview,
    regressions,
    replicas,
    service,
    settings,
    slo,
    tokens,
    trace,
    traces,
)
from ..pages.compare_cards import QUANTILES
from ..pages.measures import KINDS, measure, urgent_first
from ..pages.overview_table import groupings, table_columns
from ..pages.page import Context, Page, empty_page_card
from ..pages.service_charts import CHARTS, OVER_TIME
from ..pages.shared_attributes import selected_requests
from ..pages.tokens_charts import measures_of_window
from ..pages.traces import latency_of
from ..source import Source
from ..ui.components import Nodes, attributes, banner, link
from ..view import API_PREFIX, COMPARED, ONLY_COLD, SCOPE, WITHOUT_COLD, View, is_moment, parse
from .api_formats import NOT_FOUND, BadRequestError, percentiles
from .shell import mobile_nav, side, stale_banner

_SERVICE = "s"
# Number of known names in an error.
_MAX_NAMED = 20
PAGES: dict[str, Callable[[Context], Page]] = {
    "": overview.render,
    "advice": advice.render,
    "audit": audit.render,
    "collectors": collectors.render,
    "compare": compare.render,
    "engines": engines.render,
    "events": events.render,
    "incidents": incidents.render,
    "regressions": regressions.render,
    "settings": settings.render,
    "slo": lambda context: slo.render(context, None),
    "traces": traces.render,
}
# Pages about the whole installation.
OF_ADMINS = ("audit", "collectors", "settings")
SERVICE_PAGES: dict[str, Callable[[Context], Page]] = {
    "": service.render,
    "advice": advice.render,
    "capacity": capacity.render,
    "replicas": replicas.render,
    "tokens": tokens.render,
    "traces": traces.render,
}
ZONE_COOKIE = "stagelens_zone"
_log = logging.getLogger(__name__)
# Values of parameters that select one of a few, by page; a page uses the default instead of another value.
_ANYWHERE: Mapping[str, Collection[str]] = {
    "vs": COMPARED,
    "tz": ("utc",),
    "refresh": ("off",),
    "cold": (WITHOUT_COLD, ONLY_COLD),
}
_ON_PAGE: Mapping[str, Mapping[str, Collection[str]]] = {
    "": {"kind": KINDS, "rank": get_args(WasteKind)},
    "advice": {"rank": RANKS, "kind": ("all",)},
    "compare": {"p": QUANTILES},
    "events": {"kind": events.KINDS},
    "s": {
        "y": ("time", "share"),
        "x": ("tail", "even"),
        "t": OVER_TIME,
        "by": ("stage", "count"),
        "d": ("zoom", "select"),
    },
    "slo": {"w": slo.WINDOWS},
    "trace": {"y": ("stages", "lanes", "services")},
    "traces": {"t": ("slow", "new"), "err": ("0", "1", "2")},
}


def view_of(source: Source, path: str | None, search: str | None) -> View:
    return source.whole(parse(path, search, source.now(), browser_zone()))


def browser_zone() -> str:
    """Return the name of the browser's time zone, from the cookie of `assets/boot.js`; "UTC" on the first visit."""
    return unquote(request.cookies.get(ZONE_COOKIE, "")) or "UTC"


def page_state(context: Context) -> dict[str, Any]:
    source, service = context.source, context.service
    shown = stale_banner(context, source.state())
    # These pages change without new data: collectors send reports, a missing report writes nothing, and people act.
    changes = context.view.path in (audit.PLACE, collectors.PLACE) or context.view.parts[:1] == ("incidents",)
    fresh = f"{source.now():%H:%M:%S}" if changes else ""
    # Requests in the bucket that still runs are counted once it has ended, although no data arrives then.
    seen = context.versions if service else source.all_services()
    running = "running" if context.view.live and seen["last_seen"].max() >= context.view.end else ""
    return {
        "revision": source.revision(),
        "own": f"{source.revision(service)} {service}" if service else "",
        "stale": running + (fresh if shown is None else f"{source.now():%H:%M}{fresh}"),
    }


def render_page(context: Context) -> Page:
    try:
        page = page_of(context)
    except ForbiddenError as error:
        home = link("Overview", href=context.view.link("/"), className="btn pri")
        why = f"{str(error)[0].upper()}{str(error)[1:]}."
        refused = empty_page_card("You may not see this page", why, actions=[home])
        return Page("Refused · Stagelens", [("Refused", None)], [refused], status=403)
    except Exception as error:  # noqa: BLE001 - an error of a page must not break the frame
        _log.exception("the page %r could not be rendered", context.view.path)
        return failed_page(error)
    if page is None:
        home = link("Overview", href=context.view.link("/"), className="btn pri")
        gone = empty_page_card("There is no such page", f"{context.view.path} is not a page.", actions=[home])
        return Page("Not found · Stagelens", [("Not found", None)], [gone], status=404)
    return page


def failed_page(error: Exception) -> Page:
    retry = html.Button("Try again", className="btn pri", type="button", **attributes({"data-do": "reload"}))
    why = f"{type(error).__name__}. See the log of the dashboard."
    return Page(
        "Stagelens", [("Error", None)], [empty_page_card("This page could not be rendered", why, actions=[retry])]
    )


def navigation_parts(context: Context, path: str) -> dict[str, Nodes]:
    return {"side": side(context, path, context.source.state()), "mobnav": mobile_nav(context.view, path)}


def page_body(context: Context, page: Page) -> Component:
    # The page of an unknown service reports it.
    wrong = [error for error in parameter_errors(context, request.args) if error.key != "path"]
    notes = [banner([html.B(f"{error}. "), f"Fix: {error.fix}."]) for error in wrong]
    shown = [stale_banner(context, context.source.state()), *notes, *page.body]
    return html.Div(
        [node for node in shown if node is not None], className="page", **attributes({"data-title": page.title})
    )


def parameter_errors(context: Context, given: Mapping[str, str]) -> Iterator[BadRequestError]:
    match request.endpoint, context.view.parts:
        case "api query/<question>", _:
            page = "traces" if (request.view_args or {})["question"] == "traces" else "query"
        case _, ("traces", _):
            page = "trace"
        case _, (str(first), _, tab) if first == _SERVICE:
            page = str(tab)
        case _, parts:
            page = "".join(parts[:1])
    yield from _window_errors(context.view, given)
    yield from _value_errors(context, given, page)
    yield from _name_errors(context, given, page)


def _window_errors(view: View, given: Mapping[str, str]) -> Iterator[BadRequestError]:
    wrong = [key for key in ("from", "to") if given.get(key) and not is_moment(given[key])]
    fix = "now, now-6h, milliseconds of the epoch, or ISO 8601 such as 2026-11-20T12:00Z, from 1970 to 2199"
    for key in wrong:
        yield BadRequestError(f"{key} is {given[key][:60]!r}, which is not a time", key=key, fix=fix)
    asked = replace(view, fixed_window=None)
    if not wrong and not asked.is_as_asked:
        why = "the window is longer than 400 days, or its end is not after its start"
        yield BadRequestError(why, key="from", fix="use a `from` before `to`, by at most 400 days")
    elif not wrong and asked.start > view.now:
        yield BadRequestError("the window is in the future", key="from", fix="use a `from` before now")


def _value_errors(context: Context, given: Mapping[str, str], page: str) -> Iterator[BadRequestError]:
    view, choices = context.view, {**_ANYWHERE, **_ON_PAGE.get(page, {})}
    if page == "" and "by" in given:
        choices["by"] = groupings(context)
    if page == "" and "sort" in given:
        columns = table_columns(context, urgent_first(context))
        choices["sort"] = [*columns, *(f"-{column}" for column in columns)]
    if page == "tokens" and "by" in given:
        choices["by"] = measures_of_window(context).definitions
    length = (lambda text: latency_of(text) is not None or not text.strip("0.ms ")), "a duration such as 250ms or 1.5s"
    checks: dict[str, tuple[Callable[[str], bool], str]] = {
        **{key: (names.__contains__, ", ".join(["omit it", *names])) for key, names in choices.items()},
        "n": (lambda text: is_whole_number(text) and int(text) > 0, "the number of a page, from 1"),
        "sel": (
            lambda _: selected_requests(view) is not None,
            "low:high:start:end in seconds, such as 0.2:1.5:1795170000:1795173600",
        ),
        "at": (lambda text: len(text.split(",")) == len(view.attributes), "at most 8, such as tenant:acme,tier:gold"),
        "min": length,
        "max": length,
    }
    for key, (is_valid, fix) in checks.items():
        if given.get(key) and not is_valid(given[key]):
            yield BadRequestError(f"{key} is {given[key][:60]!r}", key=key, fix=fix)
    low, high = (latency_of(given.get(key)) for key in ("min", "max"))
    if low is not None and high is not None and low >= high:
        yield BadRequestError(
            f"min is {given['min']!r}, which is not below max", key="min", fix="use a `min` below `max`"
        )
    if given.get("p") and page != "compare":
        try:
            percentiles(given["p"])
        except BadRequestError as error:
            yield error


def _name_errors(context: Context, given: Mapping[str, str], page: str) -> Iterator[BadRequestError]:
    view, source, service = context.view, context.source, context.service
    environment, environments = view.text("env"), source.cached(source.read.environments)
    if environment and environment not in environments:
        fix = ", ".join(environments) or "omit env: no environment is known"
        yield BadRequestError(
            f"there is no request of the environment {environment}", key="env", fix=fix, status=NOT_FOUND
        )
    elif service and context.versions.empty:
        key = next((key for key in ("service", "svc") if given.get(key)), "path")
        why = f"no request of {service}{f' in {environment}' if environment else ''} is retained"
        yield BadRequestError(why, key=key, fix=f"{API_PREFIX}v1/names lists the services", status=NOT_FOUND)
    elif service or page == "traces":
        about = f" of {service}" if service else ""
        for key, value in view.scope.items():
            field = SCOPE[key]
            if field != "cold" and value not in (names := _known_names(context, field, value)):
                fix = f"one of {', '.join(names[:_MAX_NAMED])}" if names else f"omit it: no {field} is known"
                asked = field if given.get(field) else key
                yield BadRequestError(f"there is no {field} {value}{about}", key=asked, fix=fix, status=NOT_FOUND)


def _known_names(context: Context, field: str, value: str) -> list[str]:
    source, view = context.source, context.view
    if field == "version":
        lists = [context.versions["version"]] if context.service else source.all_services()["versions"]
        return [name for names in lists for name in names]
    about = Selection(view.start, view.end, service=context.service, **{field: value})
    if not source.cached(source.read.versions, about).empty:
        return [value]
    whole = Selection(context.first_data or view.start, source.now(), service=context.service)
    return list(source.cached(source.read.dimensions, whole)[field])


def context_of(view: View, source: Source) -> Context:
    match view.parts:
        case (str(first), str(name), *_) if first == _SERVICE:
            return Context(view, source, storable_name(name))
        case ("compare",) | ("traces",) | ("advice",) | ("events",):
            return Context(view, source, view.text("svc"))
        case _:
            return Context(view, source)


def page_of(context: Context) -> Page | None:
    render = _renderer(context)
    return render(context) if render else None


def page_status(context: Context) -> int:
    try:
        return 404 if _renderer(context) is None else 200
    except ForbiddenError:
        return 403


def _renderer(context: Context) -> Callable[[Context], Page] | None:
    if context.view.parts[:1] and context.view.parts[0] in OF_ADMINS:
        context.source.access.require_admin()
    match context.view.parts:
        case ("slo", name):
            return lambda context: slo.render(context, name)
        case ("incidents", name):
            return lambda context: incident.render(context, name)
        case ("traces", name):
            return lambda context: trace.render(context, name)
        case (str(first), _, *tab) if first == _SERVICE:
            return SERVICE_PAGES.get("/".join(tab))
        case parts:
            return PAGES.get("/".join(parts))


def add_figure_routes(server: Flask, source: Source) -> None:
    def figure(name: str) -> Response:
        build = CHARTS.get(name)
        if build is None:
            return _error(f"There is no chart {name}; choose one of {', '.join(CHARTS)}.", 404)
        view = view_of(source, request.args.get("path"), request.query_string.decode(errors="replace"))
        context = context_of(view, source)
        if not (context.service and measure(source, context.selection).requests):
            return _error(f"{view.path} has no requests in this window, so there is no chart.", 404)
        try:
            chart = to_json_plotly(build(context))
        except Exception:  # noqa: BLE001 - on any error the browser leaves the existing chart unchanged
            _log.exception("the chart %r of %r could not be rendered", name, view.path)
            return _error("This chart could not be rendered. See the log of the dashboard.", 500)
        return Response(chart, mimetype="application/json", headers={"Cache-Control": "no-store"})

    server.add_url_rule("/figures/<name>", "figure", figure)


def _error(why: str, status: int) -> Response:
    return Response(why, status, mimetype="text/plain")
