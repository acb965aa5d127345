"""One chart of a page, asked for by a control of it: its figure as JSON, from the address alone.

No callback of Dash: for each answer its renderer goes through the whole page, which takes longer than drawing the chart.
"""

from __future__ import annotations

import logging

from flask import Flask, Response, request
from plotly.io.json import to_json_plotly

from .pages.fleet import measure
from .pages.service_charts import CHARTS
from .rendering import view_of
from .router import context_of
from .source import Source

PREFIX = "/figures/"

_log = logging.getLogger(__name__)


def serve(server: Flask, source: Source) -> None:
    """Answer `GET /figures/<chart>?path=<path of the page>&<its query>` on *server*."""

    def figure(name: str) -> Response:
        build = CHARTS.get(name)
        if build is None:
            return _refused(f"There is no chart {name} to draw: {', '.join(CHARTS)} are.", 404)
        view = view_of(source, request.args.get("path"), request.query_string.decode(errors="replace"))
        context = context_of(view, source)
        if not (context.service and measure(source, context.selection).requests):
            return _refused(f"{view.path} has no requests in this window, so there is nothing to draw.", 404)
        try:
            made = to_json_plotly(build(context))
        except Exception:  # noqa: BLE001 - whatever it meets, the chart that is there stays
            _log.exception("the chart %r of %r could not be made", name, view.path)
            return _refused("This chart could not be made. The log of the dashboard says more.", 500)
        return Response(made, mimetype="application/json", headers={"Cache-Control": "no-store"})

    server.add_url_rule(f"{PREFIX}<name>", "figure", figure)


def _refused(why: str, status: int) -> Response:
    return Response(why, status, mimetype="text/plain")
