"""The kept requests: the slowest, errors and a uniform share, filtered by the address."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...collector.store import Selection
from ...core.stages import label, position
from ..components import Node, card, empty, link, link_tabs, swatch
from ..format import duration
from ..view import service_path
from .page import Context, Page
from .rows import traces_table

_LIMIT = 50
_HOW = "Agents keep the slowest requests of every series, errors, and a uniform share."


def render(context: Context) -> Page:
    """Return the list of kept requests."""
    view, source = context.view, context.source
    service = context.service
    dominant = view.text("dom")
    base = replace(context.selection, status="error" if view.text("err") == "1" else None)
    order = "time" if view.choice("t", "slow", "new") == "new" else "slow"
    frame = source.ask(source.read.exemplars, base, limit=_LIMIT, dominant=dominant, order=order)
    trail: list[tuple[str, str | None]] = [("Traces", view.link("/traces") if service else None)]
    if service:
        trail.append((service, None))
    head = html.Div(
        [html.Div([html.H1("Traces"), html.P(_HOW, className="sub")]), html.Span(className="grow"), _order(context)],
        className="phead",
    )
    return Page("Traces · Stagelens", trail, [head, _filters(context, base), _list(context, frame)], "/traces")


def _list(context: Context, frame: pd.DataFrame) -> Component:
    if not len(frame):
        reset = link("Without filters", href=context.view.link("/traces"), className="btn pri")
        return card(
            None,
            empty(
                "No kept request fits",
                f"In the {context.view.window_label.lower()}, with these filters.",
                actions=[reset],
            ),
        )
    slowest = duration(float(frame["duration_seconds"].max()))
    sub = f"{len(frame)} kept requests, the slowest took {slowest}"
    rows = traces_table(frame, context.view, "Kept requests", with_service=context.service is None)
    return card("Requests", rows, sub=sub, flush=True)


def _order(context: Context) -> Component:
    view = context.view
    options = {"slow": ("Slowest", view.here(t=None)), "new": ("Newest", view.here(t="new"))}
    return link_tabs("Order", options, view.choice("t", "slow", "new"))


def _filters(context: Context, base: Selection) -> Component:
    view = context.view
    services = [str(each) for each in context.source.services(view.start, view.end)["service"]]
    options = {"": ("All services", view.here(svc=None))} | {name: (name, view.here(svc=name)) for name in services}
    errors = {"": ("All", view.here(err=None)), "1": ("Errors", view.here(err="1"))}
    items: list[Node] = [
        _menu(context.service or "All services", options, context.service or ""),
        link_tabs("Status", errors, "1" if view.text("err") == "1" else ""),
        _stage_menu(context, base),
    ]
    if context.service:
        items.append(link("Where its time goes →", href=view.link(service_path(context.service)), className="link"))
    return html.Div(items, className="filters")


def _stage_menu(context: Context, base: Selection) -> Component:
    view, chosen = context.view, context.view.text("dom") or ""
    stages = sorted(context.source.ask(context.source.read.stage_latency, replace(base, status=None)), key=position)
    options = {"": ("Any stage", view.here(dom=None))} | {each: (label(each), view.here(dom=each)) for each in stages}
    shown: list[Node] = [swatch(chosen), f"Mostly {label(chosen)}"] if chosen else ["Mostly any stage"]
    return _menu(shown, options, chosen)


def _menu(shown: Node | list[Node], options: dict[str, tuple[str, str]], chosen: str) -> Component:
    links = [
        link(text, href=href, className="btn ghost" + (" b" if value == chosen else ""))
        for value, (text, href) in options.items()
    ]
    inner = shown if isinstance(shown, list) else [shown]
    return html.Details(
        [
            html.Summary([*inner, html.I(className="ic ic-down")], className="btn"),
            html.Div(links, className="pop left"),
        ],
        className="menu",
    )
