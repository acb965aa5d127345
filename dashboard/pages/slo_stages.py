"""Stage budgets: what each stage took of its part of the threshold, the broken ones first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dash import html
from dash.development.base_component import Component

from ...alerts.evaluation.evidence import BudgetSplit, StageUse, stage_budgets
from ...alerts.objectives.slo import Slo
from ...core.stages import label
from ..components import Node, Nodes, card, empty, link_tabs, stage_name, table
from ..design_tokens import hue
from ..format import axis_duration, duration, enough, needed, percentile, several, whole
from ..view import PART
from .page import Context
from .service_status import maintenance_note

_TITLE = "Stage budgets"
_MAX_VERSIONS = 4
# So many broken budgets are named in a sentence.
_NAMED = 3


def split_of(context: Context, slo: Slo) -> BudgetSplit | None:
    """Return how the requests of the window spent the budgets of *slo*: of the version, model and route the address names."""
    asked, axis = _narrowed(context, slo), context.axis
    return context.source.ask(stage_budgets, context.source.read, asked, axis.start, axis.end)


def stages_card(context: Context, slo: Slo) -> Component:
    """Return what each stage took of its budget.

    Args:
        context: Of the service the objective is about.
        slo: The objective; it has budgets, and a threshold that they split.
    """
    split, at = split_of(context, slo), percentile(slo.objective)
    tools = _versions(context, slo)
    if split is None:
        return card(_TITLE, empty("No request in this window"), tools=tools)
    sub = f"in the requests at {at}, of {several(split.requests, 'request')}"
    if not enough(split.requests, slo.objective):
        text = f"{at} needs {whole(needed(slo.objective))} requests, this window has {whole(split.requests)}."
        return card(_TITLE, empty("Too few requests to judge", text), sub=sub, tools=tools)
    threshold = slo.threshold.total_seconds() if slo.threshold is not None else 0.0
    foot = [*_conclusion(split, threshold), maintenance_note(slo, context.axis.start, context.axis.end)]
    return card(_TITLE, _table(split, threshold, at), sub=sub, tools=tools, foot=html.Span(foot))


def _narrowed(context: Context, slo: Slo) -> Slo:
    """Return *slo* about the part the address names, where it is not about one part only itself."""
    part = {PART[key]: value for key, value in context.view.part.items() if key != "cold"}
    return replace(slo, **{name: value for name, value in part.items() if getattr(slo, name) is None})


def _versions(context: Context, slo: Slo) -> Node:
    """Return links to one version each, the newest first, where there is a choice."""
    view, chosen = context.view, context.view.part.get("v", "")
    rows = context.versions
    seen = [str(name) for name, n in zip(rows["version"], rows["requests"], strict=True) if n > 0][::-1]
    if slo.version is not None or (len(seen) < 2 and not chosen):  # noqa: PLR2004 - one is no choice
        return None
    shown = (
        seen[:_MAX_VERSIONS] if not chosen or chosen in seen[:_MAX_VERSIONS] else [chosen, *seen[: _MAX_VERSIONS - 1]]
    )
    options = {"": ("All versions", view.here(v=None))} | {each: (each, view.here(v=each)) for each in shown}
    return link_tabs("Version of the stage budgets", options, chosen)


def _conclusion(split: BudgetSplit, threshold: float) -> list[Node]:
    """Say which budgets were broken, by how much, and whether what has no budget is to blame beside them."""
    said = _broken(split.broken) if split.broken else _kept(split.uses)
    left = _left(split, threshold)
    if split.seconds > threshold and split.rest_seconds > left:
        rest = f"{duration(split.rest_seconds)}, and the budgets leave them {axis_duration(left)}"
        said.append(f". Stages without a budget took {rest}")
    return [*said, "."]


def _broken(uses: Sequence[StageUse]) -> list[Node]:
    said: list[Node] = []
    for use in uses[:_NAMED]:
        said += ["; " if said else None, html.B(label(use.stage)), f" broke its budget: {_amount(use)}"]
    return [*said, f", and {len(uses) - _NAMED} more"] if len(uses) > _NAMED else said


def _kept(uses: Sequence[StageUse]) -> list[Node]:
    nearest = max(uses, key=lambda use: use.seconds / use.budget_seconds)
    if len(uses) == 1:
        return [f"{label(nearest.stage)} kept its budget: {_amount(nearest)}"]
    return [f"Every stage kept its budget; {label(nearest.stage)} is nearest to it: {_amount(nearest)}"]


def _amount(use: StageUse) -> str:
    return f"{duration(use.seconds)} of {axis_duration(use.budget_seconds)}"


def _left(split: BudgetSplit, threshold: float) -> float:
    """Return what the budgets leave of the threshold to the other stages; they never add up to more than it."""
    return max(0.0, threshold - sum(use.budget_seconds for use in split.uses))


def _table(split: BudgetSplit, threshold: float, at: str) -> Component:
    # A mark at the very end would be cut in half.
    widest = 1.01 * max(max(use.seconds, use.budget_seconds) for use in split.uses)
    head: Sequence[tuple[Node, str]] = (
        ("Stage", "w1"),
        ("Budget", "r w2"),
        (at, "r w2"),
        ("mean", "r w2 hide"),
        ("Over or under", "r w3"),
        ("", "hide"),
    )
    rows = [_row(use, widest) for use in split.uses]
    rest = (_left(split, threshold), split.rest_seconds, split.rest_mean_seconds)
    foot = [
        _sum("Without a budget", *rest, "What the budgets leave of the threshold is theirs"),
        _sum("Whole request", threshold, split.seconds, split.mean_seconds, "The threshold of the objective"),
    ]
    return table(head, rows, _TITLE, css="insp budgets", foot=foot)


def _row(use: StageUse, widest: float) -> Component:
    cells = [
        html.Th(stage_name(use.stage), scope="row"),
        html.Td(axis_duration(use.budget_seconds), className="r"),
        html.Td(duration(use.seconds), className="r now"),
        html.Td(duration(use.mean_seconds), className="r hide"),
        html.Td(_over(use.seconds, use.budget_seconds), className="r"),
        html.Td(_bar(use, widest), className="hide"),
    ]
    return html.Tr(cells)


def _bar(use: StageUse, widest: float) -> Component:
    """Return what was taken as a bar, the budget as a mark on it; the numbers stand beside it."""
    marks = [
        html.I(style={"width": f"{100 * use.seconds / widest:.1f}%"}),
        html.Span(className="lim", style={"left": f"{100 * use.budget_seconds / widest:.1f}%"}),
    ]
    return html.Span(marks, className=f"dv st-{hue(use.stage)}", title=f"The line is the budget of {label(use.stage)}")


def _sum(name: str, budget: float, seconds: float, mean: float, said: str) -> Component:
    cells = [
        html.Th(name, scope="row"),
        html.Td(axis_duration(budget), className="r", title=said),
        html.Td(duration(seconds), className="r"),
        html.Td(duration(mean), className="r hide"),
        html.Td(_over(seconds, budget), className="r"),
        html.Td(className="hide"),
    ]
    return html.Tr(cells)


def _over(seconds: float, budget: float) -> Nodes:
    by = duration(abs(seconds - budget))
    return (
        html.Span(f"{by} over", className="bad b") if seconds > budget else html.Span(f"{by} under", className="muted")
    )
