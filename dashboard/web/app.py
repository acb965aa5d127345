"""Dashboard server: its routes, its entry document, and the server thread.

The entry document is streamed: the frame at once, then each part of the page as soon as it is built, then the parts of the frame that
need data. For the next pages and at each refresh, `assets/shell_refresh.js` gets the same stream without the frame, and
`assets/page_patch.js` puts each part in its place when it arrives. Charts are JSON in the page, which `assets/slots.js` draws with Plotly;
redrawing a chart is a GET of its figure.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from flask import Flask, Response, request, stream_with_context

from ...collector.server.connection_limits import ConnectionLimits
from ...collector.server.http_server import HttpServer, open_listener
from ...store import Store
from ..access import LiveAccess
from ..config import DashboardConfig
from ..pages.page import Context
from ..source import AlertsSource, Source
from ..ui.page_export import as_html, html_chunks, panels
from . import api, assets, guard, prometheus_api, report, routing, signed_endpoints, write_api, wsgi_front
from .audit_log import AuditLog
from .auth import RevokedSessions
from .compression import compress_responses
from .shell import compared_time, environment_menu, frame, time_menu, trail
from .wsgi_front import Front

_log = logging.getLogger(__name__)
_PORT_FIX = "Stop the process on that port, or choose another port with STAGELENS_DASHBOARD_PORT (0 picks a free port)."
_MAX_CONNECTIONS = 300
# A browser opens six connections; ten readers may share one address.
_MAX_OF_ONE_ADDRESS = 64
# Place of the page in the frame, a text that no page contains.
_HERE = "\0"
_FILES = {
    "boot": "boot.js",
    "font": "inter-latin-wght-normal.woff2",
    "icon": "icon.svg",
    "plotly": "plotly.min.js",
    "script": "app.js",
    "style": "app.css",
}
_HEAD = """<!doctype html>
<html lang="en" data-zone="{zone}"{auth}>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="csrf-token" content="{token}">
<title>Stagelens</title>
<link rel="stylesheet" href="{style}">
<link rel="preload" href="{font}" as="font" type="font/woff2" crossorigin>
<script src="{boot}"></script>
<script src="{script}" data-plotly="{plotly}" async></script>
<link rel="icon" href="{icon}" type="image/svg+xml">
</head>
<body>
"""


class Dashboard:
    """Dashboard server in background threads."""

    def __init__(
        self,
        config: DashboardConfig,
        store: Store,
        alerts: AlertsSource | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.server = build(Source(store, alerts, clock, tracer=config.tracer, config=config), config)
        self._http_server: HttpServer | None = None
        self._address = (config.host, config.port)

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    def start(self) -> None:
        config = self.config
        listening = open_listener(config.host, config.port, "dashboard", _PORT_FIX)
        # A proxy may send the requests of all readers over one address.
        is_direct = not (config.behind_proxy or config.trusted_proxies)
        limits = ConnectionLimits(
            "dashboard",
            wsgi_front.PROBE_PATHS,
            most=_MAX_CONNECTIONS,
            most_of_one=_MAX_OF_ONE_ADDRESS if is_direct else _MAX_CONNECTIONS,
        )
        self._address = (config.host, int(listening.getsockname()[1]))
        # Proxy headers are evaluated in `auth`, which knows the trusted proxies.
        authenticator = self.server.extensions["stagelens authenticator"]
        front = Front(self.server, authenticator)
        self._http_server = HttpServer(front, limits, max_body_bytes=wsgi_front.MAX_BODY_BYTES)
        self._http_server.begin(listening)

    def stop(self) -> None:
        if self._http_server is None:
            return
        self._http_server.end()
        self._http_server = None


def build(source: Source, config: DashboardConfig) -> Flask:
    access = LiveAccess(config.access, lambda: datetime.now(UTC))
    # Pages, API and actions show and do what the reader may; probes and signed requests have no reader.
    restricted = guard.source_of_reader(source)
    audit_log = AuditLog(source.store, source.clock)
    server = Flask("stagelens", static_folder=None)
    # A name may have two slashes.
    server.url_map.merge_slashes = False
    wsgi_front.add_health_routes(server, source)
    assets.add_asset_route(server)
    api.add_api_routes(server, restricted)
    prometheus_api.add_prometheus_routes(server, restricted)
    add_page_routes(server, restricted)
    routing.add_figure_routes(server, restricted)
    report.add_report_route(server, restricted)
    write_api.add_event_routes(server, restricted)
    write_api.add_incident_routes(server, restricted)
    signed_endpoints.add_hook_routes(server, source, access, audit_log)
    signed_endpoints.add_chart_route(server, source.incident_actions)
    api.add_trace_route(server, restricted)
    compress_responses(server)
    audit_log.add_to(server)
    guard.protect(server, config, access, RevokedSessions(source.store, source.clock), audit_log=audit_log)
    return server


def add_page_routes(server: Flask, source: Source) -> None:
    """Add the pages to *server*: their documents, and their parts: `GET /parts?path=/s/x&<its query>`."""

    def document(path: str = "") -> Response:  # noqa: ARG001 - the undecoded path counts
        context = routing.context_of(
            routing.view_of(source, guard.requested_path(), request.query_string.decode(errors="replace")), source
        )
        return _streamed(_document(context), routing.page_status(context))

    def parts() -> Response:
        view = routing.view_of(source, request.args.get("path"), request.query_string.decode(errors="replace"))
        context, only = routing.context_of(view, source), request.args.getlist("only")
        response = _streamed(_panels(context, only) if only else _page(context, _seen()))
        response.headers["Cache-Control"] = "no-store"
        return response

    server.add_url_rule("/", "page", document)
    server.add_url_rule("/<path:path>", "page", document)
    server.add_url_rule("/parts", "parts", parts)


def _streamed(pieces: Iterator[str], status: int = 200) -> Response:
    response = Response(stream_with_context(pieces), status, mimetype="text/html")
    # Without this header nginx sends the document when it is complete.
    response.headers["X-Accel-Buffering"] = "no"
    return response


def _seen() -> dict[str, Any]:
    try:
        seen: Any = json.loads(request.args.get("seen", ""))
    except (ValueError, RecursionError):
        return {}
    return seen if isinstance(seen, dict) else {}


def _document(context: Context) -> Iterator[str]:
    start, end = as_html(frame(context.view, _HERE)).split(_HERE)
    files = {name: assets.url(file) for name, file in _FILES.items()}
    # For the commands that `assets/shell_chart.js` copies.
    auth = " data-token" if context.source.config and context.source.config.token else ""
    yield (_HEAD.format(token=guard.csrf_token(), zone=escape(routing.browser_zone()), auth=auth, **files) + start)
    yield from _page(context, {}, end)
    yield "</body></html>"


def _page(context: Context, seen: Mapping[str, Any], after: str = "") -> Iterator[str]:
    try:
        now = _state(context)
        shown = seen if all(seen.get(key) == now[key] for key in ("address", "stale")) else {}
        path = str(shown.get("place", "/"))
        if not _is_same(shown, now):
            if not after:
                # The frame of a document has it.
                yield _template("time", as_html(time_menu(context.view)))
            page = routing.render_page(context)
            path = page.place
            yield _template("trail", as_html(trail(page.trail)))
            yield from html_chunks(routing.page_body(context, page))
            yield after
            yield _template("env", as_html(environment_menu(context)))
            if label := compared_time(context):
                yield _template("time", as_html(time_menu(context.view, label)))
        if shown.get("revision") != now["revision"]:
            # The navigation is about all services.
            yield "".join(
                _template(name, as_html(nodes)) for name, nodes in routing.navigation_parts(context, path).items()
            )
        yield _seen_state({**now, "place": path})
    except Exception as error:  # noqa: BLE001 - the status is sent already
        _log.exception("the page %r could not be completed", context.view.path)
        failed = routing.failed_page(error)
        yield f'<div class="page" data-title="{failed.title}">{as_html(failed.body)}</div>{after}'


def _panels(context: Context, names: Sequence[str]) -> Iterator[str]:
    state = _state(context)
    for panel in panels(routing.render_page(context).body):
        if panel.name in names:
            yield as_html(panel)
    yield _seen_state(state)


def _seen_state(state: Mapping[str, Any]) -> str:
    text = json.dumps(state).replace("<", "\\u003c")
    return f'<script type="application/json" id="seen">{text}</script>'


def _is_same(seen: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    return seen.get("revision") == now["revision"] or bool(now["own"] and seen.get("own") == now["own"])


def _template(name: str, content: str) -> str:
    return f'<template data-into="{escape(name)}">{content}</template>'


def _state(context: Context) -> dict[str, Any]:
    # Other rights change the page, too.
    return {"address": f"{context.view.here()} {context.source.access.key}", **routing.page_state(context)}
