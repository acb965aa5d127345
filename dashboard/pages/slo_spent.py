"""What spent the budget: bad requests over time by the stage that explains them, and a bad request against a good one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...alerts.evaluation.evidence import OF_REQUESTS, excess_by_stage, filter_params
from ...alerts.evaluation.slo_status import SloStatus
from ...alerts.objectives.slo import Slo
from ...analysis.comparison import dominant_growth
from ...core.stages import label
from ..components import attributes, card, chart, empty, legend, link, swatch, table
from ..design_tokens import hue
from ..figures.spent import COLUMNS, UNEXPLAINED, spent_figure, stages_of
from ..figures.time_axis import step_for
from ..format import count, duration, percent
from .bad_requests import bad_breakdown, bad_sentence, in_window
from .page import Context
from .rows import records
from .service_status import maintenance_note

_TITLE = "What spent the budget"
# A bar a click can hit: a third of the steps other charts have.
_COARSER = 3
_LEGEND, _MIN_SHARE = 4, 0.02


def spent_card(context: Context, found: SloStatus) -> Component:
    """Return the bad requests of the page's window by stage, and below them what a bad one spends more time in.

    Args:
        context: Of the service the objective is about.
        found: The objective.
    """
    slo, source, axis = found.slo, context.source, context.axis
    if slo.stage is not None:
        said = f"This objective is about {label(slo.stage)}: each bad request spent too long in it"
        return card(
            _TITLE, empty(said, actions=[_dominated(context, slo)]), sub=f"an objective about {label(slo.stage)}"
        )
    if slo.kind not in OF_REQUESTS:
        return card(_TITLE, empty("Stages are blamed for whole requests only"), sub=f"an objective about {slo.kind}")
    step = step_for((axis.end - axis.start) * _COARSER)
    chosen = slo.select(axis.start, axis.end)
    frame = source.ask(source.read.bad_over_time, chosen, slo.threshold_seconds, step)
    bad = float(frame["bad"].sum()) if len(frame) else 0.0
    if not bad:
        none = "No bad request in this window" if len(frame) else "No request in this window"
        return card(_TITLE, empty(none), sub="bad requests by stage")
    compared = bad_breakdown(context, slo, axis.start, axis.end)
    stages = stages_of(frame)
    spent = {stage: float(frame[stage].sum()) for stage in stages}
    most = sorted((stage for stage in stages if spent[stage] >= bad * _MIN_SHARE), key=lambda stage: -spent[stage])
    figure = spent_figure(
        frame,
        context.axis_of(frame),
        lambda stage, at: _traces(context, slo, stage, at, context.axis_of(frame).step),
        versions=context.releases,
        told=context.events,
    )
    drawn = chart("spent", figure, _spoken(spent, bad), 220, frame=_table(frame))
    return card(
        _TITLE,
        [drawn, _excess(records(compared))],
        sub=f"{count(bad)} bad requests, {_inside(context)}",
        tools=html.Span(legend(most[:_LEGEND]), className="hide"),
        foot=[
            _foot(context, slo, compared, float(frame[UNEXPLAINED].sum()) / bad),
            maintenance_note(slo, axis.start, axis.end),
        ],
    )


def _dominated(context: Context, slo: Slo) -> Component:
    href = _traces(context, slo, slo.stage or "", context.axis.start, context.axis.end - context.axis.start)
    return link(f"Requests that {label(slo.stage or '')} dominates", href=href, className="btn")


def _inside(context: Context) -> str:
    words = context.view.window_label
    return f"{words[0].lower()}{words[1:]}"


def _traces(context: Context, slo: Slo, stage: str, at: datetime, step: timedelta) -> str:
    start, end = max(at, context.axis.start), min(at + step, context.axis.end)
    moments = {"from_": str(int(start.timestamp() * 1000)), "to": str(int(end.timestamp() * 1000))}
    # What no stage explains has failed.
    why = {"dom": stage} if stage else {"err": "1"}
    return context.view.link("/traces", svc=context.service, **filter_params(slo), **why, **moments)


def _spoken(spent: Mapping[str, float], bad: float) -> str:
    largest = sorted(spent.items(), key=lambda pair: -pair[1])[:3]
    shares = ", ".join(f"{label(stage)} {percent(number / bad)}" for stage, number in largest)
    return f"{count(bad)} bad requests by the stage that explains them: {shares or 'no stage stands out'}."


def _foot(context: Context, slo: Slo, compared: pd.DataFrame, unexplained: float) -> Component:
    """Name the stage to blame as the card and the incident do; *unexplained* is the share of bad requests without one."""
    blamed = dominant_growth(excess_by_stage(compared)) if slo.kind == "latency" else None
    said = [f"{bad_sentence(blamed, in_window(context.view))}."] if blamed else []
    if unexplained:
        said.append(f"{percent(unexplained)} failed without a stage that stands out.")
    return html.Span(" ".join(said) or "No stage stands out in the requests that broke it.")


def _table(frame: pd.DataFrame) -> pd.DataFrame:
    names = {"at": "time (UTC)", "bad": "bad requests", UNEXPLAINED: "no stage stands out"}
    names |= {stage: f"{label(stage)} (requests)" for stage in stages_of(frame)}
    return frame[[*COLUMNS, *stages_of(frame)]].rename(columns=names)


def _excess(rows: list[dict[str, Any]]) -> Component:
    shown = [each for each in rows if float(each["bad_mean_seconds"]) > 0]
    widest = max((abs(float(each["excess_seconds"])) for each in shown), default=0.0) or 1e-9
    return table(
        (("Stage", "w1"), ("good", "r w2"), ("bad", "r w2"), ("more", "")),
        [_row(each, widest) for each in shown],
        "Mean stage times of good and bad requests",
        css="insp",
    )


def _row(record: dict[str, Any], widest: float) -> Component:
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
