"""Routing: selects and renders the page of an address, for the callback, the API, the report and the first paint, and its charts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from dash import html
from dash.development.base_component import Component
from flask import Flask, Response, request
from plotly.io.json import to_json_plotly

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
from ..pages.measures import measure
from ..pages.page import Context, Page, empty_page_card, unknown_page_card
from ..pages.service_charts import CHARTS
from ..source import Source
from ..ui.components import Nodes, attributes, link
from ..view import View, parse
from .shell import mobile_nav, side, stale_banner

_SERVICE = "s"
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


def view_of(source: Source, path: str | None, search: str | None) -> View:
    """Return the view of an address, in the time zone of the reader."""
    return source.whole(parse(path, search, source.now(), browser_zone()))


def browser_zone() -> str:
    """Return the name of the browser's time zone, from the cookie of `assets/boot.js`; "UTC" on the first visit."""
    return unquote(request.cookies.get(ZONE_COOKIE, "")) or "UTC"


def page_state(context: Context) -> dict[str, Any]:
    """Return the state that determines a page; equal states give equal pages.

    `revision` is the revision of all data. `own` is the revision of the page's service, "" for pages about several services.
    `stale` changes with the stale data warning: "" while data arrives, else the minute, and once the newest requests are
    counted; on the pages of incidents, of collectors and of the audit log the current second.
    """
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
    """Return the page of an address, or an error page inside the unchanged frame."""
    try:
        found = page_of(context)
    except ForbiddenError as error:
        home = link("Overview", href=context.view.link("/"), className="btn pri")
        why = f"{str(error)[0].upper()}{str(error)[1:]}."
        refused = empty_page_card("You may not see this page", why, actions=[home])
        return Page("Refused · Stagelens", [("Refused", None)], [refused], status=403)
    except Exception as error:  # noqa: BLE001 - an error of a page must not break the frame
        _log.exception("the page %r could not be rendered", context.view.path)
        return failed_page(error)
    if found is None:
        gone = unknown_page_card(f"{context.view.path} is not a page.", context.view.link("/"))
        return Page("Not found · Stagelens", [("Not found", None)], [gone], status=404)
    return found


def failed_page(error: Exception) -> Page:
    """Return the page of an error."""
    retry = html.Button("Try again", className="btn pri", type="button", **attributes({"data-do": "reload"}))
    why = f"{type(error).__name__}. See the log of the dashboard."
    return Page(
        "Stagelens", [("Error", None)], [empty_page_card("This page could not be rendered", why, actions=[retry])]
    )


def navigation_parts(context: Context, place: str) -> dict[str, Nodes]:
    """Return side bar and mobile navigation with the entry *place* selected."""
    return {"side": side(context, place, context.source.state()), "mobnav": mobile_nav(context.view, place)}


def page_body(context: Context, made: Page) -> Component:
    """Return the body of the page *made*, below the stale data warning if there is one."""
    shown = [stale_banner(context, context.source.state()), *made.body]
    return html.Div(
        [each for each in shown if each is not None], className="page", **attributes({"data-title": made.title})
    )


def context_of(view: View, source: Source) -> Context:
    """Return the context of *view*; its service comes from the path or from `svc`."""
    match view.parts:
        case (str(first), str(name), *_) if first == _SERVICE:
            return Context(view, source, storable_name(name))
        case ("compare",) | ("traces",) | ("advice",) | ("events",):
            return Context(view, source, view.text("svc"))
        case _:
            return Context(view, source)


def page_of(context: Context) -> Page | None:
    """Return the rendered page of *context*; None for an unknown address.

    Raises:
        ForbiddenError: The page is for admins.
    """
    render = _renderer(context)
    return render(context) if render else None


def page_status(context: Context) -> int:
    """Return the HTTP status of the page of *context*, without rendering it."""
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
    """Add `GET /figures/<chart>?path=<path of the page>&<its query>` to *server*."""

    def figure(name: str) -> Response:
        build = CHARTS.get(name)
        if build is None:
            return _error(f"There is no chart {name}; choose one of {', '.join(CHARTS)}.", 404)
        view = view_of(source, request.args.get("path"), request.query_string.decode(errors="replace"))
        context = context_of(view, source)
        if not (context.service and measure(source, context.selection).requests):
            return _error(f"{view.path} has no requests in this window, so there is no chart.", 404)
        try:
            made = to_json_plotly(build(context))
        except Exception:  # noqa: BLE001 - on any error the browser leaves the existing chart unchanged
            _log.exception("the chart %r of %r could not be rendered", name, view.path)
            return _error("This chart could not be rendered. See the log of the dashboard.", 500)
        return Response(made, mimetype="application/json", headers={"Cache-Control": "no-store"})

    server.add_url_rule("/figures/<name>", "figure", figure)


def _error(why: str, status: int) -> Response:
    return Response(why, status, mimetype="text/plain")
