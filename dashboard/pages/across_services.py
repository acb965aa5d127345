"""Cards about several services: the waterfall of a whole trace, and the critical path of the slow requests of a service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from dash import html
from dash.development.base_component import Component

from ...alerts.evaluation.evidence import dependency_sentence
from ...analysis.critical_path import (
    ANOTHER_ENVIRONMENT,
    PathPiece,
    PathShare,
    PlacedCall,
    PlacedRequest,
    critical_path,
    missing_services,
    path_shares,
    place_requests,
    served_by,
)
from ...core.stages import FRAMEWORK, label
from ...store import RetainedTrace, Selection
from ...store.queries.paths import ServiceEdge, SlowPaths, traced_request
from ..ui.components import Node, attributes, card, link, stage_name, swatch, table
from ..ui.design_tokens import hue
from ..ui.format import duration, percent, percentile, several
from ..ui.trace_text import span_name, span_note
from ..view import service_path, trace_name, trace_path
from .page import Context
from .service_code import replaced_note, tail_percentile, time_bar
from .trace_timeline import NS, Scale

# Number of stages of a request in a waterfall, the longest, and their smallest share of the trace; calls of services with a
# retained part are always shown. [count, ratio]
_MAX_SPANS, _LEAST_SPAN = 12, 0.005
# Number of rows of a waterfall, and of a table of shares.
_MAX_DRAWN, _MAX_ROWS = 200, 10
# Number of pieces in a sentence, and the smallest share that is one of them.
_SPOKEN, _LEAST = 4, 0.02
# Clocks of machines that are synchronized differ by less. [nanoseconds]
_NOTICED_NS = 1_000_000


def services_timeline(
    context: Context, trace: RetainedTrace, requests: Sequence[RetainedTrace], tools: Node
) -> Component:
    roots = place_requests(map(traced_request, requests))
    drawn = _Waterfall(context, trace, roots)
    head: list[tuple[Node, str]] = [
        ("Service and stage", "w-name"),
        (drawn.scale.head(), "lane"),
        ("Time", "r w-time"),
        ("On path", "r w-time hide"),
    ]
    rows = list(islice(chain.from_iterable(drawn.request_rows(root, 0) for root in roots), _MAX_DRAWN))
    request = next(
        root
        for root in roots
        if any(placed_request.request.span_id == trace.span_id for placed_request in root.everything())
    )
    notes = [f"Critical path: {spoken_shares(path_shares([critical_path(request)]))}.", *_trace_notes(context, roots)]
    if len(rows) == _MAX_DRAWN:
        notes.append(f"Only the first {_MAX_DRAWN} rows are shown.")
    return card(
        "Timeline",
        table(head, rows, "Requests and stages of the trace in time", css="wf"),
        sub="line below a bar = critical path; short stages are not shown",
        tools=tools,
        foot=[html.Div(text) for text in notes],
        size="c8",
        flush=True,
    )


class _Waterfall:
    def __init__(self, context: Context, trace: RetainedTrace, roots: Sequence[PlacedRequest]) -> None:
        self._context = context
        self._trace = trace
        every = [request for root in roots for request in root.everything()]
        self._start = min(request.start for request in every)
        self.scale = Scale(max(max(request.end for request in every) - self._start, 1) / NS)
        self._path = [piece for root in roots for piece in critical_path(root)]

    def request_rows(self, placed: PlacedRequest, depth: int) -> Iterator[Component]:
        pieces = [piece for piece in self._path if piece.request is placed.request]
        yield self._request_row(placed, depth, pieces)
        calls = {position: call for call in placed.calls for position in call.spans[:1]}
        for index, span in _shown_spans(placed, self.scale.whole * NS * _LEAST_SPAN):
            call = calls.get(index)
            yield self._stage_row(placed, span, depth, _on_path(placed, span, pieces, call))
            for request in call.called if call else ():
                yield from self.request_rows(request, depth + 1)

    def _bar(self, start: int, end: int, css: str = "") -> Component:
        left, width = self.scale.place({"start_ns": start - self._start, "duration_ns": end - start})
        return html.I(className=css, style={"left": f"{left:.2f}%", "width": f"{width:.2f}%"})

    def _request_row(self, placed: PlacedRequest, depth: int, pieces: Sequence[PathPiece]) -> Component:
        request = placed.request
        name: Node = html.B(request.service)
        if request.span_id and request.span_id != self._trace.span_id:
            href = self._context.view.link(trace_path(trace_name(self._trace.trace_id, request.span_id)))
            name = link(request.service, href=href, className="link")
        bars = [
            self._bar(placed.start, placed.end),
            *(self._bar(piece.start, piece.end, "cp") for piece in _joined(pieces)),
        ]
        return self._row([name], request.service, bars, (request.duration, pieces), depth, css="grp")

    def _stage_row(
        self, placed: PlacedRequest, span: Mapping[str, Any], depth: int, pieces: Sequence[PathPiece]
    ) -> Component:
        start = placed.start + int(span["start_ns"])
        stage = str(span["stage"])
        bars = [self._bar(start, start + int(span["duration_ns"]))]
        bars += [self._bar(piece.start, piece.end, "cp") for piece in _joined(pieces)]
        title = " · ".join(filter(None, (span_name(span), span_note(span))))
        spent = int(span["duration_ns"]), pieces
        return self._row([swatch(stage), html.Span(label(stage))], title, bars, spent, depth + 1, stage=stage)

    def _row(
        self,
        name: list[Node],
        title: str,
        bars: Sequence[Component],
        spent: tuple[int, Sequence[PathPiece]],
        depth: int,
        *,
        stage: str = "",
        css: str = "",
    ) -> Component:
        took, pieces = spent
        on_path = sum(piece.end - piece.start for piece in pieces)
        lane = html.Div(
            list(bars), className=f"in st-{hue(stage)}" if stage else "in", style={"--tick": f"{self.scale.tick:.3f}%"}
        )
        return html.Tr(
            [
                html.Th(html.Span(name, className="nm", style={"--deep": str(depth)}), scope="row", title=title),
                html.Td(lane, className="lane"),
                html.Td(duration(took / NS), className="r"),
                html.Td(duration(on_path / NS) if on_path else "", className="r b hide"),
            ],
            className=css,
            **(attributes({"data-stage": stage}) if stage else {}),
        )


def _shown_spans(placed: PlacedRequest, least_ns: float) -> list[tuple[int, Mapping[str, Any]]]:
    called = {index for call in placed.calls if call.called for index in call.spans[:1]}
    staged = [
        (index, span)
        for index, span in enumerate(placed.request.spans)
        # The framework lasts as long as the request.
        if index in called
        or (span["stage"] not in ("", FRAMEWORK) and span["duration_ns"] >= least_ns and not served_by(span))
    ]
    longest = sorted(staged, key=lambda numbered: (numbered[0] not in called, -int(numbered[1]["duration_ns"])))
    return sorted(longest[: max(_MAX_SPANS, len(called))], key=lambda numbered: int(numbered[1]["start_ns"]))


def _on_path(
    placed: PlacedRequest, span: Mapping[str, Any], pieces: Sequence[PathPiece], call: PlacedCall | None
) -> list[PathPiece]:
    start = placed.start + int(span["start_ns"])
    end = start + int(span["duration_ns"])
    served = call if call and call.called else None
    return [
        piece._replace(start=max(piece.start, start), end=min(piece.end, end))
        for piece in pieces
        if piece.call is served and (served or piece.stage == span["stage"]) and piece.start < end and start < piece.end
    ]


def _joined(pieces: Sequence[PathPiece]) -> list[PathPiece]:
    joined: list[PathPiece] = []
    for piece in sorted(pieces, key=lambda piece: piece.start):
        if joined and joined[-1].end >= piece.start:
            joined[-1] = joined[-1]._replace(end=max(piece.end, joined[-1].end))
        else:
            joined.append(piece)
    return joined


def _trace_notes(context: Context, roots: Sequence[PlacedRequest]) -> Iterator[str]:
    edges = service_edges(context)
    called_services: dict[str, set[str]] = {}
    for edge in edges:
        called_services.setdefault(edge.caller, set()).add(edge.called)
    missing = sorted({service for root in roots for service in missing_services(root, called_services)})
    if missing:
        yield f"Not retained in this trace: {', '.join(missing)}. The time of these calls is not split by service."
    if len(roots) > 1:
        alone = ", ".join(dict.fromkeys(root.service for root in roots[1:]))
        yield f"The calls of these requests are not known: {alone}."
    every = [request for root in roots for request in root.everything()]
    between = sorted({request.service for request in every if not request.is_direct})
    if between:
        yield f"The caller of {', '.join(between)} is not retained; the only call that was open at that time is shown instead."
    moved = {request.service: request.moved for request in every if abs(request.moved) >= _NOTICED_NS}
    if moved:
        by = ", ".join(f"{service} by {duration(abs(shift) / NS)}" for service, shift in moved.items())
        yield f"The clocks of the machines differ. Moved to the middle of the call: {by}."


def service_edges(context: Context) -> list[ServiceEdge]:
    view = context.view
    selection = Selection(view.start, view.end, environment=view.text("env"))
    return context.source.cached(context.source.read.service_map, selection)


def spoken_shares(shares: Sequence[PathShare]) -> str:
    r"""Return the largest *shares* of a critical path as part of a sentence.

    >>> spoken_shares([PathShare("ranker", "forward", 0.1, 0.6), PathShare("a", "network", 0.05, 0.4)])
    'ranker Forward 60\u202f%, a Network 40\u202f%'
    """
    large = [path for path in shares if path.share >= _LEAST][:_SPOKEN]
    return ", ".join(f"{path.service} {label(path.stage)} {percent(path.share)}" for path in large)


def called_sentence(context: Context, quantile: float | None) -> str:
    read = context.source.read
    split = context.source.cached(read.dependency_split, context.selection, quantile) if quantile is not None else None
    return dependency_sentence(split)


def path_card(context: Context) -> Component | None:
    wanted = tail_percentile(context)
    if wanted is None:
        return None
    slow_paths = context.source.cached(context.source.read.slow_paths, context.selection, wanted)
    if slow_paths is None or len({path.service for path in slow_paths.shares}) == 1:
        return None
    return slow_paths_card(context, slow_paths)


def slow_paths_card(context: Context, slow_paths: SlowPaths) -> Component:
    at = percentile(slow_paths.quantile)
    widest = max(path.seconds for path in slow_paths.shares) * 1e3
    rows = [_share_row(context, path, widest) for path in slow_paths.shares[:_MAX_ROWS]]
    head = [("Service", ""), ("Stage", ""), ("Mean time", ""), ("Share", "r")]
    sentence = (
        f"Of {context.service}'s {at} ({duration(slow_paths.value_seconds)}): {spoken_shares(slow_paths.shares)}."
    )
    body: list[Node] = [
        html.P(html.B(sentence), className="path-says"),
        table(head, rows, f"Critical path at {at} by service and stage", css="path"),
    ]
    sub = f"critical path of {several(slow_paths.requests, 'retained request')} at {at} or slower"
    sub += replaced_note(context, slow_paths.quantile)
    return card(f"Across services at {at}", body, sub=sub, foot=_completeness(slow_paths), flush=True)


def _completeness(slow_paths: SlowPaths) -> str:
    if not slow_paths.missing:
        return "These traces contain all called services that are known."
    missing = ", ".join(f"{service} in {number:,}" for service, number in slow_paths.missing.items())
    return (
        f"{slow_paths.complete:,} of {several(slow_paths.requests, 'trace')} contain all called services that are known. "
        f"Not retained: {missing}; the time of these calls counts as Dependency of the caller, or as Not timed."
    )


def _share_row(context: Context, path: PathShare, widest: float) -> Component:
    href = context.view.link(service_path(path.service))
    is_known = path.service != ANOTHER_ENVIRONMENT
    return html.Tr(
        [
            html.Td(link(path.service, href=href, className="link") if is_known else path.service),
            html.Td(stage_name(path.stage)),
            html.Td(time_bar(path.seconds * 1e3, widest)),
            html.Td(percent(path.share), className="r b"),
        ]
    )
