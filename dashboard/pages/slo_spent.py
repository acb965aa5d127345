"""Causes of the spent error budget: bad requests by stage, and stage budgets.

The card, the page of the objective and its incident evaluate the same bad requests and name the same stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...alerts.delivery.message_text import failures_text
from ...alerts.evaluation.evidence import CALM_BEFORE, OF_REQUESTS, BudgetSplit, StageUse, filter_params, stage_budgets
from ...alerts.evaluation.slo_status import SloStatus
from ...alerts.objectives.slo import Slo
from ...analysis.comparison import StageGrowth, dominant_growth
from ...core.histogram import has_enough_samples, samples_needed
from ...core.stages import label
from ...questions.changed import Failures, explain_violations, slow_breakdown
from ..figures.budget import SPENT_COLUMNS, UNEXPLAINED, spent_figure, spent_stages
from ..figures.time_axis import step_for
from ..ui.components import Node, Nodes, attributes, card, chart, empty, link, link_tabs, stage_name, swatch, table
from ..ui.design_tokens import hue
from ..ui.format import axis_duration, count, duration, percent, percentile, portion, several, whole
from ..view import SCOPE, View, service_path
from .page import Context, clock_or_date, records
from .service_status import maintenance_note

_BUDGETS_TITLE = "Stage budgets"
_MAX_VERSIONS = 4
# Maximum number of exceeded budgets named in a sentence.
_MAX_NAMED = 3
_SPENT_TITLE = "What spent the budget"
# Wide bars are easier to click: a third of the steps of other charts.
_COARSER = 3
NO_CAUSE = "No stage dominates the bad requests"


def spent_card(context: Context, status: SloStatus) -> Component:
    slo, source, axis = status.slo, context.source, context.axis
    if slo.stage is not None:
        text = f"Each bad request of this objective spent too long in {label(slo.stage)}"
        return card(
            _SPENT_TITLE,
            empty(text, actions=[_dominated_link(context, slo)]),
            sub=f"objective for the stage {label(slo.stage)}",
        )
    if slo.kind not in OF_REQUESTS:
        return card(_SPENT_TITLE, empty("Objectives of this kind have no stages"), sub=f"objective of kind {slo.kind}")
    step = step_for((axis.end - axis.start) * _COARSER)
    chosen = slo.select(axis.start, axis.end)
    frame = source.cached(source.read.bad_over_time, chosen, slo.threshold_seconds, step)
    bad = float(frame["bad"].sum()) if len(frame) else 0.0
    if not bad:
        none = "No bad request in this window" if len(frame) else "No request in this window"
        return card(_SPENT_TITLE, empty(none), sub="bad requests by stage")
    stages = spent_stages(frame)
    spent = {stage: float(frame[stage].sum()) for stage in stages}
    figure = spent_figure(
        frame,
        context.axis_of(frame),
        lambda stage, at: _traces_path(context, slo, stage, at, context.axis_of(frame).step),
        versions=context.releases,
        reported=context.events,
    )
    drawn = chart(
        "spent", figure, _spent_words(spent, float(frame[UNEXPLAINED].sum()), bad), 220, frame=_spent_table(frame)
    )
    compared = source.cached(slow_breakdown, source.read, chosen, slo.indicator)
    return card(
        _SPENT_TITLE,
        # Without slow requests no stage is to blame.
        [drawn, _excess_table(records(compared)) if stages else None],
        sub=f"{count(bad)} bad requests, {_window_words(context)}",
        foot=[f"{_window_cause(context, slo, axis.start, axis.end)[1]}.", maintenance_note(slo, axis.start, axis.end)],
    )


def _dominated_link(context: Context, slo: Slo) -> Component:
    href = _traces_path(context, slo, slo.stage or "", context.axis.start, context.axis.end - context.axis.start)
    return link(f"Requests dominated by {label(slo.stage or '')}", href=href, className="btn")


def _window_words(context: Context) -> str:
    words = context.view.window_label
    return f"{words[0].lower()}{words[1:]}"


def _traces_path(context: Context, slo: Slo, stage: str, at: datetime, step: timedelta) -> str:
    start, end = max(at, context.axis.start), min(at + step, context.axis.end)
    moments = {"from_": str(int(start.timestamp() * 1000)), "to": str(int(end.timestamp() * 1000))}
    # Bad requests without a stage are failed requests.
    why = {"dom": stage} if stage else {"err": "1"}
    return context.view.link("/traces", svc=context.service, **filter_params(slo), **why, **moments)


def _spent_words(spent: Mapping[str, float], failed: float, bad: float) -> str:
    largest = sorted(spent.items(), key=lambda pair: -pair[1])[:3]
    shares = [f"{label(stage)} {percent(number / bad)}" for stage, number in largest]
    lost = [f"failed {percent(failed / bad)}"] if failed else []
    return f"{count(bad)} bad requests: {', '.join([*lost, *shares])}."


def _spent_table(frame: pd.DataFrame) -> pd.DataFrame:
    names = {"at": "time (UTC)", "bad": "bad requests", UNEXPLAINED: "failed"}
    names |= {stage: f"{label(stage)} (requests)" for stage in spent_stages(frame)}
    return frame[[*SPENT_COLUMNS, *spent_stages(frame)]].rename(columns=names)


def _excess_table(rows: list[dict[str, Any]]) -> Component:
    shown = [row for row in rows if float(row["bad_mean_seconds"]) > 0]
    widest = max((abs(float(record["excess_seconds"])) for record in shown), default=0.0) or 1e-9
    return table(
        (("Stage", "w1"), ("good", "r w2"), ("slow", "r w2"), ("more", "")),
        [_excess_row(record, widest) for record in shown],
        "Mean stage times of good and slow requests",
        css="insp",
    )


def _excess_row(record: dict[str, Any], widest: float) -> Component:
    stage, excess = str(record["stage"]), float(record["excess_seconds"])
    width = max(0.6, abs(excess) / widest * 100)
    bar = html.I(className="less" if excess < 0 else "", style={"width": f"{width:.1f}%"})
    cells = [
        html.Th(html.Span([swatch(stage), label(stage)], className="nm"), scope="row"),
        html.Td(duration(float(record["good_mean_seconds"])), className="r"),
        html.Td(duration(float(record["bad_mean_seconds"])), className="r now"),
        html.Td(html.Span(bar, className=f"dv st-{hue(stage)}", title=duration(excess, sign=True))),
    ]
    return html.Tr(cells, **attributes({"data-stage": stage}))


def stage_budget_use(context: Context, slo: Slo) -> BudgetSplit | None:
    asked, axis = _narrowed(context, slo), context.axis
    return context.source.cached(stage_budgets, context.source.read, asked, axis.start, axis.end)


def stages_card(context: Context, slo: Slo) -> Component:
    split, at = stage_budget_use(context, slo), percentile(slo.objective)
    tools = _versions(context, slo)
    if split is None:
        return card(_BUDGETS_TITLE, empty("No request in this window"), tools=tools)
    sub = f"in the requests at {at}, of {several(split.requests, 'request')}"
    if not has_enough_samples(split.requests, slo.objective):
        text = f"{at} needs {whole(samples_needed(slo.objective))} requests, this window has {whole(split.requests)}."
        return card(_BUDGETS_TITLE, empty("Too few requests to evaluate", text), sub=sub, tools=tools)
    threshold = slo.threshold.total_seconds() if slo.threshold is not None else 0.0
    foot = [*_budget_sentences(split, threshold), maintenance_note(slo, context.axis.start, context.axis.end)]
    return card(_BUDGETS_TITLE, _budget_table(split, threshold, at), sub=sub, tools=tools, foot=html.Span(foot))


def _narrowed(context: Context, slo: Slo) -> Slo:
    part = {SCOPE[key]: value for key, value in context.view.scope.items() if key != "cold"}
    return replace(slo, **{name: value for name, value in part.items() if getattr(slo, name) is None})


def _versions(context: Context, slo: Slo) -> Node:
    view, chosen = context.view, context.view.scope.get("v", "")
    rows = context.versions
    seen = [str(name) for name, n in zip(rows["version"], rows["requests"], strict=True) if n > 0][::-1]
    if slo.version is not None or (len(seen) < 2 and not chosen):  # noqa: PLR2004 - a single version is no choice
        return None
    shown = (
        seen[:_MAX_VERSIONS] if not chosen or chosen in seen[:_MAX_VERSIONS] else [chosen, *seen[: _MAX_VERSIONS - 1]]
    )
    options = {"": ("All versions", view.here(v=None))} | {
        version: (version, view.here(v=version)) for version in shown
    }
    return link_tabs("Version of the stage budgets", options, chosen)


def _budget_sentences(split: BudgetSplit, threshold: float) -> list[Node]:
    sentences = _broken_budgets(split.broken) if split.broken else _met_budgets(split.uses)
    left = _unassigned(split, threshold)
    if split.seconds > threshold and split.rest_seconds > left:
        rest = f"{duration(split.rest_seconds)}; {axis_duration(left)} of the threshold is left for them"
        sentences.append(f". Stages without a budget took {rest}")
    return [*sentences, "."]


def _broken_budgets(uses: Sequence[StageUse]) -> list[Node]:
    parts: list[Node] = []
    for use in uses[:_MAX_NAMED]:
        parts += ["; " if parts else None, html.B(label(use.stage)), f" exceeded its budget: {_use_words(use)}"]
    return [*parts, f", and {len(uses) - _MAX_NAMED} more"] if len(uses) > _MAX_NAMED else parts


def _met_budgets(uses: Sequence[StageUse]) -> list[Node]:
    nearest = max(uses, key=lambda use: use.seconds / use.budget_seconds)
    if len(uses) == 1:
        return [f"{label(nearest.stage)} stayed within its budget: {_use_words(nearest)}"]
    return [f"Every stage stayed within its budget; {label(nearest.stage)} is closest: {_use_words(nearest)}"]


def _use_words(use: StageUse) -> str:
    return f"{duration(use.seconds)} of {axis_duration(use.budget_seconds)}"


def _unassigned(split: BudgetSplit, threshold: float) -> float:
    return max(0.0, threshold - sum(use.budget_seconds for use in split.uses))


def _budget_table(split: BudgetSplit, threshold: float, at: str) -> Component:
    # The scale leaves space for a mark at the end.
    widest = 1.01 * max(max(use.seconds, use.budget_seconds) for use in split.uses)
    head: Sequence[tuple[Node, str]] = (
        ("Stage", "w1"),
        ("Budget", "r w2"),
        (at, "r w2"),
        ("mean", "r w2 hide"),
        ("Over or under", "r w3"),
        ("", "hide"),
    )
    rows = [_budget_row(use, widest) for use in split.uses]
    rest = (_unassigned(split, threshold), split.rest_seconds, split.rest_mean_seconds)
    foot = [
        _sum_row("Without a budget", *rest, "Threshold minus all stage budgets"),
        _sum_row("Whole request", threshold, split.seconds, split.mean_seconds, "The threshold of the objective"),
    ]
    return table(head, rows, _BUDGETS_TITLE, css="insp budgets", foot=foot)


def _budget_row(use: StageUse, widest: float) -> Component:
    cells = [
        html.Th(stage_name(use.stage), scope="row"),
        html.Td(axis_duration(use.budget_seconds), className="r"),
        html.Td(duration(use.seconds), className="r now"),
        html.Td(duration(use.mean_seconds), className="r hide"),
        html.Td(_deviation(use.seconds, use.budget_seconds), className="r"),
        html.Td(_bar(use, widest), className="hide"),
    ]
    return html.Tr(cells)


def _bar(use: StageUse, widest: float) -> Component:
    marks = [
        html.I(style={"width": f"{100 * use.seconds / widest:.1f}%"}),
        html.Span(className="lim", style={"left": f"{100 * use.budget_seconds / widest:.1f}%"}),
    ]
    return html.Span(marks, className=f"dv st-{hue(use.stage)}", title=f"The line is the budget of {label(use.stage)}")


def _sum_row(name: str, budget: float, seconds: float, mean: float, hint: str) -> Component:
    cells = [
        html.Th(name, scope="row"),
        html.Td(axis_duration(budget), className="r", title=hint),
        html.Td(duration(seconds), className="r"),
        html.Td(duration(mean), className="r hide"),
        html.Td(_deviation(seconds, budget), className="r"),
        html.Td(className="hide"),
    ]
    return html.Tr(cells)


def _deviation(seconds: float, budget: float) -> Nodes:
    by = duration(abs(seconds - budget))
    return (
        html.Span(f"{by} over", className="bad b") if seconds > budget else html.Span(f"{by} under", className="muted")
    )


def blamed_cause(context: Context, slo: Slo) -> tuple[str, str]:
    """Return the stage that explains why an objective is not met, "" without one, and a sentence about the cause.

    During an incident the cause is that of the incident, else that of the bad requests of the window.
    """
    view = context.view
    incident = next((open_incident for open_incident in context.open_incidents if open_incident.name == slo.name), None)
    if incident is None:
        return _window_cause(context, slo, view.start, view.end)
    if incident.cause_kind in ("no_data", "failures"):
        return "", incident.cause[:1].upper() + incident.cause[1:]
    return _cause(slo, incident.stages, f"since {clock_or_date(incident.since, view)}")


def _window_cause(context: Context, slo: Slo, start: datetime, end: datetime) -> tuple[str, str]:
    source, when = context.source, context.view.window_phrase
    change = source.cached(explain_violations, source.read, slo.select(start, end), slo.indicator)
    if change.kind == "no_data":
        return "", f"No request {when}" if slo.kind != "freshness" else ""
    stage, text = _cause(slo, change.growth, when)
    if change.failures is None:
        return stage, text
    lost = _failed_sentence(change.failures, when)
    if change.kind == "failures":
        return "", f"{lost}. {text}" if change.growth else lost
    return stage, f"{text}. {lost}"


def _cause(slo: Slo, growth: Sequence[StageGrowth], when: str) -> tuple[str, str]:
    if slo.stage is not None:
        return slo.stage, f"The objective limits the stage {label(slo.stage)}"
    blamed = dominant_growth(growth)
    if blamed is None:
        return "", NO_CAUSE if slo.kind in OF_REQUESTS else ""
    return blamed.stage, bad_sentence(blamed, when)


def _failed_sentence(lost: Failures, when: str) -> str:
    details = failures_text(lost)
    part = f"{percent(lost.failed / lost.requests)} of requests {when} failed, {percent(lost.failed / lost.bad)} of the bad ones"
    return f"{part}: {details}" if details else part


def bad_sentence(blamed: StageGrowth, when: str) -> str:
    """Return a sentence about the excess time of slow requests; *when* is their time as text.

    >>> bad_sentence(StageGrowth("queue", 0.424, 0.95), "since 11:20").replace("\u202f", " ")
    'Slow requests since 11:20 spend 424 ms more in Queue than good ones, 95 % of the excess'
    """
    more = f"{duration(blamed.seconds)} more in {label(blamed.stage)}"
    return f"Slow requests {when} spend {more} than good ones, {portion(blamed.share)} of the excess"


def requests_path(view: View, slo: Slo, began: datetime, end: datetime | None, *, failed: bool = False) -> str:
    window = {"from_": str(int((began - CALM_BEFORE).timestamp() * 1000))}
    if end is not None:
        window["to"] = str(int(end.timestamp() * 1000))
    why: dict[str, str] = {}
    if failed or slo.kind == "availability":
        why = {"err": "1"}
    elif slo.kind == "latency" and slo.threshold_seconds is not None:
        why = {"min": f"{slo.threshold_seconds * 1000:g}ms"}
    elif slo.stage is not None:
        why = {"dom": slo.stage}
    environment = {"env": slo.environment} if slo.environment else {}
    return view.link(service_path(slo.service, "traces"), **filter_params(slo), **why, **environment, **window)
