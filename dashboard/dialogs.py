"""The dialogs of the frame: the palette, and the sheet of keys. They stand closed on every page."""

from __future__ import annotations

import json
from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from .components import Node, attributes

_KEYS = (
    ("Ctrl K", "services, versions, pages, traces by id, settings"),
    ("g o, g r, g s, g i, g t, g a, g e", "overview, regressions, SLOs, incidents, traces, advice, events"),
    ("[, ]", "earlier, later by half a window"),
    ("-, 0", "wider, back to now"),
    ("t", "time range"),
    ("Backspace", "back, as a double click on a chart"),
    ("/", "filter the table"),
    ("j, k", "next, previous row or trace"),
    ("Enter", "open the row"),
    ("c, C", "copy the link to this very window, to one that moves on"),
    ("d", "light or dark"),
    ("?", "this help"),
)
# What buttons below the keys switch, and how it is called.
_LIKES = (("theme", "Theme"), ("patterns", "Patterns on stages"), ("density", "Compact rows"))


def palette(pages: Sequence[tuple[str, str]]) -> Component:
    """Return the box to jump from; the browser fills it with *pages*, name and path, and asks for the rest."""
    return html.Dialog(id="jump", **attributes({"aria-label": "Jump to", "data-pages": json.dumps(pages)}))


def help_sheet() -> Component:
    """Return the list of keys, and the switches of what a reader likes to see."""
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
