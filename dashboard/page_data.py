"""What a rendered page says, without its looks: the numbers of its charts and the text of its tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pandas as pd
from dash import html
from dash.development.base_component import Component

from .components import Chart, Nodes

# Words of one of these run on, everything else stands apart from what is beside it.
_RUNNING = (html.B, html.Em, html.Small, html.Strong)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A chart of a page.

    Args:
        title: The title of its card.
        spoken: What it shows, as a sentence.
        frame: Its numbers; None for a chart that tells none.
    """

    title: str
    spoken: str
    frame: pd.DataFrame | None


@dataclass(frozen=True, slots=True)
class Listed:
    """A table of a page, as text.

    Args:
        name: What it lists.
        head: The titles of its columns.
        rows: Its rows, each as long as it is.
    """

    name: str
    head: list[str]
    rows: list[list[str]]


@dataclass(slots=True)
class Outline:
    """The charts of a page by name, and its tables in their order."""

    charts: dict[str, Drawn] = field(default_factory=dict)
    tables: list[Listed] = field(default_factory=list)


def outline(nodes: Nodes) -> Outline:
    """Return what *nodes*, a rendered page or a part of one, says."""
    found = Outline()
    _collect(nodes, "", found)
    return found


def children(node: Nodes) -> list[Component | str]:
    """Return what *node* holds, one level deep; numbers as Dash would write them."""
    inside = getattr(node, "children", None) if isinstance(node, Component) else node
    parts = inside if isinstance(inside, (list, tuple)) else [inside]
    return [
        each if isinstance(each, (Component, str)) else str(each)
        for each in parts
        if each is not None and not isinstance(each, bool)
    ]


def text(node: Nodes) -> str:
    """Return the words of *node*; of a picture, what it is said to show.

    >>> text(html.Td([html.I(className="sw"), html.Span("Queue "), html.B("63 %")]))
    'Queue 63 %'
    """
    return " ".join("".join(_words(node)).split())


def _words(node: Nodes) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, Component) and getattr(node, "role", None) == "img":
        yield f" {getattr(node, 'aria-label', '')} "
    else:
        apart = "" if isinstance(node, _RUNNING) else " "
        yield apart
        for each in children(node):
            yield from _words(each)
        yield apart


def _collect(node: Nodes, title: str, found: Outline) -> None:
    if isinstance(node, Chart):
        name, drawn = _chart(node, title)
        found.charts[name] = drawn
        return
    if isinstance(node, html.Table):
        found.tables.append(_table(node, title))
    elif isinstance(node, html.Section):
        title = next((text(each) for each in _all(node, html.H2)), title)
    if not isinstance(node, str):
        for each in children(node):
            _collect(each, title, found)


def _chart(node: Chart, title: str) -> tuple[str, Drawn]:
    slot = next(each for each in _all(node, html.Div) if getattr(each, "data-chart", None))
    name = str(getattr(slot, "data-chart"))
    return name, Drawn(title or name, str(getattr(slot, "aria-label", "")), node.frame)


def _table(node: Component, title: str) -> Listed:
    name = next((text(each) for each in _all(node, html.Caption)), title)
    rows = [_cells(row) for row in _all(node, html.Tr)]
    head = _all(node, html.Thead)
    has_head = any(True for each in head for _ in _all(each, html.Tr))
    return Listed(name, rows[0] if has_head else [], rows[1:] if has_head else rows)


def _cells(row: Component) -> list[str]:
    return [text(each) for each in children(row) if isinstance(each, (html.Td, html.Th))]


def _all(node: Component, kind: type[Component]) -> Sequence[Component]:
    """Return the components of *kind* inside *node*, as they are read."""
    found: list[Component] = []
    for each in children(node):
        if isinstance(each, Component):
            found += [each] if isinstance(each, kind) else []
            found += _all(each, kind)
    return found
