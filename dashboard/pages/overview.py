"""The fleet: is anything wrong, where, since when, which stage."""

from __future__ import annotations

from dataclasses import dataclass

from dash import html
from dash.development.base_component import Component

from ...alerts.reader import SloStatus
from ...core.stages import label, position
from ..components import (
    WORDS,
    Node,
    attributes,
    card,
    delta,
    dominating,
    dot,
    legend,
    link,
    pill,
    ratio_of,
    spark,
    stage_bar,
    status,
    table,
    tile,
    tiles,
)
from ..figures.budget import left_parts
from ..format import UNKNOWN, count, duration, percent, percentile, signed_change, span, target, times
from ..tokens import hue
from ..view import service_path, slo_path
from .empty import no_data
from .measures import Measures, measure
from .page import Context, Page, panel
from .pair import WANTED, Comparison, compared, newest_pair
from .rows import records
from .service import tail_sentence
from .slo import budget_gauge

_MAX_FINDINGS = 3
_LEGEND = 6


@dataclass(frozen=True, slots=True)
class Row:
    """What the fleet's table says of one service."""

    context: Context
    model: str
    now: Measures
    before: Measures
    slo: SloStatus | None
    change: Comparison | None

    @property
    def service(self) -> str:
        """Its name."""
        return self.context.service or ""

    @property
    def p99_change(self) -> float | None:
        """How much p99 changed: against the window before, or against the version before where there is none."""
        against = ratio_of(self.now.p99, self.before.p99)
        change = self.change
        if against is None and change is not None and change.quantile == WANTED and change.verdict.kind != "not_enough":
            ratio = change.verdict.ratio
            return None if ratio is None else ratio - 1
        return against


def render(context: Context) -> Page:
    """Return the overview."""
    frame = context.source.services(context.view.start, context.view.end)
    trail: list[tuple[str, str | None]] = [("Overview", None)]
    if not len(frame):
        return Page("Overview · Stagelens", trail, no_data(context), "/")
    rows = sorted((_row(context, record) for record in records(frame)), key=_urgency)
    shown = sorted({stage for row in rows for stage in row.now.tail_stages}, key=position)
    body: list[Node] = [
        _head(context, rows),
        panel("Findings", lambda: _findings(rows)),
        _tiles(context, rows),
        panel("Services", lambda: _services(rows, shown)),
    ]
    return Page("Overview · Stagelens", trail, body, "/")


def _row(context: Context, record: dict[str, object]) -> Row:
    service = str(record["service"])
    own = Context(context.view, context.source, service)
    pair = newest_pair(own)
    return Row(
        context=own,
        model=str(record["model"]),
        now=measure(own.source, own.selection),
        before=measure(own.source, own.previous),
        slo=own.source.slo_of(service),
        change=compared(own, pair) if pair else None,
    )


def _urgency(row: Row) -> tuple[int, float, str]:
    order = {"burning": 0, "at_risk": 1, "healthy": 2, "no_data": 3}
    worse = row.change is not None and row.change.verdict.kind == "regression"
    return (order[row.slo.state] if row.slo else 2 - worse, -(row.slo.burn_1h if row.slo else 0.0), row.service)


def _head(context: Context, rows: list[Row]) -> Component:
    new = sum(len(row.context.releases) for row in rows)
    parts = [
        f"{len(rows)} service{'s' * (len(rows) != 1)}",
        f"{new} release{'s' * (new != 1)}" if new else "",
        context.young or f"in the {context.view.window_label[0].lower()}{context.view.window_label[1:]}",
    ]
    text = " · ".join(part for part in parts if part)
    return html.Div(html.Div([html.H1("Fleet overview"), html.P(text, className="sub")]), className="phead")


def _findings(rows: list[Row]) -> Component:
    """Return up to three cards, the gravest first, or one line that nothing is wrong."""
    found = [each for row in rows for each in (_slo_finding(row), _regression_finding(row)) if each is not None]
    found.sort(key=lambda pair: pair[0])
    if found:
        return html.Div([each for _, each in found[:_MAX_FINDINGS]], className="finds")
    promised = [row for row in rows if row.slo is not None]
    who = (
        f"All {len(promised)} services with an objective are"
        if len(promised) > 1
        else "The service with an objective is"
    )
    return html.Div([dot("healthy"), f"{who} inside it." if promised else "No regression found."], className="quiet")


def _regression_finding(row: Row) -> tuple[int, Component] | None:
    if row.change is None or row.change.verdict.kind != "regression":
        return None
    judged, pair = row.change.verdict, row.change.pair
    blamed = row.change.growth[0].stage if row.change.growth else "overhead"
    causes = [f"{label(each.stage)} explains {percent(each.share)} of it" for each in row.change.growth[:1]]
    causes += [f"{label(each.stage)} {percent(each.share)}" for each in row.change.growth[1:2] if each.share > 0.1]  # noqa: PLR2004 - less is no cause
    seen = row.context.versions[row.context.versions["version"] == pair.b_name]["first_seen"].iloc[0]
    age = span(row.context.source.now() - seen.to_pydatetime())
    ratio = judged.ratio or 1.0
    how = "doubled" if 1.9 < ratio < 2.15 else f"rose {percent(ratio - 1)}" if ratio < 10 else f"rose {ratio:.0f}-fold"  # noqa: PLR2004 - as people say it
    title = f"{percentile(row.change.quantile)} {how} with {pair.b_name}: {duration(judged.a_value)} → {duration(judged.b_value)}"
    href = row.context.view.link("/compare", svc=row.service)
    about, causes_text = f"{row.service} · {age} ago", ", ".join(causes) + "."
    return 1, _finding(pill("Regression", "bad"), about, title, causes_text, stage=blamed, href=href)


def _slo_finding(row: Row) -> tuple[int, Component] | None:
    found = row.slo
    if found is None or found.state not in {"burning", "at_risk"}:
        return None
    burning = found.state == "burning"
    if found.budget_left is not None and found.budget_left <= 0:
        title = (
            f"Error budget overspent by {left_parts(found.budget_left)[0]}"
            if found.budget_left
            else "Error budget spent"
        )
        title += f", burning {times(found.burn_1h)}" if found.burn_1h >= 1 else ""
    else:
        title = f"Burning {times(found.burn_1h)}"
        title += f", budget gone in {span(found.exhausted_in)}" if found.exhausted_in else ""
    stages = row.now.tail_stages
    blamed = max(stages, key=lambda key: stages[key]) if stages else "overhead"
    said = tail_sentence(row.now)
    text = (
        f"{said}. {percent(found.attained, 2)} inside, target {target(found.slo.objective)}."
        if said
        else found.slo.in_words()
    )
    kind = "bad" if burning else "warn"
    href = row.context.view.link(slo_path(found.slo.name))
    return (0 if burning else 2), _finding(
        pill("SLO", kind), f"{row.service} · now", title, text, stage=blamed, href=href
    )


def _finding(badge: Component, about: str, title: str, text: str, *, stage: str, href: str) -> Component:
    return link(
        [
            html.Span(className=f"g st-{hue(stage)}"),
            html.Div(
                [
                    html.Div([badge, html.Span(about)], className="m"),
                    html.Div(title, className="t"),
                    html.Div(text, className="x"),
                ]
            ),
        ],
        href=href,
        className="ins",
    )


def _tiles(context: Context, rows: list[Row]) -> Component:
    total = sum(row.now.requests for row in rows)
    before = sum(row.before.requests for row in rows)
    errors = sum(row.now.errors for row in rows)
    everything = context.source.ask(
        context.source.read.quantiles_over_time, context.selection, (0.5,), context.axis.step
    )
    promised = [row for row in rows if row.slo is not None]
    inside = sum(row.slo is not None and row.slo.state == "healthy" for row in rows)
    changed = sorted((row for row in rows if row.p99_change is not None), key=lambda row: -(row.p99_change or 0))
    change = changed[0].p99_change if changed else None
    growth = ratio_of(total / context.seconds, before / (context.view.end - context.view.start).total_seconds())
    waiting = _fleet_waiting(rows)
    return tiles(
        [
            tile(
                "Requests",
                count(total / context.seconds),
                "/s",
                delta(growth, worse_up=False, after="vs prev.") if growth is not None else f"{count(total)} requests",
                spark(context.rates(everything)),
            ),
            tile("Services meeting SLO", str(inside), f"of {len(promised)}", _outside(promised)) if promised else None,
            tile(
                "Worst p99 change",
                signed_change(change),
                "",
                html.Span([html.Span(changed[0].service, className="b")]),
            )
            if change is not None
            else None,
            tile("Time spent waiting", percent(waiting), "of p99", "queue, network, cold start")
            if waiting is not None
            else None,
            tile("Errors", percent(errors / total if total else None, 2), "", f"{count(errors)} of {count(total)}"),
        ]
    )


def _outside(promised: list[Row]) -> Node:
    """Say how many of the services with an objective are in which kind of trouble."""
    states = [row.slo.state for row in promised if row.slo is not None]
    counted = ((states.count(state), WORDS[state].lower()) for state in ("burning", "at_risk", "no_data"))
    said = ", ".join(f"{number} {word}" for number, word in counted if number)
    return html.Span(said, className="bad") if said else html.Span("none at risk", className="good")


def _fleet_waiting(rows: list[Row]) -> float | None:
    """Weigh each service's share by its requests."""
    known = [(row.now.waiting_share, row.now.requests) for row in rows]
    weights = sum(weight for share, weight in known if share is not None)
    return sum(share * weight for share, weight in known if share is not None) / weights if weights else None


def _services(rows: list[Row], stages: list[str]) -> Component:
    promised = any(row.slo for row in rows)
    head: list[tuple[Node, str]] = [
        ("Service", ""),
        ("Status", "hide"),
        ("Requests", "r hide"),
        ("p50", "r hide"),
        ("p99", "r"),
    ]
    head += [("change", "r hide"), ("Where p99 goes", "")]
    head += [("Budget left", "r hide"), ("Burn 1 h", "r hide")] if promised else []
    head += [("Errors", "r hide")]
    body = table(head, [_service(row, promised=promised) for row in rows], "Services")
    heavy = sorted(
        stages, key=lambda stage: -sum(row.now.tail_stages.get(stage, 0) / (row.now.p99 or 1) for row in rows)
    )
    sub = "sorted by SLO burn" if promised else "slower ones first"
    return card("Services", body, sub=sub, tools=html.Span(legend(heavy[:_LEGEND]), className="hide"), flush=True)


def _service(row: Row, *, promised: bool) -> Component:
    view, now = row.context.view, row.now
    href = view.link(service_path(row.service))
    worse = row.change is not None and row.change.verdict.kind == "regression"
    state = row.slo.state if row.slo else "at_risk" if worse else "healthy"
    badge = status(state) if row.slo else pill("Slower", "warn") if worse else pill("No SLO")
    name = html.Div(
        [
            dot(state) if row.slo or worse else dot("no_data"),
            html.Div(
                [
                    link(row.service, href=href, className="n", title=row.service),
                    html.Div(row.model or UNKNOWN, className="s"),
                ]
            ),
        ],
        className="svc",
    )
    rates = row.context.source.ask(
        row.context.source.read.quantiles_over_time, row.context.selection, (0.5, 0.99), row.context.axis.step
    )
    where: Node | list[Node] = (
        [stage_bar(now.tail_stages), dominating(now.tail_stages)] if now.tail_stages else _few(now)
    )
    cells = [
        html.Td(name),
        html.Td(badge, className="hide"),
        html.Td(
            [spark(row.context.rates(rates), css="spk"), " ", f"{count(now.requests / row.context.seconds)}/s"],
            className="r hide",
        ),
        html.Td(duration(now.p50), className="r hide"),
        html.Td(html.Span(duration(now.p99), className="n"), className="r"),
        html.Td(delta(row.p99_change), className="r hide"),
        html.Td(where, className="barcell"),
        *(_budget(row.slo) if promised else []),
        html.Td(percent(now.error_ratio, 2), className="r hide"),
    ]
    return html.Tr(cells, **attributes({"data-href": href}))


def _few(now: Measures) -> Node:
    return html.Span(f"{now.requests} requests: p99 needs 1000", className="muted")


def _budget(found: SloStatus | None) -> list[Component]:
    if found is None or found.budget_left is None:
        return [html.Td("–", className="r muted hide")] * 2  # noqa: RUF001 - an en dash stands for unknown
    kind = {"burning": "bad", "at_risk": "warn"}.get(found.state, "")
    left = budget_gauge(found, kind)
    burn = html.Span(times(found.burn_1h), className=f"b {kind}" if kind else "")
    return [html.Td(left, className="r hide"), html.Td(burn, className="r hide")]
