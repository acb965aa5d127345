"""A run as one self-contained HTML page: its services as on the dashboard, and the slowest requests of each cause."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from dash import html
from dash.development.base_component import Component

from ..dashboard.pages.page import Context, Page, empty_page_card
from ..dashboard.source import Source
from ..dashboard.ui.components import Chart, Node
from ..dashboard.ui.page_export import children
from ..dashboard.view import parse, service_path, trace_name, trace_path
from ..dashboard.web.report import report
from ..dashboard.web.routing import context_of, render_page
from ..store import Selection, Store
from .files import open_atomic
from .run_summary import run_window
from .saved_run import Run

# Maximum number of services, and of retained requests of each.
_MAX_SERVICES, _TRACES = 10, 3
_MAX_NAME_CHARS = 60
# Attributes that link a table to the chart beside it.
_LINKED_ATTRIBUTES = ("data-inspector", "data-percentile")


def write_page(store: Store, path: Path, run: Run) -> None:
    """Write the contents of *store* to *path* as a self-contained HTML page.

    Raises:
        StagelensError: The store cannot be read, or *path* cannot be written; it is unchanged.
    """
    source = Source(store, None, time.time)
    window = run_window(store.read) or (run.start, run.end)
    body = _page_body(source, *window)
    name = shlex.join(run.command)
    short = name if len(name) <= _MAX_NAME_CHARS else f"{name[: _MAX_NAME_CHARS - 1]}…"
    ended = html.P(f"{name} ended with exit code {run.exit_code}.", className="sub")
    made = Page(f"{short} · Stagelens", [], [ended, *body])
    text = report(_page_context(source, "/", *window), made, source.now(), "")
    with open_atomic(path) as file:
        file.write(text)


def _page_body(source: Source, start: datetime, end: datetime) -> list[Node]:
    found = source.services(start, end).sort_values("requests", ascending=False)
    names = found["service"].tolist()
    if not names:
        return [empty_page_card("No request was seen", "It received no requests, or none that Stagelens recognizes.")]
    body: list[Node] = [*_page_nodes(source, "/", start, end)] if len(names) > 1 else []
    for number, name in enumerate(names[:_MAX_SERVICES]):
        body += _with_unique_names(_page_nodes(source, service_path(name), start, end), number)
        kept = source.read.one_per_cause(Selection(start, end, service=name), _TRACES).drop_duplicates("dominant")
        for ids in zip(kept["trace_id"], kept["span_id"], strict=True):
            # The last card of a trace page lists similar requests, which are above already.
            body += _page_nodes(source, trace_path(trace_name(*ids)), start, end)[:-1]
    return body


def _page_nodes(source: Source, path: str, start: datetime, end: datetime) -> list[Node]:
    return render_page(_page_context(source, path, start, end)).body


def _page_context(source: Source, path: str, start: datetime, end: datetime) -> Context:
    window = "&".join(f"{key}={round(at.timestamp() * 1000)}" for key, at in (("from", start), ("to", end)))
    view = parse(path, f"{window}&vs=off", source.now())
    return context_of(replace(view, zone=datetime.now().astimezone().tzinfo or UTC), source)


def _with_unique_names(nodes: Iterable[Node], number: int) -> Iterator[Node]:
    """Yield *nodes* with chart names made unique, so that several such pages fit into one.

    Only the chart of the first page stays linked to the table beside it: scripts support one such table.
    """
    for node in nodes:
        if isinstance(node, Component) and number:
            _make_unique(node, number)
        yield node


def _make_unique(node: Component, number: int) -> None:
    if isinstance(node, Chart):
        node.name = f"{node.name}-{number}"
    slot = getattr(node, "data-chart", None)
    if slot is not None:
        setattr(node, "data-chart", f"{slot}-{number}")
    for key in _LINKED_ATTRIBUTES:
        if hasattr(node, key):
            delattr(node, key)
    for each in children(node):
        if isinstance(each, Component):
            _make_unique(each, number)
