"""Overview page: fleet totals, the most severe problems with their cause, and the service table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from dash import html
from dash.development.base_component import Component

from ...alerts.evaluation.slo_status import SloStatus
from ...alerts.reader import Incident
from ...analysis.breakdown import share_of
from ...analysis.comparison import counts_differ
from ...analysis.costs import HOUR_SECONDS, MILLION
from ...analysis.slo_status import missed_requests, most_urgent
from ...core.stages import label
from ..figures.budget import budget_left_words
from ..ui.components import Node, attributes, delta, dot, link, link_tabs, pill, ratio_of, spark, tile, tiles
from ..ui.format import count, duration, factor, money, percent, percentile, portion, several, signed_change, span
from ..view import attributes_text, incident_page, service_path, slo_path
from . import overview_table
from .across_services import called_sentence
from .collectors import service_quota_line
from .comparison_text import short_name
from .measures import KINDS, ServiceRow, urgent_first
from .page import Context, Page, clock_or_date, no_data, panel
from .regressions import Release
from .scope_filter import Option, filter_chip, menu
from .service_map import map_card
from .service_status import COLOURS, attained_words, burn_words, state_counts, state_note
from .slo import unwatched_line
from .slo_spent import NO_CAUSE, blamed_cause
from .waste import waste_card

_MOST = 3
# Maximum number of findings behind "more"; each costs a few queries.
_MOST_MORE = 9
# A second cause is named if its share of the growth is at least this.
_NAMED = 0.1
_TONES = {**COLOURS, "stale": "warn"}


def render(context: Context) -> Page:
    trail: list[tuple[str, str | None]] = [("Overview", None)]
    rows = urgent_first(context)
    if not rows:
        return Page("Overview · Stagelens", trail, [_without_requests(context), *no_data(context)], "/")
    shown = [row for row in rows if _matches_filter(context, row)]
    below = html.Div(
        [
            panel("Where the fleet spends its time", lambda: overview_table.stage_time_card(context, "c8"), "c8"),
            panel("Deploys and events", lambda: overview_table.events_card(context, "c4"), "c4"),
        ],
        className="grid",
    )
    body: list[Node] = [
        _head(context, rows, shown),
        _groups(context, rows),
        unwatched_line(context),
        service_quota_line(context),
        _without_requests(context),
        panel("Findings", lambda: findings(context, shown)),
        panel("Numbers", lambda: _tiles(context, shown)),
        panel("Services", lambda: overview_table.services_card(context, shown), needs="sort n by"),
        panel("Waste", lambda: waste_card(context, shown)),
        panel("Calls between services", lambda: map_card(context)),
        below,
    ]
    return Page("Overview · Stagelens", trail, body, "/")


def _without_requests(context: Context) -> Component | None:
    view, source = context.view, context.source
    services = source.cached(source.read.services, view.start, view.end, environment=view.text("env"))
    names = [str(name) for name in services["service"][services["requests"] == 0]]
    links = [link(name, href=view.link(service_path(name)), className="link") for name in names[:_MOST_MORE]]
    if not links:
        return None
    parts: list[Node] = [html.B(f"{several(len(names), 'service')} without a counted request"), ": "]
    parts += [part for component in links for part in (component, ", ")][:-1]
    return html.Div(
        [dot("no_data"), html.Span([*parts, " and others" if len(names) > len(links) else ""])], className="quiet"
    )


def _matches_filter(context: Context, row: ServiceRow) -> bool:
    kind, words = context.view.choice("kind", "", *KINDS), (context.view.text("q") or "").casefold().split()
    name = f"{row.service} {row.seen.model}".casefold()
    fits = (not kind or row.seen.kind == kind) and all(word in name for word in words)
    return fits and has_labels(context, row.service)


def has_labels(context: Context, service: str) -> bool:
    labels = context.source.labels().get(service, {})
    wanted: dict[str, set[str]] = {}
    for key, value in context.view.attributes:
        wanted.setdefault(key, set()).add(value)
    return all(key in labels and ("" in values or labels[key] in values) for key, values in wanted.items())


def _groups(context: Context, rows: list[ServiceRow]) -> Component | None:
    view, names = context.view, overview_table.groupings(context)
    options = {"": ("No groups", view.here(by=None))} | {key: (name, view.here(by=key)) for key, name in names.items()}
    chosen = [
        filter_chip(
            key.capitalize(),
            value or "any",
            view.here(at=attributes_text(attribute for attribute in view.attributes if attribute != (key, value))),
            f"{key.capitalize()} {value}: remove this filter",
        )
        for key, value in view.attributes
    ]
    parts: list[Node] = [
        *(_label_menu(context, key, rows) for key in overview_table.label_keys(context)),
        *chosen,
        html.Span(className="grow") if names else None,
        link_tabs("Group by", options, overview_table.chosen_grouping(context)) if names else None,
    ]
    shown = [node for node in parts if node is not None]
    return html.Div(shown, className="filters") if shown else None


def _label_menu(context: Context, key: str, rows: list[ServiceRow]) -> Component | None:
    view, labels = context.view, context.source.labels()
    values = Counter(labels.get(row.service, {}).get(key, "") for row in rows)
    if len(values) < 2:  # noqa: PLR2004 - a single value is no choice
        return None
    others = [pair for pair in view.attributes if pair[0] != key]
    options: dict[str, Option] = {"": (f"Any {key}", view.here(at=attributes_text(others)))}
    for value, number in sorted(values.items(), key=lambda item: (-item[1], item[0])):
        if value:
            options[value] = (value, view.here(at=attributes_text([*others, (key, value)])), str(number))
    chosen = next((value for name, value in view.attributes if name == key), "")
    shown = f"{'Another' if chosen else 'Any'} {key}"
    return menu([shown], options, chosen, title=f"{key.capitalize()}: {chosen or 'any'}", css="menu side-menu")


def _head(context: Context, rows: list[ServiceRow], shown: list[ServiceRow]) -> Component:
    view, new = context.view, len(overview_table.released(context))
    chosen = view.choice("kind", "", *KINDS)
    number = f"{len(shown)} of {len(rows)}" if len(shown) < len(rows) else str(len(rows))
    parts = [
        f"{number} service{'s' * (len(rows) != 1)}",
        f"{new} release{'s' * (new != 1)}" if new else "",
        context.young or view.window_phrase,
    ]
    text = " · ".join(part for part in parts if part)
    title = html.Div([html.H1("Fleet overview"), html.P(text, className="sub")])
    kinds = [kind for kind in KINDS if kind == chosen or any(row.seen.kind == kind for row in rows)]
    options = {"": ("All", view.here(kind=None))}
    options |= {kind: (KINDS[kind], view.here(kind=kind)) for kind in kinds}
    tools: list[Node] = [
        _filter(context) if len(rows) > overview_table.MANY or view.text("q") else None,
        link_tabs("Kind of service", options, chosen) if len(kinds) > 1 else None,
    ]
    return html.Div([title, html.Span(className="grow"), *tools], className="phead")


def _filter(context: Context) -> Component:
    """Return the placeholder of the field that filters the list by name; `assets/service_filter.js` builds the field."""
    return html.Span(className="service-filter", **attributes({"data-typed": context.view.text("q") or ""}))


def _tiles(context: Context, rows: list[ServiceRow]) -> Component:
    total, failed = sum(row.now.requests for row in rows), sum(row.now.errors for row in rows)
    waiting = _fleet_waiting(rows)
    errors = tile("Errors", percent(failed / total if total else None, 2), "", f"{count(failed)} of {count(total)}")
    waited = tile("Time spent waiting", percent(waiting), "of p99", "queue, network, cold start")
    return tiles(
        [
            _requests(context, rows, total),
            _slo_tile(rows),
            _worst_p99_tile(context, rows),
            waited if waiting is not None else None,
            errors if rows else None,
            _cost(context, rows, total),
        ]
    )


def _requests(context: Context, rows: list[ServiceRow], total: int) -> Component:
    before = sum(row.requests_before for row in rows)
    old_rate = before / context.previous_seconds if context.previous_seconds else None
    growth = ratio_of(total / context.seconds, old_rate)
    below = f"{count(total)} request{'s' * (total != 1)}"
    if growth is not None:
        certain = counts_differ(before, total, context.previous_seconds, context.seconds)
        below = delta(growth, certain=certain, worse_up=False, after=context.view.compared_words)
    by_service = context.once(overview_table.rates_by_service)
    rates_of_services = [by_service[row.service] for row in rows if row.service in by_service]
    rates = [sum(rates_at) for rates_at in zip(*rates_of_services, strict=True)]
    return tile("Requests", count(total / context.seconds), "/s", below, spark(rates))


def _slo_tile(rows: list[ServiceRow]) -> Component | None:
    states = [row.slo.state for row in rows if row.slo is not None]
    if not states:
        return None
    rest = ", ".join(state_counts(states))
    below = html.Span(rest or "no SLO at risk", className=_TONES.get(most_urgent(states), "muted") if rest else "good")
    return tile("Services meeting SLO", str(states.count("healthy")), f"of {len(states)}", below)


def _worst_p99_tile(context: Context, rows: list[ServiceRow]) -> Component | None:
    compared = [(comparison, row) for row in rows if (comparison := row.p99_compared) is not None]
    worse = [
        (difference.ratio, row)
        for difference, row in compared
        if difference.kind == "regression" and difference.ratio is not None
    ]
    if not compared:
        return None
    if not worse:
        return tile("Worst p99 change", "none", "", f"no p99 rose beyond its error {context.view.compared_words}")
    ratio, row = max(worse, key=lambda pair: pair[0])
    below = html.Span([context.view.compared_words, ", ", html.B(row.service, className="b")])
    return tile("Worst p99 change", signed_change(ratio - 1), "", below)


def _fleet_waiting(rows: list[ServiceRow]) -> float | None:
    shares = [(share, row.now.requests) for row in rows if (share := row.now.waiting_share) is not None]
    weights = sum(weight for _, weight in shares)
    return sum(share * weight for share, weight in shares) / weights if weights else None


def _cost(context: Context, rows: list[ServiceRow], total: int) -> Component | None:
    costs = context.source.costs
    if costs is None:
        return None
    costs_of_rows = [(costs.per_hour(row.service, context.view.text("env")), row) for row in rows]
    priced = [(cost, row) for cost, row in costs_of_rows if cost is not None]
    if not priced:
        return None
    an_hour, served = sum(cost for cost, _ in priced), sum(row.now.requests for _, row in priced)
    a_million = sum(cost * row.seconds for cost, row in priced) / HOUR_SECONDS / served * MILLION
    missing = f", {len(rows) - len(priced)} without a price" if len(priced) < len(rows) else ""
    below = f"{money(a_million, costs.currency)} per million{missing}" if total else ""
    return tile("Serving cost", money(an_hour, costs.currency), "/ h", below)


@dataclass(frozen=True, slots=True)
class FleetFinding:
    """Problem in the fleet, of one service or of none; findings with an equal *same* are one card with its services."""

    severity: int
    weight: float
    build: Callable[[], Component]
    row: ServiceRow | None = None
    same: Callable[[], tuple[str, ...]] = tuple


def findings(context: Context, rows: list[ServiceRow]) -> Component:
    last = max((row.seen.last_seen for row in rows), default=context.view.end)
    all_findings = [finding for finding in (_of_collector(context, rows),) if finding is not None]
    for row in rows:
        of_row = (_of_slo(row), _of_incident(row), _of_release(row), _of_silence(row, last), _of_tail(row))
        all_findings += [finding for finding in of_row if finding is not None]
    if not all_findings:
        return _no_findings(rows)
    alike: dict[tuple[int, tuple[str, ...]], list[FleetFinding]] = {}
    all_findings.sort(key=lambda finding: (finding.severity, -finding.weight))
    # The reason of an objective takes queries of its own, so those of a whole fleet are not compared.
    for finding in all_findings[: _MOST + _MOST_MORE]:
        alike.setdefault((finding.severity, finding.same() or (str(id(finding)),)), []).append(finding)
    groups, left = list(alike.values()), max(0, len(all_findings) - _MOST - _MOST_MORE)
    cards = html.Div([_one_card(group) for group in groups[:_MOST]], className="finds")
    rest = groups[_MOST:]
    if not rest and not left:
        return cards
    more = html.Div([_one_card(similar) for similar in rest], className="finds")
    foot = html.P(f"and {left} more: see the table of all services below", className="foot") if left else None
    return html.Div([cards, html.Details([html.Summary(f"+{len(rest) + left} more", className="link"), more, foot])])


def _one_card(alike: list[FleetFinding]) -> Component:
    first, rows = alike[0], [finding.row for finding in alike[1:] if finding.row is not None]
    if not rows:
        return first.build()
    links = [html.Li(link(row.service, href=row.context.view.link(service_path(row.service)))) for row in rows]
    summary = html.Summary(f"The same in {several(len(rows), 'more service')}", className="link")
    return html.Div([first.build(), html.Details([summary, html.Ul(links)])], className="same")


def _no_findings(rows: list[ServiceRow]) -> Component:
    states = [row.slo.state for row in rows if row.slo is not None]
    promised, others = len(states), ", ".join(state_counts(states))
    if not promised:
        return html.Div([dot("healthy"), "No regression found."], className="quiet")
    if others:
        text = f"{states.count('healthy')} of {promised} services with an objective meet it; {others}."
        return html.Div([dot(most_urgent(states)), text], className="quiet")
    who = "The service with an objective meets" if promised == 1 else f"All {promised} services with an objective meet"
    all_of_them = f"All {promised} services meet" if promised == len(rows) > 1 else who
    inside = "it" if promised == 1 else "their objectives"
    return html.Div([dot("healthy"), f"{all_of_them} {inside}."], className="quiet")


def _of_collector(context: Context, rows: list[ServiceRow]) -> FleetFinding | None:
    """Return one finding for all stale objectives, because they have the same cause and fix."""
    stale = [row.slo for row in rows if row.slo is not None and row.slo.state == "stale"]
    return FleetFinding(0, float("inf"), lambda: _collector(context, stale[0], len(stale))) if stale else None


def _collector(context: Context, status: SloStatus, number: int) -> Component:
    text = f"The collector has not ingested or aggregated data {state_note(status, context.view)}. Until the collector works again, no incident is opened or resolved."
    title = "No SLO is evaluated: the collector is not working"
    about = f"{several(number, 'service')} with an objective"
    href = context.view.link("/collectors")
    return _card(pill("Stale", "stale"), about, title, text, href=href, then="See the collectors")


def _of_release(row: ServiceRow) -> FleetFinding | None:
    release = row.release
    if release is None:
        return None
    ratio, growth = release.comparison.verdict.ratio or 1.0, release.comparison.growth
    same = "release", release.comparison.pair.b_name, growth[0].stage if growth else ""
    return FleetFinding(1, ratio, lambda: _release(row, release, ratio), row, lambda: same)


def _release(row: ServiceRow, release: Release, ratio: float) -> Component:
    comparison, pair = release.comparison, release.comparison.pair
    causes = [
        f"{label(growth.stage)} explains {portion(growth.share)} of the increase" for growth in comparison.growth[:1]
    ]
    causes += [
        f"{label(growth.stage)} {percent(growth.share)}" for growth in comparison.growth[1:2] if growth.share > _NAMED
    ]
    rose = f"rose {percent(ratio - 1)}" if ratio < 10 else f"rose to {factor(ratio)}"  # noqa: PLR2004 - tenfold
    how = "doubled" if 1.9 < ratio < 2.15 else rose  # noqa: PLR2004 - wording of a common ratio
    from_to = f"{duration(comparison.verdict.a_value)} → {duration(comparison.verdict.b_value)}"
    title = f"{percentile(comparison.quantile)} {how} from {short_name(pair.a_name)} to {short_name(pair.b_name)}: {from_to}"
    about = f"{row.service} · {span(row.context.at - release.since)} ago"
    text = ", ".join(causes) + "." if causes else "No single stage explains it."
    badge, then = pill("Regression", "bad"), "Compare the versions"
    return _card(badge, about, title, text, href=release.href, then=then)


def _of_slo(row: ServiceRow) -> FleetFinding | None:
    status = row.slo
    if status is None or status.state not in {"burning", "at_risk"}:
        return None

    def same() -> tuple[str, ...]:
        return "slo", status.slo.kind, next(filter(None, blamed_cause(row.context, status.slo)), "")

    return FleetFinding(
        0 if status.state == "burning" else 2, status.burn_1h or 0.0, lambda: _slo(row, status), row, same
    )


def _slo(row: ServiceRow, status: SloStatus) -> Component:
    stage, cause = blamed_cause(row.context, status.slo)
    attained = f"{attained_words(status)}." if cause else ""
    badge = pill("SLO", "bad" if status.state == "burning" else "warn")
    href = row.context.view.link(slo_path(status.slo.name))
    title, text = _budget_title(status), f"{cause}. {attained}" if cause else f"{status.slo.in_words()}."
    if cause and (status.slo.stage is None or not stage) and cause != NO_CAUSE:
        # The cause is what a reader asks for first.
        title, text = f"{cause}.", f"{title}. {attained}"
    about = f"{row.service} · {_time_words(row.context)}"
    then = "See what spends the budget"
    return _card(badge, about, title, text, href=href, then=then)


def _of_incident(row: ServiceRow) -> FleetFinding | None:
    versions = {row.release.comparison.pair.b_name} if row.release else set[str]()
    objectives = {status.slo.name for status in row.slos if status.state in {"burning", "at_risk", "maintenance"}}
    others = [
        incident for incident in row.incidents if incident.name not in objectives and incident.version not in versions
    ]
    incident = min(others, key=lambda incident: incident.severity != "page", default=None)
    if incident is None:
        return None
    page = incident.severity == "page"
    return FleetFinding(
        0 if page else 2,
        0.0,
        lambda: _incident(row, incident),
        row,
        lambda: ("incident", incident.story or incident.id),
    )


def _incident(row: ServiceRow, incident: Incident) -> Component:
    badge = pill("Incident", "bad" if incident.severity == "page" else "warn")
    about = f"{row.service} · since {clock_or_date(incident.since, row.context.view)}"
    href = row.context.view.link(incident_page(incident.id))
    text = incident.impact or incident.worst
    return _card(badge, about, incident.headline, text, href=href, then="Open the incident")


def _time_words(context: Context) -> str:
    past = context.view.past_end
    return "now" if past is None else f"at {clock_or_date(past, context.view)}"


def _budget_title(status: SloStatus) -> str:
    if status.budget_left is None or status.budget_left > 0:
        gone = f", budget spent in {span(status.exhausted_in)}" if status.exhausted_in else ""
        return f"Burning {burn_words(status)}{gone}"
    share, word = budget_left_words(status.budget_left)
    over = f"{word} {share}" if word == "spent" else f"overspent by {share}" if status.budget_left else "spent"
    return f"Error budget {over}" + (f", burning {burn_words(status)}" if (status.burn_1h or 0) >= 1 else "")


def _of_silence(row: ServiceRow, last: datetime) -> FleetFinding | None:
    seen = row.seen
    silence = last - seen.last_seen
    missed = missed_requests(silence, seen.last_seen - seen.first_seen, row.now.requests)
    if not row.context.view.live or missed is None:
        return None
    return FleetFinding(3, missed, lambda: _silence(row, silence), row, lambda: ("silence",))


def _silence(row: ServiceRow, silence: timedelta) -> Component:
    local = row.seen.last_seen.astimezone(row.context.view.zone)
    title = f"No request for {span(silence)}"
    text = f"The last request came at {local:%H:%M:%S}; other services still send data. The process or its agent may be down."
    href = row.context.view.link(service_path(row.service))
    badge, about = pill("Silent", "warn"), f"{row.service} · since {local:%H:%M}"
    return _card(badge, about, title, text, href=href, then="See its last requests")


def _of_tail(row: ServiceRow) -> FleetFinding | None:
    stage, p50, p99 = row.now.tail_wait, row.now.p50, row.now.p99
    if stage is None or not p50 or not p99:
        return None
    return FleetFinding(4, p99 / p50, lambda: _tail(row, stage), row, lambda: ("tail", stage))


def _tail(row: ServiceRow, stage: str) -> Component:
    now, source = row.now, row.context.source
    p50, p99 = now.p50 or 0.0, now.p99 or 0.0
    title = f"p99 is {factor(p99 / p50)} p50: {duration(p50)} → {duration(p99)}"
    text = f"{label(stage)} is {percent(share_of(now.tail_stages, stage))} of p99 and {percent(share_of(now.median_stages, stage))} of p50."
    if stage == "load":
        loads = source.cached(source.read.stage_latency, row.context.selection).get(stage)
        median = loads.quantile(0.5) if loads else None
        if loads and median:
            paid = percent(loads.count / now.requests, 2)
            title = f"{paid} of requests include a {duration(median.value)} cold start"
            text += " Keep a replica warm."
    if stage == "dependency":
        text += f" {called_sentence(row.context, 0.99)}"
    href = row.context.view.link(service_path(row.service), p="99")
    badge, about = pill("Tail", "warn"), f"{row.service} · in this window"
    return _card(badge, about, title, text, href=href, then="See its stages")


def _card(badge: Component, about: str, title: str, text: str, *, href: str, then: str) -> Component:
    content: list[Node] = [
        html.Div([badge, html.Span(about)], className="m"),
        html.Div(title, className="t"),
        html.Div(text, className="x"),
        html.Div(f"{then} →", className="n"),
    ]
    edge = str(getattr(badge, "className", "")).replace("pill", "g")
    return link([html.Span(className=edge), html.Div(content)], href=href, className="ins")
