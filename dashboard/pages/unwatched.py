"""What keeps objectives from being watched: no objective, or a file that cannot be read; on the overview in a line."""

from __future__ import annotations

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from ...alerts.objectives.slo_file import EXAMPLE, why_unwatched
from ..components import Node, dot, link
from .page import Context, nothing


def unwatched_line(context: Context) -> Component | None:
    """Return one line with the cure; None where there are objectives, or alerts are no business of this dashboard."""
    source = context.source
    if not source.has_alerts:
        return None
    if source.slos():
        problems = source.slo_problems()
        return _broken(context, problems) if problems else None
    why, cure = why_unwatched(source.slo_file)
    said = [html.B("Nobody is watched"), f": {why}, so no alert would come. ", *_marked(cure), ". "]
    more = link("More", href=context.view.link("/slo"), className="link")
    return html.Div([dot("no_data"), html.Span([*said, more])], className="quiet")


def _broken(context: Context, problems: Sequence[str]) -> Component:
    kept = ". What was read before it changed stays in force. "
    said = [html.B("The SLO file cannot be read"), ": ", html.Span(problems[0], className="mono"), kept]
    more = link("More", href=context.view.link("/slo"), className="link")
    return html.Div([dot("at_risk"), html.Span([*said, more])], className="quiet")


def no_objectives(context: Context) -> Component:
    """Return what stands in place of the objectives."""
    if not context.source.has_alerts:
        return nothing(
            "Alerts do not run beside this dashboard",
            "Start them with it (stagelens up), and their objectives show here.",
        )
    why, cure = why_unwatched(context.source.slo_file, example="")
    return nothing(
        f"Nobody is watched: {why}",
        html.Span([*_marked(f"{cure}. For example, to be checked with `stagelens check slo.yaml`:")]),
        html.Pre(EXAMPLE.rstrip(), className="code mono", tabIndex=0),
    )


def _marked(text: str) -> Sequence[Node]:
    """Return *text* with what stands in backquotes set as code."""
    parts = text.split("`")
    return [html.Code(part, className="mono") if place % 2 else part for place, part in enumerate(parts) if part]
