"""Inference engines page: latency intervals and exact stage means that inference servers report on /metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from ...core.histogram import Distribution, has_enough_samples, samples_needed
from ...core.names import DEFINITIONS, TOKENS_IN, TOKENS_OUT
from ...core.stages import OVERHEAD, label
from ...store.queries.replicas import EngineModel
from ..ui.components import Node, card, code_block, empty, legend, stage_bar, stage_name, table
from ..ui.format import SPACE, UNKNOWN, axis_duration, count, duration, percentile, several
from .page import Context, Page, panel

_PLACE = "/engines"
_QUANTILES = (0.5, 0.95, 0.99)
# Maximum number of cards; the table lists every model.
_MOST_CARDS = 12
# Bucket edges are stored at a resolution of a thirty-second of a doubling: the roundest number within is the original edge.
_BUCKET = 2 ** (1 / 32)
_MOST_DIGITS = 4
_ROUND = (1.0, 0.5, 0.25, 0.2)
_DUST = 1e-9
_SCRAPE = """scrape:
  targets:
    - url: http://llm:8000/metrics
      service: chat"""
_WHY = (
    "Percentiles are intervals, because an engine counts requests in fixed buckets. "
    "Means are exact. For exact percentiles, and the stages of the slowest requests, send the traces of the engine, or run the agent."
)


def render(context: Context) -> Page:
    models = context.source.cached(context.source.read.engines, context.selection)
    body: list[Node] = [_head(context, models)]
    if not models:
        body.append(card(None, _no_engines()))
    else:
        body.append(panel("Models", lambda: _models(context, models)))
        body += [_detail(context, model) for model in models[:_MOST_CARDS]]
    return Page("Engines · Stagelens", [("Engines", None)], body, _PLACE)


def _head(context: Context, models: Sequence[EngineModel]) -> Component:
    services = len({model.service for model in models})
    window = context.view.window_label
    parts = [window[0].lower() + window[1:]]
    if models:
        parts.insert(0, f"{several(len(models), 'model')} of {several(services, 'service')}")
    return html.Div(html.Div([html.H1("Engines"), html.P(" · ".join(parts), className="sub")]), className="phead")


def _no_engines() -> Component:
    return empty(
        "No engine was scraped in this window",
        "vLLM, Triton, TGI, SGLang, TensorRT-LLM, Dynamo, TorchServe, Ray Serve, KServe and BentoML export metrics on "
        "/metrics. Add their addresses to the collector file (STAGELENS_COLLECTOR_CONFIG):",
        code_block(_SCRAPE),
    )


def _models(context: Context, models: Sequence[EngineModel]) -> Component:
    head: list[tuple[Node, str]] = [
        ("Service", ""),
        ("Model", ""),
        ("Requests", "r"),
        ("Rate", "r hide"),
        *((percentile(quantile), "r") for quantile in _QUANTILES),
        ("Mean", "r"),
        ("Mean by stage", ""),
        ("First token, mean", "r hide"),
        ("Tokens out", "r hide"),
    ]
    rows = [_row(context, model) for model in models]
    shown = {stage for model in models for stage in _split(model)}
    foot = html.Span(_WHY)
    return card(
        "Models", table(head, rows, "Models"), sub="from their own metrics", tools=legend(shown), foot=foot, flush=True
    )


def _row(context: Context, model: EngineModel) -> Component:
    split = _split(model)
    first = next((distribution.mean for distribution in model.first_token.values()), None)
    cells = [
        html.Td(model.service, className="b"),
        html.Td(model.model or UNKNOWN),
        html.Td(count(model.count), className="r"),
        html.Td(f"{count(model.count / context.seconds)}/s", className="r hide"),
        *(_between(model.requests, quantile) for quantile in _QUANTILES),
        html.Td(duration(model.requests.mean), className="r b"),
        html.Td(stage_bar(split) if split else html.Span(UNKNOWN, className="muted")),
        html.Td(duration(first), className="r hide"),
        html.Td(_tokens(context, model, TOKENS_OUT), className="r hide"),
    ]
    return html.Tr(cells)


def _detail(context: Context, model: EngineModel) -> Component:
    name = " · ".join(part for part in (model.service, model.model) if part)
    return panel(name, lambda: _times(context, name, model), "c12")


def _times(context: Context, name: str, model: EngineModel) -> Component:
    head: list[tuple[Node, str]] = [("Time", ""), ("Count", "r"), ("Mean", "r")]
    head += [(percentile(quantile), "r") for quantile in _QUANTILES]
    rows = [_time(html.B("Request"), model.requests)] if model.requests.count else []
    rows += [_time(stage_name(stage), distribution) for stage, distribution in model.stages.items()]
    rows += [_time(_model_name("First token", key), distribution) for key, distribution in model.first_token.items()]
    rows += [_time(_model_name("Output token", key), distribution) for key, distribution in model.output_token.items()]
    rows += [
        _time(f"Run of a batch of {band.replace('-', UNKNOWN)}", Distribution(histogram, histogram), only_mean=True)
        for band, histogram in model.batches.items()
    ]
    counts = [
        f"{_tokens(context, model, kind)} {words}"
        for kind, words in ((TOKENS_IN, "in"), (TOKENS_OUT, "out"))
        if model.tokens.get(kind)
    ]
    foot = (
        f"Time that the engine does not report by stage is {label(OVERHEAD)} in the bar above."
        if OVERHEAD in _split(model)
        else None
    )
    return card(name, table(head, rows, f"Times of {name}"), sub=", ".join(counts) or None, foot=foot, flush=True)


def _time(what: Node, distribution: Distribution, *, only_mean: bool = False) -> Component:
    unknown = html.Td(UNKNOWN, className="r muted", title="Only count and sum are reported")
    cells = [
        html.Td(what),
        html.Td(count(distribution.count), className="r"),
        html.Td(duration(distribution.mean), className="r b"),
        *(unknown if only_mean else _between(distribution, quantile) for quantile in _QUANTILES),
    ]
    return html.Tr(cells)


def _model_name(what: str, definition: str) -> Component:
    return html.Div([what, html.Div(DEFINITIONS.get(definition, definition), className="s")])


def _between(distribution: Distribution, quantile: float) -> Component:
    """Return a cell with the bucket edges around *quantile*, because a single number would be too precise."""
    name = percentile(quantile)
    interval = distribution.quantile(quantile)
    if interval is None or not has_enough_samples(distribution.count, quantile):
        why = f"{name} needs {several(samples_needed(quantile), 'request')}"
        return html.Td(UNKNOWN, className="r muted", title=why if distribution.count else "Not reported by this engine")
    if interval.low == 0 and math.isinf(interval.high):
        return html.Td(UNKNOWN, className="r muted", title="Only count and sum are reported, no distribution")
    low = axis_duration(roundest(interval.low, interval.low * _BUCKET)) if interval.low else ""
    if math.isinf(interval.high):
        return html.Td(f"above{SPACE}{low}", className="r", title=f"{name} is above the last bucket bound {low}")
    high = axis_duration(roundest(interval.high / _BUCKET, interval.high))
    if not low:
        return html.Td(f"up{SPACE}to{SPACE}{high}", className="r", title=f"{name} is at most {high}")
    return html.Td(f"{low}{UNKNOWN}{high}", className="r nowrap", title=f"{name} is between {low} and {high}")


def _split(model: EngineModel) -> dict[str, float]:
    split = model.mean_by_stage
    if not split:
        return {}
    rest = (model.requests.mean or 0.0) - sum(split.values())
    return {**split, OVERHEAD: rest} if rest > 0 else split


def _tokens(context: Context, model: EngineModel, kind: str) -> str:
    tokens = model.tokens.get(kind)
    return f"{count(tokens / context.seconds)}{SPACE}tok/s" if tokens else UNKNOWN


def roundest(low: float, high: float) -> float:
    """Return the roundest number between *low* and *high*, both above zero.

    >>> roundest(0.297, 0.304), roundest(0.489, 0.5), roundest(7.34, 7.5), roundest(953, 973)
    (0.3, 0.5, 7.5, 960.0)
    """
    for digits in range(_MOST_DIGITS):
        for part in _ROUND:
            step = 10.0 ** (math.floor(math.log10(high)) - digits) * part
            first = math.ceil(low / step - _DUST) * step
            if first <= high * (1 + _DUST):
                return float(f"{first:.{_MOST_DIGITS}g}")
    return high
