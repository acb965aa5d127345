"""Card of the overview with the calls between services, as a drawing and as a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from dash import html
from dash.development.base_component import Component

from ...analysis.breakdown import Measures
from ...core.histogram import has_enough_samples
from ...store.queries.paths import ServiceEdge
from ..ui.components import Node, attributes, card, gauge, link, table
from ..ui.format import UNKNOWN, count, duration, percent, several
from ..view import service_path
from .across_services import service_edges
from .measures import measures_in_window
from .page import Context

# Numbers are written on the edges up to this number of edges.
_MAX_LABELLED = 12
_MAX_ROWS = 20
# Height of a service, and width of the widest edge. [pixels]
_ROW, _WIDEST = 52, 10
# Share of a service's requests from which on a caller is its only one.
_ALL = 0.995


@dataclass(frozen=True, slots=True)
class ShownEdge:
    edge: ServiceEdge
    rate: float | None
    is_counted: bool
    p50: float | None
    p99: float | None
    errors: float | None


def map_card(context: Context) -> Component | None:
    edges = shown_edges(context)
    if not edges:
        return None
    measures = _measures(context)
    services = {name for edge in edges for name in (edge.edge.caller, edge.edge.called)}
    return card(
        "Calls between services",
        [_drawing(context, edges, measures), _edges_table(context, edges)],
        sub=f"{several(len(services), 'service')} · width = share of the caller's slow requests",
        foot=_source_note(edges),
        flush=True,
    )


def shown_edges(context: Context) -> list[ShownEdge]:
    measures = _measures(context)
    edges = [
        shown_edge(service_edge, measures.get(service_edge.called), context.seconds)
        for service_edge in service_edges(context)
    ]
    return sorted(
        edges, key=lambda edge: (-(edge.edge.share or 0.0), -(edge.rate or 0.0), edge.edge.caller, edge.edge.called)
    )


def _measures(context: Context) -> dict[str, Measures]:
    return {name: measures.measures for name, measures in measures_in_window(context).items()}


def shown_edge(edge: ServiceEdge, called: Measures | None, seconds: float) -> ShownEdge:
    if edge.latency is not None:
        requests = edge.latency.count
        p50, p99 = (
            estimate.value
            if has_enough_samples(requests, quantile) and (estimate := edge.latency.quantile(quantile))
            else None
            for quantile in (0.5, 0.99)
        )
        return ShownEdge(edge, requests / seconds, True, p50, p99, edge.errors / requests if requests else None)
    rate = None if called is None or edge.sampled is None else called.requests * edge.sampled / seconds
    if called is None or edge.sampled is None or edge.sampled < _ALL:
        return ShownEdge(edge, rate, False, None, None, None)
    return ShownEdge(edge, rate, False, called.p50, called.p99, called.error_ratio)


def _source_note(edges: Sequence[ShownEdge]) -> str:
    counted = sum(edge.is_counted for edge in edges)
    if counted == len(edges):
        return "Rates are exact, from the metrics of the called services."
    first = f"Rates of {counted} of {several(len(edges), 'connection')} are exact. " if counted else ""
    return (
        f"{first}≈ is an estimate from random retained requests; latency and errors are those of the called service if this is its "
        "only caller."
    )


def _edges_table(context: Context, edges: Sequence[ShownEdge]) -> Component:
    head = [("Caller", ""), ("Called", ""), ("Requests", "r"), ("p50", "r hide"), ("p99", "r"), ("Errors", "r hide")]
    rows = [_edge_row(context, edge) for edge in edges]
    component = table([*head, ("Of the caller's slow requests", "hide")], rows[:_MAX_ROWS], "Calls between services")
    if len(rows) <= _MAX_ROWS:
        return component
    rest = table(head, rows[_MAX_ROWS:], "Further calls between services")
    summary = html.Summary(f"+{len(rows) - _MAX_ROWS} more", className="link")
    return html.Div([component, html.Details([summary, rest], className="foot")])


def _edge_row(context: Context, shown: ShownEdge) -> Component:
    edge = shown.edge
    return html.Tr(
        [
            *(
                html.Td(link(name, href=context.view.link(service_path(name)), className="link"))
                for name in (edge.caller, edge.called)
            ),
            html.Td(_rate(shown), className="r"),
            html.Td(_time(shown.p50), className="r hide"),
            html.Td(_time(shown.p99), className="r b"),
            html.Td(percent(shown.errors, 2) if shown.errors is not None else UNKNOWN, className="r hide"),
            html.Td(_share(edge.share), className="hide"),
        ]
    )


def _rate(edge: ShownEdge) -> str:
    return UNKNOWN if edge.rate is None else f"{'' if edge.is_counted else '≈ '}{count(edge.rate)}/s"


def _time(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else duration(seconds)


def _share(share: float | None) -> Node:
    if share is None:
        return html.Span(UNKNOWN, className="muted")
    return html.Div([gauge(share), html.Span(percent(share), className="num")], className="gauge")


def _drawing(context: Context, edges: Sequence[ShownEdge], measures: Mapping[str, Measures]) -> Component:
    places = layout([(edge.edge.caller, edge.edge.called) for edge in edges])
    columns = max(column for column, _ in places.values()) + 1
    height = (max(row for _, row in places.values()) + 1) * _ROW
    width = 100 / columns * (0.62 if columns > 1 else 1)
    left = {name: column * (100 - width) / max(columns - 1, 1) for name, (column, _) in places.items()}
    top = {name: (row + 0.5) * _ROW for name, (_, row) in places.items()}
    lines: list[str] = []
    words: list[Component] = []
    for edge in edges:
        caller, called = edge.edge.caller, edge.edge.called
        x0, y0, x1, y1 = left[caller] + width, top[caller], left[called], top[called]
        bend = max((x1 - x0) / 2, 3)
        stroke = 1 + (edge.edge.share or 0.0) * (_WIDEST - 1)
        lines.append(
            f"<path d='M{x0:.2f},{y0:.1f} C{x0 + bend:.2f},{y0:.1f} {x1 - bend:.2f},{y1:.1f} {x1:.2f},{y1:.1f}' "
            f"stroke-width='{stroke:.1f}' vector-effect='non-scaling-stroke'/>"
        )
        if len(edges) <= _MAX_LABELLED:
            at = {"left": f"{(x0 + x1) / 2:.2f}%", "top": f"{(y0 + y1) / 2:.0f}px"}
            words.append(html.Span(_edge_words(edge), className="on-edge", style=at))
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 100 {height}' preserveAspectRatio='none'>"
        f"<g fill='none' stroke='black'>{''.join(lines)}</g></svg>"
    )
    nodes = [
        _node(context, name, measures.get(name), f"left:{left[name]:.2f}%;top:{top[name]:.0f}px;width:{width:.2f}%")
        for name in places
    ]
    image = html.Div(
        className="edges",
        style={"--i": f'url("data:image/svg+xml,{quote(svg)}")'},
        **attributes({"aria-hidden": "true"}),
    )
    return html.Div([image, *nodes, *words], className="map hide", style={"height": f"{height}px"})


def _edge_words(edge: ShownEdge) -> str:
    parts = [
        _time(edge.p99) if edge.p99 is not None else "",
        percent(edge.errors, 1) if edge.errors else "",
        percent(edge.edge.share) if edge.edge.share else "",
    ]
    return " · ".join(filter(None, parts)) or _rate(edge)


def _node(context: Context, name: str, now: Measures | None, style: str) -> Component:
    p99 = f"p99 {duration(now.p99)}" if now is not None and now.p99 is not None else ""
    pairs = dict(pair.split(":") for pair in style.split(";"))
    href = context.view.link(service_path(name))
    return link(
        [html.B(name), html.Small(p99 or "no requests recorded" if now is None else p99)],
        href=href,
        title=name,
        style=pairs,
    )


def layout(edges: Collection[tuple[str, str]]) -> dict[str, tuple[int, int]]:
    """Return column and row of each service: callers left of the services that they call, and lines short.

    >>> layout([("gateway", "ranker"), ("ranker", "triton"), ("gateway", "prices")])
    {'gateway': (0, 0), 'prices': (1, 0), 'ranker': (1, 1), 'triton': (2, 0)}
    """
    called: defaultdict[str, list[str]] = defaultdict(list)
    callers: defaultdict[str, list[str]] = defaultdict(list)
    for caller, service in sorted(edges):
        called[caller].append(service)
        callers[service].append(caller)
    services = sorted({*called, *callers})
    column: dict[str, int] = {}
    # Right of all its callers, without those that it calls itself.
    for name in _callers_first(sorted(services, key=lambda name: (bool(callers[name]), name)), called):
        column[name] = max((column[caller] + 1 for caller in callers[name] if caller in column), default=0)
    row: dict[str, float] = {}
    placed: dict[str, tuple[int, int]] = {}
    for depth in range(max(column.values(), default=-1) + 1):
        # Near its callers.
        near = {
            name: sum(rows) / len(rows) if (rows := [row[caller] for caller in callers[name] if caller in row]) else 0.0
            for name in services
            if column[name] == depth
        }
        for index, name in enumerate(sorted(near, key=lambda name: (near[name], name))):
            row[name] = index
            placed[name] = depth, index
    return placed


def _callers_first(services: Sequence[str], called: Mapping[str, Sequence[str]]) -> list[str]:
    done: dict[str, None] = {}
    for start in services:
        path = [(start, iter(called.get(start, ())))]
        open_ones = {start} - done.keys()
        while path and open_ones:
            name, rest = path[-1]
            following = next((service for service in rest if service not in done and service not in open_ones), None)
            if following is None:
                path.pop()
                open_ones.discard(name)
                done[name] = None
            else:
                open_ones.add(following)
                path.append((following, iter(called.get(following, ()))))
    return list(done)[::-1]
