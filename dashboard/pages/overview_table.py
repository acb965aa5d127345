"""Service table of the overview, and its charts: request rates, stage time and events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import pandas as pd
from dash import html
from dash.development.base_component import Component

from ...analysis.costs import MILLION, cost_of_request
from ...core.histogram import samples_needed
from ...core.stages import label
from ..figures.budget import budget_left_words
from ..figures.over_time import busy_seconds, fleet_figure
from ..ui.components import (
    Node,
    Nodes,
    attributes,
    card,
    chart,
    delta,
    dominating,
    dot,
    empty,
    gauge,
    link,
    link_tabs,
    pill,
    spark,
    stage_bar,
    table,
)
from ..ui.format import UNKNOWN, count, duration, money, percent, span, times, whole
from ..view import attributes_text, service_path, slo_path
from .comparison import window_name
from .events import TimelineEvent, timeline_events
from .measures import KINDS, ServiceRow, by_environment, urgent_first
from .page import Context
from .service_status import COLOURS, state_counts, young_note

_MAX_EVENTS = 8
_BUSY_HINT = "Mean number of concurrent requests in each stage, for all services."
# Number of services from which the table is grouped and has a filter.
MANY = 30
_A_PAGE = 50
ENVIRONMENT = "environment"
_MAX_ENVIRONMENTS, _MAX_LABELS = 12, 6
_DEFAULT = "burn"
_TROUBLED = ("burning", "at_risk")
Value = float | str | None
_TROUBLE = "Needs attention"
_GROUPS = (_TROUBLE, *KINDS.values())
_UNKNOWN = html.Span(UNKNOWN, className="muted")


def services_card(context: Context, rows: Sequence[ServiceRow]) -> Component:
    grouping = chosen_grouping(context)
    if grouping == ENVIRONMENT:
        names = {row.service for row in rows}
        rows = [row for row in by_environment(context) if row.service in names]
    columns = table_columns(context, rows)
    key, backwards = _order(context, columns)
    ordered = _sorted(rows, key, columns.get(key), backwards=backwards)
    group = _group_by(context, grouping)
    if group is None and len(rows) > MANY and key == _DEFAULT and not backwards:
        group = _urgent_or_kind
    if group is not None:
        ordered.sort(key=lambda row: group(row).order)
    pages = max(-(-len(ordered) // _A_PAGE), 1)
    page = context.view.page_of(pages)
    shown = ordered[(page - 1) * _A_PAGE : page * _A_PAGE]
    head: list[tuple[Node, str] | Component] = [
        _head(context, name, column, "" if name != key else "-" if backwards else "+")
        for name, column in columns.items()
    ]
    lines = _grouped(shown, ordered, columns, group) if group else [_line(row, columns) for row in shown]
    body = table(head, lines, "Services", css="fleet") if rows else _no_match(context)
    sub = _spoken_row(columns.get(key), key, backwards=backwards)
    foot = [*(_pages(context, page, pages, len(ordered)) if pages > 1 else []), _without_environment(context, rows)]
    return card("Services", body, sub=sub, foot=[node for node in foot if node], flush=True)


def _without_environment(context: Context, rows: Sequence[ServiceRow]) -> str | None:
    if chosen_grouping(context) != ENVIRONMENT:
        return None
    shown = {row.service for row in rows}
    counted = sum(row.now.requests for row in urgent_first(context) if row.service in shown)
    left = counted - sum(row.now.requests for row in rows)
    return f"{count(left)} requests without an environment are in no group. " if left > 0 else None


def groupings(context: Context) -> dict[str, str]:
    environments = context.source.cached(context.source.read.environments)
    # Each environment takes the queries of a whole fleet.
    several = not context.view.text("env") and 1 < len(environments) <= _MAX_ENVIRONMENTS
    labels = {ENVIRONMENT: "Environment"} if several else {}
    return labels | {key: key.capitalize() for key in label_keys(context) if key != ENVIRONMENT}


def label_keys(context: Context) -> list[str]:
    keys = {key for labels in context.source.labels().values() for key in labels}
    return sorted(keys, key=lambda key: (key != "team", key))[:_MAX_LABELS]


def chosen_grouping(context: Context) -> str:
    return context.view.choice("by", "", *groupings(context))


@dataclass(frozen=True, slots=True)
class _Group:
    order: tuple[object, ...]
    name: str
    href: str = ""


def _group_by(context: Context, key: str) -> Callable[[ServiceRow], _Group] | None:
    if not key:
        return None
    view, labels = context.view, context.source.labels()

    def group(row: ServiceRow) -> _Group:
        value = row.environment if key == ENVIRONMENT else labels.get(row.service, {}).get(key, "")
        if not value:
            return _Group((True, ""), f"No {key}")
        others = [pair for pair in view.attributes if pair[0] != key]
        alone = {"env": value} if key == ENVIRONMENT else {"at": attributes_text([*others, (key, value)])}
        return _Group((False, value), value, view.here(by=None, **alone))

    return group


def _urgent_or_kind(row: ServiceRow) -> _Group:
    name = _TROUBLE if row.state in _TROUBLED else KINDS[row.seen.kind]
    return _Group((_GROUPS.index(name),), name)


def table_columns(context: Context, rows: Sequence[ServiceRow]) -> dict[str, Column]:
    promised, costs = any(row.slo for row in rows), hourly_costs(context, rows)
    columns = {
        "name": Column("Service", lambda row: row.service.casefold(), _name, "", rising=True),
        "status": Column("Status", lambda row: -row.urgency[0], lambda row: row.status.badge, "hide", total=_states),
        "rate": Column("Requests", lambda row: row.now.requests / row.seconds, _rate, total=_total_rate),
        "p50": Column("p50", lambda row: row.now.p50, lambda row: duration(row.now.p50)),
        "p99": Column("p99", lambda row: row.now.p99, lambda row: html.Span(duration(row.now.p99), className="n"), "r"),
        "change": Column(context.view.compared_words or "change", _p99_growth, _change),
        "where": Column("Stages of p99", _dominant_share, _stage_cell, "barcell"),
        "budget": Column("Budget left", _budget_left, _budget, "hide", rising=True) if promised else None,
        _DEFAULT: Column("Burn 1 h", lambda row: -row.urgency[1], _burn) if promised else None,
        "errors": Column(
            "Errors", lambda row: row.now.error_ratio, lambda row: percent(row.now.error_ratio, 2), total=_total_errors
        ),
        "cost": Column(
            f"{_currency(context)} / 1 M".strip(),
            lambda row: _cost_of_million([row], costs),
            lambda row: money(_cost_of_million([row], costs), _currency(context)),
            total=lambda group: money(_cost_of_million(group, costs), _currency(context)),
        )
        if costs
        else None,
    }
    return {name: column for name, column in columns.items() if column is not None}


def _order(context: Context, columns: dict[str, Column]) -> tuple[str, bool]:
    asked = context.view.text("sort") or _DEFAULT
    key, backwards = asked.removeprefix("-"), asked.startswith("-")
    return (key, backwards) if key in columns else (_DEFAULT, False)


def _sorted(rows: Sequence[ServiceRow], key: str, column: Column | None, *, backwards: bool) -> list[ServiceRow]:
    if column is None or key == _DEFAULT:
        return list(reversed(rows) if backwards else rows)
    sortable = [(value, row) for row in rows if (value := column.value(row)) is not None]
    sortable.sort(key=lambda pair: pair[0], reverse=backwards == column.rising)
    return [row for _, row in sortable] + [row for row in rows if column.value(row) is None]


def _head(context: Context, key: str, column: Column, sorted_by: str) -> Component:
    asked = f"-{key}" if sorted_by == "+" else key
    href = context.view.here(sort=None if asked == _DEFAULT else asked)
    rising = column.rising == (sorted_by != "-")
    arrow = html.I(className=f"sort {'up' if rising else 'down'}") if sorted_by else None
    more = attributes({"aria-sort": "ascending" if rising else "descending"}) if sorted_by else {}
    return html.Th(link([column.title, arrow], href=href, className="by"), className=column.css, scope="col", **more)


def _grouped(
    shown: Sequence[ServiceRow],
    ordered: Sequence[ServiceRow],
    columns: dict[str, Column],
    group_of: Callable[[ServiceRow], _Group],
) -> list[Component]:
    members: dict[_Group, list[ServiceRow]] = {}
    for row in ordered:
        members.setdefault(group_of(row), []).append(row)
    lines: list[Component] = []
    for group, rows in groupby(shown, key=group_of):
        whole_group = members[group]
        text = f"{group.name} · {len(whole_group)}"
        name = link(text, href=group.href) if group.href else text
        sums = [html.Td(column.total(whole_group), className=column.css) for column in list(columns.values())[1:]]
        # Phones hide the columns of the sums.
        hidden = html.Span([" · ", _total_rate(whole_group)], className="sum")
        title = html.Th([name, hidden], scope="rowgroup")
        lines.append(html.Tr([title, *sums], className="group"))
        lines += [_line(row, columns) for row in rows]
    return lines


def _line(row: ServiceRow, columns: dict[str, Column]) -> Component:
    cells = [html.Td(column.cell(row), className=column.css) for column in columns.values()]
    return html.Tr(cells, **attributes({"data-href": _path(row)}))


def _path(row: ServiceRow, **changes: str) -> str:
    return row.context.view.link(service_path(row.service), **changes)


def _name(row: ServiceRow) -> Component:
    details = " · ".join(part for part in (KINDS[row.seen.kind], row.seen.model) if part and part != KINDS["other"])
    name = link(row.service, href=_path(row), className="n", title=row.service)
    text = html.Div([name, html.Div(details or UNKNOWN, className="s", title=details or None)])
    return html.Div([dot(row.state or "no_data"), text], className="svc")


def _rate(row: ServiceRow) -> list[Node]:
    rates = row.fleet.once(rates_by_service).get(row.service, [])
    return [spark(rates, css="spk"), " ", html.Span(f"{count(row.now.requests / row.seconds)}/s", className="rate")]


def _total_rate(rows: Sequence[ServiceRow]) -> Node:
    return html.Span(f"{count(sum(row.now.requests / row.seconds for row in rows))}/s", className="rate")


def _total_errors(rows: Sequence[ServiceRow]) -> Node:
    requests = sum(row.now.requests for row in rows)
    return percent(sum(row.now.errors for row in rows) / requests if requests else None, 2)


def _states(rows: Sequence[ServiceRow]) -> Node:
    return ", ".join(state_counts([row.slo.state for row in rows if row.slo is not None]))


def _p99_growth(row: ServiceRow) -> Value:
    comparison = row.p99_compared
    return None if comparison is None else comparison.growth if comparison.has_changed else 0.0


def _change(row: ServiceRow) -> Node:
    view, before, comparison = row.context.view, row.fleet.previous, row.p99_compared
    if comparison is None or before is None:
        return delta(None, certain=False)
    windows = {"a": window_name(before.start, before.end), "b": window_name(view.start, view.end)}
    change = delta(comparison.growth, certain=comparison.has_changed)
    return link(change, href=view.link("/compare", svc=row.service, **windows), title="Compare")


def _dominant_share(row: ServiceRow) -> Value:
    stages = row.now.tail_stages
    return max(stages.values()) / sum(stages.values()) if stages else None


def _stage_cell(row: ServiceRow) -> Node:
    now = row.now
    if not now.tail_stages:
        counted = f"{whole(now.requests)} request{'s' * (now.requests != 1)}"
        return html.Span(f"{counted}: p99 needs {whole(samples_needed(0.99))}", className="muted")
    bar = [stage_bar(now.tail_stages), dominating(now.tail_stages)]
    return link(bar, href=_path(row, p="99"), className="where")


def _budget_left(row: ServiceRow) -> Value:
    return row.slo.budget_left if row.slo else None


def _budget(row: ServiceRow) -> Node:
    status = row.slo
    if status is None or status.budget_left is None:
        return _UNKNOWN
    text, word = budget_left_words(status.budget_left)
    shown = html.Span(text if word == "left" else f"{text} {word}", className="b")
    return link(
        [gauge(status.budget_left, _colour(row)), shown],
        href=_slo_path(row),
        className="gauge",
        title=young_note(status),
    )


def _burn(row: ServiceRow) -> Node:
    status = row.slo
    if status is None or status.budget_left is None:
        return _UNKNOWN
    return link(times(status.burn_1h), href=_slo_path(row), className=f"b {_colour(row)}" if _colour(row) else "")


def _slo_path(row: ServiceRow) -> str:
    return row.context.view.link(slo_path(row.slo.slo.name) if row.slo else "/slo")


def _colour(row: ServiceRow) -> str:
    return COLOURS.get(row.state, "")


def hourly_costs(context: Context, rows: Sequence[ServiceRow]) -> dict[tuple[str, str], float]:
    costs, number = context.source.costs, Counter(row.service for row in rows)
    hourly: dict[tuple[str, str], float] = {}
    for row in rows if costs else ():
        price = costs.per_hour(row.service, row.environment or None, named=number[row.service] > 1) if costs else None
        if price is not None:
            hourly[row.service, row.environment] = price
    return hourly


def _cost_of_million(rows: Sequence[ServiceRow], costs: Mapping[tuple[str, str], float]) -> float | None:
    priced = [(costs[row.service, row.environment], row) for row in rows if (row.service, row.environment) in costs]
    requests = sum(row.now.requests for _, row in priced)
    spent = sum(price * row.seconds for price, row in priced)
    cost = cost_of_request(spent, 1.0, requests) if priced else None
    return None if cost is None else cost * MILLION


def _currency(context: Context) -> str:
    return context.source.costs.currency if context.source.costs else ""


def _spoken_row(column: Column | None, key: str, *, backwards: bool) -> str:
    if column is None:
        return "regressions first"
    if key == _DEFAULT and not backwards:
        return "sorted by SLO burn"
    first = "lowest" if backwards != column.rising else "highest"
    return f"sorted by {column.title}, {first} first"


def _no_match(context: Context) -> Component:
    back = link("Show all services", href=context.view.here(q=None, kind=None, at=None), className="btn")
    return empty("No service matches", actions=[back])


def _pages(context: Context, page: int, pages: int, number: int) -> list[Node]:
    first, last = (page - 1) * _A_PAGE + 1, min(page * _A_PAGE, number)
    view = context.view
    options = {
        str(page_number): (str(page_number), view.here(n=str(page_number) if page_number > 1 else None))
        for page_number in range(1, pages + 1)
    }
    return [f"{first} to {last} of {number}", html.Span(className="grow"), link_tabs("Page", options, str(page))]


def rates_by_service(context: Context) -> dict[str, list[float]]:
    """Return the request rate of each service in every step of the window, 0 without requests [requests/s].

    The newest step is omitted if the window ends now, because its data is incomplete.
    """
    view, axis = context.view, context.axis
    frame = context.source.cached(
        context.source.read.fleet_over_time, view.start, view.end, axis.step, environment=view.text("env")
    )
    if frame.empty:
        return {}
    steps = frame.pivot_table(index="service", columns="at", values="n", aggfunc="sum", fill_value=0)
    axis = context.axis_of(frame)
    rates = steps.to_numpy(dtype=float) / axis.covered_seconds(steps.columns)
    whole = rates[:, :-1] if context.unfinished(steps.columns, axis) else rates
    return {str(name): values for name, values in zip(steps.index, whole.tolist(), strict=True)}


def stage_time_card(context: Context, size: str) -> Component:
    title, source = "Where the fleet spends its time", context.source
    frame = source.cached(source.read.breakdown_over_time, context.selection, None, context.axis.step)
    axis = context.axis_of(frame)
    busy = busy_seconds(frame.iloc[:-1] if context.unfinished(frame["at"], axis) else frame, axis)
    if not len(busy):
        return card(title, empty("Not enough data yet", "The first time step is not complete yet."), size=size)
    spent = {str(stage): float(busy[stage].mean()) for stage in busy.columns.drop("at")}
    heavy = sorted(spent, key=lambda stage: -spent[stage])[:3]
    total = sum(spent.values())
    shares = ", ".join(f"{label(stage)} {percent(spent[stage] / total)}" for stage in heavy) if total else "none"
    spoken = f"Time of all services by stage: {count(total)} s per second on average; {shares}."
    titles = {"at": "time (UTC)"} | {name: f"{label(str(name))} (s/s)" for name in busy.columns[1:]}
    drawn = chart("fleet", fleet_figure(busy, axis), spoken, 230, frame=busy.rename(columns=titles))
    sub = html.Span("busy seconds per second", title=f"{_BUSY_HINT} Each {span(axis.step)}.")
    return card(title, drawn, sub=sub, size=size)


def events_card(context: Context, size: str) -> Component:
    # Advice marks do not change a service and are left out.
    events = [event for event in timeline_events(context) if event.kind != "advice"]
    more = link("All events", href=context.view.link("/events"), className="link")
    if not events:
        quiet = empty("No events", "No release, incident or other event in this window.")
        return card("Deploys and events", quiet, tools=more, size=size)
    lines = [_event_line(context, event) for event in events[:_MAX_EVENTS]]
    left = f"and {len(events) - _MAX_EVENTS} more" if len(events) > _MAX_EVENTS else None
    return card("Deploys and events", html.Ul(lines, className="log"), tools=more, foot=left, size=size)


def released(context: Context) -> pd.DataFrame:
    """Return the releases in the window with the columns service, version, first_seen.

    The first version of a service is not a release.
    """
    view = context.view
    release_rows = context.source.cached(context.source.read.releases, view.text("env"))
    later = release_rows[release_rows.duplicated("service")]
    return later[(later["first_seen"] >= view.start) & (later["first_seen"] < view.end)]


def _event_line(context: Context, event: TimelineEvent) -> Component:
    zone = context.view.zone
    at = event.at.astimezone(zone)
    clock = f"{at:%H:%M}" if at.date() == context.view.end.astimezone(zone).date() else f"{at:%-d %b}"
    what: list[Node] = [html.B(event.service, className="b"), " ", event.title] if event.service else [event.title]
    return html.Li(
        [
            html.Time(clock, title=f"{at:%-d %b %Y %H:%M:%S}"),
            link(what, href=event.href, className="t", title=event.text or event.title),
            pill(event.badge, event.shape),
        ]
    )


def _no_total(_rows: Sequence[ServiceRow]) -> None:
    """Return nothing."""


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    value: Callable[[ServiceRow], Value]
    cell: Callable[[ServiceRow], Nodes]
    css: str = "r hide"
    rising: bool = False
    total: Callable[[Sequence[ServiceRow]], Nodes] = _no_total
