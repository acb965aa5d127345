"""Objectives: how much of each budget is left, how fast it burns, what spent it, and what was told to whom."""

from __future__ import annotations

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from ...alerts.evaluation.slo_status import SloStatus
from ..components import Node, banner, link
from ..figures.budget import left_parts
from ..format import several, span, times
from ..view import View, slo_path
from .incidents import history_card, rules_card
from .page import Context, Page, nothing, panel
from .service_status import state_counts, state_note
from .slo_budget import budget_card, burn_card, window_links
from .slo_objectives import objectives_card, runs_out, slo_tiles
from .slo_spent import spent_card
from .slo_stages import stages_card
from .unwatched import no_objectives

_TITLE = "SLOs · Stagelens"
_PLACE = "/slo"


def render(context: Context, name: str | None) -> Page:
    """Return the page of the objective called *name*, the most urgent one where the address names none."""
    view, source = context.view, context.source
    # A link of a message is about the past: the objectives as they stood then.
    found = context.slos
    broken = _broken(source.slo_problems(), in_force=bool(found))
    trail: list[tuple[str, str | None]] = [("SLOs", view.link(_PLACE) if name else None)]
    if not found:
        return Page(_TITLE, trail, [_head(found), *broken, no_objectives(context)], _PLACE)
    if name:
        trail.append((name, None))
    chosen = next((each for each in found if each.slo.name == name), None if name else found[0])
    if chosen is None:
        return Page(_TITLE, trail, [*broken, _unknown(context, name or "")], _PLACE)
    title = f"{chosen.slo.name} · {_TITLE}"
    return Page(
        title, trail, [_head(found, window_links(view, chosen)), *broken, *_body(context, found, chosen)], _PLACE
    )


def _body(context: Context, found: Sequence[SloStatus], chosen: SloStatus) -> list[Node]:
    service = Context(context.view, context.source, chosen.slo.service)
    right = [slo_tiles(context.view, chosen), panel("Error budget", lambda: budget_card(service, chosen))]
    spent = [panel("What spent the budget", lambda: spent_card(service, chosen))]
    burn = [
        panel("Burn rate", lambda: burn_card(service, chosen)),
        panel("Multi-window alerts", lambda: rules_card(chosen)),
    ]
    slo = chosen.slo
    budgets = slo.kind == "latency" and slo.budgets
    return [
        html.P(finding(context.view, chosen), className="says"),
        html.Div(
            [
                panel("Objectives", lambda: objectives_card(context, found, chosen), "c4"),
                html.Div(right, className="stack c8"),
            ],
            className="grid",
        ),
        panel("Stage budgets", lambda: stages_card(service, slo)) if budgets else None,
        html.Div([html.Div(spent, className="stack c6"), html.Div(burn, className="stack c6")], className="grid"),
        panel("Alert history", lambda: history_card(service, chosen)),
    ]


def finding(view: View, found: SloStatus) -> str:
    """Return how the objective stands, as a sentence."""
    name = found.slo.name
    if found.state == "stale":
        silence = f"the collector has neither taken in nor rolled up anything {state_note(found, view)}"
        return f"{name} is not judged: {silence}. {_then(found)}"
    if found.budget_left is None:
        return f"{name} cannot be judged: {found.slo.service} had no request in {span(found.slo.window)}."
    share, word = left_parts(found.budget_left)
    budget = {
        "left": f"{name} has {share} of its error budget left",
        "overspent": f"{name} is {share} overspent",
        "spent": f"{name} has spent {share} its error budget",
    }[word]
    if found.state == "maintenance":
        return f"{budget}. Planned work {state_note(found, view)}: its requests do not count, and nobody is told."
    if found.state == "no_data":
        return f"{budget}; no request came in the last hour."
    gone_in = runs_out(found)
    pace = f"; at this pace it is gone in {span(gone_in)}" if gone_in else ""
    return f"{budget} and burns at {times(found.burn_1h)} the sustainable pace{pace}."


def _then(found: SloStatus) -> str:
    """Say how a stale objective stood, and what becomes of alerts."""
    held = "Until it works again no incident is opened or resolved."
    if found.budget_left is None:
        return held
    share, word = left_parts(found.budget_left)
    stood = f"{share} of the error budget was left" if word == "left" else f"the error budget was {word} {share}"
    return f"Then {stood}. {held}"


def _head(found: Sequence[SloStatus], windows: Component | None = None) -> Component:
    parts = [several(len(found), "objective"), *state_counts([each.state for each in found])] if found else ["None yet"]
    title = html.Div([html.H1("Service level objectives"), html.P(" · ".join(parts), className="sub")])
    return html.Div([title, html.Span(className="grow"), windows], className="phead")


def _broken(problems: Sequence[str], *, in_force: bool) -> list[Node]:
    """Say what is wrong with the file: each problem has the file and the line in front."""
    if not problems:
        return []
    kept = "What was read before it changed stays in force." if in_force else "Nothing of it is in force."
    lines = html.Ul([html.Li(each, className="mono") for each in problems])
    return [banner(html.Div([html.B("The SLO file cannot be read. "), kept, lines]), "bad")]


def _unknown(context: Context, name: str) -> Component:
    """Say that nothing of that name is promised, and lead to what was told of it, if anything was."""
    first = context.source.slos()[0].slo.name
    actions = [
        link("All objectives", href=context.view.link(_PLACE), className="btn pri"),
        link(first, href=context.view.link(slo_path(first)), className="btn"),
    ]
    text = "The SLO file does not have it."
    if any(each.name == name for each in context.source.incidents()):
        text = "It is not watched any more: it was taken out of the SLO file. Its incidents are kept."
        actions.insert(1, link("Incidents", href=context.view.link("/incidents"), className="btn"))
    return nothing(f"No objective called {name}", text, actions=actions)
