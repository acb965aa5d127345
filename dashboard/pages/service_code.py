"""Card of the service page with the functions of the user's code in slow or selected requests, and the flame graph of one stage."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from string import Formatter
from urllib.parse import quote

from dash import html
from dash.development.base_component import Component

from ...analysis.attributes import SlowRequests
from ...analysis.comparison import highest_quantile
from ...analysis.profile import (
    MIN_SAMPLED,
    NO_SAMPLES,
    CodeNode,
    FunctionGrowth,
    FunctionTime,
    ProfileBand,
    flame_graph,
    functions,
)
from ...core.code_stack import MAX_PART
from ...core.histogram import has_enough_samples, samples_needed
from ...core.stages import label
from ..ui.components import Node, attributes, card, empty, stage_name, table
from ..ui.format import duration, percent, percentile, whole
from .measures import measure
from .page import Context
from .shared_attributes import selected_requests

_MEDIAN, _TAIL = 0.5, 0.99
_MAX_FUNCTIONS = 12
# Functions that take less are noise of the samples. [milliseconds]
_LEAST_MS = 0.05
# Limits of the flame graph: rows, and the width of a function. [ratio of the stage]
_MAX_DEPTH, _LEAST_WIDTH = 12, 0.01
# Growth from which a colour is full, as a share of the stage, and number of colours on each side of zero.
_FULL_GROWTH, _COLOURS = 0.5, 3


def source_link(
    context: Context | None,
    function: FunctionTime | FunctionGrowth,
    text: Node,
    *,
    service: str = "",
    version: str = "",
) -> Node:
    """Return *text* as a link to the code of *function*; unchanged without STAGELENS_SOURCE_URL, and for code of libraries.

    The version is the selected one, or the newest one of the page's service.
    """
    template = context.source.config.source_url if context and context.source.config else None
    if context is None or template is None:
        return text
    service = service or context.service or ""
    version = version or context.view.scope.get("v", "")
    if not version and service == context.service and not context.versions.empty:
        version = str(context.versions["version"].iloc[-1])
    address = source_address(template, function, service=service, version=version)
    if address is None:
        return text
    return html.A(text, href=address, className="link", target="_blank", rel="noopener noreferrer")


def source_address(
    template: str, function: FunctionTime | FunctionGrowth, *, service: str = "", version: str = ""
) -> str | None:
    """Return the URL of the code of *function*; None if a value that *template* needs is unknown, and for code of libraries.

    >>> grown = FunctionGrowth("queue", "resize", 1, 2, 1, module="shop.serve", function="resize", file="shop/serve.py", line=41)
    >>> source_address("https://git.example/{version}/{file}#L{line}", grown, version="v1/a b")
    'https://git.example/v1%2Fa%20b/shop/serve.py#L41'
    """
    parts = function.file.split("/")
    values = {"file": quote(function.file), "line": str(function.line or ""), "version": quote(version, safe="")}
    values |= {
        name: quote(text, safe="") for name, text in (("module", function.module), ("function", function.function))
    }
    values["service"] = quote(service, safe="")
    # A path outside of the repository, or one that was cut, leads elsewhere.
    inside = all(parts) and not {".", ".."} & {*parts} and len(function.file) < MAX_PART and "<" not in function.file
    is_complete = all(values[name] for _, name, _, _ in Formatter().parse(template) if name)
    return template.format_map(values) if inside and is_complete and not function.is_library else None


def code_card(context: Context) -> Component | None:
    """Return the functions of the requests that the reader selected in the heat map, or at the tail percentile.

    The tail percentile is the selected one, or the highest one below it with enough requests. None without such a percentile,
    and if no request was sampled.
    """
    selected, wanted = selected_requests(context.view), tail_percentile(context)
    if wanted is None:
        return None
    bands = context.source.cached(context.source.read.profile, context.selection, (_MEDIAN, wanted))
    if not bands:
        return None
    if selected:
        return functions_card(
            bands[0], profile_of_selection(context, selected), "in the selection", "Selected", context
        )
    at = percentile(wanted)
    return functions_card(bands[0], bands[1], f"at {at}", at, context, note=replaced_note(context, wanted))


def profile_of_selection(context: Context, selected: SlowRequests) -> ProfileBand:
    about = context.selection
    ends = (datetime.fromtimestamp(moment, UTC) for moment in (selected.start, selected.end))
    start, end = context.source.whole_window(*ends)
    part = replace(about, start=max(start, about.start), end=min(end, about.end))
    read = context.source.read
    return context.source.cached(read.profile_between, part, selected.low, selected.high) or NO_SAMPLES


def tail_percentile(context: Context) -> float | None:
    view = context.view
    wanted = view.percentile if view.text("p") and view.percentile > _MEDIAN else _TAIL
    requests = measure(context.source, context.selection).requests
    return wanted if has_enough_samples(requests, wanted) else highest_quantile(requests, wanted)


def replaced_note(context: Context, shown: float) -> str:
    asked = context.view.percentile if context.view.text("p") and context.view.percentile > _MEDIAN else _TAIL
    return f" · {percentile(asked)} needs {whole(samples_needed(asked))} requests" if shown != asked else ""


def functions_card(
    median: ProfileBand, tail: ProfileBand, which: str, head: str, context: Context | None = None, *, note: str = ""
) -> Component | None:
    """Return the functions with their time in the requests of *tail*, compared with *median*; None without samples.

    *which* names the requests of *tail* in titles, such as "at p99", *head* in a column; *note* ends the subtitle.
    """
    if tail.sampled <= 0 and median.sampled <= 0:
        return None
    title = f"Your code {which}"
    shown = [function for function in functions(tail, median) if function.tail_self_ms >= _LEAST_MS][:_MAX_FUNCTIONS]
    if not tail.is_sufficient:
        text = f"The profiler has sampled {int(tail.sampled)} of the requests {which}, and needs {MIN_SAMPLED}."
        return card(title, empty("Too few samples", f"{text} Send more requests, or select a longer time range."))
    if not shown:
        return card(title, empty("No functions", f"No function takes {_LEAST_MS} ms of the requests {which}."))
    widest = max(max(function.tail_self_ms, function.median_self_ms or 0.0) for function in shown)
    columns = [("Stage", ""), ("Function", ""), (head, ""), ("p50", "hide"), ("Of stage", "r hide")]
    rows = [_row(function, widest, number, context) for number, function in enumerate(shown)]
    name = f"Functions {which} and at the median"
    component = table([*columns, ("Make it a stage", "hide")], rows, name, css="codes")
    stage = _largest_stage(shown)
    return card(
        title,
        [component, _flame_part(stage, flame_graph(stage, tail, median), which)],
        sub=f"estimated from samples; time in libraries counts for the function that called them{note}",
        flush=True,
    )


def _row(function: FunctionTime, widest: float, number: int, context: Context | None) -> Component:
    return html.Tr(
        [
            html.Td(stage_name(function.stage)),
            html.Td(_name(function, context), title=f"{function.module}:{function.function} in {function.file}"),
            html.Td(time_bar(function.tail_self_ms, widest)),
            html.Td(time_bar(function.median_self_ms, widest), className="hide"),
            html.Td(percent(function.share), className="r muted hide"),
            html.Td(option_to_copy(function.stage_option, f"code-option-{number}"), className="hide"),
        ]
    )


def _name(function: FunctionTime, context: Context | None) -> Component:
    short = function.function.rpartition("<locals>.")[2] or function.function
    file: Node = html.Span(function.place, className="cut")
    wait = f", waiting in {function.wait}" if function.wait else ""
    location = html.Div([source_link(context, function, file), wait], className="s mono")
    return html.Div([html.Div(html.Span(short, className="cut"), className="mono"), location])


def time_bar(ms: float | None, widest: float) -> Component:
    if ms is None:
        return html.Span("–", className="muted")  # noqa: RUF001 - an en dash means unknown
    filled = html.I(style={"width": f"{ms / widest * 100:.1f}%"}) if ms else None
    return html.Div(
        [html.Div(filled, className="track"), html.Span(duration(ms / 1e3), className="num")], className="gauge"
    )


def option_to_copy(text: str, name: str) -> Node:
    if not text:
        return None
    named = {"data-copies": name, "data-copied": "Option", "aria-label": f"Copy {text}"}
    button = html.Button("Copy", type="button", className="btn ghost copies", **attributes(named))
    return html.Div([html.Code(text, id=name, className="mono cut", title=text), button], className="gauge")


def _largest_stage(shown: list[FunctionTime]) -> str:
    spent: dict[str, float] = {}
    for function in shown:
        spent[function.stage] = spent.get(function.stage, 0.0) + function.tail_self_ms
    return max(spent, key=lambda stage: spent[stage])


def _flame_part(stage: str, root: CodeNode, which: str) -> Component:
    words = f"{label(stage)} {which}, {duration(root.tail_ms / 1e3)}"
    note = "The width is the time; the colour is the change from p50: blue for less, orange for more."
    graph = html.Div(
        _flame_node(root, root.tail_ms, 0, label(stage)),
        className="flame",
        role="img",
        **attributes({"aria-label": f"Flame graph of {words}; the table above has the same functions."}),
    )
    return html.Div([html.P([html.B(words), " ", note], className="muted"), graph], className="flame-part")


def _flame_node(node: CodeNode, whole: float, depth: int, name: str) -> Component:
    change = "" if node.median_ms is None else f", p50 {duration(node.median_ms / 1e3)}"
    file_and_line = f" ({node.place})" if node.place else ""
    bar = html.Div(
        name,
        className=f"fl {_colour(node, whole)}",
        title=f"{node.name}{file_and_line}: {duration(node.tail_ms / 1e3)}{change}",
    )
    called = [
        html.Div(
            _flame_node(child, whole, depth + 1, child.name.rpartition(":")[2]),
            style={"width": f"{child.tail_ms / node.tail_ms * 100:.2f}%"},
        )
        for child in node.children
        if depth < _MAX_DEPTH and child.tail_ms >= whole * _LEAST_WIDTH
    ]
    return html.Div([bar, html.Div(called, className="fls") if called else None])


def _colour(node: CodeNode, whole: float) -> str:
    if node.median_ms is None or not whole:
        return "same"
    growth = (node.tail_ms - node.median_ms) / whole / _FULL_GROWTH
    step = round(max(-1.0, min(1.0, growth)) * _COLOURS)
    return f"{'more' if step > 0 else 'less'}{abs(step)}" if step else "same"
