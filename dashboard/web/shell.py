"""Frame around every page: side bar, top bar with its menus, and dialogs. Only the page inside the frame changes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from dash import html
from dash.development.base_component import Component

from ...analysis.breakdown import Measures
from ...analysis.slo_status import most_urgent
from ...core.histogram import samples_needed
from ...core.stages import OTHER, STAGES, label
from ...core.version import __version__
from ...store import StoreState
from ..pages.advice import advice_count
from ..pages.comparison import asked_pair, served
from ..pages.measures import ServiceRow, urgent_first
from ..pages.page import Context
from ..pages.regressions import MATERIAL
from ..ui.components import WORDS, Node, Nodes, attributes, banner, dot, link
from ..ui.format import THIN, count, day, duration, percent, size, span, whole
from ..view import BUCKET_SECONDS, COMMON, COMPARED, ORDER, WINDOWS, View, service_path
from . import guard

_ALL = "All environments"
_COMPARED_WORDS = {"prev": "Previous", "1d": "Yesterday", "7d": "Last week", "off": "Off"}
_KEYS = (
    ("Ctrl K", "services, tabs, SLOs, stages, incidents, versions, pages, traces by id, settings"),
    ("g o, g r, g s, g i, g t, g a, g e", "overview, regressions, SLOs, incidents, traces, advice, events"),
    ("[, ]", "earlier, later by half a window"),
    ("-, 0", "wider, back to now"),
    ("t", "time range"),
    ("Backspace", "back to the previous window, like a double click on a chart"),
    ("/", "filter the table"),
    ("j, k", "next, previous row or trace"),
    ("Enter", "open the row"),
    ("c, C", "copy a link to this fixed window, or to a moving window"),
    ("d", "light or dark"),
    ("?", "this help"),
)
# Display preferences in the help dialog, with their labels.
_LIKES = (("theme", "Theme"), ("patterns", "Patterns on stages"), ("density", "Compact rows"))
REFRESH_SECONDS = 15
# Agents send every 10 s, so three missed exports are not due to chance.
STALE = timedelta(seconds=45)
BUCKET = timedelta(seconds=BUCKET_SECONDS)
_MAX_SERVICES = 40
_MAX_CAPPED = 2
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
# Buttons of the top bar, in the menu on narrow screens: action, icon, name.
_ACTIONS = (("copy", "link", "Copy the link to this view"), ("save", "save", "Save this view as one file"))
_STEPS = (("earlier", "down", "Half a window earlier"), ("later", "down", "Half a window later"))
_HELP = ("help", "help", "Keys")
# Pages for admins, in the command palette.
_OF_ADMINS = (("Collectors", "/collectors"), ("Audit log", "/audit"), ("Settings", "/settings"))


def frame(view: View, content: Nodes) -> Component:
    return html.Div(
        [
            html.A("Skip to content", href="#root", className="skip"),
            html.Div(
                [
                    html.Div(
                        [_drawer(), html.Div(html.Div(_pages(view, view.path, {})), id="side")],
                        className="side",
                        id="menu",
                    ),
                    html.Div(
                        [
                            _top(time_menu(view)),
                            html.Div(id="lost", role="status"),
                            _skeleton(),
                            html.Main(content, id="root", tabIndex=-1),
                        ],
                        className="main",
                    ),
                ],
                className="shell",
                **attributes({"data-keys": " ".join(ORDER), "data-common": " ".join(COMMON)}),
            ),
            html.Nav(
                mobile_nav(view, view.path), id="mobnav", className="mobnav", **attributes({"aria-label": "Pages"})
            ),
            palette(
                [*((name, path) for name, path, _ in _NAV), *(_OF_ADMINS if guard.current_access().is_admin else ())]
            ),
            help_sheet(),
            html.Div(id="announcement", className="announcement", role="status"),
        ]
    )


def _top(time: Component) -> Component:
    return html.Header(
        [
            _button("menu", "menu", "Menu", [], "btn icon mob"),
            html.Nav(id="trail", className="crumb", **attributes({"aria-label": "Breadcrumb"})),
            html.Span(className="grow"),
            _button(
                "jump",
                "search",
                "Jump to",
                [html.Span("Jump to…"), html.Kbd("Ctrl K", className="kbd")],
                "btn ghost find",
            ),
            _button(*_STEPS[0], [], "btn ghost step hide"),
            html.Div([html.Span(id="env"), html.Span(time, id="time")], className="about"),
            _button(*_STEPS[1], [], "btn ghost step next hide"),
            _button(
                "refresh", "refresh", f"Refresh every {REFRESH_SECONDS} seconds", [f"{REFRESH_SECONDS} s"], "btn hide"
            ),
            *(_button(*action, [], "btn icon hide") for action in _ACTIONS),
            _button("theme", "moon", "Switch theme", [], "btn icon"),
            _button(*_HELP, [], "btn icon hide"),
        ],
        className="top",
    )


def _drawer() -> Component:
    actions = (*_ACTIONS, ("refresh", "refresh", f"Refresh every {REFRESH_SECONDS} seconds"), *_STEPS, _HELP)
    buttons = [_button(*action, [action[-1]], "nav") for action in actions]
    close = _button("menu", "close", "Close the menu", [], "btn icon")
    return html.Div([close, *buttons], className="drawer mob", role="group", **attributes({"aria-label": "Actions"}))


def _button(action: str, icon: str, name: str, more: list[Node], css: str) -> Component:
    extra = attributes({"data-do": action, "aria-label": name})
    return html.Button([html.I(className=f"ic ic-{icon}"), *more], type="button", title=name, className=css, **extra)


def trail(steps: list[tuple[str, str | None]]) -> list[Node]:
    shown: list[Node] = []
    for text, href in steps[:-1]:
        shown += [link(text, href=href) if href else html.Span(text), html.Span("/", className="sep")]
    return [*shown, html.B(steps[-1][0], title=steps[-1][0], **attributes({"aria-current": "page"}))]


def side(context: Context, path: str, state: StoreState) -> Component:
    counts = {
        "/slo": _slos_in_trouble(context),
        "/incidents": _incident_count(context),
        "/regressions": _regression_count(context),
        "/advice": _advice_count(context),
    }
    pages = _pages(context.view, path, counts)
    return html.Div([*pages, *_services(context, path), _side_footer(context, state)])


def _pages(view: View, path: str, counts: Mapping[str, Node]) -> list[Component]:
    logo = html.Span(
        [html.I(className=f"st-{key}") for key in ("queue", "prefill", "postprocess", "decode")], className="logo"
    )
    home = {"className": "brand", **attributes({"aria-label": "Stagelens, overview"})}
    entries = [_entry(view, *page, counts.get(page[1]), on=page[1] == path) for page in _NAV]
    return [
        link([logo, html.Span("Stagelens")], href=view.link("/"), **home),
        html.Nav(entries, **attributes({"aria-label": "Pages"})),
    ]


def mobile_nav(view: View, page_path: str) -> list[Node]:
    return [
        link(
            [html.I(className=f"ic ic-{icon}"), text], href=view.link(path), className="on" if path == page_path else ""
        )
        # A narrow screen has space for five entries; the menu leads to the others.
        for text, path, icon in _NAV[:_MOST_ON_PHONES]
    ]


def stale_banner(context: Context, state: StoreState) -> Node:
    """Return the warning that no data arrives, with the age of the last data; None if data arrives or never arrived."""
    last = last_data(context, state)
    if last is None or not context.view.live:
        return None
    age = context.source.now() - last
    if age < STALE:
        return None
    return banner(
        [
            html.B(f"No data for {span(age)}."),
            f"The last data came at {last.astimezone(context.view.zone):%-d %b %H:%M:%S}; charts end there. There is no traffic, or the service or the collector is down.",
        ]
    )


def last_data(context: Context, state: StoreState) -> datetime | None:
    if state.last_received is not None:
        return state.last_received
    services = context.source.all_services()
    return services["last_seen"].max().to_pydatetime() + BUCKET if len(services) else None


def _entry(view: View, text: str, path: str, icon: str, count: Node, *, on: bool) -> Component:
    current = {"aria-current": "page"} if on else {}
    parts: list[Node] = [html.I(className=f"ic ic-{icon}"), html.Span(text, className="t"), count]
    return link(parts, href=view.link(path), className="nav on" if on else "nav", **current)


def _advice_count(context: Context) -> Node:
    number = advice_count(context)
    return html.Span(str(number), className="cnt") if number else None


def _slos_in_trouble(context: Context) -> Node:
    states = [status.state for status in context.slos]
    worst = next((state for state in ("burning", "at_risk", "stale") if state in states), None)
    if worst is None:
        return None
    text = f"{states.count(worst)} {WORDS[worst].lower()}"
    return html.Span(text, className="cnt bad" if worst == "burning" else "cnt")


def _incident_count(context: Context) -> Node:
    number = len(context.open_incidents)
    pages = any(incident.severity == "page" for incident in context.open_incidents)
    return html.Span(str(number), className="cnt bad" if pages else "cnt", title="open") if number else None


def _regression_count(context: Context) -> Node:
    number = sum(row.release is not None for row in urgent_first(context))
    title = f"slower by {percent(MATERIAL - 1)} or more"
    return html.Span(str(number), className="cnt bad", title=title) if number else None


def _services(context: Context, path: str) -> list[Node]:
    rows = urgent_first(context)
    if not rows:
        return []
    shown = rows[:_MAX_SERVICES]
    # The service of the current page is always listed.
    shown += [row for row in rows[_MAX_SERVICES:] if service_path(row.service) == path]
    links = [_service(context, row, path) for row in shown]
    if len(rows) > len(shown):
        more = html.Span(f"and {len(rows) - len(shown)} more", className="t")
        links.append(link(more, href=context.view.link("/"), className="nav more"))
    return [html.Div("Services", className="navh"), html.Nav(links, **attributes({"aria-label": "Services"}))]


def _service(context: Context, row: ServiceRow, page_path: str) -> Component:
    path = service_path(row.service)
    on = path == page_path
    current = {"aria-current": "page"} if on else {}
    parts: list[Node] = [dot(row.state or "no_data"), html.Span(row.service, className="t"), _latency(row.now)]
    return link(parts, href=context.view.link(path), className="nav on" if on else "nav", title=row.service, **current)


def _latency(now: Measures) -> Component:
    if now.p99 is not None or now.p50 is None:
        return html.Span(duration(now.p99), className="cnt", title="p99")
    few = f"p50; p99 needs {whole(samples_needed(0.99))} requests, {whole(now.requests)} in this window"
    return html.Span(f"p50 {duration(now.p50)}", className="cnt", title=few)


def _side_footer(context: Context, state: StoreState) -> Component:
    lines: list[Node] = []
    last = last_data(context, state)

    def collectors(*nodes: Node) -> Component:
        if not context.source.access.is_admin:
            return html.Span(nodes, className="live")
        return link(nodes, href=context.view.link("/collectors"), className="live", title="State of the collectors")

    if last is None:
        lines.append(collectors(dot("no_data"), "No data received yet"))
    else:
        age = max(context.source.now() - last, timedelta())
        fresh = age < STALE
        lines.append(
            collectors(dot("healthy" if fresh else "at_risk"), "Collector live" if fresh else "No data arrives")
        )
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
    texts = [
        f"{span(timedelta(seconds=width))} buckets before {day(since.astimezone(context.view.zone))} were deleted; "
        f"the store now has {size(state.size_bytes)}, its budget is {size(state.budget_bytes)}"
        for width, since in state.shortened.items()
    ]
    capped = context.source.cached(context.source.read.capped_dimensions)
    capped_here = [dimension for dimension in capped if dimension.service in ("", context.service or dimension.service)]
    texts += [f"{dimension}: new ones count as {label(OTHER)}" for dimension in capped_here[:_MAX_CAPPED]]
    if len(capped_here) > _MAX_CAPPED:
        texts.append(f"and {len(capped_here) - _MAX_CAPPED} more: stagelens storage")
    return [html.Span(text, className="warn") for text in texts]


def _skeleton() -> Component:
    blocks = [html.Div(className="skel", style={"height": f"{height}px"}) for height in _SKELETON]
    return html.Div(blocks, className="pending", **attributes({"aria-hidden": "true"}))


def environment_menu(context: Context) -> Component | None:
    if "env" not in context.view.controls:
        return None
    chosen = context.view.text("env") or ""
    environments: list[str] = context.source.cached(context.source.read.environments)
    if chosen and chosen not in environments:
        environments = [*environments, chosen]
    if len(environments) < 2 and not chosen:  # noqa: PLR2004 - a single environment is no choice
        return None
    items = [_choice(name or _ALL, "env", name, on=name == chosen) for name in ("", *environments)]
    state = _worst_state(context, chosen)
    summary = html.Summary(
        [dot(state) if state else None, html.Span(chosen or _ALL, className="t"), html.I(className="ic ic-down")],
        className="btn",
        title=f"Environment: {chosen or 'all'}",
    )
    return html.Details([summary, html.Div(items, className="pop")], className="menu env")


def compared_time(context: Context) -> str:
    if context.view.path != "/compare" or context.service is None or (pair := context.once(asked_pair)) is None:
        return ""
    window = context.selection
    return "" if (pair.b.start, pair.b.end) == (window.start, window.end) else served(pair.b, context.view.zone)


def _completeness(view: View) -> str:
    until = view.complete_until.astimezone(view.zone)
    return f"Data is complete until {until:%H:%M:%S}. The newest requests appear within 20{THIN}s."


def time_menu(view: View, label: str = "") -> Component:
    """Return the time range menu, which also contains the window for the keyboard shortcuts."""
    controls, presets = (
        view.controls,
        [
            html.Button(["Last ", span(length)], type="button", **attributes({"data-window": value}))
            for value, length in WINDOWS.items()
            if "time" in view.controls
        ],
    )
    has_window = "time" in controls
    more: list[Node] = [
        html.Div(className="ranges") if has_window else None,
        _choices("Compare with", "vs", _COMPARED_WORDS, view.choice("vs", *COMPARED)) if "vs" in controls else None,
        _choices("Times in", "tz", {"": "My zone", "utc": "UTC"}, view.choice("tz", "", "utc")),
        html.Div(
            f"Times are in {view.zone_name}.{' Drag on a chart to zoom.' if has_window else ''}", className="zone"
        ),
        html.Div(_completeness(view), className="zone") if view.live and has_window else None,
    ]
    shown = label or (view.window_label if has_window else str(view.zone))
    summary = html.Summary([html.I(className="ic ic-clock"), shown, html.I(className="ic ic-down")], className="btn")
    moments = {"data-start": view.start, "data-end": view.end, "data-now": view.now}
    return html.Details(
        [summary, html.Div([html.Div(presets, className="presets"), html.Div(more)], className="pop")],
        className="menu time",
        **attributes(
            {key: str(int(at.timestamp() * 1000)) for key, at in moments.items()}
            | {"data-zone": str(view.zone), "data-controls": " ".join(sorted(controls))}
        ),
    )


def _choices(name: str, key: str, options: Mapping[str, str], chosen: str) -> Component:
    default = next(iter(options))
    buttons = [
        _choice(text, key, "" if value == default else value, on=value == chosen) for value, text in options.items()
    ]
    group = html.Span(buttons, role="group", className="seg", **attributes({"aria-label": name}))
    return html.Div([html.Span(name), group], className="choose")


def _choice(text: str, key: str, value: str, *, on: bool) -> Component:
    pressed = {"aria-pressed": str(on).lower(), "data-key": key, "data-value": value}
    return html.Button(text, type="button", className="on" if on else "", **attributes(pressed))


def _worst_state(context: Context, environment: str) -> str:
    states: Sequence[str] = [
        status.state for status in context.slos if not environment or status.slo.environment in (None, environment)
    ]
    return most_urgent(states)


def palette(pages: Sequence[tuple[str, str]]) -> Component:
    attributes_of = {
        "data-pages": json.dumps(pages),
        "data-stages": json.dumps({stage.key: stage.label for stage in STAGES}),
    }
    return html.Dialog(id="jump", **attributes({"aria-label": "Jump to", **attributes_of}))


def help_sheet() -> Component:
    rows: list[Node] = [html.H2("Keys")]
    for keys, meaning in _KEYS:
        rows += [html.Span([html.Kbd(key, className="kbd") for key in keys.split(", ")]), html.Span(meaning)]
    switches = [
        html.Button(name, type="button", className="btn", **attributes({"data-do": action})) for action, name in _LIKES
    ]
    switches.append(html.Button("Close", type="button", className="btn pri", **attributes({"data-do": "close"})))
    return html.Dialog(
        [html.Div(rows, className="keys"), html.Div(switches, className="acts")],
        id="help",
        **attributes({"aria-label": "Keys"}),
    )
