"""An address to a page: what the callback, the read API, the report and the first paint share."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import unquote

import flask
from dash import html
from dash.development.base_component import Component

from .components import Nodes, attributes
from .menus import menus
from .pages import collectors
from .pages.page import Context, Page, missing, nothing
from .router import page_of
from .shell import mobile_nav, side, stale_banner, trail
from .source import Source
from .view import View, parse

ZONE_COOKIE = "stagelens_zone"

_log = logging.getLogger(__name__)


def view_of(source: Source, path: str | None, search: str | None) -> View:
    """Return the view of an address, its times in the zone of the reader who asks now."""
    zone = unquote(flask.request.cookies.get(ZONE_COOKIE, ""))
    return source.whole(parse(path, search, source.now(), zone))


def told(context: Context) -> dict[str, Any]:
    """Return what a page was made from: while it is the same the page is, too.

    `revision` is of all data, `own` of the service that the page is about, "" where it is about more than one; `stale`
    names the state of the flow of data as far as a page shows it: nothing while data flows, else the minute; on the page of
    the collectors it is another each time.
    """
    source, service = context.source, context.service
    shown = stale_banner(context, source.state())
    # Collectors tell of themselves also while no data comes, and when one falls silent nothing is written at all.
    fresh = f"{source.now():%H:%M:%S}" if context.view.path == collectors.PLACE else ""
    return {
        "revision": source.revision(),
        "own": f"{source.revision(service)} {service}" if service else "",
        "stale": fresh if shown is None else f"{source.now():%H:%M}{fresh}",
    }


def page(context: Context) -> Page:
    """Return the page of an address; one that cannot be made says so and leaves the frame standing."""
    try:
        found = page_of(context)
    except Exception as error:  # noqa: BLE001 - whatever a page meets, the frame stays
        _log.exception("the page %r could not be made", context.view.path)
        retry = html.Button("Try again", className="btn pri", type="button", **attributes({"data-do": "reload"}))
        failed: Component = nothing(
            "This page could not be made",
            f"{type(error).__name__}. The log of the dashboard says more.",
            actions=[retry],
        )
        return Page("Stagelens", [("Error", None)], [failed])
    if found is None:
        gone = missing(f"{context.view.path} leads nowhere.", context.view.link("/"))
        return Page("Not found · Stagelens", [("Not found", None)], [gone], is_there=False)
    return found


def framed(context: Context, made: Page) -> dict[str, Nodes]:
    """Return what fills the frame, by the id of the element it goes into."""
    return {
        "root": _body(context, made),
        **beside(context, made.place),
        "trail": trail(made.trail),
        "time": menus(context),
    }


def beside(context: Context, place: str) -> dict[str, Nodes]:
    """Return what stands beside a page whose entry in the navigation is *place*."""
    return {"side": side(context, place, context.source.state()), "mobnav": mobile_nav(context, place)}


def _body(context: Context, made: Page) -> Component:
    """Return *made*, below the warning that no data comes where that is so."""
    shown = [stale_banner(context, context.source.state()), *made.body]
    return html.Div(
        [each for each in shown if each is not None], className="page", **attributes({"data-title": made.title})
    )
