"""Why a kept request was as slow as it was: the stages that took more than they usually do, and both requests to scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import html
from dash.development.base_component import Component

from ...core.stages import label
from ...store import KeptTrace
from ..components import Node, stage_bar
from ..format import duration, percent, split_duration, times
from .stalled import explained, of_trace
from .trace_baseline import NS, Setting


def verdict(found: KeptTrace, setting: Setting) -> Component:
    """Return the sentence and the two bars."""
    stages = {stage: value / NS for stage, value in found.stages_ns.items()}
    seconds = found.duration_ns / NS
    number, unit = split_duration(seconds)
    median = setting.median_seconds
    against: list[Node] = []
    if median:
        slower = seconds > median
        against = [
            html.Span(
                f" · {times(seconds / median)} the median",
                className="bad" if slower and seconds > 2 * median else "muted",
            )
        ]
    longest = max(seconds, median) or 1.0
    bars: list[Node] = ["This request", stage_bar(stages, tall=True, scale=seconds / longest)]
    if median:
        bars += [f"Median request, {duration(median)}", stage_bar(setting.median, scale=median / longest)]
    said = [
        html.Span([number, html.Small(unit)], className="total"),
        *against,
        html.Div([*_causes(stages, setting), _held_up(found)], className="muted x"),
    ]
    return html.Div([html.Div(said, className="say"), html.Div(bars, className="scale")], className="verdict")


def _held_up(found: KeptTrace) -> str:
    said = explained(of_trace(found.attributes), found.duration_ns / NS, "the request")
    return f" {said}" if said else ""


def _causes(stages: Mapping[str, float], setting: Setting) -> list[Any]:
    """Name the stages that took most of what this request took more than the median one."""
    total = sum(stages.values()) or 1.0
    excess = sorted(stages, key=lambda stage: -(stages[stage] - setting.median.get(stage, 0.0)))
    said: list[Any] = []
    for stage in excess[:2]:
        share = stages[stage] / total
        if share < 0.1:  # noqa: PLR2004 - less is no cause
            continue
        usual = setting.usual(stage)
        said += ["; " if said else "", html.B(label(stage)), f" took {percent(share)}"]
        if usual and stages[stage] > 1.5 * usual:
            said.append(f", {duration(stages[stage])} instead of the usual {duration(usual)}")
    return [*said, "."] if said else ["No stage stands out."]
