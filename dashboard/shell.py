"""The frame around every page: side bar, top bar, menus, dialogs. The frame stands still, pages change inside it."""

from __future__ import annotations

from datetime import datetime, timedelta

from dash import dcc, html
from dash.development.base_component import Component

from .. import __version__
from ..core.stages import OTHER, label
from ..store import StoreState
from . import guard
from .components import WORDS, Node, attributes, banner, dot, link
from .dialogs import help_sheet, palette
from .format import count, day, duration, percent, size, span
from .pages.advice_facts import advice_count
from .pages.fleet import Row, urgent_first
from .pages.page import Context
from .pages.regressions import MATERIAL
from .view import BUCKET_SECONDS, COMMON, ORDER, service_path

REFRESH_SECONDS = 15
# Agents send every 10 s: three missed ones are no accident.
STALE = timedelta(seconds=45)
BUCKET = timedelta(seconds=BUCKET_SECONDS)
_MAX_SERVICES = 40
_MAX_FOLDS = 2
_MOST_ON_PHONES = 5
_SKELETON = (54, 78, 320, 280)

_NAV = (
    ("Overview", "/", "home"),
    ("Regressions", "/regressions", "compare"),
    ("SLOs", "/slo", "shield"),
    ("Incidents", "/incidents", "bell"),
    ("Traces", "/traces", "trace"),
    ("Advice", "/advice", "bulb"),
    ("Events", "/events", "flag"),
    ("Engines", "/engines", "chip"),
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
            dcc.Store(id="made"),
            dcc.Store(id="arrived"),
            html.Div(
                [
                    html.Div(html.Div(id="side"), className="side"),
                    html.Div(
                        [
                            _top(),
                            html.Div(id="lost", role="status"),
                            html.Main(_skeleton(), id="root", tabIndex=-1),
                        ],
                        className="main",
                    ),
                ],
                className="shell",
                **attributes({"data-keys": " ".join(ORDER), "data-common": " ".join(COMMON)}),
            ),
            html.Nav(id="mobnav", className="mobnav", **attributes({"aria-label": "Pages"})),
            palette(
                [*((name, path) for name, path, _ in _NAV), ("Collectors", "/collectors"), ("Settings", "/settings")]
            ),
            help_sheet(),
            html.Div(id="said", className="said", role="status"),
        ]
    )


def _top() -> Component:
    return html.Header(
        [
            html.Nav(id="trail", className="crumb", **attributes({"aria-label": "Where you are"})),
            html.Span(className="grow"),
            _button(
                "jump",
                "search",
                "Jump to",
                [html.Span("Jump to…"), html.Kbd("Ctrl K", className="kbd")],
                "btn ghost find",
            ),
            _button("earlier", "down", "Earlier by half a window", [], "btn ghost step hide"),
            html.Div(id="time", className="about"),
            _button("later", "down", "Later by half a window", [], "btn ghost step next hide"),
            _button(
                "refresh", "refresh", f"Refresh every {REFRESH_SECONDS} seconds", [f"{REFRESH_SECONDS} s"], "btn hide"
            ),
            _button("copy", "link", "Copy the link to this view", [], "btn icon hide"),
            _button("save", "save", "Save this view as one file", [], "btn icon hide"),
            _button("theme", "moon", "Switch theme", [], "btn icon"),
            html.Button(
                "?",
                type="button",
                title="Keys",
                className="btn icon hide",
                **attributes({"data-do": "help", "aria-label": "Keys"}),
            ),
        ],
        className="top",
    )


def _button(action: str, icon: str, name: str, more: list[Node], css: str) -> Component:
    extra = attributes({"data-do": action, "aria-label": name})
    return html.Button([html.I(className=f"ic ic-{icon}"), *more], type="button", title=name, className=css, **extra)


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
        # A thumb has room for five; the palette leads to the rest.
        for text, path, icon in _NAV[:_MOST_ON_PHONES]
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
    counts = {"/slo": _slos_in_trouble, "/incidents": _incidents, "/regressions": _regressions, "/advice": _advice}
    count_of = counts.get(path)
    parts: list[Node] = [
        html.I(className=f"ic ic-{icon}"),
        html.Span(text, className="t"),
        count_of(context) if count_of else None,
    ]
    current = {"aria-current": "page"} if on else {}
    return link(
        parts,
        href=context.view.link(path),
        className="nav on" if on else "nav",
        **current,
    )


def _advice(context: Context) -> Node:
    number = advice_count(context)
    return html.Span(str(number), className="cnt") if number else None


def _slos_in_trouble(context: Context) -> Node:
    states = [each.state for each in context.slos]
    worst = next((state for state in ("burning", "at_risk", "stale") if state in states), None)
    if worst is None:
        return None
    said = f"{states.count(worst)} {WORDS[worst].lower()}"
    return html.Span(said, className="cnt bad" if worst == "burning" else "cnt")


def _incidents(context: Context) -> Node:
    number = len(context.open_incidents)
    pages = any(each.severity == "page" for each in context.open_incidents)
    return html.Span(str(number), className="cnt bad" if pages else "cnt", title="open") if number else None


def _regressions(context: Context) -> Node:
    number = sum(row.release is not None for row in urgent_first(context))
    title = f"slower by {percent(MATERIAL - 1)} or more"
    return html.Span(str(number), className="cnt bad", title=title) if number else None


def _services(context: Context, place: str) -> list[Node]:
    rows = urgent_first(context)
    if not rows:
        return []
    shown = rows[:_MAX_SERVICES]
    # The one whose page it is stands among them wherever it is in the order.
    shown += [row for row in rows[_MAX_SERVICES:] if service_path(row.service) == place]
    links = [_service(context, row, place) for row in shown]
    if len(rows) > len(shown):
        more = html.Span(f"and {len(rows) - len(shown)} more", className="t")
        links.append(link(more, href=context.view.link("/"), className="nav more"))
    return [html.Div("Services", className="navh"), html.Nav(links, **attributes({"aria-label": "Services"}))]


def _service(context: Context, row: Row, place: str) -> Component:
    path = service_path(row.service)
    on = path == place
    current = {"aria-current": "page"} if on else {}
    parts: list[Node] = [
        dot(row.state or "no_data"),
        html.Span(row.service, className="t"),
        html.Span(duration(row.now.p99), className="cnt", title="p99"),
    ]
    return link(
        parts,
        href=context.view.link(path),
        className="nav on" if on else "nav",
        title=row.service,
        **current,
    )


def _foot(context: Context, state: StoreState) -> Component:
    lines: list[Node] = []
    last = last_data(context, state)
    collectors = {"href": context.view.link("/collectors"), "className": "live", "title": "How the collectors are"}
    if last is None:
        lines.append(link([dot("no_data"), "Nothing received yet"], **collectors))
    else:
        age = max(context.source.now() - last, timedelta())
        fresh = age < STALE
        said: list[Node] = [dot("healthy" if fresh else "at_risk"), "Collector live" if fresh else "No data arrives"]
        lines.append(link(said, **collectors))
        agents = f"{state.instances} agent{'s' * (state.instances != 1)} · " if state.instances else ""
        lines.append(html.Span(f"{agents}data {span(age)} old"))
    if state.dropped:
        lines.append(html.Span(f"{count(state.dropped)} requests not counted", className="warn"))
    lines += _store_limits(context, state)
    lines.append(html.Span(f"v{__version__}"))
    if guard.has_session():
        lines.append(html.Button("Sign out", type="button", className="link", **attributes({"data-signout": ""})))
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


def _skeleton() -> Component:
    blocks = [html.Div(className="skel", style={"height": f"{height}px"}) for height in _SKELETON]
    return html.Div(blocks, className="page", **attributes({"aria-busy": "true", "aria-label": "Loading"}))
