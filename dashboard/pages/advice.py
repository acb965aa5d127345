"""Advice page: optimizations that apply to a service or the fleet, their evidence and the reachable latency."""

from __future__ import annotations

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from ...analysis.costs import MILLION
from ...core.confidence import has_enough_samples, samples_needed
from ...core.stages import label
from ..ui.components import Node, attributes, card, link, link_tabs, pill, stage_bar, swatch
from ..ui.design_tokens import hue
from ..ui.format import MINUS, day, duration, money, percent, whole
from ..view import service_path
from .advice_facts import (
    MOST,
    Advice,
    Mark,
    ReachableLatency,
    advice_for_fleet,
    advice_for_service,
    before_and_after,
    mark_buttons,
    marks,
    quantile_of,
    scope_notes,
)
from .advice_rules import RANKS, Option
from .measures import measure, measures_in_window
from .page import Context, Page, empty_page_card, panel
from .service_frame import service_page
from .spending import spending

_WORDS = {"dismissed": "Dismissed", "snoozed": "Snoozed", "done": "Done"}
_MATRIX = (
    ("gain", "Gain, at best"),
    ("accuracy", "Accuracy"),
    ("complexity", "Complexity"),
    ("hardware", "Hardware"),
    ("reversible", "To go back"),
    ("source", "Source"),
)
_NAMES = {"p99": "p99", "p50": "p50", "cost": "Cost"}
# Maximum number of cards with notes on version and route, because each note needs queries.
_MAX_NOTED = 3


def render(context: Context) -> Page:
    """Return the advice page of one service or of the fleet."""
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
    above: list[Node] = [] if bare else [_rank_tabs(context)]
    quantile = quantile_of(rank)
    if not has_enough_samples(requests, quantile):
        return [*above, _too_few(context, requests, quantile)]
    found = advice_for_service(context, rank)
    cards: list[Node] = [_summary(found, rank)] if found else []
    for place, each in enumerate(_shown(context, found)):
        notes = scope_notes(context, each.finding) if place < _MAX_NOTED else []
        cards.append(
            panel(
                each.finding.stage, lambda each=each, notes=notes: advice_card(context, each, rank, notes, alone=True)
            )
        )
    if not found:
        cards.append(empty_page_card("No change would help by 3 % or more", "Every stage is below that limit."))
    return [*above, *cards, _hidden_note(context, found)]


def _summary(found: Sequence[Advice], rank: str) -> Component:
    """Return one sentence about the stage with the largest gain."""
    top = found[0]
    stage, gain = label(top.finding.stage), percent(top.gain(rank))
    rest = f"{len(found)} stages are worth changing" if len(found) > 1 else "no other stage is worth changing"
    if rank != "cost" and top.reach is not None and top.reach.is_uneven:
        said = f"{stage} first: {rank} falls by {gain} if no request spends more than the median in it; {rest}."
    else:
        said = f"{stage} first: at most {gain} of {'the cost' if rank == 'cost' else rank} can be gained there; {rest}."
    return html.Div(said, className="b")


def _of_all(context: Context) -> list[Node]:
    rank = context.view.choice("rank", *RANKS)
    if not measures_in_window(context):
        return [
            _head(context, ""),
            empty_page_card("No request in this window", "Advice is based on the requests of the window."),
        ]
    found, candidates = advice_for_fleet(context, rank)
    cards: list[Node] = [
        panel(
            each.finding.stage,
            lambda each=each: advice_card(context.of(each.finding.facts.service), each, rank, alone=False),
        )
        for each in _shown(context, found)
    ]
    if not found:
        cards.append(
            empty_page_card(
                "Nothing stands out",
                f"No stage takes a fifth of {_rank_words(rank)} anywhere. Smaller findings are on the page of each service.",
            )
        )
    sub = f"The largest finding of {len(found)} service{'s' * (len(found) != 1)}"
    if candidates > MOST:
        sub += f", of {candidates} that have one"
    sub += _left_out(context, rank)
    return [_head(context, sub), *cards, _hidden_note(context, found)]


def _left_out(context: Context, rank: str) -> str:
    """Return the number of services with too few requests as text; "" if there are none."""
    quantile = quantile_of(rank)
    few = sum(not has_enough_samples(seen.measures.requests, quantile) for seen in measures_in_window(context).values())
    return f"; {few} of {len(measures_in_window(context))} have too few requests in this window" if few else ""


def _rank_words(rank: str) -> str:
    return {"p99": "p99 more than of p50", "p50": "p50", "cost": "the busy time"}[rank]


def _head(context: Context, sub: str) -> Component:
    title = html.Div([html.H1("Advice"), html.P(sub or "Largest gains, at best", className="sub")])
    return html.Div([title, html.Span(className="grow"), _rank_tabs(context)], className="phead")


def _rank_tabs(context: Context) -> Component:
    rank = context.view.choice("rank", *RANKS)
    options = {each: (_NAMES[each], context.view.here(rank=None if each == RANKS[0] else each)) for each in RANKS}
    return html.Div(["Ranked by", link_tabs("Ranked by", options, rank)], className="pick ranked")


def _too_few(context: Context, requests: int, quantile: float) -> Component:
    name = "p50" if quantile == 0.5 else "p99"  # noqa: PLR2004 - the median
    actions = [link("Last 24 h", href=context.view.here(from_="now-24h", to=None), className="btn")]
    if name == "p99" and has_enough_samples(requests, 0.5):
        actions.insert(0, link("Rank by p50", href=context.view.here(rank="p50"), className="btn pri"))
    return empty_page_card(f"Too few requests to advise on {name}", f"{whole(requests)} so far in this window, and {name} needs {whole(samples_needed(quantile))}.", actions=actions)  # fmt: skip


def _shows_all(context: Context) -> bool:
    return context.view.text("kind") == "all"


def _shown(context: Context, found: Sequence[Advice]) -> list[Advice]:
    return [each for each in found if _shows_all(context) or not (each.mark and each.mark.hides(context.view.now))]


def _hidden_note(context: Context, found: Sequence[Advice]) -> Node:
    """Return the number of dismissed, snoozed and done pieces of advice, with links to show and compare them."""
    view = context.view
    out = [each for each in found if each.mark and each.mark.hides(view.now)]
    done = _done(context, {(each.finding.facts.service, each.finding.key) for each in out})
    said: list[Node] = []
    if out:
        text = f"{len(out)} dismissed, snoozed or done"
        href, words = (view.here(kind=None), "Hide") if _shows_all(context) else (view.here(kind="all"), "Show")
        said.append(html.Span([f"{text}. ", link(words, href=href, className="link")]))
    for service, key, mark in done:
        href = before_and_after(view, service, mark)
        said.append(html.Span([f"Done and resolved: {key.partition(':')[2]} of {service}. ", link("Compare before and after →", href=href, className="link")]))  # fmt: skip
    return html.Div(said, className="quiet stack") if said else None


def _done(context: Context, still: set[tuple[str, str]]) -> list[tuple[str, str, Mark]]:
    """Return the advice marked as done in the window or later and no longer found, newest first."""
    found = [
        (service, key, mark)
        for (service, key), mark in marks(context).items()
        if mark.state == "done" and (service, key) not in still and context.service in (None, service)
    ]
    return sorted(
        (each for each in found if each[2].at >= context.view.start), key=lambda each: each[2].at, reverse=True
    )


def advice_card(context: Context, advice: Advice, rank: str, notes: Sequence[str] = (), *, alone: bool) -> Component:
    """Return the card of one piece of advice.

    Args:
        context: Context of the service.
        advice: Piece of advice to show.
        rank: Quantity by which the list is ranked.
        notes: Notes on a single version or route that causes the problem.
        alone: Whether the page is about this service alone, so that its name is omitted.
    """
    finding, view = advice.finding, context.view
    title, why = finding.words
    service = finding.facts.service
    named = link(service, href=view.link(service_path(service, "advice")), className="b") if not alone else None
    said = [
        html.Div([swatch(finding.stage), label(finding.stage), named, pill(finding.family.name, "out"), _mark_badge(context, advice)], className="m"),
        html.H2(title),
        html.P([why, *[f" {each}" for each in notes]], className="x"),
        html.Div([_option_details(each) for each in finding.family.options], className="opts"),
    ]  # fmt: skip
    body = [html.Div(said, className="say"), _numbers(context, advice, rank)]
    return html.Section(
        [html.Div(body, className="both"), mark_buttons(finding, advice.mark, view.now)],
        className=f"card adv st-{hue(finding.stage)}",
        **attributes({"data-advice": finding.key, "aria-label": f"{title}, {service}"}),
    )


def top_advice(context: Context, most: int, size: str = "c12") -> Component | None:
    """Return a card of the advice that lowers p99 of a service most; None without any advice."""
    view = context.view
    found = [each for each in advice_for_service(context, "p99", most) if not (each.mark and each.mark.hides(view.now))]
    shown = [_advice_line(context, each) for each in found if each.reach is not None]
    if not shown:
        return None
    whole = view.link(service_path(context.service or "", "advice"), **view.part)
    more = link("All advice →", href=whole, className="link")
    return card("Ways to fix this", html.Ul(shown, className="helps"), sub="p99 could reach", tools=more, size=size)


def _advice_line(context: Context, advice: Advice) -> Component:
    finding, reach = advice.finding, advice.reach
    title, why = finding.words
    href = context.view.link(service_path(finding.facts.service, "advice"), **context.view.part)
    to = None if reach is None else reach.usual if reach.is_uneven else reach.without
    reached: Node = html.Span([duration(reach.before), " → ", html.B(duration(to))], className="num") if reach else None
    said = html.Span([link(title, href=href, className="b"), html.Span(why, className="muted")], className="say")
    return html.Li([swatch(finding.stage), said, reached])


def _numbers(context: Context, advice: Advice, rank: str) -> Component:
    """Return the reachable value of the ranked quantity, and the link to the breakdown of the stage."""
    finding, reach = advice.finding, advice.reach
    view, measures = context.view, finding.facts.measures
    parts: list[Node] = []
    if rank == "cost":
        parts += _cost_numbers(context, advice)
    elif reach is not None:
        parts += _reachable(finding.stage, reach)
    stages = measures.tail_stages if rank == "p99" else measures.median_stages
    href = view.link(service_path(finding.facts.service), p="50" if rank == "p50" else None, **view.part)
    parts += [stage_bar(stages), link("Evidence: the breakdown →", href=href, className="link")]
    return html.Div(parts, className="reach")


def _reachable(stage: str, reach: ReachableLatency) -> list[Node]:
    """Return the percentile if the stage never exceeds its median, and the largest possible gain."""
    without = f"if {label(stage)} took no time"
    ceiling = html.Div([html.B(duration(reach.without)), f" at best, {without}"], className="muted")
    said = f"{MINUS}{percent(reach.gain)} if no request exceeded the median"
    if not reach.is_uneven:
        said, ceiling = f"{MINUS}{percent(reach.ceiling)}: a ceiling, {without}", None
    to = html.B(duration(reach.usual if reach.is_uneven else reach.without))
    return [
        html.Div(f"{reach.name} could reach" + ("" if reach.is_uneven else ", at best"), className="l"),
        html.Div([html.Span(duration(reach.before), className="was"), " → ", to], className="to num"),
        html.Div(said, className="muted"),
        ceiling,
    ]


def _cost_numbers(context: Context, advice: Advice) -> list[Node]:
    share = advice.finding.weight("cost")
    found = spending(context)
    saved = money(share * found.each * MILLION, found.currency) if found and found.each is not None else None
    return [
        html.Div("could save, at best", className="l"),
        html.Div(html.B(saved or percent(share)), className="to num"),
        html.Div(f"of {money(found.each * MILLION, found.currency)} per 1 M requests, {percent(share)}" if saved and found and found.each else "of the busy time; no price is set", className="muted"),
    ]  # fmt: skip


def _option_details(option: Option) -> Component:
    rows: list[Component] = []
    for name, words in _MATRIX:
        rows += [html.Dt(words), html.Dd(str(getattr(option, name)))]
    return html.Details(
        [html.Summary(option.name), html.Div([html.P(option.does), html.Dl(rows, className="matrix")])], className="opt"
    )


def _mark_badge(context: Context, advice: Advice) -> Node:
    """Return the user's mark as a badge; a mark as done links to the comparison of before and after."""
    mark = advice.mark
    if mark is None or not mark.hides(context.view.now):
        return None
    if mark.until is not None:
        return pill(f"Snoozed until {day(mark.until.astimezone(context.view.zone))}")
    at = day(mark.at.astimezone(context.view.zone))
    if mark.state != "done":
        return pill(f"{_WORDS[mark.state]} {at}")
    href = before_and_after(context.view, advice.finding.facts.service, mark)
    return html.Span([pill(f"Done {at}", "good"), link("Compare before and after →", href=href, className="link")], className="nm")  # fmt: skip
