"""The Dash application: one callback for pages, and the browser does the rest.

Plotly's own script is not used as Dash ships it: the vendored part of it (cartesian charts) is a third of the size
and needs no `unsafe-eval`. There is no dcc.Graph on any page, `assets/slots.js` draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flask
from dash import ClientsideFunction, Dash, Input, Output, State, ctx, no_update

from . import (
    api,
    callback_validation,
    charts,
    compression,
    events_api,
    guard,
    health,
    hooks,
    incidents_api,
    redraw,
    report,
    trace_file,
)
from .components import Nodes
from .config import DashboardConfig
from .first_paint import Application
from .html_out import as_html
from .rendering import beside, framed, page, told, view_of
from .router import context_of
from .shell import layout
from .source import Source

ASSETS = Path(__file__).parent / "assets"
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


def build(source: Source, config: DashboardConfig) -> Dash:
    """Return the application over *source*, its server guarded as *config* says."""
    app = Application(
        source,
        assets_folder=str(ASSETS),
        # Licences are for people, boot.js is in the head already, and report.js is for files that stand alone.
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
    app.layout = layout()
    _connect_browser(app)
    _connect_server(app, source)
    server: flask.Flask = app.server
    health.report(server, source)
    api.serve(server, source)
    redraw.serve(server, source)
    report.serve(server, source)
    events_api.serve(server, source)
    incidents_api.serve(server, source.care)
    hooks.serve(server, source)
    charts.serve(server, source.care)
    trace_file.serve(server, source)
    compression.compress(server, ("/_dash-component-suites/", "/assets/"))
    guard.protect(server, config, source.signed_out, app.csp_hashes())
    # After the doors: who may not come in is told that.
    callback_validation.check(server)
    return app


def _connect_browser(app: Dash) -> None:
    """Say what the browser does by itself: put what came in its place, and ask for more."""
    browser = "stagelens"
    app.clientside_callback(ClientsideFunction(browser, "arrived"), Output("arrived", "data"), Input("made", "data"))
    app.clientside_callback(
        ClientsideFunction(browser, "beat"),
        Output("tick", "data"),
        Input("beat", "n_intervals"),
        State("tick", "data"),
        State("seen", "data"),
    )


def _connect_server(app: Application, source: Source) -> None:
    """Say what the server is asked: pages. Single charts come another way, see `redraw`.

    A page comes as HTML, by the element it goes into, and not as components: each of those listens to all that Dash's renderer
    does, and a page of two thousand took five seconds to change.
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
        # Controls write the address without telling dcc.Location; a tick brings it as it is.
        search = str(tick.get("search", "")) if ticked and tick else search
        context = context_of(view_of(source, path, search), source)
        now = {"beat": tick.get("beat") if tick else None, "address": f"{path}{search or ''}", **told(context)}
        # Another address was seen where a tick has overtaken the page of this one: what comes last is all that is shown.
        if ticked and seen and all(seen.get(key) == now[key] for key in ("address", "stale")):
            if seen.get("revision") == now["revision"]:
                return no_update, {**seen, **now}
            if now["own"] and seen.get("own") == now["own"]:
                # Others have new data: what stands beside the page may have changed, the page has not.
                return _written(beside(context, str(seen.get("place", "/")))), {**seen, **now}
        made = app.handover.take(context) or page(context)
        return _written(framed(context, made)), {**now, "place": made.place}


def _written(parts: Mapping[str, Nodes]) -> dict[str, str]:
    return {name: as_html(nodes) for name, nodes in parts.items()}
