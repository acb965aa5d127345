"""Rendered components as HTML: every text and attribute escaped, nothing in it that runs.

Three readers want it. A page in its frame keeps all it has; scripts put it in place. The picture of a page, which stands there
until they have, must not be taken for the page by them. A report stands alone: what needs a server is left out; of a group
of choices the chosen one stays, and so do the buttons of a table, which act on the page alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from dash import html
from dash.development.base_component import Component
from plotly.io.json import to_json_plotly

from .components import Chart, Nodes
from .page_data import children

_HTML = "dash_html_components"
_VOID = {"area", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
# What runs, loads or sends something, and what only Dash can fill.
_LEFT_OUT = {
    "base",
    "embed",
    "form",
    "iframe",
    "input",
    "link",
    "meta",
    "object",
    "script",
    "select",
    "style",
    "textarea",
}
# Dash's names for what HTML calls otherwise; all others are the same in small letters.
_NAMES = {"className": "class", "htmlFor": "for"}
_NOT_HTML = {"children", "key", "n_clicks", "n_clicks_timestamp", "disable_n_clicks", "loading_state"}
_ADDRESSES = {"href", "src", "data-href"}
_SAFE_ADDRESS = re.compile(r"(?:https?://|mailto:|/(?![/\\])|#)", re.IGNORECASE)
_CAPITAL = re.compile(r"[A-Z]")

Follow = Callable[[str], str | None]
Reading = Literal["page", "picture", "report"]


def as_html(nodes: Nodes, reading: Reading = "page", follow: Follow = lambda address: address) -> str:
    """Return *nodes* as HTML.

    Args:
        nodes: What a page is made of.
        reading: Who reads it: scripts that put the page in its frame, people before scripts have run, or people without
            a server.
        follow: Returns where an address within the dashboard leads from where the HTML will be read; None for nowhere.

    >>> as_html(html.A(["<b>", html.B(1)], href="/s/a", className="x"))
    '<a class="x" href="/s/a">&lt;b&gt;<b>1</b></a>'
    """
    writer = _Writer(follow, reading)
    return "".join(writer.one(each) for each in children(nodes if not isinstance(nodes, Component) else [nodes]))


@dataclass(frozen=True, slots=True)
class _Writer:
    follow: Follow
    reading: Reading

    def one(self, node: Component | str, in_table: bool = False) -> str:
        if isinstance(node, str):
            return escape(node, quote=False)
        in_table = in_table or isinstance(node, html.Table)
        inside = "".join(self.one(each, in_table) for each in children(node))
        made: dict[str, Any] = node.to_plotly_json()
        if made["namespace"] != _HTML:
            return inside
        tag = made["type"].lower()
        if tag in _LEFT_OUT:
            return ""
        if tag == "button" and self.reading == "report" and not in_table:
            return f'<span class="on">{inside}</span>' if "on" in str(getattr(node, "className", "")).split() else ""
        if isinstance(node, Chart) and self.reading != "picture":
            inside += _spec(node)
        start = f"<{tag}{self._attributes(made['props'])}>"
        return start if tag in _VOID else f"{start}{inside}</{tag}>"

    def _attributes(self, props: Mapping[str, Any]) -> str:
        return "".join(self._attribute(key, value) for key, value in props.items() if key not in _NOT_HTML)

    def _attribute(self, key: str, value: Any) -> str:
        name = _NAMES.get(key, key.lower())
        if name in _ADDRESSES:
            value = _followed(str(value), self.follow)
        elif name == "style":
            value = ";".join(f"{_style_name(each)}:{text}" for each, text in value.items())
        if value is None or value is False or name.startswith("on") or self._is_for_scripts(name):
            return ""
        return f" {name}" if value is True else f' {name}="{escape(str(value))}"'

    def _is_for_scripts(self, name: str) -> bool:
        return self.reading != "page" and (name == "id" or (self.reading == "picture" and name.startswith("data-")))


def _spec(chart: Chart) -> str:
    """Return the figure as data that cannot end the tag around it."""
    figure = str(to_json_plotly(chart.figure)).replace("<", "\\u003c")
    return f'<script type="application/json" data-spec="{escape(chart.name)}">{figure}</script>'


def _followed(address: str, follow: Follow) -> str | None:
    if not _SAFE_ADDRESS.match(address):
        return None
    return follow(address) if address.startswith("/") else address


def _style_name(name: str) -> str:
    return name if name.startswith("--") else _CAPITAL.sub(lambda letter: f"-{letter[0].lower()}", name)
