"""Exports of rendered components: escaped HTML without scripts, and the data of charts and tables.

HTML has two targets. `page` preserves everything, for browsers. `report` is a file that works without a server: ids are omitted,
and buttons except those of tables; of a group of choices only the selected one is included.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal

import pandas as pd
from dash import html
from dash.development.base_component import Component
from plotly.io.json import to_json_plotly

from .components import Chart, LazyPanel, Nodes

# Inline elements; their text joins the neighbouring text without a space.
_RUNNING = (html.B, html.Em, html.Small, html.Strong)
_HTML = "dash_html_components"
_VOID = {"area", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
# Elements that execute, load or send something, and elements that only Dash can fill.
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
# Dash property names that differ from the HTML attribute; all others are the same in lower case.
_NAMES = {"className": "class", "htmlFor": "for"}
_NOT_HTML = {"children", "key", "n_clicks", "n_clicks_timestamp", "disable_n_clicks", "loading_state"}
_ADDRESSES = {"href", "src", "data-href"}
_SAFE_ADDRESS = re.compile(r"(?:https?://|mailto:|/(?![/\\])|#)", re.IGNORECASE)
_WILDCARD = re.compile("data-|aria-")
_CAPITAL = re.compile(r"[A-Z]")
_INLINE = "(?:a|b|button|code|em|i|kbd|small|span|strong|summary|time)"
_FIRST_WORD = re.compile(rf"(?:</?{_INLINE}(?: [^>]*)?>)*[\w+]")
_LAST_WORD = re.compile(rf"[\w%)…+](?:</{_INLINE}>|<(i|span)(?: [^>]*)?></\1>)*$")
# Longer than the empty elements behind a word.
_LAST_CHARACTERS = 300
LinkResolver = Callable[[str], str | None]
HtmlTarget = Literal["page", "report"]


def as_html(nodes: Nodes, target: HtmlTarget = "page", follow: LinkResolver = lambda address: address) -> str:
    """Return *nodes* as HTML.

    >>> as_html(html.A(["<b>", html.B(1)], href="/s/a", className="x"))
    '<a class="x" href="/s/a">&lt;b&gt;<b>1</b></a>'
    """
    writer = _Writer(follow, target)
    return _spaced(writer.one(node) for node in _listed(nodes))


def html_chunks(nodes: Nodes) -> Iterator[str]:
    writer, ready = _Writer(lambda address: address, "page"), list[str]()
    for chunk in writer.chunks(_listed(nodes)):
        if isinstance(chunk, LazyPanel):
            if ready:
                yield f"{''.join(ready)}<!---->"
            ready = [writer.one(chunk)]
        else:
            ready.append(chunk)
    yield "".join(ready)


def _listed(nodes: Nodes) -> list[Component | str]:
    return children(nodes if not isinstance(nodes, Component) else [nodes])


@dataclass(frozen=True, slots=True)
class _Writer:
    follow: LinkResolver
    reading: HtmlTarget

    def one(self, node: Component | str, in_table: bool = False) -> str:
        if isinstance(node, str):
            return escape(node, quote=False)
        if isinstance(node, LazyPanel):
            return "".join(self.one(child) for child in children(node))
        in_table = in_table or isinstance(node, html.Table)
        inside = _spaced(self.one(child, in_table) for child in children(node))
        if node._namespace != _HTML:  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            return inside
        tag = _tag(node)
        if tag in _LEFT_OUT:
            return ""
        if tag == "button" and self.reading == "report" and not in_table:
            return f'<span class="on">{inside}</span>' if "on" in str(getattr(node, "className", "")).split() else ""
        if isinstance(node, Chart):
            inside += _spec(node)
        start = f"<{tag}{self._attributes(node)}>"
        return start if tag in _VOID else f"{start}{inside}</{tag}>"

    def chunks(self, nodes: Sequence[Component | str]) -> Iterator[LazyPanel | str]:
        for node in nodes:
            if isinstance(node, LazyPanel):
                yield node
            elif isinstance(node, Component) and any(True for _ in panels(children(node))):
                yield f"<{_tag(node)}{self._attributes(node)}>"
                yield from self.chunks(children(node))
                yield f"</{_tag(node)}>"
            else:
                yield self.one(node)

    def _attributes(self, node: Component) -> str:
        # Not `to_plotly_json`, which looks for each of fifty possible properties.
        names = node._prop_names  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        given = ((key, value) for key, value in vars(node).items() if key in names or _WILDCARD.match(key))
        return "".join(self._attribute(key, value) for key, value in sorted(given) if key not in _NOT_HTML)

    def _attribute(self, key: str, value: Any) -> str:
        name = _NAMES.get(key, key.lower())
        if name in _ADDRESSES:
            value = _followed(str(value), self.follow)
        elif name == "style":
            value = ";".join(f"{_style_name(style_key)}:{text}" for style_key, text in value.items())
        if value is None or value is False or name.startswith("on") or (name == "id" and self.reading == "report"):
            return ""
        return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def _spaced(parts: Iterable[str]) -> str:
    joined = ""
    for part in parts:
        is_next = bool(_FIRST_WORD.match(part)) and (part[0] == "<" or joined.endswith(">"))
        joined += f" {part}" if is_next and _LAST_WORD.search(joined[-_LAST_CHARACTERS:]) else part
    return joined


def _tag(node: Component) -> str:
    return str(node._type).lower()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]


def panels(nodes: Nodes) -> Iterator[LazyPanel]:
    """Yield the panels in *nodes*, unbuilt."""
    for node in _listed(nodes):
        if isinstance(node, LazyPanel):
            yield node
        elif isinstance(node, Component):
            yield from panels(children(node))


def _spec(chart: Chart) -> str:
    figure = str(to_json_plotly(chart.figure)).replace("<", "\\u003c")
    return f'<script type="application/json" data-spec="{escape(chart.name)}">{figure}</script>'


def _followed(address: str, follow: LinkResolver) -> str | None:
    if not _SAFE_ADDRESS.match(address):
        return None
    return follow(address) if address.startswith("/") else address


def _style_name(name: str) -> str:
    return name if name.startswith("--") else _CAPITAL.sub(lambda letter: f"-{letter[0].lower()}", name)


@dataclass(frozen=True, slots=True)
class ChartData:
    title: str
    spoken: str
    frame: pd.DataFrame | None


@dataclass(frozen=True, slots=True)
class TableData:
    name: str
    head: list[str]
    rows: list[list[str]]


@dataclass(slots=True)
class PageData:
    charts: dict[str, ChartData] = field(default_factory=dict)
    tables: list[TableData] = field(default_factory=list)


def page_data(nodes: Nodes) -> PageData:
    export = PageData()
    _collect(nodes, "", export)
    return export


def children(node: Nodes) -> list[Component | str]:
    inside = getattr(node, "children", None) if isinstance(node, Component) else node
    parts = inside if isinstance(inside, (list, tuple)) else [inside]
    return [
        part if isinstance(part, (Component, str)) else str(part)
        for part in parts
        if part is not None and not isinstance(part, bool)
    ]


def text_of(node: Nodes) -> str:
    """Return the text of *node*; for an image, its description.

    >>> text_of(html.Td([html.I(className="sw"), html.Span("Queue "), html.B("63 %")]))
    'Queue 63 %'
    """
    return " ".join("".join(_words(node)).split())


def _words(node: Nodes) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, Component) and getattr(node, "role", None) == "img":
        yield f" {getattr(node, 'aria-label', '')} "
    else:
        separator = "" if isinstance(node, _RUNNING) else " "
        yield separator
        for child in children(node):
            yield from _words(child)
        yield separator


def _collect(node: Nodes, title: str, export: PageData) -> None:
    if isinstance(node, Chart):
        name, drawn = _chart(node, title)
        export.charts[name] = drawn
        return
    if isinstance(node, html.Table):
        export.tables.append(_table(node, title))
    elif isinstance(node, html.Section):
        title = next((text_of(component) for component in _all(node, html.H2)), title)
    if not isinstance(node, str):
        for child in children(node):
            _collect(child, title, export)


def _chart(node: Chart, title: str) -> tuple[str, ChartData]:
    slot = next(component for component in _all(node, html.Div) if getattr(component, "data-chart", None))
    name = str(getattr(slot, "data-chart"))
    return name, ChartData(title or name, str(getattr(slot, "aria-label", "")), node.frame)


def _table(node: Component, title: str) -> TableData:
    name = next((text_of(component) for component in _all(node, html.Caption)), title)
    rows = [
        [text_of(cell) for cell in children(row) if isinstance(cell, (html.Td, html.Th))] for row in _all(node, html.Tr)
    ]
    head = _all(node, html.Thead)
    has_head = any(True for component in head for _ in _all(component, html.Tr))
    return TableData(name, rows[0] if has_head else [], rows[1:] if has_head else rows)


def _all(node: Component, kind: type[Component]) -> Sequence[Component]:
    components: list[Component] = []
    for child in children(node):
        if isinstance(child, Component):
            components += [child] if isinstance(child, kind) else []
            components += _all(child, kind)
    return components
