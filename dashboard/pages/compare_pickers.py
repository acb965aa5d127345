"""The head of a comparison: what A is, what B is, and the menus that choose another; every choice is a link."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from dash import html
from dash.development.base_component import Component

from ...store import Selection
from ..components import Node, attributes, link
from .cold import leave_out
from .compare_words import short_name, side_name, times_said
from .comparison import Pair, fewest, lives_of, selection, shifted
from .filter_menu import field
from .page import Context
from .scope_filter import chips, part_menu
from .windows import EXAMPLE, window_name

_DAY, _WEEK = timedelta(days=1), timedelta(days=7)
# A menu is no history: the newest versions, the others can be typed.
_MAX_VERSIONS = 20


@dataclass(frozen=True, slots=True)
class Names:
    """What the address calls both sides, known or not; "" for one it says nothing of."""

    a: str
    b: str


def head(context: Context, pair: Pair | None) -> Component:
    """Return the title and both pickers."""
    view = context.view
    names = Names(pair.a_name, pair.b_name) if pair else Names(view.text("a") or "", view.text("b") or "")
    about = html.P([html.B(context.service, className="b"), " · two versions, or two windows"], className="sub")
    note = times_said(context, pair) if pair else ""
    left = html.Div([html.H1("Compare"), about, html.P(note, className="sub") if note else None])
    tools: list[Node] = [
        _picker(context, "A", names, pair.a if pair else None, _presets_a(context, pair)),
        html.Span("→", className="muted"),
        _picker(context, "B", names, pair.b if pair else None, _presets_b(context)),
    ]
    if names.a and names.b:
        tools.append(link("Swap", href=view.here(a=names.b, b=names.a), className="btn ghost"))
    tools += [part_menu(context, "r"), leave_out(context), *chips(context, ("m", "r", "cold"))]
    return html.Div([left, html.Span(className="grow"), html.Div(tools, className="pick")], className="phead")


def window_links(context: Context) -> list[Component]:
    """Return buttons to what can be compared without a second version, for a page that has nothing else to show."""
    start, end = context.axis.start, context.view.end
    middle = start + (end - start) / 2
    earlier, later = window_name(start, middle), window_name(middle, end)
    halves = link("Later half with the earlier", href=context.view.here(a=earlier, b=later), className="btn pri")
    rest = [link(text, href=href, className="btn") for text, href in _presets_a(context, None, with_requests=True)]
    return [halves, *rest]


def _picker(
    context: Context, side: str, names: Names, compared: Selection | None, presets: list[tuple[str, str]]
) -> Component:
    name = names.a if side == "A" else names.b
    entries: list[Node] = [html.Div("Versions", className="zone")]
    entries += [_version(context, side, each, names) for each in _offered(context)]
    entries.append(html.Div("Windows", className="zone"))
    entries += [link(text, href=href, className="btn ghost") for text, href in presets]
    entries.append(field(side.lower(), "", EXAMPLE))
    return html.Details(
        [_summary(context, side, name, compared), html.Div(entries, className="pop")], className="menu side-menu"
    )


def _summary(context: Context, side: str, name: str, compared: Selection | None) -> Component:
    """Return the closed menu: what the side is, and the time that is compared of it."""
    chosen = compared or (selection(context, name) if name else None)
    title, when = (
        side_name(context, name, chosen) if chosen else (short_name(name) or "choose", "not kept" if name else "")
    )
    parts: list[Node] = [html.Span(side, className="kbd"), html.B(title, className="t", title=name)]
    parts += [html.Span(when, className="muted hide") if when else None, html.I(className="ic ic-down")]
    return html.Summary(parts, className="btn")


def _offered(context: Context) -> list[str]:
    return list(lives_of(context))[::-1][:_MAX_VERSIONS]


def _version(context: Context, side: str, version: str, names: Names) -> Component:
    now = version == (names.a if side == "A" else names.b)
    href = context.view.here(a=version, b=names.b) if side == "A" else context.view.here(a=names.a, b=version)
    current = attributes({"aria-current": "true"}) if now else {}
    chosen = selection(context, version)
    when = side_name(context, version, chosen)[1] if chosen else ""
    return link(
        [html.Span(short_name(version), title=version), html.Span(when, className="muted")],
        href=href,
        className="btn ghost",
        **current,
    )


def _presets_a(context: Context, pair: Pair | None, *, with_requests: bool = False) -> list[tuple[str, str]]:
    """Return what B, or the window of the page, may be held against: text and address; only what has requests, if asked."""
    later = pair.b if pair else context.selection
    name = pair.b_name if pair else window_name(later.start, later.end)
    lengths = {
        "Time before, as long": later.end - later.start,
        "Same time yesterday": _DAY,
        "Same time last week": _WEEK,
    }
    pairs = {text: shifted(context, later, back, name) for text, back in lengths.items()}
    shown = {text: each for text, each in pairs.items() if not with_requests or fewest(context, each)}
    return [(text, context.view.here(a=each.a_name, b=each.b_name)) for text, each in shown.items()]


def _presets_b(context: Context) -> list[tuple[str, str]]:
    """Return the window of the page, with the time before it: B against which A cannot have been meant."""
    window = context.selection
    name = window_name(window.start, window.end)
    made = shifted(context, window, window.end - window.start, name)
    return [(context.view.window_label, context.view.here(a=made.a_name, b=made.b_name))]
