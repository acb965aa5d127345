"""The promises: all of them in a table by urgency, and the chosen one in a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from dash import html
from dash.development.base_component import Component

from ...alerts.evaluation.slo_status import SloStatus
from ...alerts.objectives.slo import Slo
from ...core.stages import label
from ..components import Node, attributes, card, dot, gauge, link, table, tile, tiles
from ..figures.budget import left_parts
from ..format import attained, axis_duration, count, span, target, times
from ..view import View, slo_path
from .page import Context
from .service_status import COLOURS, maintenance_end, state_line, state_note

_HELD = ("stale", "maintenance")
_UNKNOWN = "–"  # noqa: RUF001 - an en dash stands for unknown


def objectives_card(context: Context, found: Sequence[SloStatus], chosen: SloStatus) -> Component:
    """Return the objectives, the most urgent first, *chosen* lit."""
    rows = [_row(context, each, on=each.slo.name == chosen.slo.name) for each in found]
    head = (("Objective", ""), ("Budget left", ""), ("Burn 1 h", "r"))
    return card("Objectives", table(head, rows, "Objectives"), size="c4 beside", flush=True)


def promise(slo: Slo) -> str:
    """Return what *slo* promises, as short as a line of a table."""
    return f"{target(slo.objective)} {_speed(slo, 'under')} · {span(slo.window)}"


def runs_out(found: SloStatus) -> timedelta | None:
    """Return when the budget is gone at this pace.

    None where it lasts, because what is spent now is given back a window later, and where nobody knows the pace: while
    nothing is judged, or requests do not count.
    """
    goes_on = found.burn_1h > 1 and found.state not in _HELD
    return found.exhausted_in if goes_on or found.exhausted_in == timedelta() else None


def slo_tiles(view: View, found: SloStatus) -> Component:
    """Return the promise, what was kept of it, the budget, and how long that lasts."""
    slo = found.slo
    return tiles(
        [
            tile("Objective", target(slo.objective), _speed(slo, "<"), f"{span(slo.window)} rolling"),
            tile("Attained", attained(found.attained), "", _verdict(found)),
            tile("Error budget", *_left_parts(found), _requests_left(found)),
            tile("At this pace", *_pace(view, found)),
        ]
    )


def _row(context: Context, found: SloStatus, *, on: bool) -> Component:
    slo, kind = found.slo, COLOURS.get(found.state, "")
    href = context.view.link(slo_path(slo.name), w=context.view.text("w"))
    name = html.Div(
        [
            dot(found.state),
            html.Div(
                [
                    link(slo.name, href=href, className="n"),
                    html.Div(promise(slo), className="s"),
                    # Healthy ones are many: for those who see the circle it says enough.
                    html.Div(state_line(found, context.view), className="sr" if found.state == "healthy" else "s why"),
                ]
            ),
        ],
        className="svc",
    )
    burn = html.Span(times(found.burn_1h), className=kind) if found.state != "no_data" else _UNKNOWN
    cells = [html.Td(name, className="fits"), html.Td(_left(found, kind)), html.Td(burn, className="r")]
    return html.Tr(cells, className="on" if on else "", **attributes({"data-href": href}))


def _left(found: SloStatus, kind: str) -> Node:
    """Return how much of the budget is left as a bar and a number; nothing is left of an overspent one."""
    if found.budget_left is None:
        return _UNKNOWN
    text, word = left_parts(found.budget_left)
    shown = html.Span(text if word == "left" else f"{text} {word}", className="b")
    return html.Div([gauge(found.budget_left, kind), shown], className="gauge")


def _speed(slo: Slo, than: str) -> str:
    """Return the condition of the objective, as short as a cell: `< 250 ms`, `Queue < 50 ms`, `succeed`."""
    if slo.threshold is None:
        return "explained by stages" if slo.kind == "coverage" else "succeed"
    about = {"ttft": "TTFT ", "tpot": "a token ", "freshness": "data "}.get(slo.kind, "")
    about = f"{label(slo.stage)} " if slo.stage else about
    return f"{about}{than} {axis_duration(slo.threshold.total_seconds())}"


def _verdict(found: SloStatus) -> Node:
    if found.attained is None:
        return "no request in its window"
    inside = found.attained >= found.slo.objective
    said, kind = ("on target", "good") if inside else ("below target", "bad")
    return html.Span(f"{said} then", className="muted") if found.state == "stale" else html.Span(said, className=kind)


def _left_parts(found: SloStatus) -> tuple[str, str]:
    return (_UNKNOWN, "") if found.budget_left is None else left_parts(found.budget_left)


def _requests_left(found: SloStatus) -> Node:
    if found.budget_left is None:
        return None
    if found.bad_left > 0:
        return f"{count(found.bad_left)} bad requests left"
    return f"{count(found.bad)} bad requests, {count(-found.bad_left)} too many"


def _pace(view: View, found: SloStatus) -> tuple[str, str, Node]:
    if found.state == "no_data":
        return _UNKNOWN, "", "no request in the last hour"
    if found.state == "stale":
        return _UNKNOWN, "", f"not judged {state_note(found, view)}"
    if found.state == "maintenance" and found.work is not None:
        return "paused", "", f"planned work {maintenance_end(found.work, view)}"
    gone_in = runs_out(found)
    if gone_in is None:
        return "lasts", "", html.Span("the window out", className="good")
    if gone_in <= timedelta():
        kind = "bad" if found.burn_1h > 1 else "muted"
        return "spent", "", html.Span(f"burning {times(found.burn_1h)}", className=kind)
    return span(gone_in), "", html.Span("until exhausted", className="bad")
