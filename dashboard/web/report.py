"""Report: one view, or a complete run, as a single HTML file that works offline.

Styles, font, scripts and figures are inline, and a policy in its head blocks every request.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from html import escape
from urllib.parse import urlencode

from dash import html
from dash.development.base_component import Component
from flask import Flask, Response, request

from ...core.version import __version__
from ...store import Selection, Store
from ..pages.page import Context, Page, empty_page_card
from ..source import Source
from ..ui.components import Chart, Node
from ..ui.page_export import as_html, children
from ..view import ORDER, parse, service_path, trace_name, trace_path
from . import guard
from .api_formats import file_name
from .assets import FOLDER, FONT, STYLES, text_of
from .routing import context_of, render_page, view_of

PATH = "/report"

_SCRIPTS = ("plotly.min.js", "figure.js", "inspector.js", "slots.js", "slots_keys.js", "waterfall.js", "report.js")
# Attributes that link a table to the chart beside it.
_LINKED_ATTRIBUTES = ("data-inspector", "data-percentile")


def report(context: Context, page: Page, made_at: datetime, live: str) -> str:
    body = as_html(page.body, "report", lambda address: live + address if live else None)
    scripts = "".join(f"<script>{text}</script>" for text in _scripts())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy())}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(page.title)}</title><style>{_styles()}</style></head>"
        f'<body class="report"><main class="page">{_head(context, page.title, made_at, live)}{body}</main>'
        f"{scripts}</body></html>"
    )


def add_report_route(server: Flask, source: Source) -> None:
    """Add `PATH` to *server*: `?path=/s/x` and the query of the view; `download=1` saves the report as a file."""

    def respond() -> Response:
        given = {key: value for key, value in request.args.items() if key in ORDER}
        view = view_of(source, request.args.get("path"), urlencode(given))
        context = context_of(view, source)
        page = render_page(context)
        text = report(context, page, source.now(), guard.dashboard_url())
        response = Response(text, page.status, mimetype="text/html")
        response.headers["Content-Security-Policy"] = f"{policy()}; frame-ancestors 'none'"
        response.headers["Cache-Control"] = "private, no-store"
        if request.args.get("download"):
            response.headers["Content-Disposition"] = f'attachment; filename="{file_name(view.parts, "html")}"'
        return response

    server.add_url_rule(PATH, "report", respond, methods=["GET"])


@cache
def policy() -> str:
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in _scripts()]
    scripts = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; font-src data:; "
        "form-action 'none'; base-uri 'none'"
    )


def _head(context: Context, title: str, made_at: datetime, live: str) -> str:
    view = context.view
    window = " to ".join(f"{moment.astimezone(view.zone):%-d %b %Y %H:%M}" for moment in (view.start, view.end))
    name = escape(title.removesuffix(" · Stagelens"))
    shown = f'<a class="link" href="{escape(live + view.here())}">{name}</a>' if live else name
    date = f"{made_at.astimezone(UTC):%-d %b %Y %H:%M} UTC"
    return (
        f'<header class="made"><span>View of <b>{shown}</b>, {window}, times in {escape(view.zone_name)} · made {date} · '
        f'Stagelens {__version__}</span><button class="btn" type="button" data-theme-switch>Light or dark</button></header>'
    )


@cache
def _scripts() -> tuple[str, ...]:
    return tuple(text_of(name).replace("</script", "<\\/script") for name in _SCRIPTS)


@cache
def _styles() -> str:
    return FONT.sub(_inlined, text_of(*STYLES))


def _inlined(font: re.Match[str]) -> str:
    data = base64.b64encode((FOLDER / font[1]).read_bytes()).decode()
    return f"url(data:font/woff2;base64,{data})"


# Maximum number of services in the report of a run, and of retained requests for each service.
_MAX_SERVICES, _TRACES = 10, 3


def run_report(store: Store, start: datetime, end: datetime, title: str, note: str) -> str:
    source = Source(store, None, time.time)
    page = Page(title, [], [html.P(note, className="sub"), *_page_body(source, start, end)])
    return report(_page_context(source, "/", start, end), page, source.now(), "")


def _page_body(source: Source, start: datetime, end: datetime) -> list[Node]:
    services = source.services(start, end).sort_values("requests", ascending=False)
    names = services["service"].tolist()
    if not names:
        return [empty_page_card("No request was recorded", "Check that a supported library received requests.")]
    body: list[Node] = [*_page_nodes(source, "/", start, end)] if len(names) > 1 else []
    for number, name in enumerate(names[:_MAX_SERVICES]):
        body += _with_unique_names(_page_nodes(source, service_path(name), start, end), number)
        exemplars = source.read.one_per_cause(Selection(start, end, service=name), _TRACES).drop_duplicates("dominant")
        for ids in zip(exemplars["trace_id"], exemplars["span_id"], strict=True):
            # The last card of a trace page lists similar requests, which are listed above already.
            body += _page_nodes(source, trace_path(trace_name(*ids)), start, end)[:-1]
    return body


def _page_nodes(source: Source, path: str, start: datetime, end: datetime) -> list[Node]:
    return render_page(_page_context(source, path, start, end)).body


def _page_context(source: Source, path: str, start: datetime, end: datetime) -> Context:
    window = "&".join(f"{key}={round(at.timestamp() * 1000)}" for key, at in (("from", start), ("to", end)))
    view = parse(path, f"{window}&vs=off", source.now())
    return context_of(
        replace(view, zone=datetime.fromtimestamp(end.timestamp(), UTC).astimezone().tzinfo or UTC), source
    )


def _with_unique_names(nodes: Iterable[Node], number: int) -> Iterator[Node]:
    """Yield *nodes* with unique chart names, so that several pages fit into one."""
    for node in nodes:
        if isinstance(node, Component) and number:
            _make_unique(node, number)
        yield node


def _make_unique(node: Component, number: int) -> None:
    if isinstance(node, Chart):
        node.name = f"{node.name}-{number}"
    slot = getattr(node, "data-chart", None)
    if slot is not None:
        setattr(node, "data-chart", f"{slot}-{number}")
    for key in _LINKED_ATTRIBUTES:
        if hasattr(node, key):
            delattr(node, key)
    for child in children(node):
        if isinstance(child, Component):
            _make_unique(child, number)
