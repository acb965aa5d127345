"""The menus of the top bar that say what a page is about: the environment, the range of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dash import html
from dash.development.base_component import Component

from .components import Node, attributes, dot
from .format import span
from .pages.compare_words import time_range
from .pages.comparison import asked_pair
from .pages.page import Context
from .pages.service_status import most_urgent
from .view import COMPARED, WINDOWS, View

_ALL = "All environments"
_COMPARED_WORDS = {"prev": "Previous", "1d": "Yesterday", "7d": "Last week", "off": "Off"}


def menus(context: Context) -> list[Component]:
    """Return the menus of a page."""
    shown = [environment_menu(context), time_menu(context.view, compared_time(context))]
    return [each for each in shown if each is not None]


def environment_menu(context: Context) -> Component | None:
    """Return the menu of environments with how the objectives of the chosen one are; None where there is one only."""
    chosen = context.view.text("env") or ""
    known: list[str] = context.source.ask(context.source.read.environments)
    if chosen and chosen not in known:
        known = [*known, chosen]
    if len(known) < 2 and not chosen:  # noqa: PLR2004 - one is no choice
        return None
    items = [_choice(name or _ALL, "env", name, on=name == chosen) for name in ("", *known)]
    state = _worst(context, chosen)
    summary = html.Summary(
        [dot(state) if state else None, html.Span(chosen or _ALL, className="t"), html.I(className="ic ic-down")],
        className="btn",
        title=f"Environment: {chosen or 'all'}",
    )
    return html.Details([summary, html.Div(items, className="pop")], className="menu env hide")


def compared_time(context: Context) -> str:
    """Return the time of B where a page compares it with another time than its window; else ""."""
    if context.view.path != "/compare" or context.service is None or (pair := context.once(asked_pair)) is None:
        return ""
    window = context.selection
    return "" if (pair.b.start, pair.b.end) == (window.start, window.end) else time_range(pair.b, context.view.zone)


def time_menu(view: View, label: str = "") -> Component:
    """Return the menu of time ranges, open on demand; it carries the window for the keys that move it.

    What is typed, the calendar and the last ranges are fields of the browser's own: `assets/shell_time.js` makes them.

    Args:
        view: The address.
        label: The time that the page shows, where that is not the window of the address.
    """
    presets = [
        html.Button(["Last ", span(length)], type="button", **attributes({"data-window": value}))
        for value, length in WINDOWS.items()
    ]
    zone = view.now.astimezone(view.zone).tzname() or "UTC"
    more: list[Node] = [
        html.Div(className="ranges"),
        _choices("Compare with", "vs", _COMPARED_WORDS, view.choice("vs", *COMPARED)),
        _choices("Times in", "tz", {"": "My zone", "utc": "UTC"}, view.choice("tz", "", "utc")),
        html.Div(f"Times are in {zone}. Drag on a chart to zoom.", className="zone"),
    ]
    summary = html.Summary(
        [html.I(className="ic ic-clock"), label or view.window_label, html.I(className="ic ic-down")], className="btn"
    )
    moments = {"data-start": view.start, "data-end": view.end, "data-now": view.now}
    return html.Details(
        [summary, html.Div([html.Div(presets, className="presets"), html.Div(more)], className="pop")],
        className="menu time",
        **attributes({key: str(int(at.timestamp() * 1000)) for key, at in moments.items()}),
    )


def _choices(name: str, key: str, options: Mapping[str, str], chosen: str) -> Component:
    """Return a group of buttons that set *key* of the address; the first value is its default and left out."""
    default = next(iter(options))
    buttons = [
        _choice(text, key, "" if value == default else value, on=value == chosen) for value, text in options.items()
    ]
    group = html.Span(buttons, role="group", className="seg", **attributes({"aria-label": name}))
    return html.Div([html.Span(name), group], className="choose")


def _choice(text: str, key: str, value: str, *, on: bool) -> Component:
    pressed = {"aria-pressed": str(on).lower(), "data-key": key, "data-value": value}
    return html.Button(text, type="button", className="on" if on else "", **attributes(pressed))


def _worst(context: Context, environment: str) -> str:
    """Return the worst state of the objectives that *environment* has a part in; "" where it has none."""
    states: Sequence[str] = [
        each.state for each in context.slos if not environment or each.slo.environment in (None, environment)
    ]
    return most_urgent(states)
