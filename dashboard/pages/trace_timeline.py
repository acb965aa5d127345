"""Timeline of one retained request: by stage with the baseline of its service, or by the hardware on which work ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from dash import html
from dash.development.base_component import Component

from ...analysis.waterfall import (
    GPU,
    NS,
    PLACES,
    busy_ns,
    lane_of,
    position_of,
    spans_by_start,
    unexplained_ns,
    wall_seconds,
)
from ...core.histogram import Histogram, has_enough_samples
from ...core.stages import label
from ...questions.breakdown import breakdown
from ...store import RetainedTrace, Selection
from ..figures.elements import ticks
from ..ui.components import Node, attributes, card, legend, swatch, table
from ..ui.design_tokens import hue
from ..ui.format import axis_duration, duration, percent, rank
from ..ui.trace_text import span_name, span_note
from ..view import trace_name
from .page import Context

_BASELINE_RANGE = timedelta(hours=6)
_MIN_REQUESTS = 20
# Ranks from this one on are red.
RARE = 0.99
# A note is right of a bar that ends before this position, left of a bar that starts after its mirror image, else on the
# bar. [percent]
_MIDDLE = 60


def timeline(trace: RetainedTrace, setting: TraceBaseline, tools: Node) -> Component:
    scale = Scale.of(trace)
    head: list[tuple[Node, str]] = [
        ("Stage", "w-name"),
        (scale.head(), "lane"),
        ("Time", "r w-time"),
        ("Rank", "r w-rank hide"),
    ]
    rows = [_lane(span, scale, trace, setting) for span in spans_by_start(trace.spans)]
    rows += _unexplained_rows(trace, setting, scale)
    body = table(head, rows, "Stages of the request in time", css="wf")
    return card(
        "Timeline",
        body,
        sub="dashed = median for this stage",
        tools=tools,
        foot=_overlap_note(trace),
        size="c8",
        flush=True,
    )


def _lane(span: Mapping[str, Any], scale: Scale, trace: RetainedTrace, setting: TraceBaseline) -> Component:
    stage = str(span["stage"])
    left, width = scale.place(span)
    parts: list[Component] = [span_bar(span, scale)]
    usual = setting.usual(stage)
    if usual:
        ghost = {"left": f"{left:.2f}%", "width": f"{min(usual / scale.whole * 100, 100 - left):.2f}%"}
        parts.append(html.I(className="gh", style=ghost, title=f"median {duration(usual)}"))
    note = span_note(span)
    if note:
        parts.append(_bar_note(note, left, width))
    span_rank = rank_in(setting.stages.get(stage), trace.stages_ns.get(stage, 0) / NS)
    measured = Measured(float(span["duration_ns"]) / NS, span_rank, main=stage == trace.dominant)
    return _timeline_row(stage, span_name(span), parts, scale.tick, measured)


def _bar_note(text: str, left: float, width: float) -> Component:
    if left + width < _MIDDLE:
        return html.Span(text, className="lb", style={"left": f"calc({left + width:.2f}% + 7px)"})
    if left > 100 - _MIDDLE:
        return html.Span(text, className="lb", style={"right": f"calc({100 - left:.2f}% + 7px)"})
    return html.Span(text, className="lb on", style={"left": f"calc({left:.2f}% + 7px)"})


def _unexplained_rows(trace: RetainedTrace, setting: TraceBaseline, scale: Scale) -> list[Component]:
    between = html.Span("between the stages", className="lb", style={"left": "6px"})
    return [
        _timeline_row(
            stage,
            label(stage),
            [between],
            scale.tick,
            Measured(spent / NS, rank_in(setting.stages.get(stage), spent / NS)),
        )
        for stage, spent in unexplained_ns(trace.spans, trace.stages_ns).items()
    ]


def _timeline_row(stage: str, shown: str, parts: Sequence[Component], tick: float, measured: Measured) -> Component:
    rare = measured.rank is not None and measured.rank >= RARE
    return html.Tr(
        [
            html.Th(html.Span([swatch(stage), html.Span(shown)], className="nm"), scope="row", title=shown),
            html.Td(
                html.Div(list(parts), className=f"in st-{hue(stage)}", style={"--tick": f"{tick:.3f}%"}),
                className="lane",
            ),
            html.Td(duration(measured.seconds), className="r b" if measured.main or rare else "r"),
            html.Td(html.Span(rank(measured.rank), className="bad b" if rare else "muted"), className="r hide"),
        ],
        className="on" if measured.main else "",
        **attributes({"data-stage": stage}),
    )


def _overlap_note(trace: RetainedTrace) -> Node:
    total = sum(int(span["duration_ns"]) for span in trace.spans if span["stage"])
    if total <= trace.duration_ns:
        return None
    return "Stages overlap: each bar shows the full duration of a stage; the shares above do not count time twice."


def lanes(trace: RetainedTrace, tools: Node) -> Component:
    scale = Scale.of(trace)
    held: dict[str, list[dict[str, Any]]] = {}
    for span in spans_by_start(trace.spans):
        held.setdefault(lane_of(span, trace.series.device), []).append(span)
    head: list[tuple[Node, str]] = [("Where", "w-name"), (scale.head(), "lane"), ("Busy", "r w-time")]
    shown = [lane for lane in PLACES if lane in held]
    rows = [_lane_row(name, held[name], scale) for name in shown]
    body = table(head, rows, "Places of the request over time", css="wf")
    stages = legend({str(span["stage"]) for span in trace.spans if span["stage"]})
    return card("Lanes", body, sub=_gpu_words(held, scale), tools=tools, foot=stages, size="c8", flush=True)


def _lane_row(name: str, spans: list[dict[str, Any]], scale: Scale) -> Component:
    bars = [span_bar(span, scale, className=f"st-{hue(str(span['stage']))}", title=_span_title(span)) for span in spans]
    return html.Tr(
        [
            html.Th(name, scope="row"),
            html.Td(html.Div(bars, className="in", style={"--tick": f"{scale.tick:.3f}%"}), className="lane"),
            html.Td(duration(busy_ns(spans) / NS), className="r"),
        ],
        **attributes({"data-lane": name}),
    )


def _span_title(span: Mapping[str, Any]) -> str:
    parts = (span_name(span), duration(float(span["duration_ns"]) / NS), span_note(span))
    return " · ".join(part for part in parts if part)


def _gpu_words(held: Mapping[str, list[dict[str, Any]]], scale: Scale) -> str:
    if GPU not in held:
        return "where the work ran"
    return f"the GPU was busy {percent(busy_ns(held[GPU]) / NS / scale.whole)} of the time"


@dataclass(frozen=True, slots=True)
class TraceBaseline:
    latency: Histogram  # latency of the requests in the hours around the retained one [seconds]
    stages: Mapping[str, Histogram]  # own time of each stage in these requests [seconds]
    median: dict[str, float]  # stage times of the median request [seconds]

    def usual(self, stage: str) -> float | None:
        histogram = self.stages.get(stage)
        if histogram is None or histogram.count < _MIN_REQUESTS:
            return None
        median = histogram.quantile(0.5)
        return median.value if median else None

    @property
    def median_seconds(self) -> float:
        return sum(self.median.values())


def requests_around(trace: RetainedTrace) -> Selection:
    at = datetime.fromtimestamp(trace.started_ns / NS, UTC)
    return Selection(at - _BASELINE_RANGE, at + _BASELINE_RANGE, service=trace.series.service)


def trace_baseline(context: Context, trace: RetainedTrace) -> TraceBaseline:
    source, near = context.source, requests_around(trace)
    means = source.cached(breakdown, source.read, near, (0.5,))
    median = means.stages(0.5) if has_enough_samples(means.requests, 0.5) else {}
    return TraceBaseline(
        source.cached(source.read.latency, near), source.cached(source.read.stage_latency, near), median
    )


def neighbour_traces(context: Context, retained_trace: RetainedTrace) -> tuple[str | None, str | None]:
    source = context.source
    frame = source.cached(source.read.exemplars, requests_around(retained_trace), limit=100)
    listed = [
        trace_name(str(trace), str(span)) for trace, span in zip(frame["trace_id"], frame["span_id"], strict=True)
    ]
    own_name = trace_name(retained_trace.trace_id, retained_trace.span_id)
    if own_name not in listed:
        return None, None
    at = listed.index(own_name)
    return (listed[at - 1] if at else None), (listed[at + 1] if at + 1 < len(listed) else None)


def rank_in(histogram: Histogram | None, seconds: float) -> float | None:
    """Return the share of requests with a value of at most *seconds*; None with too few requests [ratio]."""
    if histogram is None or histogram.count < _MIN_REQUESTS:
        return None
    share = histogram.fraction_below(seconds)
    return share.value if share else None


@dataclass(frozen=True, slots=True)
class Measured:
    seconds: float  # duration of the row [seconds]
    rank: float | None  # share of requests with at most this time in the stage; None with too few requests [ratio]
    main: bool = False  # whether this stage dominates the request


@dataclass(frozen=True, slots=True)
class Scale:
    whole: float

    @classmethod
    def of(cls, trace: RetainedTrace) -> Scale:
        return cls(wall_seconds(trace.duration_ns))

    @property
    def marks(self) -> list[float]:
        return list(ticks(0, self.whole, 5)["tickvals"])

    @property
    def tick(self) -> float:
        marks = self.marks
        return (marks[1] if len(marks) > 1 else self.whole) / self.whole * 100

    def place(self, span: Mapping[str, Any]) -> tuple[float, float]:
        return position_of(span, self.whole)

    def head(self) -> Component:
        shown = [mark for mark in self.marks if mark < self.whole * 0.97]
        return html.Div(
            [html.Span(axis_duration(mark), style={"left": f"{mark / self.whole * 100:.2f}%"}) for mark in shown],
            className="ax",
            title="Time since the start of the request; drag to zoom, double-click to reset",
        )


def span_bar(span: Mapping[str, Any], scale: Scale, **more: Any) -> Component:
    left, width = scale.place(span)
    return html.I(style={"left": f"{left:.2f}%", "width": f"{width:.2f}%"}, **more)
