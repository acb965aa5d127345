"""The Dash application: one callback for pages, one for the controls of charts, and the browser does the rest.

Plotly's own script is not used as Dash ships it: the vendored part of it (cartesian charts) is a third of the size
and needs no `unsafe-eval`. There is no dcc.Graph on any page, `assets/slots.js` draws.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flask
from dash import MATCH, ClientsideFunction, Dash, Input, Output, State, ctx, html, no_update
from dash.development.base_component import Component

from . import guard, health, transfer
from .components import attributes
from .config import DashboardConfig
from .figures.parts import Figure
from .pages.empty import missing
from .pages.page import Context, Page, nothing
from .pages.service_charts import CHARTS
from .router import context_of, page_of
from .shell import layout, mobile_nav, side, stale_banner, time_menu, trail
from .source import Source
from .view import View, parse

_log = logging.getLogger(__name__)

ASSETS = Path(__file__).parent / "assets"
ZONE_COOKIE = "stagelens_zone"
_INDEX = """<!doctype html>
<html lang="en">
  <head>
    {%metas%}
    <title>{%title%}</title>
    <link rel="icon" href="BASEassets/icon.svg" type="image/svg+xml">
    <script src="BASEassets/boot.js?m=1"></script>
    {%css%}
  </head>
  <body>
    {%app_entry%}
    <footer>{%config%}{%scripts%}{%renderer%}</footer>
  </body>
</html>"""


def build(source: Source, config: DashboardConfig) -> Dash:
    """Return the application over *source*, its server guarded as *config* says."""
    app = Dash(
        "stagelens",
        assets_folder=str(ASSETS),
        # Licences are for people, and boot.js is in the head already.
        assets_ignore=r"^boot\.js$",
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
    app.layout = layout()
    _connect_browser(app)
    _connect_server(app, source)
    server: flask.Flask = app.server
    health.report(server, source)
    transfer.compress(server, ("/_dash-component-suites/", "/assets/"))
    guard.protect(server, config, app.csp_hashes())
    return app


def _connect_browser(app: Dash) -> None:
    """Say what the browser does by itself: draw, beat, and take note of an arrival."""
    browser = "stagelens"
    app.clientside_callback(
        ClientsideFunction(browser, "slot"),
        Output({"k": "slot", "i": MATCH}, "className"),
        Input({"k": "spec", "i": MATCH}, "data"),
        State({"k": "slot", "i": MATCH}, "id"),
    )
    app.clientside_callback(
        ClientsideFunction(browser, "beat"),
        Output("tick", "data"),
        Input("beat", "n_intervals"),
        State("tick", "data"),
        State("seen", "data"),
    )
    app.clientside_callback(
        ClientsideFunction(browser, "arrived"), Output("arrived", "data"), Input("root", "children")
    )


def _connect_server(app: Dash, source: Source) -> None:
    """Say what the server is asked: pages, and single charts."""

    @app.callback(
        Output("root", "children"),
        Output("side", "children"),
        Output("mobnav", "children"),
        Output("trail", "children"),
        Output("time", "children"),
        Output("seen", "data"),
        Input("url", "pathname"),
        Input("url", "search"),
        Input("tick", "data"),
        State("seen", "data"),
    )
    def show(path: str | None, search: str | None, tick: dict[str, Any] | None, seen: dict[str, Any] | None) -> Any:
        ticked = ctx.triggered_id == "tick" and tick is not None
        # Controls write the address without telling dcc.Location; a tick brings it as it is.
        view = _view(source, path, str(tick.get("search", "")) if ticked and tick else search)
        context = context_of(view, source)
        told = {"beat": tick.get("beat") if tick else None, **_told(context)}
        if not (ticked and seen and seen.get("stale") == told["stale"]):
            return _rendered(context, told)
        if seen.get("revision") == told["revision"]:
            return (*[no_update] * 5, {**seen, **told})
        if told["own"] and seen.get("own") == told["own"]:
            # Others have new data: what stands beside the page may have changed, the page has not.
            return (no_update, *_beside(context, str(seen["place"])), no_update, no_update, {**seen, **told})
        return _rendered(context, told)

    @app.callback(
        Output({"k": "spec", "i": MATCH}, "data"),
        Input({"k": "ask", "i": MATCH}, "data"),
        State({"k": "ask", "i": MATCH}, "id"),
        State("url", "pathname"),
        prevent_initial_call=True,
    )
    def redraw(ask: dict[str, str] | None, ident: dict[str, str], path: str | None) -> Figure | Any:
        build_chart: Callable[[Context], Figure] | None = CHARTS.get(ident["i"])
        if ask is None or build_chart is None:
            return no_update
        return build_chart(context_of(_view(source, path, ask.get("search", "")), source))


def _view(source: Source, path: str | None, search: str | None) -> View:
    return parse(path, search, source.now(), flask.request.cookies.get(ZONE_COOKIE))


def _told(context: Context) -> dict[str, Any]:
    """Return what a page was made from: while it is the same the page is, too.

    `revision` is of all data, `own` of the service that the page is about, "" where it is about more than one; `stale`
    names the state of the flow of data as far as a page shows it: nothing while data flows, else the minute.
    """
    source, service = context.source, context.service
    shown = stale_banner(context, source.state())
    return {
        "revision": source.revision(),
        "own": f"{source.revision(service)} {service}" if service else "",
        "stale": "" if shown is None else f"{source.now():%H:%M}",
    }


def _beside(context: Context, place: str) -> tuple[Any, ...]:
    return side(context, place, context.source.state()), mobile_nav(context, place)


def _rendered(context: Context, told: dict[str, Any]) -> tuple[Any, ...]:
    page = _page(context)
    body: list[Any] = [stale_banner(context, context.source.state()), *page.body]
    root = html.Div(
        [each for each in body if each is not None], className="page", **attributes({"data-title": page.title})
    )
    return (
        root,
        *_beside(context, page.place),
        trail(page.trail),
        time_menu(context.view),
        {**told, "place": page.place},
    )


def _page(context: Context) -> Page:
    """Return the page of an address; one that cannot be made says so and leaves the frame standing."""
    try:
        found = page_of(context)
    except Exception as error:  # noqa: BLE001 - whatever a page meets, the frame stays
        _log.exception("the page %s could not be made", context.view.path)
        retry = html.Button("Try again", className="btn pri", type="button", **attributes({"data-do": "reload"}))
        failed: Component = nothing(
            "This page could not be made",
            f"{type(error).__name__}. The log of the dashboard says more.",
            actions=[retry],
        )
        return Page("Stagelens", [("Error", None)], [failed])
    if found is None:
        gone = missing(f"{context.view.path} leads nowhere.", context.view.link("/"))
        return Page("Not found · Stagelens", [("Not found", None)], [gone])
    return found
