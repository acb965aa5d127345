"""Trace page: one retained request with its verdict, timeline, attributes and similar requests."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from dash import html
from dash.development.base_component import Component

from ...analysis.profile import MIN_SAMPLED, FunctionTime, ProfileBand, functions, profile_of_request
from ...core.code_stack import split_stack_key
from ...core.names import PROFILE, REPLICA_AGE, STATUS_OK, SUSPECT
from ...core.stages import label
from ...store import RetainedTrace
from ..ui.components import Node, attributes, card, link, link_tabs, pill, stage_bar, table
from ..ui.format import duration, factor, percent, rank, span, split_duration
from ..ui.trace_text import process_counters, stall_sentence, stalls_of_trace
from ..view import service_path, trace_name, trace_path
from . import trace_timeline
from .across_services import services_timeline
from .page import Context, Page, empty_page_card, panel, status_pill, traces_table
from .service_code import source_link

# A W3C trace id or at least eight digits of it; or trace id and root span id, for one of several requests in the trace.
_ID = re.compile(r"[0-9a-f]{8,32}|[0-9a-f]{32}-[0-9a-f]{16}")
_RETAINED_BECAUSE = {
    "forced": "a header forced it",
    "error": "it failed",
    "slow": "it is among the slowest",
    "cold": "it included loading or warm-up",
    "uniform": "it is in the random sample",
}
_MAX_FUNCTIONS = 12
_CODE_HEAD = (("Stage", ""), ("Function", ""), ("Place", "hide"), ("Time", "r"), ("Of stage", "r hide"))


def render(context: Context, trace_id: str) -> Page:
    view, source = context.view, context.source
    trace = source.cached(source.read.trace, trace_id) if _is_id(trace_id) else None
    trail: list[tuple[str, str | None]] = [("Traces", view.link("/traces"))]
    if trace is None:
        return Page("Trace · Stagelens", [*trail, (trace_id[:12], None)], [_not_retained(context, trace_id)], "/traces")
    service = trace.series.service
    trail += [(service, view.link("/traces", svc=service)), (trace.trace_id[:8], None)]
    setting = trace_timeline.trace_baseline(context, trace)
    near = trace_timeline.neighbour_traces(context, trace)
    body: list[Node] = [
        _head(context, trace, setting, near),
        panel("Verdict", lambda: verdict(trace, setting)),
        html.Div(
            [
                panel("Timeline", lambda: _timeline_or_lanes(context, trace, setting), "c8", "y"),
                panel("Attributes", lambda: _attributes(context, trace), "c4"),
            ],
            className="grid",
        ),
        panel("Code of this request", lambda: code_card(trace, context)) if PROFILE in trace.attributes else None,
        panel("More like this", lambda: _similar_requests(context, trace)),
    ]
    return Page(f"Trace {trace.trace_id[:8]} · Stagelens", trail, body, "/traces")


def _timeline_or_lanes(context: Context, trace: RetainedTrace, setting: trace_timeline.TraceBaseline) -> Component:
    view = context.view
    requests = context.source.cached(context.source.read.requests_of_trace, trace.trace_id)
    names = {"stages": "Stages", "lanes": "Lanes"}
    if len(requests) > 1:
        names = {"services": "Services", **names}
    default = next(iter(names))
    chosen = view.choice("y", *names)
    options = {key: (name, view.here(y=None if key == default else key)) for key, name in names.items()}
    tools = link_tabs("Rows", options, chosen)
    if chosen == "services":
        return services_timeline(context, trace, requests, tools)
    return trace_timeline.lanes(trace, tools) if chosen == "lanes" else trace_timeline.timeline(trace, setting, tools)


def _is_id(text: str) -> bool:
    return _ID.fullmatch(text.lower()) is not None


def _not_retained(context: Context, trace_id: str) -> Component:
    if not _is_id(trace_id):
        text = f"{trace_id[:40]!r} is not a trace ID: use 32 hexadecimal digits, or the first 8."
    else:
        text = "Metrics include every request. Only the slowest, failed, cold-start and random requests are retained, for a limited time."
    retained = link("Retained traces", href=context.view.link("/traces"), className="btn pri")
    return html.Div(
        [empty_page_card("This trace was not retained", text, actions=[retained]), _newest_retained(context)],
        className="stack",
    )


def _newest_retained(context: Context) -> Component | None:
    frame = context.source.cached(context.source.read.exemplars, context.selection, limit=5, order="time")
    if not len(frame):
        return None
    rows = traces_table(frame, context.view, "Newest retained requests", with_service=True)
    return card("Newest retained requests", rows, flush=True)


def _rank_badge(value: float | None) -> Component | None:
    if value is None:
        return None
    return pill(rank(value), "bad" if value >= trace_timeline.RARE else "")


def _head(
    context: Context, trace: RetainedTrace, setting: trace_timeline.TraceBaseline, near: tuple[str | None, str | None]
) -> Component:
    view, series = context.view, trace.series
    at = datetime.fromtimestamp(trace.started_ns / trace_timeline.NS, UTC).astimezone(view.zone)
    title: list[Node] = [
        html.Span(["Trace ", html.Span(trace.trace_id[:8], className="mono")]),
        _rank_badge(trace_timeline.rank_in(setting.latency, trace.duration_ns / trace_timeline.NS)),
        link(pill(series.service, "out"), href=view.link(service_path(series.service))),
        pill(series.version, "out") if series.version else None,
        status_pill(series.status) if series.status != STATUS_OK else None,
    ]
    why = _RETAINED_BECAUSE.get(trace.because, trace.because)
    sub = f"{at:%-d %b %Y %H:%M:%S} {at.tzname()} · retained because {why}"
    steps: list[Node] = [html.Span(className="grow"), *_export_links(context, trace)]
    for name, text, key, marker in (
        (near[0], "◂ Slower", "K", "data-previous"),
        (near[1], "Faster ▸", "J", "data-next"),
    ):
        if name:
            href = view.link(trace_path(name))
            steps.append(
                html.Span(
                    link([text, html.Kbd(key, className="kbd hide")], href=href, className="btn"),
                    **attributes({marker: ""}),
                )
            )
    return html.Div([html.Div([html.H1(title), html.P(sub, className="sub")]), *steps], className="phead")


def _export_links(context: Context, trace: RetainedTrace) -> list[Node]:
    name = trace_name(trace.trace_id, trace.span_id)
    # This link is a file, which the browser downloads directly.
    ways: list[Node] = [html.A("OTLP JSON", href=f"/api/v1/traces/{name}", className="btn", download="")]
    tracer = context.source.tracer
    if tracer:
        href = tracer.replace("{trace_id}", trace.trace_id)
        ways.append(html.A("Open in tracer ↗", href=href, className="btn", target="_blank", rel="noopener noreferrer"))
    return ways


def _attributes(context: Context, trace: RetainedTrace) -> Component:
    series = trace.series
    at = datetime.fromtimestamp(trace.started_ns / trace_timeline.NS, UTC).astimezone(context.view.zone)
    pairs: dict[str, object] = {
        "Trace": trace.trace_id,
        "Service": series.service,
        "Version": series.version,
        "Environment": series.environment,
        "Model": " ".join(part for part in (series.model, series.model_version) if part),
        "Route": series.route,
        "Device": series.device,
        "Status": series.status,
        "Rejected server timings": trace.attributes.get(SUSPECT, ""),
        "Replica's age": _process_age(trace),
        "Started": f"{at:%H:%M:%S}.{trace.started_ns // 1_000_000 % 1000:03d}",
    }
    stored_values = {str(value) for value in pairs.values()}
    pairs |= {
        key: value
        for key, value in trace.attributes.items()
        if str(value) not in stored_values and not key.startswith("stagelens.")
    }
    pairs |= process_counters(trace.attributes)
    items: list[Component] = []
    for key, value in pairs.items():
        if str(value):
            items += [html.Dt(key), html.Dd(str(value), title=str(value))]
    return card("Attributes", html.Dl(items, className="kv"), size="c4")


def _process_age(trace: RetainedTrace) -> str:
    age = trace.attributes.get(REPLICA_AGE)
    return span(timedelta(seconds=age / trace_timeline.NS)) if isinstance(age, int) else ""


def _similar_requests(context: Context, trace: RetainedTrace) -> Component:
    source = context.source
    frame = source.cached(
        source.read.exemplars, trace_timeline.requests_around(trace), limit=7, dominant=trace.dominant
    )
    frame = frame[(frame["trace_id"] != trace.trace_id) | (frame["span_id"] != trace.span_id)].head(6)
    more = link("All traces →", href=context.view.link("/traces", svc=trace.series.service), className="link")
    if not len(frame):
        return card(
            "More like this", html.P("No other retained request is dominated by this stage.", className="muted")
        )
    sub = f"also dominated by {label(trace.dominant)}"
    return card(
        "More like this",
        traces_table(frame, context.view, "Requests with the same cause"),
        sub=sub,
        tools=more,
        flush=True,
    )


def verdict(trace: RetainedTrace, setting: trace_timeline.TraceBaseline) -> Component:
    stages = {stage: value / trace_timeline.NS for stage, value in trace.stages_ns.items()}
    seconds = trace.duration_ns / trace_timeline.NS
    number, unit = split_duration(seconds)
    median = setting.median_seconds
    against: list[Node] = []
    if median:
        slower = seconds > median
        against = [
            html.Span(
                f" · {factor(seconds / median)} the median",
                className="bad" if slower and seconds > 2 * median else "muted",
            )
        ]
    longest = max(seconds, median) or 1.0
    bars: list[Node] = ["This request", stage_bar(stages, tall=True, scale=seconds / longest)]
    if median:
        bars += [f"Median request, {duration(median)}", stage_bar(setting.median, scale=median / longest)]
    content = [
        html.Span([number, html.Small(unit)], className="total"),
        *against,
        html.Div([*_causes(stages, setting), _stall_words(trace)], className="muted x"),
    ]
    return html.Div([html.Div(content, className="say"), html.Div(bars, className="scale")], className="verdict")


def _stall_words(trace: RetainedTrace) -> str:
    sentence = stall_sentence(stalls_of_trace(trace.attributes), trace.duration_ns / trace_timeline.NS, "the request")
    return f" {sentence}" if sentence else ""


def _causes(stages: Mapping[str, float], setting: trace_timeline.TraceBaseline) -> list[Any]:
    total = sum(stages.values()) or 1.0
    excess = sorted(stages, key=lambda stage: -(stages[stage] - setting.median.get(stage, 0.0)))
    parts: list[Any] = []
    for stage in excess[:2]:
        share = stages[stage] / total
        if share < 0.1:  # noqa: PLR2004 - a smaller share is no cause
            continue
        usual = setting.usual(stage)
        parts += ["; " if parts else "", html.B(label(stage)), f" took {percent(share)}"]
        if usual and stages[stage] > 1.5 * usual:
            parts.append(f": {duration(stages[stage])}, median {duration(usual)}")
    return [*parts, "."] if parts else ["No stage stands out."]


def code_card(trace: RetainedTrace, context: Context | None = None) -> Component:
    shown = request_functions(trace)[:_MAX_FUNCTIONS]
    if not shown:
        return card("Code of this request", html.P("This request has no valid samples.", className="muted"))
    rows = [
        html.Tr(
            [
                html.Td(label(function.stage)),
                html.Td(function.function, className="mono", title=f"{function.module}:{function.function}"),
                html.Td(
                    source_link(
                        context, function, function.place, service=trace.series.service, version=trace.series.version
                    ),
                    className="mono muted hide",
                    title=function.file,
                ),
                html.Td(duration(function.tail_self_ms / 1e3), className="r b"),
                html.Td(percent(function.share), className="r muted hide"),
            ]
        )
        for function in shown
    ]
    sub = "estimated from samples; time in libraries counts for the function that called them"
    return card("Code of this request", table(_CODE_HEAD, rows, "Functions of this request"), sub=sub, flush=True)


def request_functions(trace: RetainedTrace) -> list[FunctionTime]:
    sampled = profile_of_request(str(trace.attributes.get(PROFILE, "")))
    stages: dict[str, float] = defaultdict(float)
    for key, micros in sampled.items():
        stages[split_stack_key(key)[0]] += micros / 1e6
    stacks = {key: micros / 1e6 for key, micros in sampled.items()}
    # One request is not an estimate for others, so the minimum number of sampled requests does not apply.
    band = ProfileBand(trace.duration_ns / 1e9, MIN_SAMPLED, stages, stacks)
    return [function for function in functions(band) if function.tail_self_ms > 0]
