"""The frame around every page: side bar, top bar, menus, dialogs. The frame stands still, pages change inside it."""

from __future__ import annotations

from datetime import datetime, timedelta

from dash import dcc, html
from dash.development.base_component import Component

from .. import __version__
from ..collector.store import StoreState
from ..core.stages import OTHER, label
from .components import Node, attributes, banner, dot, link
from .format import count, day, duration, size, span
from .pages.measures import measure
from .pages.page import Context
from .view import BUCKET_SECONDS, WINDOWS, View, service_path

REFRESH_SECONDS = 15
# Agents send every 10 s: three missed ones are no accident.
STALE = timedelta(seconds=45)
BUCKET = timedelta(seconds=BUCKET_SECONDS)
_MAX_SERVICES = 40
_MAX_FOLDS = 2
_SKELETON = (54, 78, 320, 280)

_NAV = (
    ("Overview", "/", "home"),
    ("Compare", "/compare", "compare"),
    ("SLOs", "/slo", "shield"),
    ("Traces", "/traces", "trace"),
)
_KEYS = (
    ("Ctrl K", "jump to a service, page or trace"),
    ("g o, g c, g s, g t", "overview, compare, SLOs, traces"),
    ("[ ]", "earlier, later"),
    ("- 0", "wider, back to now"),
    ("t", "time range"),
    ("j k", "next, previous row or trace"),
    ("d", "light or dark"),
    ("c", "copy the link"),
    ("?", "this help"),
)


def layout() -> Component:
    """Return what never changes: the frame, its stores and an empty page."""
    return html.Div(
        [
            html.A("Skip to content", href="#root", className="skip"),
            dcc.Location(id="url"),
            dcc.Interval(id="beat", interval=REFRESH_SECONDS * 1000),
            dcc.Store(id="tick"),
            dcc.Store(id="seen"),
            dcc.Store(id="arrived"),
            html.Div(
                [
                    html.Div(html.Div(id="side"), className="side"),
                    html.Div([_top(), html.Main(_skeleton(), id="root", tabIndex=-1)], className="main"),
                ],
                className="shell",
            ),
            html.Nav(id="mobnav", className="mobnav", **attributes({"aria-label": "Pages"})),
            _jump(),
            _help(),
            html.Div(id="said", className="said", role="status"),
        ]
    )


def _top() -> Component:
    return html.Header(
        [
            html.Nav(id="trail", className="crumb", **attributes({"aria-label": "Where you are"})),
            html.Span(className="grow"),
            _button("jump", "search", "Jump to", ["Jump to…", html.Kbd("Ctrl K", className="kbd")], "btn ghost hide"),
            _button("jump", "search", "Jump to", [], "btn ghost icon mob"),
            html.Div(id="time"),
            _button("refresh", "refresh", "Refresh every 15 seconds", [f"{REFRESH_SECONDS} s"], "btn hide"),
            _button("copy", "link", "Copy the link to this view", [], "btn icon hide"),
            _button("theme", "moon", "Switch theme", [], "btn icon"),
        ],
        className="top",
    )


def _button(action: str, icon: str, name: str, more: list[Node], css: str) -> Component:
    extra = attributes({"data-do": action, "aria-label": name})
    return html.Button([html.I(className=f"ic ic-{icon}"), *more], type="button", title=name, className=css, **extra)


def time_menu(view: View) -> Component:
    """Return the menu of time ranges, open on demand; it carries the window for the keys that move it."""
    items = [
        html.Button(["Last ", span(length)], type="button", **attributes({"data-window": value}))
        for value, length in WINDOWS.items()
    ]
    zone = view.now.astimezone(view.zone).tzname() or "UTC"
    menu = html.Div(
        [*items, html.Div(f"Times are in {zone}. Drag on a chart to zoom.", className="zone")], className="pop"
    )
    summary = html.Summary(
        [html.I(className="ic ic-clock"), view.window_label, html.I(className="ic ic-down")], className="btn"
    )
    start, end = (str(int(each.timestamp() * 1000)) for each in (view.start, view.end))
    bounds = attributes({"data-start": start, "data-end": end})
    return html.Details([summary, menu], className="menu time", **bounds)


def trail(steps: list[tuple[str, str | None]]) -> list[Node]:
    """Return the way to this page as links, the page itself last."""
    shown: list[Node] = []
    for text, href in steps[:-1]:
        shown += [link(text, href=href) if href else html.Span(text), html.Span("/", className="sep")]
    return [*shown, html.B(steps[-1][0], **attributes({"aria-current": "page"}))]


def side(context: Context, place: str, state: StoreState) -> Component:
    """Return the side bar: pages, services with their p99, and how the collector is."""
    logo = html.Span(
        [html.I(className=f"st-{key}") for key in ("queue", "prefill", "postprocess", "decode")], className="logo"
    )
    pages = [_entry(context, text, path, icon, on=path == place) for text, path, icon in _NAV]
    return html.Div(
        [
            link(
                [logo, html.Span("Stagelens")],
                href=context.view.link("/"),
                className="brand",
                **attributes({"aria-label": "Stagelens, overview"}),
            ),
            html.Nav(pages, **attributes({"aria-label": "Pages"})),
            *_services(context, place),
            _foot(context, state),
        ]
    )


def mobile_nav(context: Context, place: str) -> list[Node]:
    """Return the bar at the bottom of a phone."""
    return [
        link(
            [html.I(className=f"ic ic-{icon}"), text],
            href=context.view.link(path),
            className="on" if path == place else "",
        )
        for text, path, icon in _NAV
    ]


def stale_banner(context: Context, state: StoreState) -> Node:
    """Return the warning that nothing arrives any more, with its age; nothing while data flows or before the first."""
    last = last_data(context, state)
    if last is None or not context.view.live:
        return None
    age = context.source.now() - last
    if age < STALE:
        return None
    return banner(
        [
            html.B(f"No data for {span(age)}."),
            f"The last batch came at {last.astimezone(context.view.zone):%-d %b %H:%M:%S}; charts end there. No traffic, or is the service or the collector down?",
        ]
    )


def last_data(context: Context, state: StoreState) -> datetime | None:
    """Return when data last came: the last batch, or the newest request where batches are forgotten by now."""
    if state.last_received is not None:
        return state.last_received
    services = context.source.all_services()
    return services["last_seen"].max().to_pydatetime() + BUCKET if len(services) else None


def _entry(context: Context, text: str, path: str, icon: str, *, on: bool) -> Component:
    parts: list[Node] = [html.I(className=f"ic ic-{icon}"), html.Span(text, className="t")]
    if path == "/slo":
        states = [each.state for each in context.source.slos()]
        burning, risky = states.count("burning"), states.count("at_risk")
        said = f"{burning} burning" if burning else f"{risky} at risk"
        parts.append(html.Span(said, className="cnt bad" if burning else "cnt") if burning or risky else None)
    current = {"aria-current": "page"} if on else {}
    return link(
        parts,
        href=context.view.link(path),
        className="nav on" if on else "nav",
        **attributes({"data-name": text}),
        **current,
    )


def _services(context: Context, place: str) -> list[Node]:
    names = [str(each) for each in context.source.services(context.view.start, context.view.end)["service"]]
    if not names:
        return []
    order = {"burning": 0, "at_risk": 1, "healthy": 2, "no_data": 3}
    found = {name: context.source.slo_of(name) for name in names}
    names.sort(key=lambda name: (order[slo.state] if (slo := found[name]) else 2, name))
    links = [_service(context, name, found[name].state if found[name] else "", place) for name in names[:_MAX_SERVICES]]  # pyright: ignore[reportOptionalMemberAccess] - asked in the same expression
    return [html.Div("Services", className="navh"), html.Nav(links, **attributes({"aria-label": "Services"}))]


def _service(context: Context, name: str, state: str, place: str) -> Component:
    own = Context(context.view, context.source, name)
    p99 = measure(own.source, own.selection).p99
    path = service_path(name)
    on = path == place
    current = {"aria-current": "page"} if on else {}
    parts: list[Node] = [
        dot(state or "no_data"),
        html.Span(name, className="t"),
        html.Span(duration(p99), className="cnt", title="p99"),
    ]
    return link(
        parts,
        href=context.view.link(path),
        className="nav on" if on else "nav",
        title=name,
        **attributes({"data-name": name}),
        **current,
    )


def _foot(context: Context, state: StoreState) -> Component:
    lines: list[Node] = []
    last = last_data(context, state)
    if last is None:
        lines.append(html.Span([dot("no_data"), "Nothing received yet"], className="live"))
    else:
        age = max(context.source.now() - last, timedelta())
        fresh = age < STALE
        lines.append(
            html.Span(
                [dot("healthy" if fresh else "at_risk"), "Collector live" if fresh else "No data arrives"],
                className="live",
            )
        )
        agents = f"{state.instances} agent{'s' * (state.instances != 1)} · " if state.instances else ""
        lines.append(html.Span(f"{agents}data {span(age)} old"))
    if state.dropped:
        lines.append(html.Span(f"{count(state.dropped)} requests not counted", className="warn"))
    lines += _store_limits(context, state)
    lines.append(html.Span(f"v{__version__}"))
    return html.Div(lines, className="sidefoot")


def _store_limits(context: Context, state: StoreState) -> list[Node]:
    """Return what the store has left out to keep within its bounds: detail for its budget, values for their caps."""
    said = [
        f"{span(timedelta(seconds=width))} detail goes back to {day(since.astimezone(context.view.zone))} only: "
        f"the store is at its budget of {size(state.budget_bytes)}"
        for width, since in state.shortened.items()
    ]
    folds = context.source.ask(context.source.read.folds)
    own = [fold for fold in folds if fold.service in ("", context.service or fold.service)]
    said += [f"{fold}: new ones count as {label(OTHER)}" for fold in own[:_MAX_FOLDS]]
    if len(own) > _MAX_FOLDS:
        said.append(f"and {len(own) - _MAX_FOLDS} more: stagelens storage")
    return [html.Span(text, className="warn") for text in said]


def _jump() -> Component:
    """The list fills itself in the browser, which also adds the field."""
    return html.Dialog(html.Ul(), id="jump", **attributes({"aria-label": "Jump to"}))


def _help() -> Component:
    rows: list[Node] = [html.H2("Keys")]
    for keys, meaning in _KEYS:
        rows += [html.Span([html.Kbd(key, className="kbd") for key in keys.split(", ")]), html.Span(meaning)]
    return html.Dialog(html.Div(rows, className="keys"), id="help", **attributes({"aria-label": "Keys"}))


def _skeleton() -> Component:
    blocks = [html.Div(className="skel", style={"height": f"{height}px"}) for height in _SKELETON]
    return html.Div(blocks, className="page", **attributes({"aria-busy": "true", "aria-label": "Loading"}))
