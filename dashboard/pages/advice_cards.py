"""One piece of advice as a card: what to do, why here, the options with their price, and how far it could get."""

from __future__ import annotations

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from ...core.stages import label
from ..components import Node, attributes, card, link, pill, stage_bar, swatch
from ..costs import MILLION
from ..design_tokens import hue
from ..format import MINUS, day, duration, money, percent
from ..optimization_catalog import Option
from ..view import service_path
from .advice_facts import Advice, Reach, of_service
from .advice_marks import before_and_after, buttons
from .page import Context
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


def advice_card(context: Context, advice: Advice, rank: str, notes: Sequence[str] = (), *, alone: bool) -> Component:
    """Return the card of one piece of advice.

    Args:
        context: Of its service.
        advice: The advice.
        rank: What the list is ranked by.
        notes: More of why: of which version or route alone.
        alone: Whether the page is about this service alone, so that its name need not be said.
    """
    finding, view = advice.finding, context.view
    title, why = finding.words
    service = finding.facts.service
    named = link(service, href=view.link(service_path(service, "advice")), className="b") if not alone else None
    said = [
        html.Div([swatch(finding.stage), label(finding.stage), named, pill(finding.family.name, "out"), _mark(context, advice)], className="m"),
        html.H2(title),
        html.P([why, *[f" {each}" for each in notes]], className="x"),
        html.Div([_option(each) for each in finding.family.options], className="opts"),
    ]  # fmt: skip
    body = [html.Div(said, className="say"), _numbers(context, advice, rank)]
    return html.Section(
        [html.Div(body, className="both"), buttons(finding, advice.mark, view.now)],
        className=f"card adv st-{hue(finding.stage)}",
        **attributes({"data-advice": finding.key, "aria-label": f"{title}, {service}"}),
    )


def top_advice(context: Context, most: int, size: str = "c12") -> Component | None:
    """Return the pieces of advice that would lower p99 of a service most, in one card; None where nothing would help."""
    view = context.view
    found = [each for each in of_service(context, "p99", most) if not (each.mark and each.mark.hides(view.now))]
    shown = [_line(context, each) for each in found if each.reach is not None]
    if not shown:
        return None
    whole = view.link(service_path(context.service or "", "advice"), **view.part)
    more = link("All advice →", href=whole, className="link")
    return card("What would help", html.Ul(shown, className="helps"), sub="p99 could reach", tools=more, size=size)


def _line(context: Context, advice: Advice) -> Component:
    finding, reach = advice.finding, advice.reach
    title, why = finding.words
    href = context.view.link(service_path(finding.facts.service, "advice"), **context.view.part)
    to = None if reach is None else reach.usual if reach.is_uneven else reach.without
    reached: Node = html.Span([duration(reach.before), " → ", html.B(duration(to))], className="num") if reach else None
    said = html.Span([link(title, href=href, className="b"), html.Span(why, className="muted")], className="say")
    return html.Li([swatch(finding.stage), said, reached])


def _numbers(context: Context, advice: Advice, rank: str) -> Component:
    """Return how far the ranked quantity could get, and the breakdown that shows the stage."""
    finding, reach = advice.finding, advice.reach
    view, measures = context.view, finding.facts.measures
    parts: list[Node] = []
    if rank == "cost":
        parts += _cost_numbers(context, advice)
    elif reach is not None:
        parts += _reached(finding.stage, reach)
    stages = measures.tail_stages if rank == "p99" else measures.median_stages
    href = view.link(service_path(finding.facts.service), p="50" if rank == "p50" else None, **view.part)
    parts += [stage_bar(stages), link("Evidence: the breakdown →", href=href, className="link")]
    return html.Div(parts, className="reach")


def _reached(stage: str, reach: Reach) -> list[Node]:
    """Return how far a percentile gets if the stage is never longer than its median, and the ceiling."""
    without = f"if {label(stage)} took no time"
    ceiling = html.Div([html.B(duration(reach.without)), f" at best, {without}"], className="muted")
    said = f"{MINUS}{percent(reach.gain)} if none took more than the median"
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


def _option(option: Option) -> Component:
    rows: list[Component] = []
    for name, words in _MATRIX:
        rows += [html.Dt(words), html.Dd(str(getattr(option, name)))]
    return html.Details(
        [html.Summary(option.name), html.Div([html.P(option.does), html.Dl(rows, className="matrix")])], className="opt"
    )


def _mark(context: Context, advice: Advice) -> Node:
    """Say what was done with it, where it is; what was done leads to the comparison of before and after."""
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
