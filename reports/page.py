"""A run as one page that opens anywhere: its services as the dashboard shows them, and the slowest requests of each cause."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from dash import html
from dash.development.base_component import Component

from ..dashboard.components import Chart, Node
from ..dashboard.page_data import children
from ..dashboard.pages.page import Context, Page, nothing
from ..dashboard.rendering import page
from ..dashboard.report import report
from ..dashboard.router import context_of
from ..dashboard.source import Source
from ..dashboard.view import parse, service_path, trace_name, trace_path
from ..store import Selection, Store
from .atomic_write import written
from .findings import extent
from .saved import Run

# Services, and kept requests of each.
_MOST_SERVICES, _TRACES = 10, 3
_LONGEST_NAME = 60
# What makes a table follow the chart beside it.
_FOLLOWS = ("data-inspector", "data-percentile")


def write_page(store: Store, path: Path, run: Run) -> None:
    """Write what is in *store* to *path* as an HTML page that needs nothing else.

    Raises:
        StagelensError: The store cannot be read, or *path* not be written; it stays as it was.
    """
    source = Source(store, None, time.time)
    window = extent(store.read) or (run.start, run.end)
    body = _body(source, *window)
    name = shlex.join(run.command)
    short = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
    ended = html.P(f"{name} ended with exit code {run.exit_code}.", className="sub")
    made = Page(f"{short} · Stagelens", [], [ended, *body])
    text = report(_context(source, "/", *window), made, source.now(), "")
    with written(path) as file:
        file.write(text)


def _body(source: Source, start: datetime, end: datetime) -> list[Node]:
    found = source.services(start, end).sort_values("requests", ascending=False)
    names = found["service"].tolist()
    if not names:
        return [nothing("No request was seen", "Nothing was asked of it, or nothing in it is a request to Stagelens.")]
    body: list[Node] = [*_page(source, "/", start, end)] if len(names) > 1 else []
    for number, name in enumerate(names[:_MOST_SERVICES]):
        body += _apart(_page(source, service_path(name), start, end), number)
        kept = source.read.one_per_cause(Selection(start, end, service=name), _TRACES).drop_duplicates("dominant")
        for ids in zip(kept["trace_id"], kept["span_id"], strict=True):
            # The last card of a trace's page lists others like it, which stand above already.
            body += _page(source, trace_path(trace_name(*ids)), start, end)[:-1]
    return body


def _page(source: Source, path: str, start: datetime, end: datetime) -> list[Node]:
    return page(_context(source, path, start, end)).body


def _context(source: Source, path: str, start: datetime, end: datetime) -> Context:
    window = "&".join(f"{key}={round(at.timestamp() * 1000)}" for key, at in (("from", start), ("to", end)))
    view = parse(path, f"{window}&vs=off", source.now())
    return context_of(replace(view, zone=datetime.now().astimezone().tzinfo or UTC), source)


def _apart(nodes: Iterable[Node], number: int) -> Iterator[Node]:
    """Yield *nodes*, of which charts have names of their own, so that several such pages stand in one.

    Only the chart of the first one speaks to the table beside it: scripts look for one such table.
    """
    for node in nodes:
        if isinstance(node, Component) and number:
            _set_apart(node, number)
        yield node


def _set_apart(node: Component, number: int) -> None:
    if isinstance(node, Chart):
        node.name = f"{node.name}-{number}"
    slot = getattr(node, "data-chart", None)
    if slot is not None:
        setattr(node, "data-chart", f"{slot}-{number}")
    for key in _FOLLOWS:
        if hasattr(node, key):
            delattr(node, key)
    for each in children(node):
        if isinstance(each, Component):
            _set_apart(each, number)
