"""Service page: latency breakdown, tail inspector, time charts and slow exemplars of one service.

The inspector compares the stages of the median with those of a higher percentile. The server renders the complete table;
on hover the browser rewrites it from the numbers in the attribute `data-inspector`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...analysis.breakdown import COLUMNS, PERCENTILES, Measures, stages_at
from ...analysis.comparison import compare_failures, counts_differ, errors_along
from ...analysis.costs import MILLION, cost_of_request
from ...core.histogram import has_enough_samples, samples_needed
from ...core.stages import UNEXPLAINED, label, position
from ..figures.elements import safe
from ..figures.percentile import has_wide_bucket, nearest, place
from ..ui.components import (
    Node,
    attributes,
    card,
    delta,
    duration_tile,
    empty,
    link,
    ratio_of,
    spark,
    steady,
    swatch,
    table,
    tile,
    tiles,
)
from ..ui.design_tokens import hue
from ..ui.format import THIN, UNKNOWN, count, duration, interval, money, percent, percentile, portion, rank, span, whole
from ..ui.trace_text import stall_sentence
from ..view import service_path
from .across_services import called_sentence, path_card
from .advice import top_advice
from .measures import breakdown, breakdown_with_shares, compared_latency, measure, stalls
from .page import Context, Page, are_ranked, panel, records, traces_table
from .replicas import few_replicas_card
from .scope_filter import slo_scope_note
from .service_charts import grid_frame, heat_card, hidden_in, over_time_card, percentile_card
from .service_code import code_card, tail_percentile
from .service_frame import agent_cost, service_page, suspect_note
from .service_status import budget_tile_words, burn_note
from .service_summary import first_token_tile, summarize, summary_line
from .shared_attributes import shared_card

_MIN_BAR = 0.6
# Above the first share one cause explains all requests; below the second a cause is noise. [ratio]
_ONE_CAUSE, _NO_CAUSE = 0.85, 0.1
_FIXED = "the source has fixed buckets"
_BAND = "Number of requests, and the bounds of their latency"
# The two stages that dominate most requests of a percentile, with shares; None if one stage dominates nearly all.
Mixture = tuple[str, float, str, float] | None
_EXEMPLARS, _ADVICE = 6, 3
# Number of retained requests searched for those near a pinned percentile.
_SEARCHED_REQUESTS = 400
# Distance on the percentile axis, in grid steps on both sides: a fifth of a nine.
_NEAR = 8
# Unattributed share above which a note is shown: the time between stages is not instrumented. [ratio]
_LARGE_UNATTRIBUTED_SHARE = 0.15
# Minimum rank of a slow request. [ratio]
_SLOW_RANK = 0.9


def render(context: Context) -> Page:
    return service_page(context, "", lambda: _body(context))


def _body(context: Context) -> list[Node]:
    measures = measure(context.source, context.selection)
    advice = panel("Ways to fix this", lambda: top_advice(context, _ADVICE, "c4"), "c4")

    def exemplars() -> Component:
        return _exemplars(context, "c12" if advice.children is None else "c8")

    charts = [
        panel("Where the time goes, by percentile", lambda: percentile_card(context), "c8", "p hide"),
        panel("What the tail adds", lambda: _inspector(context), "c4", "p hide"),
        panel("Breakdown over time", lambda: over_time_card(context), "c6", "hide"),
        panel("Every request", lambda: heat_card(context), "c6", "hide sel"),
        panel(
            "What slow requests share",
            lambda: shared_card(context, is_stated=context.once(summarize).states_cause),
            needs="p sel",
        ),
        panel("Across services", lambda: path_card(context), needs="p"),
        panel("Your code", lambda: code_card(context), needs="p sel"),
        panel(
            "Latency by replica", lambda: few_replicas_card(context, is_stated=context.once(summarize).states_replica)
        ),
        panel("Slow exemplars", exemplars, "c8", "p"),
        advice,
    ]
    return [
        panel("Summary", lambda: summary_line(context)),
        _tiles(context, measures),
        _unattributed_note(context, measures),
        html.Div(charts, className="grid"),
        suspect_note(context),
        agent_cost(context),
    ]


def _tiles(context: Context, now: Measures) -> Component:
    before = measure(context.source, context.previous)
    series = context.source.cached(
        context.source.read.quantiles_over_time, context.selection, (0.5, 0.99), context.axis.step
    )
    rate = now.requests / context.seconds
    old_rate = before.requests / context.previous_seconds if context.previous_seconds else None
    busier = counts_differ(before.requests, now.requests, context.previous_seconds, context.seconds)
    return tiles(
        [
            tile(
                "Requests",
                count(rate),
                "/s",
                _change_words(context, ratio_of(rate, old_rate), now.requests, certain=busier, worse_up=False),
                spark(context.rates(series)),
            ),
            _latency_tile(context, 0.5, now, series),
            _latency_tile(context, 0.99, now, series),
            first_token_tile(context),
            tile("Errors", percent(now.error_ratio, 2), "", _errors_note(context, now, before)),
            _budget_tile(context),
            _cost_tile(context, now, before, certain=busier) or _waiting_tile(now),
        ]
    )


def _latency_tile(context: Context, quantile: float, now: Measures, series: pd.DataFrame) -> Component:
    """Return a percentile as a tile: a number, or its error bounds if the chart shows those."""
    name = percentile(quantile)
    sparkline = spark([float(point) for point in series[name]]) if len(series) else None
    if not has_enough_samples(now.requests, quantile):
        return tile(name, UNKNOWN, "", f"{_requests(now.requests)}, needs {whole(samples_needed(quantile))}", None)
    row = breakdown(context.source, context.selection).iloc[PERCENTILES.index(quantile) :][:1]
    comparison = compared_latency(context, quantile)
    below = _change_words(context, comparison.growth, certain=comparison.has_changed) if comparison else None
    if not has_wide_bucket(row)[0]:
        return duration_tile(name, float(row["value_seconds"].iloc[0]), below, sparkline)
    value = interval(float(row["low_seconds"].iloc[0]), float(row["high_seconds"].iloc[0]))
    return tile(name, value, "", below or "the source has fixed buckets", None)


def _errors_note(context: Context, now: Measures, before: Measures) -> Node:
    counts = f"{count(now.errors)} of {count(now.requests)}"
    moved = ratio_of(now.error_ratio, before.error_ratio)
    if moved is None:
        return counts
    difference = compare_failures(before.errors, before.requests, now.errors, now.requests)
    return html.Span(_change_words(context, moved, certain=difference.is_certain), title=counts)


def _change_words(
    context: Context, ratio: float | None, requests: int | None = None, *, certain: bool, worse_up: bool = True
) -> Node:
    if ratio is None:
        return _requests(requests) if requests is not None else None
    return delta(ratio, certain=certain, worse_up=worse_up, after=context.view.compared_words)


def _requests(n: int) -> str:
    return f"{count(n)} request{'s' * (n != 1)}"


def _cost_tile(context: Context, now: Measures, before: Measures, *, certain: bool) -> Component | None:
    costs, view = context.source.costs, context.view
    per_hour = costs.per_hour(context.service or "", view.text("env")) if costs else None
    if costs is None or per_hour is None or view.scope:
        return None
    cost = cost_of_request(per_hour, context.seconds, now.requests)
    if cost is None:
        return None
    moved = ratio_of(cost, cost_of_request(per_hour, context.previous_seconds, before.requests))
    below = _change_words(context, moved, certain=certain) or f"{money(per_hour, costs.currency)} per hour"
    return tile("Cost per 1 M", money(cost * MILLION, costs.currency), "", below)


def _waiting_tile(now: Measures) -> Component | None:
    waiting = now.waiting_share
    return (
        tile("Time spent waiting", percent(waiting), "of p99", "queue, network, cold start")
        if waiting is not None
        else None
    )


def _unattributed_note(context: Context, now: Measures) -> Component | None:
    total = sum(now.median_stages.values())
    unexplained = [stage for stage in UNEXPLAINED if now.median_stages.get(stage)]
    share = sum(now.median_stages[stage] for stage in unexplained) / total if total else 0.0
    if share <= _LARGE_UNATTRIBUTED_SHARE or not has_enough_samples(now.requests, 0.5):
        return None
    where = link("Ways to fix this →", href=_advice(context), className="link")
    named = " and ".join(map(label, unexplained))
    text = " of the median: no other stage covers this time. "
    return html.Div([html.Span([html.B(f"{named}: {percent(share)}"), text, where])], className="quiet")


def _budget_tile(context: Context) -> Component | None:
    status = context.slo
    if status is None or status.budget_left is None:
        return None
    other = slo_scope_note(status.slo, context.selection)
    below: list[Node] = [html.Span(other, className="muted"), " · "] if other else []
    below += burn_note(status, context.view)
    objective = f"{status.slo.name}: {status.slo.in_words()}"
    return tile("Error budget", *budget_tile_words(status), html.Span(below, title=objective))


def _inspector(context: Context) -> Component:
    frame, view = grid_frame(context), context.view
    if not len(frame) or not (frame["percentile"] == 0.5).any():  # noqa: PLR2004 - the median
        return card("What the tail adds", empty("Too few requests", "p50 needs 20 requests."), size="c4")
    latency = context.source.cached(context.source.read.latency, context.selection)
    return inspector(
        frame,
        view.percentile,
        errors=errors_along(latency, latency, frame["percentile"].tolist(), a_quantile=0.5),
        dominants=context.source.cached(context.source.read.dominants, context.selection, PERCENTILES),
        shares=breakdown_with_shares(context.source, context.selection).shares,
        stalls=stalls(context.source, context.selection),
        hidden=hidden_in(context),
        advice=_advice(context),
        show_all=view.here(hide=None),
        called=called_sentence(context, tail_percentile(context)),
    )


def _exemplars(context: Context, size: str) -> Component:
    source, view = context.source, context.view
    pinned = view.percentile if view.text("p") else None
    if pinned is None:
        frame = slow_of_each_cause(source.cached(source.read.one_per_cause, context.selection, _EXEMPLARS))
    else:
        frame = nearest_in_rank(_retained_near(context, pinned), pinned)
    more = link("All traces →", href=view.link("/traces", svc=context.service, **view.scope), className="link")
    title = "Slow exemplars" if pinned is None else f"Exemplars around {percentile(pinned)}"
    if not len(frame):
        return card(
            title,
            empty(
                "No trace of this window was retained",
                "Agents retain the slowest, failed, cold-start and random requests.",
            ),
            size=size,
        )
    least = f", {rank(float(frame['rank'].min()))} and up" if are_ranked(frame) else ""
    slow = f"one per cause{least}"
    sub = slow if pinned is None else "nearest in rank"
    retention = source.read.retention
    # In a run report, traces are retained as long as all other data.
    lasting = f", for {span(retention.traces)}" if retention.traces < retention.hours else ""
    rule = f"Retained: {frame.attrs['rule']}{lasting}."
    return card(title, traces_table(frame, view, title), sub=sub, tools=more, flush=True, foot=rule, size=size)


def slow_of_each_cause(exemplars: pd.DataFrame) -> pd.DataFrame:
    first = exemplars.drop_duplicates("dominant")
    slow = first[~(first["rank"] < _SLOW_RANK)]
    return slow if len(slow) else first.head(1)


def _advice(context: Context) -> str:
    return context.view.link(service_path(context.service or "", "advice"), **context.view.scope)


def _retained_near(context: Context, quantile: float) -> pd.DataFrame:
    grid = breakdown(context.source, context.selection)
    at = nearest(grid["percentile"], quantile)
    low, high = (grid["value_seconds"].iloc[min(max(at + side * _NEAR, 0), len(grid) - 1)] for side in (-1, 1))
    between = (float(low), float(high) if at + _NEAR < len(grid) else math.inf)
    return context.source.cached(
        context.source.read.exemplars, context.selection, limit=_SEARCHED_REQUESTS, between_seconds=between
    )


def nearest_in_rank(exemplars: pd.DataFrame, quantile: float, limit: int = _EXEMPLARS) -> pd.DataFrame:
    """Return the requests of *exemplars* (see `read.exemplars`) whose ranks are nearest to *quantile*, slowest first."""
    chosen = exemplars.dropna(subset="rank")
    away = [
        abs(place(min(float(share), 0.999999), even=False) - place(quantile, even=False)) for share in chosen["rank"]
    ]
    near = chosen.assign(away=away).nsmallest(limit, "away").sort_values("rank", ascending=False)
    return near.drop(columns="away")


def inspector(
    frame: pd.DataFrame,
    wanted: float,
    *,
    errors: Sequence[float] = (),
    dominants: pd.DataFrame | None = None,
    shares: pd.DataFrame | None = None,
    stalls: pd.DataFrame | None = None,
    hidden: Collection[str] = (),
    advice: str | None = None,
    show_all: str | None = None,
    called: str = "",
) -> Component:
    """Return the inspector card for the percentile of *frame* nearest to *wanted*.

    The other frames are about the same percentiles; *advice* and *show_all* are addresses.
    """
    shown = nearest(frame["percentile"], wanted)
    base, tail = stages_at(frame, nearest(frame["percentile"], 0.5)), stages_at(frame, shown)
    added = {stage: tail.get(stage, 0.0) - base.get(stage, 0.0) for stage in _stages_with_time(frame)}
    order = sorted(added, key=lambda stage: -added[stage])
    error = errors[shown] if errors else 0.0
    widest = max([abs(seconds) for seconds in added.values() if abs(seconds) > error] + [1e-9])
    mixed: list[Mixture] = mixtures(dominants, frame) if dominants is not None else [None for _ in range(len(frame))]
    held = _stall_sentences(stalls, frame) if stalls is not None else [""] * len(frame)
    values: dict[str, Any] = {
        **_browser_data(frame, base, mixed),
        "held": held,
        "shares": _share_intervals(shares, frame) if shares is not None else {},
        "default": shown,
        "widest": _rounded(widest),
        "errors": [_rounded(error) for error in errors] or [0.0] * len(frame),
    }
    named = str(values["percentiles"][shown])
    before, now = sum(base.values()), sum(tail.values())
    rows = [
        _stage_row(
            stage, (base.get(stage, 0.0), tail.get(stage, 0.0)), (error, widest), hidden, _share_text(values, stage)
        )
        for stage in order
    ]
    notes_of = [_percentile_notes(values, index) for index in range(len(frame))]
    notes = [
        html.Span([*_gap_sentence(order, added, now - before, error, named), _advice_link(advice)]),
        called if order[:1] == ["dependency"] else None,
        _hover_text("aside", notes_of[shown], notes_of),
        _hidden_stages_note([stage for stage in added if stage in hidden], show_all),
    ]
    return card(
        "What the tail adds",
        html.Div(
            _inspector_table(rows, named, _total_row(before, now, error, unsure=bool(values["wide"][shown]))),
            **attributes({"data-inspector": json.dumps(values, separators=(",", ":"))}),
        ),
        sub=["p50 → ", _hover_text("percentile", named, values["percentiles"])],
        tools=html.Span(
            _hover_text("band", values["bands"][shown], values["bands"]), className="muted num", title=_BAND
        ),
        foot=notes,
        size="c4",
    )


def _share_intervals(shares: pd.DataFrame, frame: pd.DataFrame) -> dict[str, list[list[int]]]:
    intervals = {
        (str(stage), float(at)): [round(low * 100), round(high * 100)]
        for stage, at, low, high in zip(
            *(shares[column] for column in ("stage", "percentile", "low_share", "high_share")), strict=True
        )
    }
    percentiles = [float(quantile) for quantile in frame["percentile"]]
    return {stage: [intervals.get((stage, at), [0, 0]) for at in percentiles] for stage in _stages_with_time(frame)}


def _share_text(values: Mapping[str, Any], stage: str) -> str | None:
    """Return the interval of the share of *stage* at the shown percentile; `inspector.js` has the same words."""
    if stage not in values["shares"]:
        return None
    low, high = values["shares"][stage][values["default"]]
    return f"{low} to {high}{THIN}% of the latency, with 95{THIN}% confidence"


def _hover_text(what: str, text: str, texts: Sequence[str] = ()) -> Component:
    """Return *text* marked so that the browser replaces it, with one of *texts*, when the pointer selects another percentile."""
    marked = html.Span(text, **attributes({f"data-{what}": ""}))
    return steady(marked, texts) if texts else marked


def _inspector_table(rows: list[Component], named: str, foot: Component) -> Component:
    follows = _hover_text("percentile", named)
    head: list[tuple[Node, str]] = [("Stage", "w1"), ("p50", "r w2"), (follows, "r w2"), ("added", "")]
    return table(head, rows, "Stages of the median and of the chosen percentile", css="insp", foot=foot)


def _stages_with_time(frame: pd.DataFrame) -> list[str]:
    return [str(column) for column in frame.columns if column not in COLUMNS and float(frame[column].sum()) > 0]


def mixtures(dominants: pd.DataFrame, frame: pd.DataFrame) -> list[Mixture]:
    parts: dict[float, list[tuple[str, float]]] = {}
    for quantile, stage, share in zip(dominants["percentile"], dominants["stage"], dominants["share"], strict=True):
        parts.setdefault(float(quantile), []).append((str(stage), float(share)))
    return [_mixture(parts.get(float(quantile), [])) for quantile in frame["percentile"]]


def _mixture(shares: list[tuple[str, float]]) -> Mixture:
    if len(shares) < 2:  # noqa: PLR2004 - a single cause
        return None
    (first, most), (second, next_most) = shares[:2]
    return None if most > _ONE_CAUSE or next_most < _NO_CAUSE else (first, most, second, next_most)


def _stall_sentences(stalls: pd.DataFrame, frame: pd.DataFrame) -> list[str]:
    stalls_by_percentile = stalls.set_index("percentile").drop(columns=list(COLUMNS[1:]))
    seconds = records(stalls_by_percentile.reindex(frame["percentile"], fill_value=0.0))
    rows = zip(seconds, frame["value_seconds"], frame["percentile"], strict=True)
    return [stall_sentence(record, float(value), _percentile_name(float(quantile))) for record, value, quantile in rows]


def _percentile_name(quantile: float) -> str:
    return f"p{100 * quantile:.4g}"


def _browser_data(frame: pd.DataFrame, base: Mapping[str, float], mixed: list[Mixture]) -> dict[str, Any]:
    stages = _stages_with_time(frame)
    wide = has_wide_bucket(frame)
    causes = sorted({stage for mixture in mixed if mixture for stage in (mixture[0], mixture[2])}, key=position)
    return {
        "base": {stage: _rounded(base.get(stage, 0.0)) for stage in stages},
        "stages": {stage: [_rounded(float(seconds)) for seconds in frame[stage]] for stage in stages},
        "percentiles": [_percentile_name(float(quantile)) for quantile in frame["percentile"]],
        "bands": [_bounds_words(record) for record in records(frame[list(COLUMNS)])],
        "wide": [int(flag) for flag in wide],
        "fixed": _FIXED,
        "causes": [label(cause) for cause in causes],
        "mixed": [
            [causes.index(mixture[0]), round(mixture[1] * 100), causes.index(mixture[2]), round(mixture[3] * 100)]
            if mixture
            else 0
            for mixture in mixed
        ],
    }


def _percentile_notes(values: Mapping[str, Any], shown: int) -> str:
    """Return notes on the percentile: stalls, error bounds, mixed causes; `inspector.js` has the same logic."""
    notes: list[str] = [values["held"][shown]] if values["held"][shown] else []
    if values["wide"][shown]:
        notes.append(f"The value is in {values['bands'][shown].split(',')[0]}: {values['fixed']}.")
    if values["mixed"][shown]:
        first, most, second, less = values["mixed"][shown]
        causes = values["causes"]
        notes.append(
            f"Here {percent(most / 100)} of requests are mostly {causes[first]}, {percent(less / 100)} mostly {causes[second]}."
        )
    return " ".join(notes)


def _stage_row(
    stage: str, seconds: tuple[float, float], scale: tuple[float, float], hidden: Collection[str], share: str | None
) -> Component:
    (before, now), (error, widest) = seconds, scale
    added = now - before
    width = max(_MIN_BAR, min(100.0, abs(added) / widest * 100))
    bar = html.I(className="less" if added < 0 else "", hidden=abs(added) <= error, style={"width": f"{width:.1f}%"})
    off = stage in hidden
    name = html.Button(
        [swatch(stage), html.Span(label(stage))],
        type="button",
        className="nm lit",
        title=f"{label(stage)}: {'hidden in the charts; Alt+click: show' if off else 'click: highlight in the charts; Alt+click: hide'}",
        **attributes({"data-lit": safe(label(stage)), "aria-pressed": "false"}),
    )
    return html.Tr(
        [
            html.Th(name, scope="row"),
            html.Td(duration(before), className="r"),
            html.Td(duration(now), className="r now", title=share, **attributes({"data-now": ""})),
            html.Td(html.Span(bar, className=f"dv st-{hue(stage)}", title=duration(added, sign=True))),
        ],
        className="off" if off else "",
        **attributes({"data-stage": stage}),
    )


def _total_row(before: float, now: float, error: float, *, unsure: bool) -> Component:
    kind = "bad" if now - before > error else "muted"
    return html.Tr(
        [
            html.Th("Total", scope="row"),
            html.Td(duration(before), className="r now"),
            html.Td(("≈ " if unsure else "") + duration(now), className="r now", **attributes({"data-total": ""})),
            html.Td(duration(now - before, sign=True), className=kind, **attributes({"data-added": ""})),
        ]
    )


def _gap_sentence(order: list[str], added: Mapping[str, float], gap: float, error: float, named: str) -> list[Node]:
    if gap <= error or not order:
        return [f"The tail adds no time beyond the error: p50 and {named} do not differ."]
    most = order[0]
    return [html.B(label(most)), " explains ", html.B(portion(added[most] / gap)), f" of the p50→{named} gap."]


def _advice_link(advice: str | None) -> Node:
    return html.Span([" ", link("Ways to fix this →", href=advice, className="link")]) if advice else None


def _hidden_stages_note(hidden: Collection[str], show_all: str | None) -> Component | None:
    if not hidden:
        return None
    names = ", ".join(label(stage) for stage in sorted(hidden, key=position))
    return html.Span([f"Not in the charts: {names}. ", link("Show all", href=show_all or "", className="link")])


def _bounds_words(record: dict[str, Any]) -> str:
    low, high = float(record["low_seconds"]), float(record["high_seconds"])
    return f"{interval(low, high)}, n {count(int(record['n']))}"


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
