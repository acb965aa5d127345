"""What is wrong in the fleet, in sentences with their cause: the three gravest, the others behind "more"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from dash import html
from dash.development.base_component import Component

from ...alerts.evaluation.slo_status import SloStatus
from ...alerts.reader import Incident
from ...core.stages import BY_KEY, label
from ..components import Node, dot, link, pill
from ..design_tokens import hue
from ..figures.budget import left_parts
from ..format import duration, percent, percentile, portion, several, span, target, times
from ..view import incident_page, service_path, slo_path
from .bad_requests import blamed_stage
from .compare_words import short_name
from .fleet import Row
from .page import Context
from .regressions import Release
from .slo_status_text import counted, moment, note, worst

_MOST = 3
# Behind "more" there are so many at most: each costs a few questions.
_MOST_MORE = 9
# A second cause is worth a word from this share of the growth on.
_NAMED = 0.1
# A tail is one when a stage that only waits is most of p99, hardly any of p50, and makes p99 many times as long.
_TAIL_SHARE, _USUAL_SHARE, _TAIL_RATIO = 0.4, 0.15, 4.0
# Silence is told when it is this long, and so many requests would have come meanwhile: fewer may be chance.
_SILENT, _MISSED = timedelta(minutes=5), 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Args:
        severity: The smallest is the gravest.
        weight: Among equals the largest comes first.
        build: Makes its card; only the gravest are made.
    """

    severity: int
    weight: float
    build: Callable[[], Component]


def findings(context: Context, rows: list[Row]) -> Component:
    """Return cards of the gravest, or one line that nothing is wrong."""
    last = max((row.seen.last_seen for row in rows), default=context.view.end)
    found = [each for each in (_of_collector(context, rows),) if each is not None]
    for row in rows:
        own = (_of_slo(row), _of_incident(row), _of_release(row), _of_silence(row, last), _of_tail(row))
        found += [each for each in own if each is not None]
    if not found:
        return _quiet(rows)
    found.sort(key=lambda each: (each.severity, -each.weight))
    cards = html.Div([each.build() for each in found[:_MOST]], className="finds")
    rest = found[_MOST : _MOST + _MOST_MORE]
    if not rest:
        return cards
    more = html.Div([each.build() for each in rest], className="finds")
    left = len(found) - _MOST - len(rest)
    foot = html.P(f"and {left} more: the table below has all services", className="foot") if left else None
    return html.Div([cards, html.Details([html.Summary(f"+{len(found) - _MOST} more", className="link"), more, foot])])


def _quiet(rows: list[Row]) -> Component:
    states = [row.slo.state for row in rows if row.slo is not None]
    promised, others = len(states), ", ".join(counted(states))
    if not promised:
        return html.Div([dot("healthy"), "No regression found."], className="quiet")
    if others:
        said = f"{states.count('healthy')} of {promised} services with an objective are inside it, {others}."
        return html.Div([dot(worst(states)), said], className="quiet")
    who = "The service with an objective is" if promised == 1 else f"All {promised} services with an objective are"
    all_of_them = f"All {promised} services are" if promised == len(rows) > 1 else who
    inside = "it" if promised == 1 else "their objectives"
    return html.Div([dot("healthy"), f"{all_of_them} inside {inside}."], className="quiet")


def _of_collector(context: Context, rows: list[Row]) -> Finding | None:
    """Find that nothing can be judged: it is the same for all objectives, and so is the cure."""
    stale = [row.slo for row in rows if row.slo is not None and row.slo.state == "stale"]
    return Finding(0, float("inf"), lambda: _collector(context, stale[0], len(stale))) if stale else None


def _collector(context: Context, found: SloStatus, number: int) -> Component:
    text = f"The collector has neither taken in nor rolled up anything {note(found, context.view)}. Until it works again no incident is opened or resolved."
    title = "Nobody is watched: the collector stands still"
    about = f"{several(number, 'service')} with an objective"
    href = context.view.link("/settings")
    return _card(pill("Stale", "stale"), about, title, text, stage="overhead", href=href)


def _of_release(row: Row) -> Finding | None:
    release = row.release
    if release is None:
        return None
    ratio = release.comparison.verdict.ratio or 1.0
    return Finding(1, ratio, lambda: _release(row, release, ratio))


def _release(row: Row, release: Release, ratio: float) -> Component:
    found, pair = release.comparison, release.comparison.pair
    blamed = found.growth[0].stage if found.growth else "overhead"
    causes = [f"{label(each.stage)} explains {portion(each.share)} of it" for each in found.growth[:1]]
    causes += [f"{label(each.stage)} {percent(each.share)}" for each in found.growth[1:2] if each.share > _NAMED]
    how = "doubled" if 1.9 < ratio < 2.15 else f"rose {percent(ratio - 1)}" if ratio < 10 else f"rose {ratio:.0f}-fold"  # noqa: PLR2004 - as people say it
    from_to = f"{duration(found.verdict.a_value)} → {duration(found.verdict.b_value)}"
    title = f"{percentile(found.quantile)} {how} from {short_name(pair.a_name)} to {short_name(pair.b_name)}: {from_to}"
    about = f"{row.service} · {span(row.context.at - release.since)} ago"
    text = ", ".join(causes) + "." if causes else "No single stage explains it."
    return _card(pill("Regression", "bad"), about, title, text, stage=blamed, href=release.href)


def _of_slo(row: Row) -> Finding | None:
    found = row.slo
    if found is None or found.state not in {"burning", "at_risk"}:
        return None
    return Finding(0 if found.state == "burning" else 2, found.burn_1h, lambda: _slo(row, found))


def _slo(row: Row, found: SloStatus) -> Component:
    stage, said = blamed_stage(row.context, found.slo)
    attained = f"{percent(found.attained, 2)} inside, target {target(found.slo.objective)}." if said else ""
    badge = pill("SLO", "bad" if found.state == "burning" else "warn")
    href = row.context.view.link(slo_path(found.slo.name))
    shown = f"{said}. {attained}" if said else f"{found.slo.in_words()}."
    about = f"{row.service} · {_when(row.context)}"
    return _card(badge, about, _spent(found), shown, stage=stage or "overhead", href=href)


def _of_incident(row: Row) -> Finding | None:
    """Find an open incident that the cards of objectives and of releases do not speak of."""
    versions = {row.release.comparison.pair.b_name} if row.release else set[str]()
    objectives = {each.slo.name for each in row.slos if each.state in {"burning", "at_risk", "maintenance"}}
    others = [each for each in row.incidents if each.name not in objectives and each.version not in versions]
    found = min(others, key=lambda each: each.severity != "page", default=None)
    if found is None:
        return None
    page = found.severity == "page"
    return Finding(0 if page else 2, 0.0, lambda: _incident(row, found))


def _incident(row: Row, found: Incident) -> Component:
    badge = pill("Incident", "bad" if found.severity == "page" else "warn")
    about = f"{row.service} · since {moment(found.since, row.context.view)}"
    stage = found.stages[0].stage if found.stages else "overhead"
    href = row.context.view.link(incident_page(found.id))
    return _card(badge, about, found.headline, found.impact or found.worst, stage=stage, href=href)


def _when(context: Context) -> str:
    past = context.view.past_end
    return "now" if past is None else f"at {moment(past, context.view)}"


def _spent(found: SloStatus) -> str:
    if found.budget_left is None or found.budget_left > 0:
        gone = f", budget gone in {span(found.exhausted_in)}" if found.exhausted_in else ""
        return f"Burning {times(found.burn_1h)}{gone}"
    share, word = left_parts(found.budget_left)
    over = f"{word} {share}" if word == "spent" else f"overspent by {share}" if found.budget_left else "spent"
    return f"Error budget {over}" + (f", burning {times(found.burn_1h)}" if found.burn_1h >= 1 else "")


def _of_silence(row: Row, last: datetime) -> Finding | None:
    """Find a service that sends nothing any more while others do, *last* at that time."""
    seen = row.seen
    silence = last - seen.last_seen
    active = max((seen.last_seen - seen.first_seen).total_seconds(), 1.0)
    missed = row.now.requests / active * silence.total_seconds()
    if not row.context.view.live or silence < _SILENT or missed < _MISSED:
        return None
    return Finding(3, missed, lambda: _silence(row, silence))


def _silence(row: Row, silence: timedelta) -> Component:
    local = row.seen.last_seen.astimezone(row.context.view.zone)
    title = f"No request for {span(silence)}"
    text = f"The last one came at {local:%H:%M:%S}; other services send on. Its process or its agent may be down."
    href = row.context.view.link(service_path(row.service))
    return _card(
        pill("Silent", "warn"), f"{row.service} · since {local:%H:%M}", title, text, stage="overhead", href=href
    )


def _of_tail(row: Row) -> Finding | None:
    """Find a service whose p99 is long because some requests wait for what others do not."""
    now = row.now
    if not now.tail_stages or not now.p50 or now.p99 is None or now.p99 < _TAIL_RATIO * now.p50:
        return None
    stage = max(now.tail_stages, key=lambda key: now.tail_stages[key])
    waits = stage in BY_KEY and BY_KEY[stage].waiting
    if not waits or _share(now.tail_stages, stage) < _TAIL_SHARE or _share(now.median_stages, stage) > _USUAL_SHARE:
        return None
    return Finding(4, now.p99 / now.p50, lambda: _tail(row, stage))


def _tail(row: Row, stage: str) -> Component:
    now, source = row.now, row.context.source
    p50, p99 = now.p50 or 0.0, now.p99 or 0.0
    title = f"p99 is {times(p99 / p50)} p50: {duration(p50)} → {duration(p99)}"
    text = f"{label(stage)} is {percent(_share(now.tail_stages, stage))} of p99 and {percent(_share(now.median_stages, stage))} of p50."
    if stage == "load":
        loads = source.ask(source.read.stage_latency, row.context.selection).get(stage)
        median = loads.quantile(0.5) if loads else None
        if loads and median:
            paid = percent(loads.count / now.requests, 2)
            title = f"{paid} of requests pay a {duration(median.value)} cold start"
            text += " Keep a replica warm."
    href = row.context.view.link(service_path(row.service), p="99")
    return _card(pill("Tail", "warn"), f"{row.service} · in this window", title, text, stage=stage, href=href)


def _share(stages: Mapping[str, float], stage: str) -> float:
    return stages.get(stage, 0.0) / (sum(stages.values()) or 1.0)


def _card(badge: Component, about: str, title: str, text: str, *, stage: str, href: str) -> Component:
    said: list[Node] = [
        html.Div([badge, html.Span(about)], className="m"),
        html.Div(title, className="t"),
        html.Div(text, className="x"),
    ]
    return link([html.Span(className=f"g st-{hue(stage)}"), html.Div(said)], href=href, className="ins")
