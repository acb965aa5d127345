"""A menu of links, because every view is an address, and a field in it for what it does not list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dash import html
from dash.development.base_component import Component

from ..components import Node, attributes, link


def menu(
    shown: Sequence[Node],
    options: Mapping[str, tuple[str, str]],
    chosen: str,
    more: Component | None = None,
    *,
    title: str | None = None,
    css: str = "menu",
) -> Component:
    """Return the menu.

    Args:
        shown: What is seen of it while it is closed.
        options: Value to words and address.
        chosen: The value now.
        more: What stands below the links.
        title: What it chooses and what is chosen, for those who do not see what is beside it.
        css: The classes of its box.
    """
    links = [_option(text, href, on=value == chosen) for value, (text, href) in options.items()]
    summary = html.Summary([*shown, html.I(className="ic ic-down")], className="btn", title=title)
    return html.Details([summary, html.Div([*links, more], className="pop")], className=css)


def field(key: str, value: str, example: str) -> Component:
    """Return the place of a text field that sets *key* of the address; `assets/fields.js` puts the field there.

    It is not React's: a field that is rendered anew while somebody types loses letters.
    """
    said = {"data-field": key, "data-value": value, "data-example": example}
    return html.Span(className="field", **attributes(said))


def _option(text: str, href: str, *, on: bool) -> Component:
    current = attributes({"aria-current": "true"}) if on else {}
    return link(html.Span(text, title=text), href=href, className="btn ghost" + (" b" if on else ""), **current)
