"""The fleet: is anything wrong, where, since when, which stage."""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from ..components import Node, attributes, delta, link_tabs, ratio_of, spark, tile, tiles
from ..costs import HOUR_SECONDS, MILLION
from ..format import count, money, percent, signed_change
from .collectors import greedy_line
from .empty import no_data
from .fleet import KINDS, Row, urgent_first
from .overview_findings import findings
from .overview_table import MANY, services_card
from .overview_timeseries import course_card, happened_card, rates_by_service, released
from .page import Context, Page, panel
from .slo_status_text import COLOURS, counted, worst
from .unwatched import unwatched_line

_TONES = {**COLOURS, "stale": "warn"}


def render(context: Context) -> Page:
    """Return the overview."""
    trail: list[tuple[str, str | None]] = [("Overview", None)]
    rows = urgent_first(context)
    if not rows:
        return Page("Overview · Stagelens", trail, no_data(context), "/")
    shown = [row for row in rows if _wanted(context, row)]
    below = html.Div(
        [
            panel("Where the fleet spends its time", lambda: course_card(context, "c8"), "c8"),
            panel("Deploys and events", lambda: happened_card(context, "c4"), "c4"),
        ],
        className="grid",
    )
    body: list[Node] = [
        _head(context, rows, shown),
        unwatched_line(context),
        greedy_line(context),
        panel("Findings", lambda: findings(context, shown)),
        panel("Numbers", lambda: _tiles(context, shown)),
        panel("Services", lambda: services_card(context, shown)),
        below,
    ]
    return Page("Overview · Stagelens", trail, body, "/")


def _wanted(context: Context, row: Row) -> bool:
    kind, words = context.view.choice("kind", "", *KINDS), (context.view.text("q") or "").casefold().split()
    name = f"{row.service} {row.seen.model}".casefold()
    return (not kind or row.seen.kind == kind) and all(word in name for word in words)


def _head(context: Context, rows: list[Row], shown: list[Row]) -> Component:
    view, new = context.view, len(released(context))
    chosen = view.choice("kind", "", *KINDS)
    number = f"{len(shown)} of {len(rows)}" if len(shown) < len(rows) else str(len(rows))
    parts = [
        f"{number} service{'s' * (len(rows) != 1)}",
        f"{new} release{'s' * (new != 1)}" if new else "",
        context.young or f"in the {view.window_label[0].lower()}{view.window_label[1:]}",
    ]
    text = " · ".join(part for part in parts if part)
    title = html.Div([html.H1("Fleet overview"), html.P(text, className="sub")])
    known = [kind for kind in KINDS if kind == chosen or any(row.seen.kind == kind for row in rows)]
    options = {"": ("All", view.here(kind=None, n=None))}
    options |= {kind: (KINDS[kind], view.here(kind=kind, n=None)) for kind in known}
    tools: list[Node] = [
        _filter(context) if len(rows) > MANY or view.text("q") else None,
        link_tabs("Kind of service", options, chosen) if len(known) > 1 else None,
    ]
    return html.Div([title, html.Span(className="grow"), *tools], className="phead")


def _filter(context: Context) -> Component:
    """Return the place of the field that narrows the list by name; `assets/sieve.js` makes it."""
    return html.Span(className="sieve", **attributes({"data-typed": context.view.text("q") or ""}))


def _tiles(context: Context, rows: list[Row]) -> Component:
    total, failed = sum(row.now.requests for row in rows), sum(row.now.errors for row in rows)
    waiting = _fleet_waiting(rows)
    errors = tile("Errors", percent(failed / total if total else None, 2), "", f"{count(failed)} of {count(total)}")
    waited = tile("Time spent waiting", percent(waiting), "of p99", "queue, network, cold start")
    return tiles(
        [
            _requests(context, rows, total),
            _promised(rows),
            _worst(context, rows),
            waited if waiting is not None else None,
            errors if rows else None,
            _cost(context, rows, total),
        ]
    )


def _requests(context: Context, rows: list[Row], total: int) -> Component:
    before = sum(row.before.requests for row in rows)
    old_rate = before / context.previous_seconds if context.previous_seconds else None
    growth = ratio_of(total / context.seconds, old_rate)
    below = f"{count(total)} request{'s' * (total != 1)}"
    if growth is not None:
        below = delta(growth, worse_up=False, after=context.view.compared_words)
    courses = rates_by_service(context)
    own = [courses[row.service] for row in rows if row.service in courses]
    course = [sum(each) for each in zip(*own, strict=True)]
    return tile("Requests", count(total / context.seconds), "/s", below, spark(course))


def _promised(rows: list[Row]) -> Component | None:
    """Say how many services with an objective are inside it, and how the others stand."""
    states = [row.slo.state for row in rows if row.slo is not None]
    if not states:
        return None
    said = ", ".join(counted(states))
    below = html.Span(said or "none at risk", className=_TONES.get(worst(states), "muted") if said else "good")
    return tile("Services meeting SLO", str(states.count("healthy")), f"of {len(states)}", below)


def _worst(context: Context, rows: list[Row]) -> Component | None:
    changed = [(row.p99_change, row) for row in rows if row.p99_change is not None]
    if not changed:
        return None
    change, row = max(changed, key=lambda pair: pair[0])
    below = html.Span([context.view.compared_words, ", ", html.B(row.service, className="b")])
    return tile("Worst p99 change", signed_change(change), "", below)


def _fleet_waiting(rows: list[Row]) -> float | None:
    """Weigh each service's share by its requests."""
    known = [(share, row.now.requests) for row in rows if (share := row.now.waiting_share) is not None]
    weights = sum(weight for _, weight in known)
    return sum(share * weight for share, weight in known) / weights if weights else None


def _cost(context: Context, rows: list[Row], total: int) -> Component | None:
    """Return what the services with a price cost together; None where nobody wrote one."""
    costs = context.source.costs
    if costs is None:
        return None
    found = [(costs.per_hour(row.service, context.view.text("env")), row) for row in rows]
    priced = [(cost, row) for cost, row in found if cost is not None]
    if not priced:
        return None
    an_hour, served = sum(cost for cost, _ in priced), sum(row.now.requests for _, row in priced)
    a_million = sum(cost * row.seconds for cost, row in priced) / HOUR_SECONDS / served * MILLION
    missing = f", {len(rows) - len(priced)} without a price" if len(priced) < len(rows) else ""
    below = f"{money(a_million, costs.currency)} per million{missing}" if total else ""
    return tile("Serving cost", money(an_hour, costs.currency), "/ h", below)
