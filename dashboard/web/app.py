"""Dashboard server: the Dash application, its routes, its entry document, and the server thread.

Dash has only one callback, for pages; the browser does the rest. A page arrives as HTML by element id. Redrawing a chart is a
plain GET of its figure, because Dash's renderer would process the complete page for each callback response. Plotly is a
vendored build of our own (`plotly_bundle.mjs`), a quarter of the size of Dash's own and without `unsafe-eval`; `assets/slots.js` draws, without dcc.Graph.

The entry document contains the page as plain HTML (`first_paint`), shown before any script has run. `assets/boot.js` removes this
HTML once the scripts have built the page behind it, so that the layout does not shift.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import quote

import flask
from dash import ClientsideFunction, Dash, Input, Output, State, ctx, no_update
from dash.development.base_component import Component

from ...collector.server.connections import ConnectionLimits
from ...collector.server.http_server import HttpServer, open_listener
from ...store import Store
from ..access import LiveAccess
from ..config import DashboardConfig
from ..pages.page import Context, Page
from ..source import AlertsSource, Source
from ..ui.components import Nodes
from ..ui.page_export import as_html
from . import api, guard, report, signed_endpoints, write_api, wsgi_front
from .audit_log import AuditLog
from .auth import RevokedSessions
from .routing import add_figure_routes, context_of, frame_parts, navigation_parts, page_state, render_page, view_of
from .shell import layout
from .wsgi_front import Front

_log = logging.getLogger(__name__)
ASSETS = Path(__file__).parents[1] / "assets"
_INDEX = """<!doctype html>
<html lang="en">
  <head>
    {%metas%}
    <title>{%title%}</title>
    <link rel="preload" href="BASEassets/inter-latin-wght-normal.woff2" as="font" type="font/woff2" crossorigin>
    <link rel="icon" href="BASEassets/icon.svg" type="image/svg+xml">
    <script src="BASEassets/boot.js?m=1"></script>
    {%css%}
  </head>
  <body>
    {%app_entry%}
    <footer>{%config%}{%scripts%}{%renderer%}</footer>
  </body>
</html>"""
_PORT_FIX = "Stop the process on that port, or choose another port with STAGELENS_DASHBOARD_PORT (0 picks a free port)."
_DRAIN_SECONDS = 10
# Longer than the keep-alive of proxies: closing a connection while a proxy sends a request would be an error for a reader.
_KEEP_ALIVE_SECONDS = 75
_MAX_CONNECTIONS = 300
# A browser opens six connections; ten readers may share one address.
_MAX_OF_ONE_ADDRESS = 64


class Dashboard:
    """Dashboard server in background threads.

    Args:
        config: Address to listen on, and access rules.
        store: Store with the data; it stays open when the dashboard stops.
        alerts: Reader of objectives and incidents, such as `Alerts(...).reader`; None for a dashboard without alerts.
        clock: Function that returns the current time. [Unix seconds]
    """

    def __init__(
        self,
        config: DashboardConfig,
        store: Store,
        alerts: AlertsSource | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.app = build(Source(store, alerts, clock, tracer=config.tracer, config=config), config)
        self._server: HttpServer | None = None
        self._address = (config.host, config.port)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the server; before `start`, the configured ones."""
        return self._address

    def start(self) -> None:
        """Start to listen, and return once connections are accepted.

        Raises:
            StagelensError: The port is in use, or the address does not belong to this machine.
        """
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
        self._server = HttpServer(
            Front(self.app.server), limits, keep_alive_seconds=_KEEP_ALIVE_SECONDS, drain_seconds=_DRAIN_SECONDS
        )
        self._server.begin(listening)

    def stop(self) -> None:
        """Close the port, finish the current requests, and return."""
        if self._server is None:
            return
        self._server.end()
        self._server = None


def build(source: Source, config: DashboardConfig) -> Dash:
    """Return the Dash application for *source*, with its server guarded according to *config*.

    Raises:
        ConfigError: The user file or the access file is invalid.
    """
    access = LiveAccess(config.access, lambda: datetime.now(UTC))
    # Pages, API and actions show and do what the reader may; probes and signed requests have no reader.
    own = guard.source_of_reader(source)
    app = Application(
        own,
        assets_folder=str(ASSETS),
        # Licences are not served as assets, boot.js is in the head already, and report.js is for report files only.
        assets_ignore=r"^(boot|report)\.js$",
        assets_path_ignore=["licenses"],
        index_string=_INDEX.replace("BASE", "/"),
        title="Stagelens",
        update_title="",
        pages_folder="",
        use_pages=False,
        include_pages_meta=False,
        suppress_callback_exceptions=True,
        add_log_handler=False,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
        enable_mcp=False,
    )
    audit_log = AuditLog(source.store, source.clock)
    app.layout = layout
    _register_browser_callbacks(app)
    _register_page_callback(app, own)
    server: flask.Flask = app.server
    wsgi_front.add_health_routes(server, source)
    api.add_api_routes(server, own)
    add_figure_routes(server, own)
    report.add_report_route(server, own)
    write_api.add_event_routes(server, own)
    write_api.add_incident_routes(server, own)
    signed_endpoints.add_hook_routes(server, source, access, audit_log)
    signed_endpoints.add_chart_route(server, source.incident_actions)
    api.add_trace_route(server, own)
    wsgi_front.compress_responses(server, ("/_dash-component-suites/", "/assets/"))
    audit_log.add_to(server, guard.CALLBACK_PATH)
    revoked = RevokedSessions(source.store, source.clock)
    guard.protect(server, config, access, revoked, script_hashes=app.csp_hashes(), audit_log=audit_log)
    # Registered after the guard, so that unauthenticated requests get the response of the guard.
    guard.reject_invalid_callbacks(server)
    return app


def _register_browser_callbacks(app: Dash) -> None:
    """Register the browser-side callbacks: inserting received parts, and requesting updates."""
    browser = "stagelens"
    app.clientside_callback(ClientsideFunction(browser, "arrived"), Output("arrived", "data"), Input("made", "data"))
    app.clientside_callback(
        ClientsideFunction(browser, "beat"),
        Output("tick", "data"),
        Input("beat", "n_intervals"),
        State("tick", "data"),
        State("seen", "data"),
    )


def _register_page_callback(app: Application, source: Source) -> None:
    """Register the page callback.

    A page is sent as HTML by element id instead of as components: Dash's renderer updates every component on each change, and a
    page of two thousand components took five seconds.
    """

    @app.callback(
        Output("made", "data"),
        Output("seen", "data"),
        Input("url", "pathname"),
        Input("url", "search"),
        Input("tick", "data"),
        State("seen", "data"),
    )
    def show(path: str | None, search: str | None, tick: dict[str, Any] | None, seen: dict[str, Any] | None) -> Any:
        ticked = ctx.triggered_id == "tick" and tick is not None
        # Controls change the address without dcc.Location; a timer request contains the current address.
        search = str(tick.get("search", "")) if ticked and tick else search
        context = context_of(view_of(source, path, search), source)
        # Other rights change the page, too.
        address = f"{path}{search or ''} {source.access.key}"
        now = {"beat": tick.get("beat") if tick else None, "address": address, **page_state(context)}
        # The address differs if a timer request overtook the page of this request; then the complete page is sent.
        if ticked and seen and all(seen.get(key) == now[key] for key in ("address", "stale")):
            if seen.get("revision") == now["revision"]:
                return no_update, {**seen, **now}
            if now["own"] and seen.get("own") == now["own"]:
                # Other services have new data: the navigation may have changed, but the page has not.
                return _as_html_parts(navigation_parts(context, str(seen.get("place", "/")))), {**seen, **now}
        made = app.handover.take(context) or render_page(context)
        return _as_html_parts(frame_parts(context, made)), {**now, "place": made.place}


def _as_html_parts(parts: Mapping[str, Nodes]) -> dict[str, str]:
    return {name: as_html(nodes) for name, nodes in parts.items()}


_MAX_WAITING = 32
_ENTRY = '<div id="react-entry-point"></div>'


class Application(Dash):
    """Dash application whose entry document contains the page and a CSRF token.

    Args:
        source: Data source of the pages.
        settings: Settings of Dash.
    """

    def __init__(self, source: Source, **settings: Any) -> None:
        self._source = source
        self.handover = Handover()
        super().__init__("stagelens", **settings)

    def interpolate_index(self, *_: Any, **parts: str) -> str:
        """Return the entry document (see `dash.Dash.interpolate_index`)."""
        title, first = self._first()
        parts["metas"] += f'<meta name="stagelens-proof" content="{guard.csrf_token()}">'
        parts["title"] = escape(title)
        parts["app_entry"] = first + _ENTRY
        return super().interpolate_index(**parts)

    def _first(self) -> tuple[str, str]:
        request = flask.request
        try:
            return first_paint(self._source, self.handover, _path(), request.query_string.decode(errors="replace"))
        except Exception:  # noqa: BLE001 - after any error the scripts still load the page
            _log.exception("%r could not be shown before its scripts", request.path)
            return "Stagelens", ""


def _with_status(response: flask.Response, status: int) -> flask.Response:
    response.status_code = status
    return response


def _path() -> str:
    """Return the undecoded path of the request; decoded, a slash in a service name would end the name."""
    environ = flask.request.environ
    path = str(environ.get("REQUEST_URI") or environ.get("RAW_URI") or "").partition("?")[0]
    return path if path.startswith("/") else quote(flask.request.path)


class Handover:
    """Rendered pages, stored between their first paint and the request of their scripts. Thread-safe."""

    def __init__(self) -> None:
        self._pages: OrderedDict[tuple[Any, ...], Page] = OrderedDict()
        self._lock = Lock()

    def put(self, context: Context, made: Page) -> None:
        """Store *made*, the page of *context*; the oldest page is dropped when there are too many."""
        with self._lock:
            self._pages[_handover_key(context)] = made
            if len(self._pages) > _MAX_WAITING:
                self._pages.popitem(last=False)

    def take(self, context: Context) -> Page | None:
        """Remove and return the stored page of *context*; None if there is none."""
        with self._lock:
            return self._pages.pop(_handover_key(context), None)


def _handover_key(context: Context) -> tuple[Any, ...]:
    view = context.view
    return (
        context.source.access,
        view.path,
        tuple(view.query.items()),
        str(view.zone),
        view.start,
        view.end,
        tuple(page_state(context).values()),
    )


def first_paint(source: Source, handover: Handover, path: str, search: str) -> tuple[str, str]:
    """Return the title and the HTML of an address, including the frame."""
    context = context_of(view_of(source, path, search), source)
    made = render_page(context)
    flask.after_this_request(lambda response: _with_status(response, made.status))
    handover.put(context, made)
    frame: Component = layout()
    for name, filled in frame_parts(context, made).items():
        found: Any = frame[name]
        found.children = filled
    return made.title, f'<div id="first">{as_html(frame, "picture")}</div>'
