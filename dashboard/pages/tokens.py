"""Tokens page: time to first token, time per output token and throughput of streaming services."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...analysis.comparison import compare_quantile, counts_differ
from ...core.histogram import Histogram, samples_needed, value_at
from ...core.names import FIRST_TOKEN, OUTPUT_TOKEN, STREAM_GAP, TOKENS, TOKENS_IN, TOKENS_OUT
from ...core.stages import label
from ..ui.components import Node, delta, duration_tile, link, link_tabs, ratio_of, spark, tile, tiles
from ..ui.format import UNKNOWN, count, duration, factor, percent, percentile, several, whole
from ..view import service_path
from . import tokens_charts
from .advice import top_advice
from .measures import measure
from .page import Context, Page, empty_page_card, panel
from .service_charts import over_time_card, percentile_card
from .service_frame import service_page

_GLOSSARY = {
    "TTFT": "time to first token: from the arrival of a request to its first token.",
    "TPOT": "time per output token: from the first to the last token, divided by the number of tokens after the first.",
    "ITL": "inter-token latency: the gap between two tokens. TPOT is the mean ITL of a request.",
    "Stall": "the longest gap between two tokens of a request.",
}


def render(context: Context) -> Page:
    return service_page(context, "tokens", lambda: _body(context))


def _body(context: Context) -> list[Node]:
    measures = tokens_charts.measures_of_window(context)
    if not (measures.definitions or measures.put_out.count or measures.taken_in.count):
        return [_no_streaming(context)]
    cards: list[tuple[str, Callable[[], Component | None], *tuple[str, ...]]] = [
        ("Time to first token, by percentile", lambda: tokens_charts.first_token_card(context, measures), "c6"),
        ("Token speed against load", lambda: tokens_charts.speed_card(context, measures), "c6"),
        ("Where the time goes, by percentile", lambda: percentile_card(context, "c7"), "c7", "hide p"),
        ("Breakdown over time", lambda: over_time_card(context, "c5"), "c5", "hide"),
        ("TTFT by prompt length", lambda: tokens_charts.prompt_card(context, measures), "c4"),
        ("TPOT by response length", lambda: tokens_charts.pace_card(context, measures), "c4"),
        ("Response length", lambda: tokens_charts.length_card(measures), "c4"),
        *[
            (f"Ways to lower {name}", lambda name=name: top_advice(context, 3, "c6", name.lower()), "c6")
            for name in ("TTFT", "TPOT")
        ],
    ]
    return [
        _finding(context, measures),
        _tiles(context, measures),
        html.Div([panel(*card) for card in cards], className="grid"),
        _glossary(),
    ]


def _no_streaming(context: Context) -> Component:
    breakdown = context.view.link(service_path(context.service or ""), **context.view.scope)
    return empty_page_card(
        "No streamed request in this window",
        "For a streaming service this page shows the time to the first token, the time "
        "per token, by load and by length of prompt and response.",
        "No setting is needed: agents detect streamed "
        "HTTP responses, `generate` of transformers, and Triton's streams.",
        actions=[link("Breakdown", href=breakdown, className="btn pri")],
    )


def _finding(context: Context, measures: tokens_charts.TokenMeasures) -> Component:
    content = [
        html.Div(headline(context, measures), className="big"),
        html.Div(_evidence(context, measures), className="muted"),
    ]
    names = {
        name: (name.replace("_", " "), context.view.here(by=name)) for name in sorted(measures.definitions, key=str)
    }
    choice = link_tabs("Definition of the first token", names, measures.definition) if len(names) > 1 else None
    return html.Div([html.Div(content, className="say"), choice], className="verdict")


def headline(context: Context, measures: tokens_charts.TokenMeasures) -> str:
    usual, slow = value_at(measures.first, 0.5), value_at(measures.first, 0.99)
    if usual is None:
        return f"{several(measures.first.count, 'first token')}: too few to evaluate"
    if slow is None:
        return f"TTFT p50 is {duration(usual)}; p99 needs {whole(samples_needed(0.99))} requests"
    if not compare_quantile(measures.first, measures.first, 0.99, a_quantile=0.5).has_changed:
        return f"TTFT p99 is {duration(slow)}, as its median"
    text = f"TTFT p99 is {duration(slow)}, {factor(slow / usual)} its median"
    added = _tail_growth(tokens_charts.first_token_frame(context, measures))
    if not added:
        return text
    stage = max(added, key=lambda stage: added[stage])
    return f"{text}: {label(stage)} explains {percent(added[stage] / sum(added.values()))} of the difference"


def _tail_growth(frame: pd.DataFrame) -> dict[str, float]:
    rows = {quantile: frame[frame["percentile"] == quantile] for quantile in (0.5, 0.99)}
    if not all(len(row) for row in rows.values()):
        return {}
    stages = [str(column) for column in frame.columns[5:]]
    grown = {stage: float(rows[0.99][stage].iloc[0] - rows[0.5][stage].iloc[0]) for stage in stages}
    return {stage: seconds for stage, seconds in grown.items() if seconds > 0}


def _evidence(context: Context, measures: tokens_charts.TokenMeasures) -> str:
    requests = measure(context.source, context.selection).requests
    if not measures.definitions:
        return f"No first token was timed in {several(requests, 'request')}."
    text = f"Timed {tokens_charts.definition_words(measures.definition)}: {whole(measures.timed)} of {several(requests, 'request')}."
    if measures.otherwise:
        text += f" Not shown, because times of different definitions are not comparable: {whole(measures.otherwise)}."
    others = requests - measures.timed - measures.otherwise
    return f"{text} Without a first token: {whole(others)}." if others > 0 else text


def _tiles(context: Context, now: tokens_charts.TokenMeasures) -> Component:
    before = tokens_charts.token_measures(context.source, context.previous, now.definition)
    first, pace = (
        _metric_over_time(context, metric, now.definition, (0.5, 0.99)) for metric in (FIRST_TOKEN, OUTPUT_TOKEN)
    )
    gap = _metric_over_time(context, STREAM_GAP, now.definition, (0.99,))
    timed = tokens_charts.definition_words(now.definition)
    every = f"TTFT {timed}"
    token = f"TPOT, definition {now.definition}"
    return tiles(
        [
            _time(context, "TTFT", every, (now.first, before.first, first), 0.5),
            _time(context, "TTFT", every, (now.first, before.first, first), 0.99),
            _time(context, "TPOT", token, (now.pace, before.pace, pace), 0.5),
            _time(context, "TPOT", token, (now.pace, before.pace, pace), 0.99),
            _rate(context, "Output", TOKENS_OUT, now.put_out, before.put_out),
            _rate(context, "Input", TOKENS_IN, now.taken_in, before.taken_in),
            _time(context, "Stall", f"Stall, definition {now.definition}", (now.gap, before.gap, gap), 0.99),
        ]
    )


def _time(
    context: Context, name: str, definition: str, compared: tuple[Histogram, Histogram, pd.DataFrame], quantile: float
) -> Component:
    now, before, trend = compared
    value = value_at(now, quantile)
    column = percentile(quantile)
    comparison = compare_quantile(before, now, quantile)
    below: Node = f"{count(now.count)} requests"
    drawn = spark([float(seconds) for seconds in trend[column]])
    if value is None:
        below, drawn = f"{whole(now.count)} of {whole(samples_needed(quantile))} needed", None
    elif comparison.growth is not None and comparison.kind != "not_enough":
        below = delta(comparison.growth, certain=comparison.has_changed, after=context.view.compared_words)
    component = duration_tile(f"{name} {column}", value, below, drawn)
    component.title = definition  # pyright: ignore[reportAttributeAccessIssue] - every HTML component has a title
    return component


def _rate(context: Context, name: str, kind: str, now: Histogram, before: Histogram) -> Component:
    if not now.count:
        return tile(name, UNKNOWN, "", "no token counts")
    series = _metric_over_time(context, TOKENS, kind, ())
    axis = context.axis_of(series)
    rates = series["total"].to_numpy(dtype=float) / axis.covered_seconds(series["at"])
    shown = [float(number) for number in (rates[:-1] if context.unfinished(series["at"], axis) else rates)]
    rate = now.sum / context.seconds
    ratio = ratio_of(rate, before.sum / context.previous_seconds if context.previous_seconds else None)
    below: Node = f"{count(now.sum / now.count)} per request"
    if ratio is not None:
        certain = counts_differ(before.count, now.count, context.previous_seconds, context.seconds)
        below = delta(ratio, certain=certain, worse_up=False, after=context.view.compared_words)
    return tile(name, count(rate), "tok/s", below, spark(shown))


def _metric_over_time(context: Context, metric: str, key: str, quantiles: tuple[float, ...]) -> pd.DataFrame:
    source = context.source
    return source.cached(source.read.streams_over_time, context.selection, metric, key, quantiles, context.axis.step)


def _glossary() -> Component:
    terms = [[html.Dt(name), html.Dd(text)] for name, text in _GLOSSARY.items()]
    return html.Dl([part for pair in terms for part in pair], className="glossary")
