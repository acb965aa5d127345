"""What would help: each finding with why it applies here and how far it could get."""

from __future__ import annotations

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from ...core.stages import label
from ..advising import RANKS
from ..components import Node, link, link_tabs
from ..format import enough, needed, percent, whole
from .advice_cards import advice_card
from .advice_facts import MOST, Advice, of_all, of_service, only_where, quantile_of
from .advice_marks import Mark, before_and_after, marks
from .fleet import seen_in
from .measures import measure
from .page import Context, Page, nothing, panel
from .service_frame import service_page

_NAMES = {"p99": "p99", "p50": "p50", "cost": "Cost"}
# What stands further down is not looked into by version and route.
_LOOKED_INTO = 3


def render(context: Context) -> Page:
    """Return what would help, of one service or of all."""
    if context.service and context.view.parts[:1] == ("s",):
        return service_page(context, "advice", lambda: _of_service(context))
    if context.service:
        return Page(
            "Advice · Stagelens", _trail(context), [_head(context, ""), *_of_service(context, bare=True)], "/advice"
        )
    return Page("Advice · Stagelens", [("Advice", None)], _of_all(context), "/advice")


def _trail(context: Context) -> list[tuple[str, str | None]]:
    return [("Advice", context.view.link("/advice")), (context.service or "", None)]


def _of_service(context: Context, *, bare: bool = False) -> list[Node]:
    rank = context.view.choice("rank", *RANKS)
    requests = measure(context.source, context.selection).requests
    above: list[Node] = [] if bare else [_ranked(context)]
    quantile = quantile_of(rank)
    if not enough(requests, quantile):
        return [*above, _too_few(context, requests, quantile)]
    found = of_service(context, rank)
    cards: list[Node] = [_first(found, rank)] if found else []
    for place, each in enumerate(_shown(context, found)):
        notes = only_where(context, each.finding) if place < _LOOKED_INTO else []
        cards.append(
            panel(
                each.finding.stage, lambda each=each, notes=notes: advice_card(context, each, rank, notes, alone=True)
            )
        )
    if not found:
        cards.append(nothing("Nothing would help by 3 % or more", "No stage takes enough of what this is ranked by."))
    return [*above, *cards, _hidden(context, found)]


def _first(found: Sequence[Advice], rank: str) -> Component:
    """Say in one sentence where there is most to gain."""
    top = found[0]
    stage, gain = label(top.finding.stage), percent(top.gain(rank))
    rest = f"{len(found)} stages are worth working on" if len(found) > 1 else "no other stage is worth working on"
    if rank != "cost" and top.reach is not None and top.reach.is_uneven:
        said = f"{stage} first: {rank} falls by {gain} if no request spends more than the median in it; {rest}."
    else:
        said = f"{stage} first: at most {gain} of {'the cost' if rank == 'cost' else rank} can be gained there; {rest}."
    return html.Div(said, className="b")


def _of_all(context: Context) -> list[Node]:
    rank = context.view.choice("rank", *RANKS)
    if not seen_in(context):
        return [_head(context, ""), nothing("No request in this window", "Advice comes from what was measured in it.")]
    found, candidates = of_all(context, rank)
    cards: list[Node] = [
        panel(
            each.finding.stage,
            lambda each=each: advice_card(context.of(each.finding.facts.service), each, rank, alone=False),
        )
        for each in _shown(context, found)
    ]
    if not found:
        cards.append(
            nothing(
                "Nothing stands out",
                f"No stage takes a fifth of {_what(rank)} anywhere. A service's own page lists what is smaller.",
            )
        )
    sub = f"The largest finding of {len(found)} service{'s' * (len(found) != 1)}"
    if candidates > MOST:
        sub += f", of {candidates} that have one"
    sub += _left_out(context, rank)
    return [_head(context, sub), *cards, _hidden(context, found)]


def _left_out(context: Context, rank: str) -> str:
    """Say how many services have too few requests to advise on."""
    quantile = quantile_of(rank)
    few = sum(not enough(seen.measures.requests, quantile) for seen in seen_in(context).values())
    return f"; {few} of {len(seen_in(context))} have too few requests in this window" if few else ""


def _what(rank: str) -> str:
    return {"p99": "p99 more than of p50", "p50": "p50", "cost": "the busy time"}[rank]


def _head(context: Context, sub: str) -> Component:
    title = html.Div([html.H1("Advice"), html.P(sub or "What would help most, at best", className="sub")])
    return html.Div([title, html.Span(className="grow"), _ranked(context)], className="phead")


def _ranked(context: Context) -> Component:
    rank = context.view.choice("rank", *RANKS)
    options = {each: (_NAMES[each], context.view.here(rank=None if each == RANKS[0] else each)) for each in RANKS}
    return html.Div(["Ranked by", link_tabs("Ranked by", options, rank)], className="pick ranked")


def _too_few(context: Context, requests: int, quantile: float) -> Component:
    name = "p50" if quantile == 0.5 else "p99"  # noqa: PLR2004 - the median
    actions = [link("Last 24 h", href=context.view.here(from_="now-24h", to=None), className="btn")]
    if name == "p99" and enough(requests, 0.5):
        actions.insert(0, link("Rank by p50", href=context.view.here(rank="p50"), className="btn pri"))
    return nothing(f"Too few requests to advise on {name}", f"{whole(requests)} so far in this window, and {name} needs {whole(needed(quantile))}.", actions=actions)  # fmt: skip


def _everything(context: Context) -> bool:
    return context.view.text("kind") == "all"


def _shown(context: Context, found: Sequence[Advice]) -> list[Advice]:
    return [each for each in found if _everything(context) or not (each.mark and each.mark.hides(context.view.now))]


def _hidden(context: Context, found: Sequence[Advice]) -> Node:
    """Say how many were put out of sight, and what became of those that were done."""
    view = context.view
    out = [each for each in found if each.mark and each.mark.hides(view.now)]
    done = _done(context, {(each.finding.facts.service, each.finding.key) for each in out})
    said: list[Node] = []
    if out:
        text = f"{len(out)} dismissed, snoozed or done"
        href, words = (view.here(kind=None), "Hide") if _everything(context) else (view.here(kind="all"), "Show")
        said.append(html.Span([f"{text}. ", link(words, href=href, className="link")]))
    for service, key, mark in done:
        href = before_and_after(view, service, mark)
        said.append(html.Span([f"Done, and no longer found: {key.partition(':')[2]} of {service}. ", link("Compare before and after →", href=href, className="link")]))  # fmt: skip
    return html.Div(said, className="quiet stack") if said else None


def _done(context: Context, still: set[tuple[str, str]]) -> list[tuple[str, str, Mark]]:
    """Return what was done in the window or since, and is found no more, newest first."""
    found = [
        (service, key, mark)
        for (service, key), mark in marks(context).items()
        if mark.state == "done" and (service, key) not in still and context.service in (None, service)
    ]
    return sorted(
        (each for each in found if each[2].at >= context.view.start), key=lambda each: each[2].at, reverse=True
    )
