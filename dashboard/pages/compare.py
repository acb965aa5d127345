"""Two versions or two windows of one service: is B slower, how sure is that, and which stage is to blame."""

from __future__ import annotations

from typing import Any

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...core.stages import label
from ..components import Node, attributes, card, chart, empty, link, link_tabs, pill, swatch, table
from ..figures.compare import both_figure, delta_figure
from ..figures.percentile import percentile_grid
from ..format import THIN, TIMES, count, duration, enough, needed, percent, percentile, signed_change, span, whole
from ..tokens import hue
from ..view import service_path
from .page import Context, Page, nothing, panel
from .pair import Comparison, Pair, chosen_pair, compared, newest_pair
from .rows import records

_JUDGED = {"50": 0.5, "90": 0.9, "95": 0.95, "99": 0.99, "99.9": 0.999}
_WORDS = {
    "regression": ("Regression", "bad"),
    "improvement": ("Improvement", "good"),
    "same": ("No difference", ""),
    "not_enough": ("Not enough data", "warn"),
}
# The fullest bar takes this part of its cell; the number stands beside it.
_BAR_ROOM = 30.0
# Half a percent shows as zero; a fifth of the change is set bold; traffic moves by a tenth without a reason.
_HALF_PERCENT, _CAUSE, _BREATH = 0.005, 0.2, 0.1
# A stage with less of the change is no cause worth naming.
_MIN_BLAME = 0.05
# The tail beyond holds too few requests for a difference to mean anything.
_LAST_DELTA = 0.995


def render(context: Context) -> Page:
    """Return the comparison the address asks for, or the newest version against the one before."""
    view = context.view
    if context.service is None:
        return _choose(context)
    trail: list[tuple[str, str | None]] = [
        ("Services", view.link("/")),
        (context.service, view.link(service_path(context.service))),
    ]
    a, b = view.text("a"), view.text("b")
    pair = chosen_pair(context, a, b) if a and b else newest_pair(context)
    if pair is None:
        return Page(
            "Compare · Stagelens",
            [*trail, ("Compare", None)],
            [_head(context, None), _no_pair(context, a, b)],
            "/compare",
        )
    judged = compared(context, pair, _JUDGED.get(view.text("p") or ""))
    charts = [
        panel("What B adds, by percentile", lambda: _delta_card(context, pair), "c7"),
        panel("Blame", lambda: _blame_card(context, judged), "c5"),
        panel("Latency by percentile", lambda: _both_card(context, pair), "c7"),
        panel("What else changed", lambda: _else_card(context, pair), "c5"),
    ]
    body: list[Node] = [_head(context, pair), _verdict(context, judged), html.Div(charts, className="grid")]
    name = f"{pair.a_name} → {pair.b_name}"
    return Page(f"{name} · {context.service} · Stagelens", [*trail, (name, None)], body, "/compare")


def _choose(context: Context) -> Page:
    """Without a service there is a list of those that have two versions."""
    view, source = context.view, context.source
    names = [str(each) for each in source.services(view.start, view.end)["service"]]
    own = [Context(view, source, name) for name in names]
    rows = [_choice(each, pair) for each in own if (pair := newest_pair(each)) is not None]
    head = html.Div(
        html.Div([html.H1("Compare"), html.P("Two versions, or two windows, of one service", className="sub")]),
        className="phead",
    )
    body: Node
    if rows:
        titles = (("Service", ""), ("Newest against the one before", ""), ("Latency", "r hide"), ("Verdict", "r"))
        body = card("Services with two versions", table(titles, rows, "Services with two versions"), flush=True)
    else:
        body = nothing("Nothing to compare yet", "A service shows here once a second version of it has been seen.")
    return Page("Compare · Stagelens", [("Compare", None)], [head, body], "/compare")


def _choice(context: Context, pair: Pair) -> Component:
    found = compared(context, pair)
    judged = found.verdict
    href = context.view.link("/compare", svc=context.service)
    word, kind = _WORDS[judged.kind]
    cells = [
        html.Td(link(context.service, href=href, className="n")),
        html.Td(f"{pair.a_name} → {pair.b_name}"),
        html.Td(
            f"{percentile(found.quantile)} {duration(judged.a_value)} → {duration(judged.b_value)}", className="r hide"
        ),
        html.Td(pill(word, kind), className="r"),
    ]
    return html.Tr(cells, **attributes({"data-href": href}))


def _no_pair(context: Context, a: str | None, b: str | None) -> Component:
    back = link("Back to the service", href=context.view.link(service_path(context.service or "")), className="btn pri")
    if a and b:
        text = f"{a} or {b} is neither a version of {context.service} nor a window such as 2026-11-21T12:00/6h."
        return nothing("One side is unknown", text, actions=[back])
    only = ", ".join(str(each) for each in context.versions["version"]) or "none"
    return nothing("Only one version so far", f"Seen of {context.service}: {only}.", actions=[back])


def _head(context: Context, pair: Pair | None) -> Component:
    left = html.Div([html.H1("Compare"), html.P("Two versions, or two windows, of one service", className="sub")])
    if pair is None:
        return html.Div(left, className="phead")
    swap = context.view.here(a=pair.b_name, b=pair.a_name)
    tools = [
        _picker(context, "A", pair, pair.a_name),
        html.Span("→", className="muted"),
        _picker(context, "B", pair, pair.b_name),
        link("Swap", href=swap, className="btn ghost"),
    ]
    return html.Div([left, html.Span(className="grow"), html.Div(tools, className="pick")], className="phead")


def _picker(context: Context, side: str, pair: Pair, name: str) -> Component:
    """A menu of the versions; each is a link, because every comparison is an address."""
    names = [str(each) for each in reversed(list(context.versions["version"]))]
    links = [
        link(
            [html.Span(each), html.Span("now" if each == name else "", className="muted")],
            href=context.view.here(a=each if side == "A" else pair.a_name, b=each if side == "B" else pair.b_name),
            className="btn ghost",
        )
        for each in names
    ]
    label_text = html.Summary(
        [html.Span(side, className="kbd"), html.B(name), html.I(className="ic ic-down")], className="btn"
    )
    return html.Details([label_text, html.Div(links, className="pop")], className="menu")


def _verdict(context: Context, judged: Comparison) -> Component:
    found = judged.verdict
    word, kind = _WORDS[found.kind]
    parts = [html.Div(_headline(judged), className="big"), html.Div(_evidence(context, judged), className="muted")]
    chips = [
        html.Span([swatch(each.stage), f" {label(each.stage)} {percent(each.share)}"], className="dom")
        for each in judged.growth[:2]
        if each.share >= _MIN_BLAME
    ]
    blamed = html.Div([html.Div("Blame", className="muted"), html.Div(chips, className="chips")])
    show = bool(chips) and found.kind == "regression"
    return html.Div([pill(word, kind), html.Div(parts, className="say"), blamed if show else None], className="verdict")


def _headline(judged: Comparison) -> str:
    found, at = judged.verdict, percentile(judged.quantile)
    if found.kind == "not_enough" or found.ratio is None:
        fewer = min(found.a_n, found.b_n)
        return f"{count(fewer)} requests are too few to judge {at}"
    values = f"{duration(found.a_value)} → {duration(found.b_value)}"
    if found.kind == "same":
        return f"{at} did not change: {values}"
    factor = found.ratio if found.ratio >= 1 else 1 / found.ratio
    return f"B is {count(factor)}{TIMES} {'slower' if found.ratio >= 1 else 'faster'} at {at}: {values}"


def _evidence(context: Context, judged: Comparison) -> str:
    found = judged.verdict
    parts = [f"{count(found.a_n)} and {count(found.b_n)} requests"]
    if found.ratio_low is not None and found.ratio_high is not None and found.kind != "not_enough":
        high = f"{count(found.ratio_high)}{TIMES}" if found.ratio_high < 1000 else "unknown"  # noqa: PLR2004 - an end that is not known
        parts.insert(0, f"95{THIN}% interval {count(found.ratio_low)} to {high}")
    median = compared(context, judged.pair, 0.5).verdict
    if median.kind == "same" and judged.quantile > 0.5:  # noqa: PLR2004 - the median
        parts.append(f"p50 unchanged ({duration(median.a_value)} → {duration(median.b_value)})")
    elif median.ratio is not None and judged.quantile > 0.5:  # noqa: PLR2004 - the median
        parts.append(f"p50 {duration(median.a_value)} → {duration(median.b_value)}")
    return " · ".join(parts)


def _frames(context: Context, pair: Pair) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    source = context.source
    least = min(source.ask(source.read.latency, each).count for each in (pair.a, pair.b))
    grid = percentile_grid(least)
    if not grid or not enough(least, 0.5):
        return None
    return source.ask(source.read.breakdown, pair.a, grid), source.ask(source.read.breakdown, pair.b, grid)


def _delta_card(context: Context, pair: Pair) -> Component:
    title, sub = "What B adds, by percentile", "B minus A, split by stage; parts sum to the line"
    frames = _frames(context, pair)
    if frames is None:
        return card(title, _few(), size="c7")
    spoken = f"What {pair.b_name} adds to {pair.a_name} at each percentile, split by stage. The table beside it has the numbers."
    return card(
        title,
        chart("delta", delta_figure(*[each[each["percentile"] <= _LAST_DELTA] for each in frames]), spoken, 330),
        sub=sub,
        size="c7",
    )


def _both_card(context: Context, pair: Pair) -> Component:
    frames = _frames(context, pair)
    if frames is None:
        return card("Latency by percentile", _few(), size="c7")
    figure = both_figure(*frames, names=(pair.a_name, pair.b_name))
    spoken = f"Latency of {pair.a_name} and {pair.b_name} by percentile, on a logarithmic scale."
    return card("Latency by percentile", chart("both", figure, spoken, 290), sub="log scale", size="c7")


def _few() -> Component:
    return html.P("Too few requests on one side: p50 needs 20 of each.", className="muted")


def _blame_card(context: Context, judged: Comparison) -> Component:
    view = context.view
    options = {value: (percentile(quantile), view.here(p=value)) for value, quantile in _JUDGED.items()}
    chosen = next(value for value, quantile in _JUDGED.items() if quantile == judged.quantile)
    tools = link_tabs("Percentile", options, chosen)
    fewer = min(judged.verdict.a_n, judged.verdict.b_n)
    if not enough(fewer, judged.quantile):
        at = percentile(judged.quantile)
        text = f"{at} needs {whole(needed(judged.quantile))} requests on both sides, one has {whole(fewer)}."
        return card("Blame", empty(f"Too few requests for {at}", text), tools=tools, size="c5")
    frame = judged.stages
    widest = max([abs(float(each)) for each in frame["delta_seconds"]] + [1e-9])
    lowest = min([float(each) for each in frame["delta_seconds"]] + [0.0])
    # Zero stands so far in that the longest bar to the left has room.
    zero = min(_BAR_ROOM, abs(lowest) / widest * _BAR_ROOM)
    rows = [_blame_row(record, widest, zero) for record in records(frame)]
    a, b = judged.verdict.a_value, judged.verdict.b_value
    total = None if a is None or b is None else b - a
    ratio = total / a if total is not None and a else None
    said = f"{duration(total, sign=True)} · {signed_change(ratio)}"
    foot = html.Tr(
        [
            html.Th("End to end", scope="row"),
            html.Td(duration(a), className="r now"),
            html.Td(duration(b), className="r now"),
            html.Td(said, className="bad" if (total or 0) > 0 else "good"),
        ]
    )
    head = (("Stage", "w1"), ("A", "r w2"), ("B", "r w2"), (f"change at {percentile(judged.quantile)}", ""))
    return card("Blame", table(head, rows, "Change by stage", css="insp wide", foot=foot), tools=tools, size="c5")


def _blame_row(record: dict[str, Any], widest: float, zero: float) -> Component:
    stage, share = str(record["stage"]), float(record["share"])
    a, b = float(record["a_seconds"]), float(record["b_seconds"])
    change = b - a
    width = abs(change) / widest * _BAR_ROOM
    left = zero if change >= 0 else zero - min(width, zero)
    small = abs(change) < widest * 0.01
    text = (
        f"±{THIN}0"
        if small
        else duration(change, sign=True) + (f" · {percent(share)}" if abs(share) >= _HALF_PERCENT else "")
    )
    bar = html.Span(
        [
            html.I(className="z", style={"left": f"{zero:.1f}%"}),
            html.I(style={"left": f"{left:.1f}%", "width": f"{max(width, 0.6):.1f}%"}),
            html.B(
                text,
                className="main" if abs(share) >= _CAUSE else "",
                style={"left": f"calc({max(zero, left + width):.1f}% + 6px)"},
            ),
        ],
        className=f"dv st-{hue(stage)}",
    )
    return html.Tr(
        [
            html.Th(html.Span([swatch(stage), label(stage)], className="nm"), scope="row"),
            html.Td(duration(a), className="r"),
            html.Td(duration(b), className="r now"),
            html.Td(bar),
        ],
        **attributes({"data-stage": stage}),
    )


def _else_card(context: Context, pair: Pair) -> Component:
    """What could explain a change without the code: how much traffic, how long, how many failures."""
    source = context.source
    sides = [source.ask(source.read.slo_counts, each, None) for each in (pair.a, pair.b)]
    lengths = [max((each.end - each.start).total_seconds(), 1.0) for each in (pair.a, pair.b)]
    rates = [float(side.total) / length for side, length in zip(sides, lengths, strict=True)]
    errors = [float(side.bad) / float(side.total) if side.total else None for side in sides]
    rows = [
        _signal("Requests", [count(float(side.total)) for side in sides]),
        _signal("Requests / s", [count(rate) for rate in rates], rates[1] / rates[0] - 1 if rates[0] else None),
        _signal("Errors", [percent(each, 2) for each in errors], _points(errors)),
        _signal("Seen for", [span(each.end - each.start) for each in (pair.a, pair.b)]),
    ]
    head = (("Signal", ""), ("A", "r"), ("B", "r"), ("Change", "r"))
    return card(
        "What else changed",
        table(head, rows, "What else changed"),
        sub="rules out the usual confounders",
        size="c5",
        flush=True,
    )


def _points(errors: list[float | None]) -> float | None:
    a, b = errors
    if a is None or b is None:
        return None
    return 0.0 if abs(b - a) < 0.001 else (b / a - 1 if a else 1.0)  # noqa: PLR2004 - a tenth of a percent of requests


def _signal(name: str, sides: list[str], change: float | None = None) -> Component:
    badge: Node = None
    if change is not None:
        badge = pill("same") if abs(change) < _BREATH else pill(signed_change(change), "warn")
    cells = [
        html.Td(name),
        html.Td(sides[0], className="r muted"),
        html.Td(sides[1], className="r"),
        html.Td(badge, className="r"),
    ]
    return html.Tr(cells)
