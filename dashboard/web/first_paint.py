"""First paint: the page as plain HTML in the entry document, before any script has run.

`assets/boot.js` removes this HTML once the scripts have built the page behind it, so that the layout does not shift.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from html import escape
from threading import Lock
from typing import Any
from urllib.parse import quote

import flask
from dash import Dash
from dash.development.base_component import Component

from ..pages.page import Context, Page
from ..source import Source
from ..ui.page_export import as_html
from . import guard
from .routing import context_of, frame_parts, page_state, render_page, view_of
from .shell import layout

_MAX_WAITING = 32
_ENTRY = '<div id="react-entry-point"></div>'

_log = logging.getLogger(__name__)


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


def _not_found(response: flask.Response) -> flask.Response:
    response.status_code = 404
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
    if not made.is_there:
        flask.after_this_request(_not_found)
    handover.put(context, made)
    frame: Component = layout()
    for name, filled in frame_parts(context, made).items():
        found: Any = frame[name]
        found.children = filled
    return made.title, f'<div id="first">{as_html(frame, "picture")}</div>'
